//! Workload streams on which a test itself sends, in an agent's place.

use std::collections::HashMap;

use outrigger_agent::connect::{Address, connect};
use outrigger_api::workload_wire::CHUNK_WORKLOADS;
use outrigger_proto::v1::workload_chunked_stream_request::Message as Chunked;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{
    WorkloadChunkedStreamRequest, WorkloadMetadata, WorkloadState, WorkloadStreamRequest, WorkloadSync,
    WorkloadSyncBegin, WorkloadSyncChunk, WorkloadSyncEnd, WorkloadUpdate, workload_state,
};
use outrigger_runtime::tls::ClientTls;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// The sender ends the stream when it is dropped; the task has what the manager said at its end.
pub type Opened = (mpsc::Sender<Message>, JoinHandle<Result<(), Status>>);

/// The message that these are all workloads.
pub fn sync(workloads: impl IntoIterator<Item = WorkloadUpdate>) -> Message {
    Message::WorkloadSync(WorkloadSync { workload_updates: workloads.into_iter().collect() })
}

/// The messages that these are all workloads, in chunks as an agent sends them.
pub fn chunked_sync(workloads: &[WorkloadUpdate]) -> Vec<Chunked> {
    let count = i64::try_from(workloads.len()).expect("a count");
    let chunk = |updates: &[WorkloadUpdate]| WorkloadSyncChunk { workload_updates: updates.to_vec() };
    let chunks = workloads.chunks(CHUNK_WORKLOADS).map(|updates| Chunked::WorkloadSyncChunk(chunk(updates)));
    std::iter::once(Chunked::WorkloadSyncBegin(WorkloadSyncBegin { workloads: count }))
        .chain(chunks)
        .chain([Chunked::WorkloadSyncEnd(WorkloadSyncEnd {})])
        .collect()
}

/// A call in a tenant's name.
pub fn about<T>(tenant: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("tenant-id", tenant.parse().expect("an id"));
    request
}

/// A channel of gRPC to this port.
pub async fn channel(tls: &ClientTls, port: u16) -> anyhow::Result<Channel> {
    let address: Address = format!("https://127.0.0.1:{port}").parse().map_err(anyhow::Error::msg)?;
    connect(&address, tls, None).await
}

/// A running Pod labeled `app: web` on a node.
pub fn update(id: &str, node: &str) -> WorkloadUpdate {
    let labels = workload_state::ExtraData { data: HashMap::from([("app".into(), "web".into())]) };
    WorkloadUpdate {
        workload_metadata: Some(WorkloadMetadata {
            id: id.into(),
            orchestrator: 1,
            resource_type: "v1/Pod".into(),
            resource_namespace: "default".into(),
            resource_name: id.into(),
        }),
        workload_state: Some(WorkloadState {
            node_name: node.into(),
            ready: true,
            extra: HashMap::from([("labels".into(), labels)]),
            ..Default::default()
        }),
        annotation_keys: None,
    }
}

/// A Pod of a Deployment, with 5 labels and 5 annotations. `version` is in one of its labels.
pub fn pod_of_deployment(tenant: usize, i: usize, version: usize) -> WorkloadUpdate {
    let data = |entries: [(&str, String); 5]| workload_state::ExtraData {
        data: entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    };
    let hash = format!("{:010x}", (i / 10) * 0x9e37_79b9);
    let labels = data([
        ("app.kubernetes.io/name", format!("shop-{}", i / 10)),
        ("app.kubernetes.io/instance", "shop".into()),
        ("pod-template-hash", hash.clone()),
        ("tier", "frontend".into()),
        ("version", format!("v1.2.{version}")),
    ]);
    let annotations = data([
        ("kubectl.kubernetes.io/restartedAt", "2024-05-01T10:00:00Z".into()),
        ("prometheus.io/scrape", "true".into()),
        ("prometheus.io/port", "9090".into()),
        ("cni.projectcalico.org/podIP", format!("10.{}.{}.{}/32", i >> 16, i >> 8 & 255, i & 255)),
        ("kubernetes.io/config.source", "api".into()),
    ]);
    WorkloadUpdate {
        workload_metadata: Some(WorkloadMetadata {
            id: format!("{tenant:08x}-a565-4ed0-aac2-{i:012x}"),
            orchestrator: 1,
            resource_type: "v1/Pod".into(),
            resource_namespace: format!("team-{}", i % 500),
            resource_name: format!("shop-{}-{hash}-{i:05}", i / 10),
        }),
        workload_state: Some(WorkloadState {
            node_name: format!("node-{}", i % 1000),
            ready: true,
            extra: HashMap::from([("labels".into(), labels), ("annotations".into(), annotations)]),
            ..Default::default()
        }),
        annotation_keys: None,
    }
}

/// Sets one label of a workload that has some.
pub fn set_label(update: &mut WorkloadUpdate, key: &str, value: &str) {
    let state = update.workload_state.as_mut().expect("a state");
    let labels = state.extra.get_mut("labels").expect("labels");
    labels.data.insert(key.to_owned(), value.to_owned());
}

/// The sender of a stream on which syncs may come in chunks.
pub type OpenedChunked = (mpsc::Sender<Chunked>, JoinHandle<Result<(), Status>>);

/// Opens a stream for syncs in chunks on a manager.
pub async fn chunked_stream(port: u16, tls: &ClientTls, tenant: &str) -> anyhow::Result<OpenedChunked> {
    let mut client = WorkloadServiceClient::new(channel(tls, port).await?);
    let (sender, receiver) = mpsc::channel::<Chunked>(16);
    let messages = tokio_stream::StreamExt::map(ReceiverStream::new(receiver), |message| {
        WorkloadChunkedStreamRequest { message: Some(message) }
    });
    let request = about(tenant, messages);
    let call = tokio::spawn(async move { client.workload_chunked_stream(request).await.map(drop) });
    Ok((sender, call))
}

/// Opens a stream on a manager, with these values of `tenant-id`.
pub async fn stream(port: u16, tls: &ClientTls, tenant: &[&[u8]]) -> anyhow::Result<Opened> {
    let mut client = WorkloadServiceClient::new(channel(tls, port).await?);
    let (sender, receiver) = mpsc::channel::<Message>(16);
    let messages = tokio_stream::StreamExt::map(ReceiverStream::new(receiver), |message| {
        WorkloadStreamRequest { message: Some(message) }
    });
    let mut request = Request::new(messages);
    for value in tenant {
        request.metadata_mut().append("tenant-id", tonic::metadata::MetadataValue::try_from(*value)?);
    }
    let call = tokio::spawn(async move { client.workload_stream(request).await.map(drop) });
    Ok((sender, call))
}
