//! Whether callers reach the webhook and the manager, and trust their certificates.

use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::selector;
use outrigger_runtime::probe::{Shown, Verdict};
use serde_json::Value;

use crate::check::findings::{CA_MISMATCH, CA_UNUSABLE, CERTIFICATE_ENDED, Finding, Subject, UNREACHABLE};
use crate::cluster::short;

/// What the API server says of a webhook that it couldn't call.
const FAILED: &str = "failed calling webhook";

/// Whether an entry of a webhook configuration is Outrigger's own, by its name.
pub(crate) fn is_own(entry: &str) -> bool {
    entry.ends_with(keys::WEBHOOK_ENTRIES)
}

/// Judges what a webhook or a manager showed at an address. `known` is what has been found already: the same dates are
/// reported once.
pub(super) fn connection(
    subject: &Subject,
    path: &str,
    address: &str,
    shown: &anyhow::Result<Shown>,
    known: &[Finding],
) -> Option<Finding> {
    match shown {
        Ok(shown) => refused(subject, path, &format!("what {address} shows"), &shown.verdict, known),
        Err(error) => {
            let message = format!("{address} doesn't answer: {}", short(&format!("{error:#}")));
            Some(Finding::new(&UNREACHABLE, subject, path, message))
        }
    }
}

/// Reports a certificate that isn't trusted. `what` names it.
pub(super) fn refused(
    subject: &Subject,
    path: &str,
    what: &str,
    verdict: &Verdict,
    known: &[Finding],
) -> Option<Finding> {
    let (check, message) = match verdict {
        Verdict::Trusted => return None,
        Verdict::Untrusted(why) => (&CA_MISMATCH, format!("{what} isn't trusted: {}", short(why))),
        Verdict::Untimely(why) => (&CERTIFICATE_ENDED, format!("{what} isn't trusted now: {}", short(why))),
        Verdict::CaUntimely => (&CA_UNUSABLE, format!("{what} is signed by a CA that isn't valid now")),
    };
    let is_known = check != &CA_MISMATCH && known.iter().any(|finding| finding.check == check);
    (!is_known).then(|| Finding::new(check, subject, path, message))
}

/// Judges what an API server says of the webhooks that it called for a dry run. Other refusals, and entries of others, say
/// nothing. `subject` is the configuration.
pub(super) fn dry_run(subject: &Subject, answer: &str) -> Option<Finding> {
    let (_, rest) = answer.split_once(FAILED)?;
    let entry = rest.trim_start().trim_start_matches('"').split('"').next().unwrap_or_default();
    if !is_own(entry) {
        return None;
    }
    let check = if rest.contains("certificate has expired or is not yet valid") {
        &CERTIFICATE_ENDED
    } else if rest.contains("unable to load root certificates") {
        &CA_UNUSABLE
    } else if rest.contains("x509:") || rest.contains("tls: failed to verify") {
        &CA_MISMATCH
    } else {
        &UNREACHABLE
    };
    // After the URL stands the reason.
    let why = rest.rsplit_once("\": ").map_or(rest, |(_, why)| why);
    let message = format!("the API server's own call fails: {}", short(why));
    Some(Finding::new(check, subject, format_args!("webhooks[{entry}]"), message))
}

/// Whether a Pod has been through the webhook: it may run on that tenant's DPUs only.
pub(super) fn is_placed(pod: &Value, tenant: &str) -> bool {
    let terms = selector::terms(pod);
    let is_own = |term: &Value| {
        list(term, "/matchExpressions").iter().any(|of| {
            text(of, "/key") == keys::NODE_TENANT
                && text(of, "/operator") == "In"
                && list(of, "/values").iter().all(|value| value == tenant)
        })
    };
    !terms.is_empty() && terms.iter().all(is_own)
}
