//! Manager and agents: whom each trusts, what each shows, and when it ends.

use outrigger_api::Tenant;
use outrigger_core::check::install::certificates;
use outrigger_core::check::install::reach::{self, Outcome};
use outrigger_core::check::install::versions::{self, Version};
use outrigger_core::check::install::{Found, subject};
use outrigger_core::check::{CA_MISMATCH, CERTIFICATE_ENDED, Finding, IDENTITY, Subject};
use outrigger_core::ids::TenantId;
use outrigger_manager::identity::Caller;
use outrigger_runtime::expiry;
use outrigger_runtime::probe::{self, Verdict, Who};
use outrigger_runtime::serve::Peer;

use super::cluster::{Answer, TENANT};
use super::shipped::Part;
use super::site::{IMAGE, Site, argument};
use super::tls::{self, Address};

/// A key of a Secret or ConfigMap of a site.
#[derive(Debug)]
struct Entry {
    subject: Subject,
    path: String,
    pem: Vec<u8>,
}

/// What a part's Pods have in a file.
fn entry(site: &Site, part: Part, file: &str) -> Option<Entry> {
    let (kind, name, key) = match site.file(part, file) {
        Some(found) => found,
        None if part == Part::Manager && site.names.manager_self_signed && file == "tls.crt" => {
            ("Secret", "outrigger-manager-self-signed".to_owned(), file.to_owned())
        }
        None => return None,
    };
    let Found::There(object) = site.held(kind, &name) else { return None };
    let pem = tls::data(object, &key)?;
    let subject = Subject { kind: kind.to_owned(), namespace: site.names.system.clone(), name };
    Some(Entry { subject, path: format!("data[{key}]"), pem })
}

/// When the first certificate of an entry ends.
fn life(entry: &Entry, what: &str) -> Option<Finding> {
    let Entry { subject, path, pem } = entry;
    let all = match probe::certificates(pem) {
        Ok(all) if !all.is_empty() => all,
        other => {
            let why =
                other.err().map_or_else(|| "there is no certificate in it".to_owned(), |e| e.to_string());
            return Some(Finding::new(&CA_MISMATCH, subject, path, format!("{what} can't be used: {why}")));
        }
    };
    certificates::life(subject, path, what, &tls::life(all.first()?).ok()?, expiry::now())
}

fn ca(entry: &Entry) -> Option<Finding> {
    certificates::bundle(&entry.subject, &entry.path, &tls::bundle(&entry.pem), expiry::now())
}

/// What the manager shows, as far as its dates go.
pub(super) fn shows(site: &Site) -> Option<Finding> {
    if !site.has(Part::Manager) {
        return None;
    }
    life(&entry(site, Part::Manager, "tls.crt")?, "the manager's certificate")
}

/// Whom the manager trusts.
pub(super) fn trusts(site: &Site) -> Option<Finding> {
    if !site.has(Part::Manager) {
        return None;
    }
    ca(&entry(site, Part::Manager, "ca.crt")?)
}

/// An agent by itself: its certificate, whom it trusts, and what the manager shows to it. `shows` is what was told of the
/// manager's certificate where that is kept.
pub(super) async fn agent(site: &Site, shows: &[Finding]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(deployment) = site.deployment(Part::Agent) else { return findings };
    let own = entry(site, Part::Agent, "tls.crt");
    findings.extend(own.as_ref().and_then(|entry| life(entry, "the agent's certificate")));
    let Some(trusts) = entry(site, Part::Agent, "manager-ca.crt") else { return findings };
    let unusable = ca(&trusts);
    let usable = unusable.is_none();
    findings.extend(unusable);
    let url = argument(deployment, "manager-address").unwrap_or_default();
    let Some(address) = Address::of_url(&url).filter(|_| usable) else { return findings };
    let name = argument(deployment, "server-name").unwrap_or_else(|| address.host.clone());
    match tls::outcome(&address.shown(Who::Agent, &trusts.pem, &name).await) {
        Outcome::Failed(why) => site.cluster.note(format!(
            "the manager at {address} couldn't be asked from here ({why}): the agent may all the same"
        )),
        outcome => {
            let at = address.to_string();
            findings.extend(reach::connection(&trusts.subject, &trusts.path, &at, &outcome, shows));
        }
    }
    findings
}

/// What a manager and an agent say of each other. They may be in one cluster.
pub(super) async fn between(infrastructure: &Site, tenant: &Site) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(deployment) = tenant.deployment(Part::Agent) else { return findings };
    let of = |site: &Site, part| site.running.get(&part).cloned().unwrap_or_default();
    let managers = of(infrastructure, Part::Manager);
    for agent in of(tenant, Part::Agent) {
        let skew = |manager: &Version| {
            versions::skew(&subject(deployment), IMAGE, "the agent", agent, ("the manager", *manager))
        };
        findings.extend(managers.iter().filter_map(skew));
    }
    findings.extend(serving(infrastructure, tenant));
    findings.extend(identity(infrastructure, tenant).await);
    findings
}

