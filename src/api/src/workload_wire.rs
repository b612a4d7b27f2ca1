//! Conversion of workloads between protobuf messages (`universe.workload.v1`) and the domain type.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outrigger_core::annotations::{MAX_STATED, Statement, is_key};
use outrigger_core::field::FieldError;
use outrigger_core::ids::WorkloadId;
use outrigger_core::text::quoted;
use outrigger_core::texts::Texts;
use outrigger_core::workload::POD;
use outrigger_core::workload::{DisruptionGroup, ITEM_BYTES, MAX_GROUPS, MAX_SIZE, Orchestrator, Workload};
use outrigger_proto::{raw, v1};
use prost::Message;
use prost::bytes::Bytes;

/// Maximum number of workloads in a chunk of a sync.
pub const CHUNK_WORKLOADS: usize = 1024;

/// Maximum size of a chunk of a sync in bytes. A chunk with a single workload may be larger.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Returns the workload's id from the metadata of a message.
///
/// # Errors
/// If the metadata or its id is missing or malformed, with the field's path in proto spelling.
pub fn workload_id(metadata: Option<&raw::WorkloadMetadata>) -> Result<WorkloadId, FieldError> {
    const ID: &str = "workload_metadata.id";
    let metadata = metadata.ok_or_else(|| FieldError::new("workload_metadata", "is missing"))?;
    WorkloadId::new(text(&metadata.id, ID)?).map_err(|e| FieldError::new(ID, e))
}

/// Converts a message to a workload. A missing state is the empty state: not bound, not ready, without labels.
///
/// # Errors
/// If a field is missing or malformed, or isn't supported, with its path in proto spelling.
pub fn workload(update: &raw::WorkloadUpdate) -> Result<Workload, FieldError> {
    let id = workload_id(update.workload_metadata.as_deref())?;
    let none = (raw::WorkloadMetadata::default(), raw::WorkloadState::default());
    let metadata = update.workload_metadata.as_deref().unwrap_or(&none.0);
    match v1::OrchestratorType::try_from(metadata.orchestrator) {
        Ok(v1::OrchestratorType::Kubernetes) => {}
        Ok(v1::OrchestratorType::Unspecified) => {
            return Err(FieldError::new(
                "workload_metadata.orchestrator",
                "is ORCHESTRATOR_TYPE_UNSPECIFIED; use ORCHESTRATOR_TYPE_KUBERNETES (1)",
            ));
        }
        Err(_) => {
            return Err(FieldError::new(
                "workload_metadata.orchestrator",
                format!("{} is unknown; use ORCHESTRATOR_TYPE_KUBERNETES (1)", metadata.orchestrator),
            ));
        }
    }
    let resource_type = text(&metadata.resource_type, "workload_metadata.resource_type")?;
    if resource_type != POD {
        return Err(FieldError::new(
            "workload_metadata.resource_type",
            format!("{:?} is not supported; use {POD:?}", quoted(resource_type)),
        ));
    }
    let state = update.workload_state.as_deref().unwrap_or(&none.1);
    let (mut labels, mut annotations, mut extra) = (Texts::default(), Texts::default(), BTreeMap::new());
    for entry in &state.extra {
        let data = entry.value.as_ref().map(|map| map.data.as_slice()).unwrap_or_default();
        let pairs = data.iter().map(|pair| Ok((text(&pair.key, EXTRA)?, text(&pair.value, EXTRA)?)));
        let map = Texts::new(pairs.collect::<Result<_, FieldError>>()?);
        match text(&entry.key, EXTRA)? {
            "labels" => labels = map,
            "annotations" => annotations = map,
            other => _ = extra.insert(other.to_owned(), map),
        }
    }
    let node_name = text(&state.node_name, "workload_state.node_name")?;
    Ok(Workload {
        id,
        orchestrator: Orchestrator::Kubernetes,
        resource_type: POD.into(),
        resource_namespace: text(&metadata.resource_namespace, "workload_metadata.resource_namespace")?
            .to_owned(),
        resource_name: text(&metadata.resource_name, "workload_metadata.resource_name")?.to_owned(),
        node_name: Some(node_name).filter(|name| !name.is_empty()).map(str::to_owned),
        ready: state.ready,
        gated: state.gated,
        labels,
        annotations,
        extra,
        groups: groups(&state.disruption_groups)?,
        withheld: withheld(&state.withheld_annotations)?,
        revision: state.revision,
    })
}

/// Maximum length of a group's id, in bytes.
pub const GROUP_ID: usize = 64;

