//! Messages of a workload stream: all workloads first, then each change.
//!
//! A manager that supports `WorkloadChunkedStream` receives the initial sync in chunks of limited size. An earlier
//! manager receives it in one message, whose size it limits.

use std::sync::Arc;

use futures::{Stream, stream};
use outrigger_api::workload_wire::{self, CHUNK_BYTES, CHUNK_WORKLOADS};
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::HashMap;
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_proto::v1::{
    AnnotationKeys, WorkloadStreamRequest, WorkloadSync, WorkloadSyncBegin, WorkloadSyncChunk,
    WorkloadSyncEnd, WorkloadUpdate, workload_stream_request,
};
use prost::Message as _;

use crate::store::{self, Started, WorkloadStore};

/// Progress of a stream, with its generation.
enum Progress {
    New,
    Syncing(u64, Box<Chunks>),
    Synced(u64),
}

/// Returns the messages of a stream, whose initial sync is sent in chunks if `chunked` is set. Messages are created when they can
/// be sent, so the set of changes waits and not a queue of messages.
pub(crate) fn messages(store: Arc<WorkloadStore>, chunked: bool) -> impl Stream<Item = Message> + Send {
    stream::unfold(Progress::New, move |progress| {
        let store = store.clone();
        async move {
            Some(match progress {
                Progress::New => {
                    let Started { mut workloads, too_large, keys, generation } = store.start_stream();
                    if chunked {
                        let count = i64::try_from(workloads.len()).unwrap_or_default();
                        let begin = WorkloadSyncBegin { workloads: count };
                        let chunks = Chunks { left: workloads.into_iter(), next: None, too_large, keys };
                        (Message::WorkloadSyncBegin(begin), Progress::Syncing(generation, Box::new(chunks)))
                    } else {
                        // It would take them for workloads without labels.
                        workloads.retain(|workload| !too_large.contains_key(&workload.id));
                        let mut workload_updates: Vec<_> =
                            workloads.iter().map(|w| workload_wire::update(w)).collect();
                        if let Some(first) = workload_updates.first_mut() {
                            first.annotation_keys = keys;
                        }
                        let sync = WorkloadSync { workload_updates };
                        (Message::WorkloadSync(sync), Progress::Synced(generation))
                    }
                }
                Progress::Syncing(generation, mut chunks) => match chunks.next() {
                    Some(chunk) => (Message::WorkloadSyncChunk(chunk), Progress::Syncing(generation, chunks)),
                    None => (Message::WorkloadSyncEnd(WorkloadSyncEnd {}), Progress::Synced(generation)),
                },
                Progress::Synced(generation) => {
                    store.sync_complete(generation);
                    (store.next_change(generation).await?, Progress::Synced(generation))
                }
            })
        }
    })
}

/// Converts a message for a manager without chunks; returns `None` for messages that it doesn't support.
pub(crate) fn unchunked(message: Message) -> Option<WorkloadStreamRequest> {
    let message = match message {
        // What it has of this workload stays.
        Message::WorkloadUpdate(update) if is_omitted(&update) => return None,
        Message::WorkloadUpdate(update) => workload_stream_request::Message::WorkloadUpdate(update),
        Message::WorkloadDelete(delete) => workload_stream_request::Message::WorkloadDelete(delete),
        Message::WorkloadSync(sync) => workload_stream_request::Message::WorkloadSync(sync),
        Message::WorkloadSyncBegin(_) | Message::WorkloadSyncChunk(_) | Message::WorkloadSyncEnd(_) => {
            return None;
        }
    };
    Some(WorkloadStreamRequest { message: Some(message) })
}

/// Whether little is sent of a workload, because it is too large.
fn is_omitted(update: &WorkloadUpdate) -> bool {
    update.workload_state.as_ref().is_some_and(|state| state.omitted_bytes > 0)
}

/// Iterator over all workloads in chunks.
struct Chunks {
    left: std::vec::IntoIter<Arc<Workload>>,
    /// The workload that didn't fit into the previous chunk.
    next: Option<WorkloadUpdate>,
    /// Those of which little is sent.
    too_large: HashMap<WorkloadId, usize>,
    /// What the first one says of annotations.
    keys: Option<AnnotationKeys>,
}

impl Iterator for Chunks {
    type Item = WorkloadSyncChunk;