/// Whether the agent would trust what the manager has to show.
fn serving(infrastructure: &Site, tenant: &Site) -> Option<Finding> {
    let deployment = tenant.deployment(Part::Agent)?;
    let shows = entry(infrastructure, Part::Manager, "tls.crt")?;
    let trusts = entry(tenant, Part::Agent, "manager-ca.crt")?;
    let address = Address::of_url(&argument(deployment, "manager-address")?)?;
    let name = argument(deployment, "server-name").unwrap_or(address.host);
    let shown = probe::server(Who::Agent, &shows.pem, &trusts.pem, &name).ok()?;
    let what = format!("doesn't verify the manager's certificate in {} as {name}", shows.subject);
    refused(&trusts, &what, &shown.verdict, self::shows(infrastructure).as_ref())
}

/// That a certificate isn't trusted. What its own dates have told isn't told again.
fn refused(at: &Entry, what: &str, verdict: &Verdict, life: Option<&Finding>) -> Option<Finding> {
    let (check, why) = match verdict {
        Verdict::Trusted | Verdict::CaUntimely => return None,
        Verdict::Untrusted(why) => (&CA_MISMATCH, why),
        Verdict::Untimely(_) if life.is_some_and(|life| life.check == &CERTIFICATE_ENDED) => return None,
        Verdict::Untimely(why) => (&CERTIFICATE_ENDED, why),
    };
    Some(Finding::new(check, &at.subject, &at.path, format!("{what}: {why}")))
}

/// Whether the manager takes the agent for its tenant's.
async fn identity(infrastructure: &Site, tenant: &Site) -> Option<Finding> {
    let deployment = tenant.deployment(Part::Agent)?;
    let id = argument(deployment, "tenant-id").unwrap_or_default();
    // A tenant writes it, and it becomes part of a request.
    if let Err(why) = TenantId::new(&id) {
        let message = format!("--tenant-id: {why}");
        return Some(Finding::new(&IDENTITY, &subject(deployment), "spec.template", message));
    }
    let about = Subject::cluster("Tenant", &id);
    let found = match infrastructure.cluster.get(TENANT.0, TENANT.1, "", &id).await {
        Answer::There(found) => found,
        Answer::Absent => {
            let message = "isn't there; an agent says that it is this tenant's";
            return Some(Finding::new(&IDENTITY, &about, "", message));
        }
        Answer::Unread => return None,
    };
    let own = entry(tenant, Part::Agent, "tls.crt")?;
    if let Some(trusts) = entry(infrastructure, Part::Manager, "ca.crt")
        && let Ok(shown) = probe::client(&own.pem, &trusts.pem)
        && let what = format!("the manager doesn't trust the agent's certificate by {}", trusts.subject)
        && let Some(refused) = refused(&own, &what, &shown.verdict, life(&own, "").as_ref())
    {
        return Some(refused);
    }
    let certificates = probe::certificates(&own.pem).ok()?;
    let peer = Peer { address: None, certificates: certificates.into() };
    let caller = match Caller::of(Some(&peer), false) {
        Ok(caller) => caller,
        Err(status) => return Some(Finding::new(&IDENTITY, &own.subject, own.path, status.message())),
    };
    let compiled = serde_json::from_value::<Tenant>(found).ok()?.compile().ok()?;
    let admins = infrastructure.deployment(Part::Manager).and_then(|d| argument(d, "admin-identity"));
    let is_admin = admins.is_some_and(|all| all.split(',').any(|name| name.trim() == caller.to_string()));
    (!is_admin && !caller.is_one_of(&compiled.identities)).then(|| {
        let message = format!("has no {caller}, which is what the agent's certificate says");
        Finding::new(&IDENTITY, &about, "spec.identities", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_told_of_once_and_by_somebody() {
        let subject = Subject::cluster("Secret", "s");
        let at = Entry { subject: subject.clone(), path: "p".to_owned(), pem: Vec::new() };
        let ended = Finding::new(&CERTIFICATE_ENDED, &subject, "", "x");
        let other = Finding::new(&CA_MISMATCH, &subject, "", "x");
        let why = || "why".to_owned();
        for (verdict, life, expected) in [
            (Verdict::Trusted, None, None),
            (Verdict::Untrusted(why()), Some(&ended), Some("ca-mismatch")),
            (Verdict::Untimely(why()), Some(&ended), None),
            // It is what signed it that has ended.
            (Verdict::Untimely(why()), Some(&other), Some("certificate-ended")),
            (Verdict::Untimely(why()), None, Some("certificate-ended")),
        ] {
            let found = refused(&at, "w", &verdict, life);
            assert_eq!(found.as_ref().map(|f| f.check.id), expected, "{verdict:?}");
            assert!(found.is_none_or(|f| f.message == "w: why"));
        }
    }
}