fn groups(groups: &[raw::DisruptionGroup]) -> Result<Vec<DisruptionGroup>, FieldError> {
    const GROUPS: &str = "workload_state.disruption_groups";
    if groups.len() > MAX_GROUPS {
        let message = format!("are {}; at most {MAX_GROUPS} are accepted", groups.len());
        return Err(FieldError::new(GROUPS, message));
    }
    let group = |(i, group): (usize, &raw::DisruptionGroup)| {
        let path = || format!("{GROUPS}[{i}].id");
        let id = text(&group.id, &path())?;
        if id.is_empty() || id.len() > GROUP_ID {
            let message = format!("has {} bytes; use 1 to {GROUP_ID}", id.len());
            return Err(FieldError::new(path(), message));
        }
        Ok(DisruptionGroup { id: id.into(), desired_healthy: group.desired_healthy })
    };
    groups.iter().enumerate().map(group).collect()
}

fn withheld(keys: &[Bytes]) -> Result<Vec<Box<str>>, FieldError> {
    const WITHHELD: &str = "workload_state.withheld_annotations";
    within(keys, WITHHELD)?;
    keys.iter().map(|key| Ok(text(key, WITHHELD)?.into())).collect()
}

/// What the sender of this update says of annotations; `None` if it says nothing.
///
/// # Errors
/// If a key or a pattern is malformed, with its path in proto spelling.
pub fn statement(update: &raw::WorkloadUpdate) -> Result<Option<Statement>, FieldError> {
    const SENT: &str = "annotation_keys.sent";
    const WITHHELD: &str = "annotation_keys.withheld";
    let Some(keys) = &update.annotation_keys else { return Ok(None) };
    let raw::AnnotationKeys { sent, withheld } = &**keys;
    within(sent, SENT)?;
    within(withheld, WITHHELD)?;
    let pattern = |(i, pattern): (usize, &Bytes)| {
        let path = format!("{SENT}[{i}]");
        text(pattern, &path)?.parse().map_err(|error: String| FieldError::new(path, error))
    };
    let key = |(i, key): (usize, &Bytes)| {
        let path = format!("{WITHHELD}[{i}]");
        let key = text(key, &path)?;
        if !is_key(key) {
            return Err(FieldError::of_value(path, key, "is no key of an annotation; use example.com/key"));
        }
        Ok(key.to_owned())
    };
    let sent = sent.iter().enumerate().map(pattern).collect::<Result<Vec<_>, _>>()?;
    let withheld = withheld.iter().enumerate().map(key).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(Some(Statement::new(sent, withheld)))
}

/// Converts what is said of annotations to its message.
pub fn annotation_keys(statement: &Statement) -> v1::AnnotationKeys {
    let withheld = statement.withheld().map(str::to_owned);
    v1::AnnotationKeys { sent: statement.sent().collect(), withheld: withheld.collect() }
}

fn within(keys: &[Bytes], path: &str) -> Result<(), FieldError> {
    if keys.len() <= MAX_STATED {
        return Ok(());
    }
    Err(FieldError::new(path, format!("are {}; at most {MAX_STATED} are accepted", keys.len())))
}

const EXTRA: &str = "workload_state.extra";

fn text<'a>(bytes: &'a [u8], field: &str) -> Result<&'a str, FieldError> {
    std::str::from_utf8(bytes).map_err(|_| FieldError::new(field, "is not UTF-8"))
}

/// Converts a workload to an update message.
pub fn update(workload: &Workload) -> v1::WorkloadUpdate {
    let data = |map: &Texts| v1::workload_state::ExtraData {
        data: map.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
    };
    let mut extra: HashMap<String, v1::workload_state::ExtraData> =
        workload.extra.iter().map(|(name, map)| (name.clone(), data(map))).collect();
    extra.insert("labels".to_owned(), data(&workload.labels));
    extra.insert("annotations".to_owned(), data(&workload.annotations));
    v1::WorkloadUpdate {
        workload_metadata: Some(v1::WorkloadMetadata {
            id: workload.id.to_string(),
            orchestrator: v1::OrchestratorType::Kubernetes.into(),
            resource_type: workload.resource_type.to_string(),
            resource_namespace: workload.resource_namespace.clone(),
            resource_name: workload.resource_name.clone(),
        }),
        workload_state: Some(v1::WorkloadState {
            node_name: workload.node_name.clone().unwrap_or_default(),
            ready: workload.ready,
            extra,
            disruption_groups: workload.groups.iter().map(wire_group).collect(),
            withheld_annotations: workload.withheld.iter().map(|key| key.to_string()).collect(),
            omitted_bytes: 0,
            gated: workload.gated,
            revision: workload.revision,
        }),
        annotation_keys: None,
    }
}

