//! The steps of the demo.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_core::workload::Workload;
use outrigger_tests::console::ConsoleProcess;
use outrigger_tests::control_plane::{Cluster, ControlPlane, build};
use outrigger_tests::gate;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, binary};
use outrigger_tests::tenant::{annotation, host, is_ready, node_of};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);
/// Pods that the last step starts to measure how quickly companions are created.
const SAMPLES: usize = 200;

/// What tells the user.
struct Show {
    number: usize,
}

impl Show {
    fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// Runs a step: says what is done, and then how long it took.
    async fn step<T>(
        &mut self,
        what: &str,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.number += 1;
        let began = Instant::now();
        self.line(&format!("\n[{}] {what}", self.number));
        let result = step.await.with_context(|| format!("step {}, {what}", self.number))?;
        self.line(&format!("    done in {:.2} s", began.elapsed().as_secs_f64()));
        Ok(result)
    }

    /// Runs kubectl and shows what a user would type and see.
    fn kubectl(&self, cluster: &Cluster, name: &str, args: &[&str]) -> anyhow::Result<()> {
        self.line(&format!("    $ kubectl --context {name} {}", args.join(" ")));
        for line in cluster.kubectl(args)?.lines() {
            self.line(&format!("      {line}"));
        }
        Ok(())
    }
}

/// Runs the demo; with `keep` the clusters stay until the process is ended.
pub(crate) async fn run(keep: bool) -> anyhow::Result<()> {
    let mut show = Show { number: 0 };
    show.line("Outrigger: a Pod starts on a host, its companion starts on the DPU in that host.");
    build()?;
    let plane = show
        .step(
            "Start two clusters: infrastructure (its Nodes are DPUs) and tenant (its Nodes are hosts)",
            async { ControlPlane::start_with(&["--cert-manager"]) },
        )
        .await?;
    let dir = plane.dir.clone();
    let mut outrigger = Outrigger::new(plane)?;
    let result = tour(&mut show, &mut outrigger).await;
    if let Err(error) = result {
        show.line(&format!("\nLogs of every process: {}", dir.join("logs").display()));
        // The clusters go; what they said stays.
        return Err(error);
    }
    if keep {
        stay(&show, &outrigger).await?;
    }
    Ok(())
}

/// What is shipped, as it is shipped, but for where loopback leads.
async fn install(show: &mut Show, o: &mut Outrigger) -> anyhow::Result<()> {
    show.step(
        "Install Outrigger from deploy/ and certs/: definitions, roles, policies; cert-manager issues the certificates",
        async {
            o.install_issued().await?;
            o.plane.tenant.apply(&[host("host-a"), host("host-b")])?;
            o.start_webhook()?;
            o.start_manager()?;
            tokio::time::timeout(LIMIT, o.ready()).await.context("not ready in time")
        },
    )
    .await?;
    let ready = "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type=='Ready')].status,UNTIL:.status.notAfter";
    show.kubectl(&o.plane.infra, "infra", &["get", "certificates", "-n", SYSTEM, "-o", ready])
}

