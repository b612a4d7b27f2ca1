//! The paths of the server, each with its handler. Several webhooks may share one.

use super::{WEBHOOKS, both_tables};
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Handler, Refusal};
use crate::machines::GuestOutcome;
use crate::review::Request;

/// Names of the watches that decisions may need completely.
pub mod watches {
    /// Of Machines.
    pub const MACHINES: &str = "machines";
    /// Of guests.
    pub const GUESTS: &str = "guests";
    /// Of Namespaces.
    pub const NAMESPACES: &str = "namespaces";
    /// Of PriorityClasses.
    pub const PRIORITY_CLASSES: &str = "priority classes";
    /// Of ResourceClaims.
    pub const CLAIMS: &str = "resource claims";
    /// Of DeviceClasses.
    pub const DEVICE_CLASSES: &str = "device classes";
}

/// A path of the server.
#[derive(Debug)]
pub struct Endpoint {
    /// The path that the shipped configurations name.
    pub path: &'static str,
    /// Other paths with the same answers.
    pub aliases: &'static [&'static str],
    /// The value of the metrics' label `webhook`.
    pub label: &'static str,
    /// It answers with patches.
    pub mutates: bool,
    /// Allowed requests are written to the cluster as reservations.
    pub writes: bool,
    /// It refuses only with [`CONTRADICTION`](crate::decision::CONTRADICTION), and what is too large to be read. Any other refusal has
    /// to be answered as a failure of the call, which the configuration ignores.
    pub advises: bool,
    /// What has to be listed before some requests are decided.
    pub(super) needs: Option<Needs>,
    pub(super) handler: Handler,
}

/// The watches that have to be listed before some requests are decided. Without all guests, a slot could be given away twice; without all
/// Machines, an existing one would be called unknown; and without all ResourceClaims and classes, a Pod could name one that its tenant
/// may not use.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) watches: &'static [&'static str],
    /// Whether a request depends on them.
    pub(super) by: fn(&Request) -> bool,
    /// The outcome for a guest where they are missing.
    pub(super) outcome: Option<GuestOutcome>,
}

/// Every path of the server, in the order of the table.
pub fn endpoints() -> Vec<&'static Endpoint> {
    let mut all: Vec<&Endpoint> = Vec::new();
    for webhook in WEBHOOKS {
        if all.iter().all(|known| known.path != webhook.endpoint.path) {
            all.push(webhook.endpoint);
        }
    }
    all
}

/// The endpoint of a path that the shipped configurations name.
pub fn endpoint(path: &str) -> Option<&'static Endpoint> {
    both_tables().map(|webhook| webhook.endpoint).find(|endpoint| endpoint.path == path)
}

impl Endpoint {
    /// Decides about a request, which may be changed on the way, but not where a cache is stale: the same request can be decided
    /// again then.
    ///
    /// # Errors
    /// [`CacheStale`] where a cache doesn't show yet what the request depends on.
    pub fn decide(&self, cx: Context<'_>, request: &mut Request) -> Result<Admission, CacheStale> {
        match self.expect(request).and_then(|()| (self.handler)(cx, request)) {
            Ok(admission) | Err(Refusal::Denied(admission)) => Ok(admission),
            Err(Refusal::Stale(stale)) => Err(stale),
        }
    }

    /// Refuses a request of another kind: the webhook's configuration should not have sent it.
    fn expect(&self, request: &Request) -> Result<(), Refusal> {
        let name = |group: &str, version: &str, kind: &str| {
            if group.is_empty() { format!("{version}/{kind}") } else { format!("{group}/{version}/{kind}") }
        };
        let kind = &request.kind;
        let mut expected: Vec<String> = Vec::new();
        for webhook in both_tables().filter(|webhook| webhook.endpoint.path == self.path) {
            for (group, version, of) in webhook.kinds() {
                if (&*kind.group, &*kind.version, &*kind.kind) == (group, version, of) {
                    return Ok(());
                }
                let name = name(group, version, of);
                if !expected.contains(&name) {
                    expected.push(name);
                }
            }
        }
        let message = format!(
            "this path admits {}, not {}: correct the webhook's configuration",
            expected.join(" and "),
            name(&kind.group, &kind.version, &kind.kind)
        );
        Err(Decision::deny(400, message).into())
    }

    /// Refuses a request that depends on a watch which has not been listed: what the watch doesn't show yet would be taken for absent. `missing`: names of all watches that have not been listed.
    pub fn unlisted(
        &self,
        request: &Request,
        missing: impl FnOnce() -> Vec<&'static str>,
    ) -> Option<Admission> {
        let needs = self.needs.as_ref().filter(|needs| (needs.by)(request))?;
        let missing: Vec<&str> =
            missing().into_iter().filter(|watch| needs.watches.contains(watch)).collect();
        (!missing.is_empty()).then(|| {
            let message = format!(
                "this replica of the webhook has only just begun and doesn't know all {} yet; try again",
                missing.join(", ")
            );
            Admission { guest: needs.outcome, ..Decision::deny(503, message).into() }
        })
    }
}