fn wire_group(group: &DisruptionGroup) -> v1::DisruptionGroup {
    v1::DisruptionGroup { id: group.id.to_string(), desired_healthy: group.desired_healthy }
}

/// Returns the message that a workload exists of which nothing else is sent than where it runs, because it counts so much.
pub fn too_large(workload: &Workload, size: usize) -> v1::WorkloadUpdate {
    let mut update = update(workload);
    if let Some(state) = &mut update.workload_state {
        let (node_name, ready) = (std::mem::take(&mut state.node_name), state.ready);
        *state = v1::WorkloadState { node_name, ready, omitted_bytes: size as u64, ..Default::default() };
    }
    update
}

/// Returns how much a workload counts, if that is more than one may ([`MAX_SIZE`]).
pub fn excess(workload: &Workload) -> Option<usize> {
    let maps = || [&workload.labels, &workload.annotations].into_iter().chain(workload.extra.values());
    let others = workload.groups.len() + workload.withheld.len();
    let items = (maps().map(Texts::len).sum::<usize>() + others) * ITEM_BYTES;
    let texts = maps().flat_map(Texts::iter).map(|(key, value)| key.len() + value.len());
    let texts: usize = texts.chain(workload.withheld.iter().map(|key| key.len())).sum();
    // An item has far fewer than these bytes on the wire beside its texts, so nearly all workloads aren't encoded for this.
    if texts + 2 * items <= MAX_SIZE / 2 {
        return None;
    }
    let sent = raw::WorkloadUpdate::decode(update(workload).encode_to_vec().as_slice()).ok()?;
    Some(size(&sent)).filter(|size| *size > MAX_SIZE)
}

/// The size of a workload that counts: its bytes on the wire and [`ITEM_BYTES`] for each label, annotation, group and key of an annotation
/// that is withheld. What is said of annotations in general isn't kept with a workload. One of which the sender left out what is too large
/// counts that too.
pub fn size(update: &raw::WorkloadUpdate) -> usize {
    let omitted = update.workload_state.as_ref().map_or(0, |state| state.omitted_bytes);
    if omitted > 0 {
        return usize::try_from(omitted).unwrap_or(usize::MAX).max(MAX_SIZE + 1);
    }
    let extra = update.workload_state.iter().flat_map(|state| &state.extra);
    let items = extra.map(|entry| 1 + entry.value.as_ref().map_or(0, |map| map.data.len()));
    let groups = update.workload_state.as_ref().map_or(0, |state| state.disruption_groups.len());
    let withheld = update.workload_state.as_ref().map_or(0, |state| state.withheld_annotations.len());
    let general = update.annotation_keys.as_ref().map_or(0, Message::encoded_len);
    update.encoded_len() - general + (items.sum::<usize>() + groups + withheld) * ITEM_BYTES
}

