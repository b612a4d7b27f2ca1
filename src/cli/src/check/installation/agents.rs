//! Manager and agents: their certificates, and the CAs by which they trust each other.

use outrigger_runtime::expiry;
use outrigger_runtime::probe::{self, Who};

use super::connections::Address;
use super::parts::{Installation, Part};
use super::{certificates, reach};
use crate::check::findings::{Finding, GATE_OPEN};

/// Examines the manager's certificate and the CA by which it trusts agents.
pub(super) async fn manager(installation: &Installation, now: i64) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !installation.has(Part::Manager) {
        return findings;
    }
    if let Some(serving) = installation.entry(Part::Manager, "tls.crt").await {
        findings.extend(certificates::first(&serving, "the manager's certificate", now));
    }
    if let Some(ca) = installation.entry(Part::Manager, "ca.crt").await {
        findings.extend(certificates::bundle(&ca.subject, &ca.path, &ca.pem, now));
    }
    findings
}

/// Examines an agent by itself: its certificate, the CA by which it trusts the manager, and what the manager shows to it.
/// `known` is what has been found in the agent's cluster already.
pub(super) async fn agent(installation: &Installation, now: i64, known: &[Finding]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !installation.has(Part::Agent) {
        return findings;
    }
    if let Some(own) = installation.entry(Part::Agent, "tls.crt").await {
        findings.extend(certificates::first(&own, "the agent's certificate", now));
    }
    let Some(trusts) = installation.entry(Part::Agent, "manager-ca.crt").await else { return findings };
    if let Some(unusable) = certificates::bundle(&trusts.subject, &trusts.path, &trusts.pem, now) {
        findings.push(unusable);
        return findings;
    }
    let Some((address, name)) = manager_address(installation) else { return findings };
    match address.shown(Who::Agent, &trusts.pem, &name).await {
        Err(why) => installation.cluster.note(format!(
            "the manager at {address} doesn't answer from here, though the agent may reach it: {why:#}"
        )),
        shown => {
            let at = address.to_string();
            findings.extend(reach::connection(&trusts.subject, &trusts.path, &at, &shown, known));
        }
    }
    findings
}

/// Whether whoever reaches the gate of an agent may ask it.
pub(super) fn open_gate(installation: &Installation) -> Option<Finding> {
    installation.argument(Part::Agent, "gate-address")?;
    if installation.argument(Part::Agent, "tls-client-ca-file").is_some() {
        return None;
    }
    let message = "has --gate-address and no --tls-client-ca-file: whoever reaches the port can ask which Pods a rule would match";
    let path = installation.path(Part::Agent, "args");
    Some(Finding::new(&GATE_OPEN, &installation.subject(Part::Agent), path, message))
}

/// Compares a manager and an agent, which may be in one cluster: versions, and certificates with CAs.
pub(super) async fn between(infrastructure: &Installation, tenant: &Installation) -> Vec<Finding> {
    let mut findings = Vec::new();
    for agent in tenant.running(Part::Agent) {
        for manager in infrastructure.running(Part::Manager) {
            findings.extend(tenant.skew(Part::Agent, agent, "the manager", manager));
        }
    }
    // What its own dates say of a certificate has been found in its cluster.
    let mut known = manager(infrastructure, expiry::now()).await;
    if let Some(serving) = infrastructure.entry(Part::Manager, "tls.crt").await
        && let Some(trusts) = tenant.entry(Part::Agent, "manager-ca.crt").await
        && let Some((_, name)) = manager_address(tenant)
        && let Ok(shown) = probe::server(Who::Agent, &serving.pem, &trusts.pem, &name)
    {
        let what = format!("the manager's certificate in {} for {name}", serving.subject);
        findings.extend(reach::refused(&trusts.subject, &trusts.path, &what, &shown.verdict, &known));
    }
    if let Some(own) = tenant.entry(Part::Agent, "tls.crt").await
        && let Some(trusts) = infrastructure.entry(Part::Manager, "ca.crt").await
        && let Ok(shown) = probe::client(&own.pem, &trusts.pem)
    {
        known.extend(certificates::first(&own, "", expiry::now()));
        let what = format!("the agent's certificate, which the manager verifies by {},", trusts.subject);
        findings.extend(reach::refused(&own.subject, &own.path, &what, &shown.verdict, &known));
    }
    findings
}

/// The address at which an agent calls the manager, and the name in the certificate that it expects there.
fn manager_address(installation: &Installation) -> Option<(Address, String)> {
    let address = Address::of_url(&installation.argument(Part::Agent, "manager-address")?)?;
    let name = installation.argument(Part::Agent, "server-name").unwrap_or_else(|| address.host.clone());
    Some((address, name))
}
