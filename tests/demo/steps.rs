//! The steps of the demo.

use anyhow::{bail, ensure};
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::console::ConsoleProcess;
use outrigger_tests::control_plane::{Cluster, ControlPlane, build};
use outrigger_tests::outrigger::{SYSTEM, binary};
use outrigger_tests::tenant::host;
use serde_json::json;

use crate::nodes::{Installed, Kind};
use crate::pods::{Demo, SAMPLES, measure};
use crate::show::Show;

/// Runs the demo on Nodes of a kind; with `keep` the clusters stay until the process is ended.
pub(crate) async fn run(kind: Option<Kind>, keep: bool) -> anyhow::Result<()> {
    let mut show = Show::default();
    show.line("Outrigger: a Pod starts on a host, its companion starts on the DPU in that host.");
    let (kind, why) = kind.map_or_else(Kind::of_machine, |kind| (kind, "as you asked for".to_owned()));
    show.line(&format!("Nodes: {}, {why}.", kind.describe()));
    build()?;
    let mut nodes = Installed::start(&mut show, kind).await?;
    let result = tour(&mut show, &mut nodes).await;
    let plane = nodes.plane();
    if let Err(error) = result {
        show.line(&format!("\nLogs of every process: {}", plane.dir.join("logs").display()));
        // The clusters go; what they said stays.
        return Err(error);
    }
    if keep {
        stay(&show, plane).await?;
    }
    Ok(())
}

async fn tour(show: &mut Show, nodes: &mut Installed) -> anyhow::Result<()> {
    show.step(
        "Install Outrigger from deploy/ and certs/: definitions, roles, policies; cert-manager issues the certificates",
        nodes.install(),
    )
    .await?;
    let (infra, tenant) = (&nodes.plane().infra, &nodes.plane().tenant);
    let ready = "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type=='Ready')].status,UNTIL:.status.notAfter";
    show.kubectl(infra, "infra", &["get", "certificates", "-n", SYSTEM, "-o", ready])?;
    if nodes.are_real() {
        show.kubectl(infra, "infra", &["get", "pods", "-n", SYSTEM, "-o", "wide"])?;
    }
    show.step("The platform admits two tenants; blue's agent connects with blue's certificate", async {
        infra.apply_file("tests/demo/clusters.yaml")?;
        infra.kubectl(&["wait", "--for=condition=Ready", "tenants", "--all", "--timeout=60s"])?;
        nodes.install_agent("blue").await
    })
    .await?;
    show.kubectl(infra, "infra", &["get", "tenants"])?;
    show.kubectl(infra, "infra", &["get", "nodes", "-L", keys::DPU_HOST, "-L", keys::NODE_TENANT])?;
    show.kubectl(tenant, "tenant", &["get", "nodes"])?;

    show.step(
        "The tenant's rule, in its own cluster: each web Pod gets a firewall on a DPU of its host",
        async { tenant.apply_file("tests/demo/rule.yaml") },
    )
    .await?;
    let demo = Demo {
        companions: Api::namespaced(infra.client().await, "tenant-blue"),
        work: Api::namespaced(tenant.client().await, "shop"),
    };
    show.step("The tenant starts a Deployment of 3, in its own cluster", async {
        tenant.apply_file("tests/demo/workload.yaml")?;
        tenant.kubectl(&["rollout", "status", "deployment", "web", "-n", "shop", "--timeout=60s"])?;
        demo.companions_ready(3).await
    })
    .await?;
    show.kubectl(tenant, "tenant", &["get", "pods", "-n", "shop", "-o", "wide"])?;
    show.kubectl(infra, "infra", &["get", "pods", "-n", "tenant-blue", "-o", "wide"])?;

    show.step("Each companion runs on a DPU of its workload's host, and knows its workload", async {
        demo.check_companions().await
    })
    .await?;
    let companion = demo.one_companion().await?;
    show.kubectl(infra, "infra", &[
        "get", "pod", "-n", "tenant-blue", &companion, "-o",
        r"jsonpath=tenant-node-name: {.metadata.annotations.tenant-node-name}{'\n'}entire-workload: {.metadata.annotations.entire-workload}{'\n'}env TENANT_NODE_NAME: {.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath}{'\n'}volume /workload-info/workload: {.spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath}{'\n'}",
    ])?;
    if nodes.are_real() {
        let log = infra.kubectl(&["logs", &companion, "-n", "tenant-blue"])?;
        show.line("    What the companion's own container has said, which read these facts:");
        show.kubectl(infra, "infra", &["logs", &companion, "-n", "tenant-blue"])?;
        let workload = demo.workload_of(&companion).await?;
        ensure!(log.contains(&workload), "the log doesn't name {workload}");
    }
    rule_reports(tenant, 3)?;
    show.kubectl(tenant, "tenant", &["get", "workloadrules", "-n", "universe"])?;

    why(show, tenant, &demo).await?;
    if nodes.are_real() {
        before_start(show, infra, tenant, &demo).await?;
    } else {
        before_ready(show, tenant, &demo).await?;
    }
    escape(show, infra).await?;

    show.step("The tenant scales to 1: the manager deletes two companions", async {
        tenant.kubectl(&["scale", "deployment", "web", "-n", "shop", "--replicas=1"])?;
        demo.companions_ready(1).await
    })
    .await?;

    if !nodes.are_real() {
        how_quickly(show, &demo).await?;
    }
    rule_reports(tenant, 1)?;
    show.line("\nWhat the tenant sees of it, in its own cluster:");
    let conditions =
        r#"jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{'\n'}{end}"#;
    show.kubectl(tenant, "tenant", &["get", "workloadrule", "firewall", "-n", "universe", "-o", conditions])?;

    show.step("The tenant deletes its rule: the manager deletes the last companion", async {
        tenant.kubectl(&["delete", "workloadrule", "firewall", "-n", "universe"])?;
        demo.companions_ready(0).await
    })
    .await?;
    show.line("\nThat is the main job. `make demo KEEP=1` leaves the clusters running.");
    Ok(())
}