/// Returns the message that a workload has been deleted.
pub fn delete(id: &WorkloadId) -> v1::WorkloadDelete {
    v1::WorkloadDelete {
        workload_metadata: Some(v1::WorkloadMetadata {
            id: id.to_string(),
            orchestrator: v1::OrchestratorType::Kubernetes.into(),
            resource_type: POD.to_owned(),
            ..Default::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn message() -> v1::WorkloadUpdate {
        v1::WorkloadUpdate {
            workload_metadata: Some(v1::WorkloadMetadata {
                id: "u-1".into(),
                orchestrator: 1,
                resource_type: "v1/Pod".into(),
                resource_namespace: "default".into(),
                resource_name: "nginx".into(),
            }),
            workload_state: Some(v1::WorkloadState {
                node_name: "host-a".into(),
                ready: true,
                extra: HashMap::from([
                    (
                        "labels".to_owned(),
                        v1::workload_state::ExtraData { data: HashMap::from([("a".into(), "b".into())]) },
                    ),
                    ("annotations".to_owned(), v1::workload_state::ExtraData::default()),
                ]),
                disruption_groups: vec![
                    v1::DisruptionGroup { id: "owner".into(), desired_healthy: None },
                    v1::DisruptionGroup { id: "budget".into(), desired_healthy: Some(0) },
                ],
                withheld_annotations: vec!["large".into()],
                omitted_bytes: 0,
                gated: true,
                revision: 7,
            }),
            annotation_keys: None,
        }
    }

    fn received(update: &v1::WorkloadUpdate) -> raw::WorkloadUpdate {
        raw::WorkloadUpdate::decode(update.encode_to_vec().as_slice()).unwrap()
    }

    #[test]
    fn conversion_is_reversible() {
        let workload = workload(&received(&message())).unwrap();
        assert_eq!(workload.node_name.as_deref(), Some("host-a"));
        assert_eq!(update(&workload), message());
    }

    #[test]
    fn errors_name_the_field() {
        let broken = |f: fn(&mut v1::WorkloadMetadata)| {
            let mut m = message();
            f(m.workload_metadata.as_mut().unwrap());
            workload(&received(&m)).unwrap_err().to_string()
        };
        assert_eq!(broken(|m| m.id.clear()), "workload_metadata.id: workload id is empty");
        assert!(broken(|m| m.orchestrator = 0).starts_with("workload_metadata.orchestrator: is ORCH"));
        assert!(broken(|m| m.orchestrator = 9).contains("9 is unknown"));
        assert!(broken(|m| m.resource_type = "v1/VM".into()).contains("\"v1/VM\" is not supported"));
        let groups = |ids: &[&str]| {
            let group = |id: &&str| v1::DisruptionGroup { id: (*id).to_owned(), desired_healthy: None };
            let mut m = message();
            m.workload_state.as_mut().unwrap().disruption_groups = ids.iter().map(group).collect();
            workload(&received(&m)).map(|w| w.groups.len()).map_err(|e| e.to_string())
        };
        assert_eq!(groups(&["a"; MAX_GROUPS]), Ok(MAX_GROUPS));
        let error = groups(&["a"; MAX_GROUPS + 1]).unwrap_err();
        assert_eq!(error, "workload_state.disruption_groups: are 9; at most 8 are accepted");
        let error = groups(&["a", ""]).unwrap_err();
        assert_eq!(error, "workload_state.disruption_groups[1].id: has 0 bytes; use 1 to 64");
        assert!(groups(&[&"a".repeat(64)]).is_ok() && groups(&[&"a".repeat(65)]).is_err());
        let none = raw::WorkloadUpdate::default();
        assert_eq!(workload(&none).unwrap_err().to_string(), "workload_metadata: is missing");
    }

    #[test]
    fn what_is_said_of_annotations_is_read_as_it_was_said() {
        let keys = |sent: &[&str], withheld: &[&str]| {
            let texts = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
            let said = v1::AnnotationKeys { sent: texts(sent), withheld: texts(withheld) };
            let update = v1::WorkloadUpdate { annotation_keys: Some(said.clone()), ..message() };
            statement(&received(&update)).map(|read| (read.unwrap(), said)).map_err(|e| e.to_string())
        };
        let (read, said) =
            keys(&["example.com/*", "a"], &["b", "kubectl.kubernetes.io/last-applied-configuration"])
                .unwrap();
        assert!(read.sends("example.com/x") && read.sends("a") && !read.sends("b"));
        assert_eq!(annotation_keys(&read), said);
        assert_eq!(keys(&[], &[]).unwrap().0, Statement::default(), "it sends none, and says so");
        assert_eq!(statement(&received(&message())).unwrap(), None);
        let error = keys(&["a", "a*"], &[]).unwrap_err();
        assert!(error.starts_with("annotation_keys.sent[1]: \"a*\": '*' is only allowed"), "{error}");
        let error = keys(&[], &["a b"]).unwrap_err();
        assert!(error.starts_with("annotation_keys.withheld[0]: \"a b\": is no key"), "{error}");
        let many = vec!["a"; MAX_STATED + 1];
        let error = keys(&many, &[]).unwrap_err();
        assert_eq!(error, "annotation_keys.sent: are 4097; at most 4096 are accepted");
    }

    #[test]
    fn texts_are_utf_8_and_the_last_entry_of_a_key_counts() {
        let mut update = received(&message());
        let state = update.workload_state.as_mut().unwrap();
        let labels = state.extra.iter_mut().find(|entry| entry.key == "labels").unwrap();
        let data = &mut labels.value.as_mut().unwrap().data;
        let mut later = data[0].clone();
        later.value = "c".into();
        data.push(later);
        assert_eq!(workload(&update).unwrap().labels, Texts::from([("a", "c")]));
        update.workload_state.as_mut().unwrap().node_name = vec![0xff].into();
        let error = workload(&update).unwrap_err().to_string();
        assert_eq!(error, "workload_state.node_name: is not UTF-8");
    }
}