    fn next(&mut self) -> Option<WorkloadSyncChunk> {
        let mut workload_updates = Vec::new();
        let mut bytes = 0;
        while let Some(update) = self.update() {
            let size = update.encoded_len();
            // The field also has a tag and a length.
            let size = size + 1 + prost::length_delimiter_len(size);
            if !workload_updates.is_empty() && bytes + size > CHUNK_BYTES {
                self.next = Some(update);
                break;
            }
            bytes += size;
            workload_updates.push(update);
            if workload_updates.len() == CHUNK_WORKLOADS {
                break;
            }
        }
        (!workload_updates.is_empty()).then_some(WorkloadSyncChunk { workload_updates })
    }
}

impl Chunks {
    fn update(&mut self) -> Option<WorkloadUpdate> {
        self.next.take().or_else(|| {
            let update = store::message(&*self.left.next()?, &self.too_large);
            Some(WorkloadUpdate { annotation_keys: self.keys.take(), ..update })
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use outrigger_runtime::pod::Pod;
    use outrigger_runtime::watch::Event;
    use serde_json::json;

    use super::*;

    /// Returns a store of Pods whose labels have these sizes.
    fn store(sizes: &[usize]) -> Arc<WorkloadStore> {
        let store = Arc::new(WorkloadStore::default());
        let mut sink = store.pods(None);
        for (i, size) in sizes.iter().enumerate() {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"uid": format!("u{i}"), "name": format!("p{i}"), "namespace": "n", "labels": {"l": "x".repeat(*size)}},
                "status": {"phase": "Running"}}))
            .unwrap();
            sink(Event::Applied(pod));
        }
        store
    }

    fn ids(updates: &[WorkloadUpdate]) -> impl Iterator<Item = String> {
        updates.iter().filter_map(|update| Some(update.workload_metadata.as_ref()?.id.clone()))
    }

    #[tokio::test]
    async fn a_sync_in_chunks_has_each_workload_once() {
        let sizes: Vec<usize> = (0..2500).map(|_| 10).chain([350 << 10; 12]).collect();
        let store = store(&sizes);
        let mut messages = Box::pin(messages(store.clone(), true));
        let Some(Message::WorkloadSyncBegin(begin)) = messages.next().await else { panic!("no begin") };
        assert_eq!(begin.workloads, 2512);
        let mut sent = Vec::new();
        let mut chunks = 0;
        loop {
            match messages.next().await.unwrap() {
                Message::WorkloadSyncChunk(chunk) => {
                    let updates = &chunk.workload_updates;
                    assert!((1..=CHUNK_WORKLOADS).contains(&updates.len()));
                    assert!(updates.len() == 1 || chunk.encoded_len() <= CHUNK_BYTES);
                    sent.extend(ids(updates));
                    chunks += 1;
                }
                Message::WorkloadSyncEnd(_) => break,
                other => panic!("{other:?}"),
            }
        }
        sent.sort();
        sent.dedup();
        assert_eq!(sent.len(), 2512);
        assert!((6..16).contains(&chunks), "{chunks}");
        // Changes follow.
        let ended: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u7", "name": "p7", "namespace": "n"}, "status": {"phase": "Succeeded"}}))
        .unwrap();
        store.pods(None)(Event::Applied(ended));
        assert!(matches!(messages.next().await, Some(Message::WorkloadDelete(_))));
    }

    #[tokio::test]
    async fn an_earlier_manager_receives_one_message_and_no_chunks() {
        let store = store(&[10; 3]);
        let first = messages(store.clone(), false).boxed().next().await.unwrap();
        let Some(workload_stream_request::Message::WorkloadSync(sync)) = unchunked(first).unwrap().message
        else {
            panic!("no sync")
        };
        assert_eq!(ids(&sync.workload_updates).count(), 3);
        for message in messages(store, true).take(3).collect::<Vec<_>>().await {
            assert!(unchunked(message).is_none());
        }
    }

    #[tokio::test]
    async fn a_sync_without_workloads_has_no_chunks() {
        let sent: Vec<_> = messages(store(&[]), true).take(2).collect().await;
        assert!(matches!(sent[..], [Message::WorkloadSyncBegin(_), Message::WorkloadSyncEnd(_)]), "{sent:?}");
    }
}