/// Companions of many Pods, which only kwok lets "run" at once on such a machine.
async fn how_quickly(show: &mut Show, demo: &Demo) -> anyhow::Result<()> {
    let times = show
        .step(
            &format!("How quickly? {SAMPLES} more Pods are bound to hosts, one by one and then at once"),
            measure(demo),
        )
        .await?;
    for (what, mut times) in times {
        times.sort_unstable();
        let at =
            |q: usize| times.get(times.len() * q / 100).copied().unwrap_or_default().as_secs_f64() * 1000.0;
        show.line(&format!(
            "    {what}: from bound to companion created: p50 {:.1} ms, p99 {:.1} ms",
            at(50),
            at(99)
        ));
    }
    if cfg!(debug_assertions) {
        show.line("    This build is not optimized: docs/performance.md has the figures of one that is.");
    }
    Ok(())
}

/// Waits until the tenant's own rule reports so many ready companions.
fn rule_reports(tenant: &Cluster, ready: usize) -> anyhow::Result<()> {
    let ready = format!("--for=jsonpath={{.status.ready}}={ready}");
    tenant.kubectl(&["wait", &ready, "workloadrule/firewall", "-n", "universe", "--timeout=60s"]).map(drop)
}

/// A companion that can't come: the tenant's own cluster says why.
async fn why(show: &mut Show, tenant: &Cluster, demo: &Demo) -> anyhow::Result<()> {
    show.step(
        "A Pod on host-c, whose DPU is not blue's, gets no companion; after 15 s the Pod itself says why, in the tenant's cluster",
        async {
            tenant.apply(&[host("host-c")])?;
            let pod = json!({"metadata": {"name": "lonely", "labels": {"app": "web"}},
            "spec": {"nodeName": "host-c", "containers": [{"name": "c", "image": "i"}]}});
            outrigger_tests::create(&demo.work, &pod).await?;
            let wrong = format!("--for=condition={}=False", keys::COMPANIONS_CONDITION);
            tenant.kubectl(&["wait", &wrong, "pod/lonely", "-n", "shop", "--timeout=60s"]).map(drop)
        },
    )
    .await?;
    let condition = format!(
        "jsonpath={{range .status.conditions[?(@.type==\"{}\")]}}{{.type}}={{.status}} {{.reason}}: {{.message}}{{'\\n'}}{{end}}",
        keys::COMPANIONS_CONDITION
    );
    show.kubectl(tenant, "tenant", &["get", "pod", "lonely", "-n", "shop", "-o", &condition])?;
    tenant.kubectl(&["delete", "pod", "lonely", "-n", "shop", "--grace-period=0", "--force"])?;
    tenant.kubectl(&["delete", "node", "host-c"])?;
    demo.companions_ready(3).await
}

