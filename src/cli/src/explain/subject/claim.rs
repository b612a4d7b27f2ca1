//! A ResourceClaim: its devices, what their drivers say, and the Pods that it is for.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::api::ListParams;
use outrigger_core::reason::Cause;

use super::report::{Report, Wrong};
use crate::claims::device::others;
use crate::claims::report::{Phase, one};
use crate::companion::PodName;
use crate::explain::live::{Reader, Unread, named};
use crate::files::InputError;
use crate::state::State;

pub(super) async fn read(reader: &mut Reader, name: &PodName) -> Result<(), InputError> {
    let namespace = Some(name.namespace.as_str());
    reader.must::<ResourceClaim>(namespace, named(&name.name)).await?;
    reader.may::<Namespace>(None, named(&name.namespace)).await?;
    reader.may::<Pod>(namespace, ListParams::default()).await?;
    reader.may::<DeviceClass>(None, ListParams::default()).await
}

pub(super) fn report(state: &State, unread: &Unread, name: &PodName) -> Option<Report> {
    let claim = one(state, &name.namespace, &name.name, !unread.contains("Pod"))?;
    let mut report = Report::new("ResourceClaim", &format!("{}/{}", name.namespace, name.name));
    let known = !unread.contains("Pod") || claim.state != Phase::Reserved;
    let unknown = if known { "" } else { ", whether a Pod that uses it runs isn't known" };
    report.fact("state", format!("{}{unknown}", claim.state.as_str()));
    report.fact("tenant", claim.tenant);
    report.fact("rule", claim.rule.unwrap_or_default());
    report.fact("workload", claim.workload.unwrap_or_default());
    report.fact("node", claim.node.unwrap_or_default());
    report.fact("Pods", claim.pods.join(", "));
    report.fact("reserved for Pods that are gone", claim.former_pods.join(", "));
    report.fact("reserved for", others(&claim.consumers).join(", "));
    report.fact("allocated since", claim.allocated_at.unwrap_or_default());
    report.fact(
        "configuration",
        claim.config.iter().map(|config| config.brief()).collect::<Vec<_>>().join("; "),
    );
    match claim.state {
        Phase::Deleting => {
            let message = "it is being deleted, and stays as long as Pods use it";
            report.wrong.push(Wrong::new("claim", Cause::ClaimInUse, message));
        }
        Phase::Pending => {
            let message = claim.reason.unwrap_or_default();
            report.wrong.push(Wrong::new("claim", Cause::ClaimNotAllocated, message));
        }
        Phase::Allocated | Phase::Reserved | Phase::InUse => {}
    }
    for device in &claim.devices {
        let more = device.more();
        report.fact(format!("device {}", device.path()), if more.is_empty() { "allocated" } else { &more });
        if let Some(trouble) = &device.trouble {
            let cause = if trouble.failed { Cause::DeviceBindingFailed } else { Cause::DeviceNotReady };
            let wrong = Wrong::new(format!("device {}", device.path()), cause, trouble.words.as_str());
            report.wrong.push(wrong.since(&trouble.since));
        }
    }
    Some(report)
}
