//! The causes for which a companion isn't ready, from the table of the model.

use outrigger_core::reason::{Audience, Cause, NO_COMPANION, READY, Subject};

use super::Page;
use super::markdown::{cell, code, table};

pub(super) fn page() -> Page {
    let mut text =
        "Why there is no companion that is ready, in words that mean the same everywhere: reasons of conditions and Events, the label `reason` of \
         `outrigger_companions_by_reason`, `Companion.reason` and `HostStatus.reason` of the call `outrigger.companion.v1.CompanionService/Watch`, \
         and, in the tenant's cluster, reasons of the conditions that the agent writes. Words are stable; new ones may be added, and an agent shows \
         those that it doesn't know as `Unknown`.\n\nOf several that apply, the first is named. *Reported to agents*: whether the manager \
         names it to agents, which write it into the tenant's cluster; what agents find themselves is only there, and all others are in \
         conditions and Events of the infrastructure cluster only.\n"
            .to_owned();
    text += &format!(
        "\nThe conditions of Pods have two more reasons, with which nothing is wrong: `{READY}` while all companions are ready, and \
         `{NO_COMPANION}` while no rule asks for one.\n"
    );
    for subject in Subject::ALL {
        let reported = |cause: &Cause| {
            cell(match cause.audience() {
                Audience::Tenant => "yes",
                Audience::Platform => "no",
                Audience::Agent => "found by the agent",
            })
        };
        let rows: Vec<_> = Cause::ALL
            .iter()
            .filter(|cause| cause.subject() == *subject)
            .map(|cause| {
                let texts = [cause.meaning(), cause.tenant_remedy(), cause.platform_remedy()].map(cell);
                let [meaning, tenant, platform] = texts;
                [code(cause.as_str()), meaning, tenant, platform, reported(cause)]
            })
            .collect();
        let header =
            ["reason", "meaning", "what the tenant can do", "what the platform can do", "reported to agents"];
        text += &format!("\n## {}\n\n{}", subject.title(), table(header, &rows));
    }
    Page::new(
        "reasons",
        "Reasons",
        "every cause for which a companion isn't ready, and what would have to change",
        text,
    )
}
