//! Installations that differ in who signs the certificates: one webhook, two managers, and a tenant with its agent.

use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::issued;
use outrigger_tests::outrigger::{ADMIN, Outrigger, SYSTEM, ports};
use outrigger_tests::shipped::webhook_configurations;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds, root};

/// Names of the managers' processes. The agent's stream goes to the first.
pub(crate) const MANAGERS: [&str; 2] = ["manager", "manager-2"];

/// What is killed and comes back.
pub(crate) struct Installed {
    pub(crate) tenant: Tenant,
    /// Admin ports of the managers.
    pub(crate) managers: [u16; 2],
}

impl Installed {
    async fn with_tenant(tenant: Tenant, second: u16) -> Self {
        tenant.rule("r", rule_for("app", "web")).await;
        Self { managers: [tenant.outrigger.manager_admin, second], tenant }
    }
}

fn control_plane() -> Outrigger {
    Outrigger::new(ControlPlane::start_with(&["--cert-manager"]).unwrap()).unwrap()
}

/// With what is shipped: cert-manager issues every certificate, and injects the CA into the webhook's configurations.
pub(crate) async fn cert_manager() -> Installed {
    let mut o = control_plane();
    o.install_issued().await.unwrap();
    let o = Box::leak(Box::new(o.start_both().await.unwrap()));
    let (_, second) = o.another_manager(MANAGERS[1], &[]).await;
    let tenant = Tenant::without_agent(o, "booted", &[("a", 1)]).await;
    o.issued.as_ref().unwrap().agent(&o.plane.infra, &tenant.id).await.unwrap();
    tenant.start_agent(&[]);
    Installed::with_tenant(tenant, second).await
}

/// With `--tls self-signed`: webhook and managers sign their own, and share them in Secrets.
pub(crate) async fn self_signed() -> Installed {
    let o = control_plane();
    let infra = &o.plane.infra;
    o.define().unwrap();
    infra.apply_file("webhooks/policies.yaml").unwrap();
    infra.kubectl(&["apply", "-k", &root().join("certs/self-signed").display().to_string()]).unwrap();
    infra.kubectl(&["delete", "service", keys::WEBHOOK, "-n", SYSTEM]).unwrap();
    infra.apply(&[issued::to_loopback("outrigger-webhook")]).unwrap();
    let mut configurations = webhook_configurations().unwrap();
    for configuration in &mut configurations {
        *configuration = issued::on_port(configuration.take(), o.webhook_port).unwrap();
        configuration["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    infra.apply(&configurations).unwrap();

    let own = |port: u16, admin: u16, scheme: &str| {
        let address = format!("--bind-address={scheme}127.0.0.1:{port}");
        vec![address, format!("--admin-address=127.0.0.1:{admin}"), "--tls=self-signed".to_owned()]
    };
    o.run_bare("webhook", "webhook", &own(o.webhook_port, o.webhook_admin, "")).unwrap();
    let [port, second] = ports().unwrap();
    for (name, port, admin) in [(MANAGERS[0], o.grpc_port, o.manager_admin), (MANAGERS[1], port, second)] {
        let clients = format!("--tls-client-ca-file={}", o.authority.file().display());
        let more = [own(port, admin, "tcp://"), vec![clients, format!("--admin-identity={ADMIN}")]].concat();
        o.run_bare(name, "manager", &more).unwrap();
        o.ready_at(name, admin).await;
    }
    o.ready().await;

    let o: &'static Outrigger = Box::leak(Box::new(o));
    let trusted = o.plane.dir.join("published-ca.crt");
    eventually("the managers' CA is published", || async {
        let path = "jsonpath={.data.ca\\.crt}";
        let ca = o.plane.infra.kubectl(&["get", "configmap", "outrigger-ca", "-n", SYSTEM, "-o", path])?;
        std::fs::write(&trusted, &ca)?;
        holds(issued::count(&ca) == 1, ca).map_err(anyhow::Error::msg)
    })
    .await;
    let tenant = Tenant::without_agent(o, "booted", &[("a", 1)]).await;
    tenant.start_agent(&[
        format!("--ca-file={}", trusted.display()),
        format!("--server-name={}.{SYSTEM}.svc", keys::MANAGER),
    ]);
    Installed::with_tenant(tenant, second).await
}