/// Has the rule order its workloads and their companions.
fn order(tenant: &Cluster, ordering: &str) -> anyhow::Result<()> {
    let patch = json!({"spec": {"ordering": ordering}});
    tenant.patch("workloadrule/firewall", &["-n", "universe"], &patch)
}

/// A rule with an ordering: its workload isn't ready before the companion.
async fn before_ready(show: &mut Show, tenant: &Cluster, demo: &Demo) -> anyhow::Result<()> {
    let between = show
        .step(
            "With ordering: BeforeReady a new Pod gets a readiness gate, and isn't Ready before its firewall is",
            async {
                order(tenant, "BeforeReady")?;
                let pod = json!({"metadata": {"name": "guarded", "labels": {"app": "web"}},
                "spec": {"nodeName": "host-a", "containers": [{"name": "c", "image": "i"}]}});
                demo.would_get(&pod, |spec| spec.readiness_gates.is_some_and(|gates| !gates.is_empty())).await?;
                outrigger_tests::create(&demo.work, &pod).await?;
                demo.follow_guarded().await
            },
        )
        .await?;
    show.line(&format!(
        "    the firewall was ready {:.0} ms after the Pod was created, and the Pod {:.0} ms after the firewall",
        between[0].as_secs_f64() * 1000.0,
        between[1].as_secs_f64() * 1000.0
    ));
    show.kubectl(tenant, "tenant", &["get", "pod", "guarded", "-n", "shop", "-o", "wide"])?;
    tenant.kubectl(&["delete", "pod", "guarded", "-n", "shop", "--grace-period=0", "--force"])?;
    order(tenant, "Parallel")?;
    demo.companions_ready(3).await
}

/// A rule with an ordering: no container of its workload starts before the companion is ready.
async fn before_start(show: &mut Show, infra: &Cluster, tenant: &Cluster, demo: &Demo) -> anyhow::Result<()> {
    let companion = show
        .step(
            "With ordering: BeforeStart the kubelet starts a Pod's container only when its firewall is ready",
            async {
                order(tenant, "BeforeStart")?;
                let pod = json!({"metadata": {"name": "guarded", "labels": {"app": "web"}},
                "spec": {"nodeSelector": {"kubernetes.io/hostname": "host-a"},
                    "containers": [{"name": "c", "image": "registry.example/web:1"}]}});
                demo.would_get(&pod, |spec| spec.resource_claims.is_some_and(|claims| !claims.is_empty()))
                    .await?;
                outrigger_tests::create(&demo.work, &pod).await?;
                tenant.kubectl(&[
                    "wait",
                    "--for=condition=Ready",
                    "pod/guarded",
                    "-n",
                    "shop",
                    "--timeout=60s",
                ])?;
                demo.started_after_companion("guarded").await
            },
        )
        .await?;
    let times = "jsonpath=container started: {.status.containerStatuses[0].state.running.startedAt}{'\\n'}Pod ready:         {.status.conditions[?(@.type=='Ready')].lastTransitionTime}{'\\n'}";
    let logs = ["logs", "--timestamps"];
    for (cluster, name, pod, namespace) in
        [(infra, "infra", companion.as_str(), "tenant-blue"), (tenant, "tenant", "guarded", "shop")]
    {
        show.kubectl(cluster, name, &["get", "pod", pod, "-n", namespace, "-o", times])?;
        show.kubectl(cluster, name, &[&logs[..], &[pod, "-n", namespace]].concat())?;
    }
    tenant.kubectl(&["delete", "pod", "guarded", "-n", "shop"])?;
    order(tenant, "Parallel")?;
    demo.companions_ready(3).await
}

