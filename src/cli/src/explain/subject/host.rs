//! A host of a tenant's cluster, with the DPUs in it; or a DPU, by the name of its Node.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::ListParams;
use outrigger_api::Tenant;
use outrigger_core::host::HostLabels;
use outrigger_core::json::text;
use outrigger_core::keys;
use outrigger_core::progress::HostDpu;
use outrigger_core::reason::Cause;
use outrigger_manager::dpu::Dpu;

use super::report::{Report, Wrong};
use crate::condition::named as condition;
use crate::explain::live::{Reader, Unread};
use crate::files::{InputError, Object};
use crate::state::State;

pub(super) async fn read(reader: &mut Reader) -> Result<(), InputError> {
    reader.must::<Node>(None, ListParams::default()).await?;
    reader.may::<Tenant>(None, ListParams::default()).await
}

/// A DPU in the host.
struct Here<'a> {
    dpu: Dpu,
    node: &'a Object,
}

/// `name`: of a host, of a DPU's Node, or of a host's Node in a tenant's cluster.
pub(super) fn report(
    state: &State,
    unread: &Unread,
    name: &str,
    host_labels: &HostLabels,
) -> Result<Option<Report>, InputError> {
    let mut dpus = Vec::new();
    for node in state.of("", "Node") {
        dpus.extend(Dpu::of(&node.read()?, host_labels).map(|dpu| Here { dpu, node }));
    }
    let tenants: Vec<Tenant> = state.all(keys::GROUP, "Tenant")?;
    let name = host_of(&dpus, &tenants, name)?;
    let of_node = dpus.iter().find(|here| here.node.name == name);
    let host = of_node.map_or_else(|| Some(name.to_owned()), |here| here.dpu.host.clone());
    let host = host.as_deref();
    dpus.retain(|here| here.node.name == name || (host.is_some() && here.dpu.host.as_deref() == host));
    let lists = |tenant: &Tenant| tenant.spec.hosts.iter().any(|listed| Some(listed.as_str()) == host);
    let claimants: Vec<String> =
        tenants.iter().filter(|tenant| lists(tenant)).map(ResourceExt::name_any).collect();
    if dpus.is_empty() && claimants.is_empty() {
        return Ok(None);
    }
    let mut report = Report::new("Host", host.unwrap_or(name));
    report.fact("in spec.hosts of", claimants.join(", "));
    for tenant in tenants.iter().filter(|tenant| lists(tenant)) {
        let (Some(host), Ok(domain)) = (host, tenant.compile()) else { continue };
        let node = match domain.host_names.node(host) {
            Some(node) if node == host => continue,
            Some(node) => node.to_owned(),
            None => format!(
                "none: spec.hostNames says that node {host} is in host {}",
                domain.host_names.host(host).unwrap_or_default()
            ),
        };
        report.fact(format!("node of tenant {}", tenant.name_any()), node);
    }
    for here in &dpus {
        report.fact(format!("DPU {}", here.node.name), here.state());
    }
    // Whoever has a DPU here is concerned too, though it lists the host no longer.
    let owners = dpus.iter().filter_map(|here| here.dpu.marks.owner.clone());
    let concerned: BTreeSet<String> = claimants.iter().cloned().chain(owners).collect();
    if claimants.len() > 1 {
        let message = format!("spec.hosts of {} name it", claimants.join(" and "));
        report.wrong.push(Wrong::new("host", Cause::HostConflict, message));
    }
    if concerned.is_empty() && !unread.contains("Tenant") {
        report.wrong.push(Wrong::new("host", Cause::HostNotListed, "no Tenant names it in spec.hosts"));
    }
    for tenant in &concerned {
        let seen = dpus.iter().map(|here| here.dpu.for_tenant(tenant));
        let state = HostDpu::of(host.unwrap_or(name), seen, claimants.contains(tenant), || {
            claimants.iter().any(|c| c != tenant)
        });
        report.fact(format!("for tenant {tenant}"), word(state));
        let Some(cause) = state.cause() else { continue };
        // A tenant without a DPU gets none before the conflict is resolved.
        if claimants.len() > 1 && cause == Cause::NoDpu {
            continue;
        }
        let wrong = Wrong::new(format!("tenant {tenant}"), cause, "");
        // Other tenants' DPUs in the host say nothing of this one's.
        let failed = dpus.iter().find(|here| !here.dpu.ready && here.dpu.for_tenant(tenant).owned);
        report.wrong.push(match (cause, failed) {
            (Cause::DpuNotReady, Some(here)) => {
                Wrong { message: here.state(), ..wrong }.since(here.not_ready_since())
            }
            _ => wrong,
        });
    }
    Ok(Some(report))
}

/// The host or DPU of this name; if there is none, the host that is the Node of this name in a tenant's cluster.
fn host_of<'a>(dpus: &[Here<'_>], tenants: &'a [Tenant], name: &'a str) -> Result<&'a str, InputError> {
    let is_known = dpus.iter().any(|here| here.node.name == name || here.dpu.host.as_deref() == Some(name))
        || tenants.iter().any(|tenant| tenant.spec.hosts.iter().any(|host| host == name));
    let named = tenants.iter().flat_map(|tenant| {
        let entries = tenant.spec.host_names.iter().filter(move |entry| entry.node == name);
        entries.map(move |entry| (tenant.name_any(), entry.host.as_str()))
    });
    let named: Vec<(String, &str)> = named.filter(|_| !is_known).collect();
    match named.as_slice() {
        [] => Ok(name),
        [(_, host)] => Ok(host),
        several => {
            let each: Vec<String> =
                several.iter().map(|(tenant, host)| format!("of tenant {tenant} in host {host}")).collect();
            Err(InputError::new(name, format_args!("is a node {}; name the host", each.join(", and "))))
        }
    }
}

fn word(state: HostDpu) -> &'static str {
    state.cause().map_or("takes companions", Cause::as_str)
}

impl Here<'_> {
    fn state(&self) -> String {
        let cordoned = self.node.value.pointer("/spec/unschedulable") == Some(&true.into());
        let ready = match condition(&self.node.value, "Ready") {
            Some(ready) if text(ready, "/status") == "True" => "ready".to_owned(),
            Some(ready) => format!("not ready: {} {}", text(ready, "/reason"), text(ready, "/message")),
            None => "not ready: its kubelet has not reported".to_owned(),
        };
        let mut state = ready.trim_end().to_owned();
        if cordoned {
            state.push_str(", cordoned");
        }
        if let Some(owner) = &self.dpu.marks.owner {
            state.push_str(&format!(", of tenant {owner}"));
        }
        if self.dpu.marks.handover.is_some() {
            state.push_str(", being handed over");
        }
        state
    }

    /// When its kubelet became unready. When it was cordoned isn't recorded.
    fn not_ready_since(&self) -> &str {
        condition(&self.node.value, "Ready")
            .filter(|ready| text(ready, "/status") != "True")
            .map_or("", |ready| text(ready, "/lastTransitionTime"))
    }
}