async fn tour(show: &mut Show, o: &mut Outrigger) -> anyhow::Result<()> {
    install(show, o).await?;
    let o = &*o;
    let (infra, tenant) = (&o.plane.infra, &o.plane.tenant);
    show.step("The platform admits two tenants; blue's agent connects with blue's certificate", async {
        infra.apply_file("tests/demo/clusters.yaml")?;
        infra.kubectl(&["wait", "--for=condition=Ready", "tenants", "--all", "--timeout=60s"])?;
        o.issued.as_ref().context("no cert-manager")?.agent(infra, "blue").await?;
        let gate = gate::install(tenant, |configuration| configuration)?;
        o.start_agent_with("blue", &[&["--namespace=*".to_owned()], &gate[..]].concat())
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
    told(tenant, 3)?;
    show.kubectl(tenant, "tenant", &["get", "workloadrules", "-n", "universe"])?;

    why(show, tenant, &demo).await?;
    before_ready(show, tenant, &demo).await?;
    escape(show, o).await?;

    show.step("The tenant scales to 1: the manager deletes two companions", async {
        tenant.kubectl(&["scale", "deployment", "web", "-n", "shop", "--replicas=1"])?;
        demo.companions_ready(1).await
    })
    .await?;

    let times = show
        .step(
            &format!("How quickly? {SAMPLES} more Pods are bound to hosts, one by one and then at once"),
            measure(&demo),
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

    told(tenant, 1)?;
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

/// Waits until the tenant's own rule reports so many ready companions.
fn told(tenant: &Cluster, ready: usize) -> anyhow::Result<()> {
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

/// A rule with an ordering: its workload isn't ready before the companion.
async fn before_ready(show: &mut Show, tenant: &Cluster, demo: &Demo) -> anyhow::Result<()> {
    let order = |ordering: &str| {
        let patch = json!({"spec": {"ordering": ordering}});
        tenant.patch("workloadrule/firewall", &["-n", "universe"], &patch).map(drop)
    };
    let between = show
        .step(
            "With ordering: BeforeReady a new Pod gets a readiness gate, and isn't Ready before its firewall is",
            async {
                order("BeforeReady")?;
                let pod = json!({"metadata": {"name": "guarded", "labels": {"app": "web"}},
                "spec": {"nodeName": "host-a", "containers": [{"name": "c", "image": "i"}]}});
                demo.gets_gate(&pod).await?;
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
    order("Parallel")?;
    demo.companions_ready(3).await
}

/// The other tenant tries to get out.
async fn escape(show: &mut Show, o: &Outrigger) -> anyhow::Result<()> {
    let infra = &o.plane.infra;
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

/// The tenant's Pods on both sides.
struct Demo {
    companions: Api<Pod>,
    work: Api<Pod>,
}

impl Demo {
    async fn list(&self) -> anyhow::Result<Vec<Pod>> {
        Ok(self.companions.list(&ListParams::default().labels(keys::RULE)).await?.items)
    }

    async fn companions_ready(&self, count: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let all = self.list().await?;
            let ready = all.iter().filter(|c| is_ready(c) && c.metadata.deletion_timestamp.is_none()).count();
            if ready == count && all.len() == count {
                return Ok(());
            }
            ensure!(
                began.elapsed() < LIMIT,
                "{ready} of {} companions are ready, {count} are wanted",
                all.len()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a Pod would get the readiness gate.
    async fn gets_gate(&self, pod: &serde_json::Value) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let would_be = outrigger_tests::dry_run(&self.work, pod).await?;
            if would_be.spec.is_some_and(|spec| spec.readiness_gates.is_some_and(|gates| !gates.is_empty())) {
                return Ok(());
            }
            ensure!(began.elapsed() < LIMIT, "no Pod gets the gate");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns how long the companion of the Pod `guarded` took, and then the Pod, to be ready. Fails if the Pod was ready first.
    async fn follow_guarded(&self) -> anyhow::Result<[Duration; 2]> {
        let began = Instant::now();
        let uid = self.work.get("guarded").await?.uid().context("no uid")?;
        let serves = |c: &Pod| annotation(c, "entire-workload").is_some_and(|told| told.contains(&uid));
        let mut companion = None;
        loop {
            // In this order: what is ready now, was not ready when it was asked about before.
            let pod = is_ready(&self.work.get("guarded").await?);
            let is_protected = self.list().await?.iter().any(|c| serves(c) && is_ready(c));
            ensure!(is_protected || !pod, "the Pod is ready before its companion");
            if is_protected && companion.is_none() {
                companion = Some(began.elapsed());
            }
            if let (Some(companion), true) = (companion, pod) {
                return Ok([companion, began.elapsed().saturating_sub(companion)]);
            }
            ensure!(began.elapsed() < LIMIT, "companion {companion:?}, Pod {pod}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn one_companion(&self) -> anyhow::Result<String> {
        Ok(self.list().await?.first().context("no companion")?.name_any())
    }

    async fn check_companions(&self) -> anyhow::Result<()> {
        let work = self.work.list(&ListParams::default()).await?.items;
        let companions = self.list().await?;
        ensure!(companions.len() == work.len(), "{} companions of {} Pods", companions.len(), work.len());
        for c in companions {
            let name = c.name_any();
            let told =
                annotation(&c, "entire-workload").with_context(|| format!("{name} knows no workload"))?;
            let workload: Workload = serde_json::from_str(told)?;
            let Some(pod) = work.iter().find(|p| p.uid().as_deref() == Some(workload.id.as_str())) else {
                bail!("{name} serves {}, which is no Pod of the tenant", workload.id);
            };
            let host = node_of(pod);
            ensure!(annotation(&c, "tenant-node-name") == Some(host), "{name} got another node");
            ensure!(node_of(&c).ends_with(host), "{name} runs on {}, its workload on {host}", node_of(&c));
        }
        Ok(())
    }
}

/// Times from the binding of a tenant's Pod to the creation of its companion, both as seen by a watch of their cluster.
async fn measure(demo: &Demo) -> anyhow::Result<Vec<(String, Vec<Duration>)>> {
    use futures::StreamExt;
    let config = Config::default().labels(keys::RULE);
    let mut seen = std::pin::pin!(watcher(demo.companions.clone(), config));
    while !matches!(seen.next().await, Some(Ok(Event::InitDone))) {}
    let mut results = Vec::new();
    for at_once in [1, SAMPLES / 2] {
        let names: Vec<String> = (0..SAMPLES / 2).map(|i| format!("sample-{at_once}-{i}")).collect();
        let mut times = Vec::new();
        for group in names.chunks(at_once) {
            let creates = group.iter().map(|name| create(demo, name));
            let bound: std::collections::HashMap<String, Instant> =
                futures::future::try_join_all(creates).await?.into_iter().collect();
            let mut missing = bound.len();
            while missing > 0 {
                let next = tokio::time::timeout(LIMIT, seen.next()).await.context("no companion in time")?;
                let Some(Ok(Event::Apply(companion))) = next else { continue };
                let Some(told) = annotation(&companion, "entire-workload") else { continue };
                let workload: Workload = serde_json::from_str(told)?;
                // The first sight of it; later events are its progress.
                if companion.status.as_ref().and_then(|s| s.conditions.as_ref()).is_none()
                    && let Some(bound) = bound.get(&workload.resource_name)
                {
                    times.push(bound.elapsed());
                    missing -= 1;
                }
            }
        }
        let what = if at_once == 1 { "one at a time".to_owned() } else { format!("{at_once} at once") };
        results.push((what, times));
    }
    let samples = ListParams::default().labels("sample=yes");
    demo.work.delete_collection(&kube::api::DeleteParams::default(), &samples).await?;
    demo.companions_ready(1).await?;
    Ok(results)
}

/// Creates a Pod that is bound to a host from the start; returns when the API server has it.
async fn create(demo: &Demo, name: &str) -> anyhow::Result<(String, Instant)> {
    let pod = json!({"metadata": {"name": name, "labels": {"app": "web", "sample": "yes"}},
        "spec": {"nodeName": "host-a", "containers": [{"name": "c", "image": "i"}]}});
    let began = Instant::now();
    outrigger_tests::create(&demo.work, &pod).await?;
    Ok((name.to_owned(), began))
}

/// Leaves everything running and says what to try.
async fn stay(show: &Show, o: &Outrigger) -> anyhow::Result<()> {
    let kubectl = |cluster: &Cluster| cluster.kubectl_command().join(" ");
    let console = ConsoleProcess::start(&[
        format!("--kubeconfig={}", o.plane.infra.kubeconfig.display()),
        format!("--tenant-kubeconfig={}", o.plane.tenant.kubeconfig.display()),
    ])?;
    show.line("\nBoth clusters stay until Ctrl-C. To look at them in a browser (the URL works once):");
    show.line(&format!("  {}", console.url));
    show.line("\nTo look at them in a terminal:");
    show.line(&format!("  infra()  {{ {} \"$@\"; }}", kubectl(&o.plane.infra)));
    show.line(&format!("  tenant() {{ {} \"$@\"; }}", kubectl(&o.plane.tenant)));
    show.line(&format!(
        "  explain() {{ {} explain --tenant blue --kubeconfig {} --tenant-kubeconfig {} \"$@\"; }}",
        binary()?.display(),
        o.plane.infra.kubeconfig.display(),
        o.plane.tenant.kubeconfig.display()
    ));
    show.line("\nKubeconfigs:");
    show.line(&format!("  {}", o.plane.infra.kubeconfig.display()));
    show.line(&format!("  {}", o.plane.tenant.kubeconfig.display()));
    show.line("\nThings to try (docs/quickstart.md has more):");
    show.line("  tenant apply -f tests/demo/rule.yaml");
    show.line("  tenant scale deployment web -n shop --replicas=5");
    show.line("  infra get pods -n tenant-blue -o wide --watch");
    show.line("  tenant describe workloadrule firewall -n universe");
    show.line(&format!("\nLogs: {}", o.plane.dir.join("logs").display()));
    tokio::signal::ctrl_c().await?;
    Ok(())
}