/// The other tenant tries to get out.
async fn escape(show: &mut Show, infra: &Cluster) -> anyhow::Result<()> {
    let as_mallory = |file: &str| {
        let objects = std::fs::read_to_string(outrigger_tests::root().join(file))?;
        infra.kubectl_with(&["apply", "--as=mallory", "-f", "-"], &objects)
    };
    let refusal = show
        .step("Mallory, of the tenant red, tries to get onto blue's DPUs, past the scheduler and out of the container: refused", async {
            infra.apply_file("tests/demo/mallory.yaml")?;
            match as_mallory("tests/demo/escape.yaml") {
                Ok(answer) => bail!("the Pod was admitted: {answer}"),
                Err(refusal) => Ok(format!("{refusal:#}")),
            }
        })
        .await?;
    show.line("    $ kubectl --context infra apply --as=mallory -f tests/demo/escape.yaml");
    for line in refusal.lines() {
        // kubectl says first what it did; what matters is what the API server said.
        let reason = line.split_once("\"STDIN\": ").map_or(line, |(_, reason)| reason);
        show.line(&format!("      {reason}"));
    }
    show.step(
        "Then by node affinity, which nobody can refuse: the Pod is admitted, and fits no DPU but red's",
        async {
            as_mallory("tests/demo/beside.yaml")?;
            let unscheduled = "--for=condition=PodScheduled=False";
            infra.kubectl(&["wait", unscheduled, "pod/beside", "-n", "tenant-red", "--timeout=30s"]).map(drop)
        },
    )
    .await?;
    show.kubectl(infra, "infra", &[
        "get", "pod", "beside", "-n", "tenant-red", "-o",
        r#"jsonpath={.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution}{'\n'}{.status.conditions[?(@.type=="PodScheduled")].message}{'\n'}"#,
    ])
}

/// Leaves everything running and says what to try.
async fn stay(show: &Show, plane: &ControlPlane) -> anyhow::Result<()> {
    let kubectl = |cluster: &Cluster| cluster.kubectl_command().join(" ");
    let console = ConsoleProcess::start(&[
        format!("--kubeconfig={}", plane.infra.kubeconfig.display()),
        format!("--tenant-kubeconfig={}", plane.tenant.kubeconfig.display()),
    ])?;
    show.line("\nBoth clusters stay until Ctrl-C. To look at them in a browser (the URL works once):");
    show.line(&format!("  {}", console.url));
    show.line("\nTo look at them in a terminal:");
    show.line(&format!("  infra()  {{ {} \"$@\"; }}", kubectl(&plane.infra)));
    show.line(&format!("  tenant() {{ {} \"$@\"; }}", kubectl(&plane.tenant)));
    show.line(&format!(
        "  explain() {{ {} explain --tenant blue --kubeconfig {} --tenant-kubeconfig {} \"$@\"; }}",
        binary()?.display(),
        plane.infra.kubeconfig.display(),
        plane.tenant.kubeconfig.display()
    ));
    show.line("\nKubeconfigs:");
    show.line(&format!("  {}", plane.infra.kubeconfig.display()));
    show.line(&format!("  {}", plane.tenant.kubeconfig.display()));
    show.line("\nThings to try (docs/quickstart.md has more):");
    show.line("  tenant apply -f tests/demo/rule.yaml");
    show.line("  tenant scale deployment web -n shop --replicas=5");
    show.line("  infra get pods -n tenant-blue -o wide --watch");
    show.line("  tenant describe workloadrule firewall -n universe");
    show.line(&format!("\nLogs: {}", plane.dir.join("logs").display()));
    tokio::signal::ctrl_c().await?;
    Ok(())
}
