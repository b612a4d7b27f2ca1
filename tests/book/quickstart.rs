//! The quick start and the platform's guide, followed to their ends.

use std::process::Command;

use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::{Outrigger, binary};
use outrigger_tests::{eventually, root};
use serde_json::json;

/// The blocks of commands of a page, each with the heading that it stands under. Those that need what isn't here (a second
/// cluster of one's own, nodes that run Pods) are of another kind.
fn blocks(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
    let mut found = Vec::new();
    let mut heading = String::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            Some(_) if line == "```" => found.extend(block.take().map(|block| (heading.clone(), block))),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line == "```sh" => block = Some(String::new()),
            None => heading = line.strip_prefix("## ").map_or(heading, ToOwned::to_owned),
        }
    }
    found
}

/// Runs a page's commands one block after the other, and returns each with what it said.
fn follow(page: &str, before: &str) -> Vec<(String, String)> {
    let run = |(heading, block): (String, String)| {
        let script = format!("set -euo pipefail\n{before}{block}");
        let run = Command::new("bash").args(["-c", &script]).current_dir(root()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        let error = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{page}, {heading}: {block}\n{said}\n{error}");
        (block, said)
    };
    blocks(page).into_iter().map(run).collect()
}

/// What the block with this in it has said.
fn said<'a>(all: &'a [(String, String)], with: &str) -> &'a str {
    let (_, said) = all.iter().find(|(block, _)| block.contains(with)).expect(with);
    said
}

/// A function of the shell that is kubectl for a cluster.
fn function(name: &str, cluster: &Cluster) -> String {
    format!("{name}() {{ {} \"$@\"; }}\n", cluster.kubectl_command().join(" "))
}

/// The functions that the demo prints, as it leaves its clusters.
fn functions(o: &Outrigger) -> String {
    let (infra, tenant) = (&o.plane.infra, &o.plane.tenant);
    format!(
        "{}{}explain() {{ {} explain --tenant blue --kubeconfig {} --tenant-kubeconfig {} \"$@\"; }}\n",
        function("infra", infra),
        function("tenant", tenant),
        binary().unwrap().display(),
        infra.kubeconfig.display(),
        tenant.kubeconfig.display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn newcomers_get_to_the_end() {
    let o = Outrigger::start().await.unwrap();
    let host = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    };
    o.plane.tenant.apply(&[host("host-a"), host("host-b")]).unwrap();
    o.plane.tenant.apply_file("tests/demo/workload.yaml").unwrap();
    o.plane.infra.apply_file("tests/demo/clusters.yaml").unwrap();
    eventually("both tenants are served", || async {
        let args = ["wait", "--for=condition=Ready", "tenants", "--all", "--timeout=60s"];
        o.plane.infra.kubectl(&args).map(drop).map_err(|error| format!("{error:#}"))
    })
    .await;
    o.start_agent("blue", None).unwrap();

    // What the page says is to be seen is to be seen.
    let quick = follow("quickstart.md", &functions(&o));
    assert!(said(&quick, "get nodes -L").contains("dpu1-host-b"));
    let companions = said(&quick, "custom-columns");
    assert_eq!(companions.lines().filter(|line| line.starts_with("hello-")).count(), 3, "{companions}");
    assert!(said(&quick, ".spec.affinity").contains("provisioning.dpu.nvidia.com/host"));
    let explained = said(&quick, "explain --rule hello");
    assert!(explained.contains("\"web\"") && explained.contains("\"wbe\""), "{explained}");

    let dpu = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "dpu1-host-d", "labels": {"provisioning.dpu.nvidia.com/host": "host-d"}}});
    o.plane.infra.apply(&[dpu]).unwrap();
    let days = follow("platform-guide.md", &function("kubectl", &o.plane.infra));
    assert!(said(&days, "kubectl get namespace tenant-green").contains("dpu1-host-d"));
    assert!(said(&days, "spec/hosts/-").contains("host-e"));
    let nodes = said(&days, "delete tenant green");
    assert!(nodes.contains("dpu1-host-d") && !nodes.contains("green\n"), "{nodes}");
}
