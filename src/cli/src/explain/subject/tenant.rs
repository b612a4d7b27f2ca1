//! A Tenant: its conditions, and the stream of its agent.

use kube::api::ListParams;
use outrigger_api::Tenant;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use serde_json::Value;

use super::report::{Report, Wrong, wrong};
use crate::condition::named as condition;
use crate::explain::live::Reader;
use crate::files::InputError;
use crate::state::{State, namespace_of};

/// The conditions of a Tenant. The last says what the first that isn't True says.
pub(crate) const TENANT_CONDITIONS: [&str; 5] =
    ["Accepted", "NamespaceReady", "HostsReady", "WithinLimits", "Ready"];

pub(super) async fn read(reader: &mut Reader) -> Result<(), InputError> {
    reader.must::<Tenant>(None, ListParams::default()).await
}

pub(super) fn report(state: &State, name: &str) -> Result<Option<Report>, InputError> {
    let Some(tenant) = state.of(keys::GROUP, "Tenant").find(|tenant| tenant.name == name) else {
        return Ok(None);
    };
    let object = &tenant.value;
    let mut report = Report::new("Tenant", name);
    report.fact("namespace", namespace_of(tenant));
    report.fact("being deleted since", text(object, "/metadata/deletionTimestamp"));
    let hosts: Vec<&str> = list(object, "/spec/hosts").iter().filter_map(Value::as_str).collect();
    report.fact("hosts", hosts.join(", "));
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).map(|n| n.to_string());
    report.fact("enforcement", text(object, "/status/enforcement"));
    report.fact("DPUs", number("/status/dpus").unwrap_or_default());
    let stream = object.pointer("/status/stream").filter(|stream| stream.is_object());
    if let Some(stream) = stream {
        report.fact("workloads", number("/status/stream/workloads").unwrap_or_default());
        report.fact("last synchronized", text(stream, "/lastSync"));
        report.fact("served by", text(stream, "/holder"));
    }
    report.wrong = wrong(object, &TENANT_CONDITIONS);
    if report.wrong.len() > 1 {
        report.wrong.retain(|wrong| wrong.about != "condition Ready");
    }
    if condition(object, "Ready").is_none() {
        report.wrong.push(Wrong::new("status", Cause::NoStatus, ""));
    }
    match stream {
        None => report.wrong.push(Wrong::new("stream", Cause::NoStream, "")),
        Some(stream) if stream["connected"] != true => {
            report.wrong.push(Wrong::new("stream", Cause::StreamLost, "").since(text(stream, "/since")));
        }
        Some(stream) => report.fact("connected since", text(stream, "/since")),
    }
    Ok(Some(report))
}
