//! A namespace: its tenant, and whether its Pods may run on virtual nodes.

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::ListParams;
use outrigger_api::NamespaceOffloading;
use outrigger_core::json::text;
use outrigger_core::offloading::{NAME, is_reserved, none_selected};
use outrigger_core::reason::Cause;
use outrigger_core::selector::matching;
use outrigger_core::{keys, node, validate};

use super::report::{Report, Wrong};
use crate::explain::live::{Reader, Unread, named};
use crate::files::InputError;
use crate::state::State;

pub(super) async fn read(reader: &mut Reader, name: &str) -> Result<(), InputError> {
    reader.must::<Namespace>(None, named(name)).await?;
    reader.may::<NamespaceOffloading>(Some(name), ListParams::default()).await?;
    let virtual_nodes = format!("{}={}", keys::NODE_TYPE, keys::VIRTUAL_NODE);
    reader.may::<Node>(None, ListParams::default().labels(&virtual_nodes)).await
}

pub(super) fn report(state: &State, unread: &Unread, name: &str) -> Result<Option<Report>, InputError> {
    let Some(labels) = state.namespace_labels(name) else { return Ok(None) };
    let mut report = Report::new("Namespace", name);
    report.fact("tenant", labels.get(keys::TENANT).copied().unwrap_or_default());
    if unread.contains("NamespaceOffloading") {
        report.fact("offloading", "not known: it may not be read");
        return Ok(Some(report));
    }
    let mut all = state.of(keys::OFFLOADING_GROUP, "NamespaceOffloading");
    let Some(object) = all.find(|object| object.namespace == name && object.name == NAME) else {
        report.fact(
            "offloading",
            format!("none: its Pods stay local, as it has no NamespaceOffloading {NAME}"),
        );
        return Ok(Some(report));
    };
    let read = NamespaceOffloading::read(&object.value).map_err(|error| object.wrong(error))?;
    report.fact("offloading", read.spec.pod_offloading_strategy.clone());
    report.fact("being deleted since", text(&object.value, "/metadata/deletionTimestamp"));
    let about = format!("NamespaceOffloading {name}/{NAME}");
    let offloading = read.offloading();
    let faults = offloading.refusals();
    if !faults.is_empty() {
        report.wrong.push(Wrong::new(about, Cause::OffloadingInvalid, validate::message(&faults)));
        return Ok(Some(report));
    }
    if is_reserved(name) {
        report.fact("reserved", "Pods of this namespace stay local, whatever the NamespaceOffloading says");
        return Ok(Some(report));
    }
    if !offloading.offloads() {
        return Ok(Some(report));
    }
    if labels.get(keys::OFFLOADED) != Some(&"true") {
        let message = format!("the label {}: \"true\" is missing", keys::OFFLOADED);
        report.wrong.push(Wrong::new(format!("Namespace {name}"), Cause::NotOffloaded, message));
    }
    if unread.contains("Node") {
        report.fact("virtual nodes selected", "not known: Nodes may not be read");
        return Ok(Some(report));
    }
    let nodes: Vec<node::Node> = state.of("", "Node").map(|node| node::Node::of(&node.value)).collect();
    let is_selected =
        |node: &&node::Node| offloading.selects(&matching::Node { name: &node.name, labels: &node.labels });
    let selected: Vec<&str> = nodes.iter().filter(is_selected).map(|node| node.name.as_str()).collect();
    report.fact("virtual nodes selected", selected.join(", "));
    if selected.is_empty() {
        let kinds = nodes.iter().filter_map(|node| node.labels.get(keys::NODE_TYPE));
        let virtual_nodes = kinds.filter(|kind| *kind == keys::VIRTUAL_NODE).count();
        report.wrong.push(Wrong::new(about, Cause::NoClusterSelected, none_selected(virtual_nodes)));
    }
    Ok(Some(report))
}
