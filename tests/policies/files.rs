//! The policies as files that an API server loads from its disk (KEP-5793): `deploy/static-policies` with another API server of the
//! same cluster, because the one of all other tests loads none.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use outrigger_tests::control_plane::{Ends, SKIPPED, config};
use outrigger_tests::outrigger::{binary, ports};
use outrigger_tests::{InWords, eventually, root};
use serde_json::{Value, json};

use crate::policies::accounts::Account::{self, Admin};
use crate::policies::rows;
use crate::policies::setup::Setup;

/// The feature gate.
const GATE: &str = "ManifestBasedAdmissionControlConfig";

/// The minor release that has brought it, and the first one in which it is on by default.
const RELEASES: [u32; 2] = [36, 37];

const SUFFIX: &str = ".static.k8s.io";

/// The name of the other API server's process.
const SERVER: &str = "static-policies";

/// What an administrator copies to the disks of API servers, as kubectl prints it.
fn rendered(setup: &Setup) -> String {
    let own = tempfile::tempdir_in(root().join("target")).unwrap();
    let text =
        "resources: [../../deploy/overlays/infrastructure]\ncomponents: [../../deploy/static-policies]\n";
    std::fs::write(own.path().join("kustomization.yaml"), text).unwrap();
    setup.plane.infra.kubectl(&["kustomize", &own.path().display().to_string()]).unwrap()
}

/// The command line of the cluster's API server.
fn command_line(server: &str) -> Vec<String> {
    let port = format!("--secure-port={}", server.rsplit(':').next().unwrap());
    let of = |process: std::fs::DirEntry| {
        let line = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
        (words.contains(&port) && words.iter().any(|word| word.ends_with("kube-apiserver"))).then_some(words)
    };
    std::fs::read_dir("/proc").unwrap().flatten().find_map(of).expect("an API server")
}

/// Starts another API server with the arguments of the cluster's own one, which loads policies from a directory. It ends with what is
/// returned. Writes a kubeconfig for it.
fn start(setup: &'static Setup, dir: &Path, kubeconfig: &Path) -> Ends {
    let infra = &setup.plane.infra;
    let [port] = ports().unwrap();
    let server = format!("https://127.0.0.1:{port}");
    let text = std::fs::read_to_string(&infra.kubeconfig).unwrap();
    std::fs::write(kubeconfig, text.replace(&infra.server, &server)).unwrap();
    let (admission, is_off) = (kubeconfig.with_extension("admission"), infra.lacks(GATE));
    let args = command_line(&infra.server).into_iter().map(|arg| match arg.split_once('=') {
        Some(("--secure-port", _)) => format!("--secure-port={port}"),
        Some(("--feature-gates", gates)) if is_off => format!("--feature-gates={gates},{GATE}=true"),
        Some((flag @ "--admission-control-config-file", file)) => {
            let mut settings: Value = serde_yaml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
            settings["plugins"].as_array_mut().unwrap().push(json!({"name": "ValidatingAdmissionPolicy",
                "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
                    "kind": "ValidatingAdmissionPolicyConfiguration", "staticManifestsDir": dir}}));
            std::fs::write(&admission, settings.to_string()).unwrap();
            format!("{flag}={}", admission.display())
        }
        _ => arg,
    });
    // The socket of etcd is named relative to there.
    let place = format!("--chdir={}", setup.plane.dir.join("etcd").display());
    let args: Vec<String> = ["env".to_owned(), place].into_iter().chain(args).collect();
    setup.plane.run(SERVER, &args, &[]).unwrap();
    setup.plane.ends(SERVER)
}

#[tokio::test]
async fn policies_of_files_are_enforced_and_nobody_deletes_them() {
    let setup = Setup::shared().await;
    let version = setup.plane.infra.read("/version").unwrap();
    let minor: u32 = version["minor"].as_str().unwrap().parse().unwrap();
    if minor < RELEASES[0] {
        println!("{SKIPPED}{}: it has no feature gate {GATE}", version["gitVersion"].as_str().unwrap());
        return;
    }
    // As docs/static-policies.md says it. An API server that has the setting without the feature doesn't start.
    assert_eq!(setup.plane.infra.lacks(GATE), minor < RELEASES[1]);
    let dir = tempfile::tempdir_in(&setup.plane.dir).unwrap();
    let (files, none) = (dir.path().join("files"), dir.path().join("none"));
    std::fs::create_dir(&files).unwrap();
    std::fs::create_dir(&none).unwrap();
    let text = rendered(setup);
    std::fs::write(files.join("outrigger.yaml"), &text).unwrap();
    std::fs::write(none.join("outrigger.yaml"), format!("{text}# changed\n")).unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let _ends = start(setup, &files, &kubeconfig);
    let client = &kube::Client::try_from(config(&kubeconfig).await).unwrap();
    let ready = || http::Request::get("/readyz").body(Vec::new()).unwrap();
    eventually("the API server is ready", || async { client.request_text(ready()).await.in_words() }).await;

    // The policies in the API refuse the same, but those of files come first.
    let name = |line: &str| line.strip_prefix("  policyName: ")?.strip_suffix(SUFFIX).map(str::to_owned);
    let all: BTreeSet<String> = text.lines().filter_map(name).collect();
    let mut seen = BTreeSet::new();
    for (policy, row) in rows(setup) {
        if !all.contains(policy) || !seen.insert(policy.to_owned()) {
            continue;
        }
        let control = row.control();
        Account::of(&control).dry_run(client, &control.ask, &control.body).await.unwrap();
        let refusal = Account::of(&row).dry_run(client, &row.ask, &row.body).await.unwrap_err();
        let by =
            format!("ValidatingAdmissionPolicy '{policy}{SUFFIX}' with binding '{policy}{SUFFIX}' denied");
        assert!(refusal.contains(&by), "{}: {refusal}", row.name);
    }
    assert_eq!(seen, all);

    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let pods = format!("outrigger-pods{SUFFIX}");
    let gone = Admin.send(client, &format!("DELETE {policies}/{pods}"), &Value::Null).await.unwrap_err();
    assert!(gone.contains("not found"), "{gone}");
    let mut own = Admin.send(client, &format!("GET {policies}/outrigger-pods"), &Value::Null).await.unwrap();
    own["metadata"] = json!({"name": pods});
    let reserved = Admin.dry_run(client, &format!("POST {policies}"), &own).await.unwrap_err();
    assert!(reserved.contains("reserved for static"), "{reserved}");

    let status = |dir: &Path| {
        let mut command = Command::new(binary().unwrap());
        command.args(["status", "-o", "json", "--kubeconfig"]).arg(&kubeconfig);
        let output = command.arg("--static-policies").arg(dir).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["installation"]["policies"].clone()
    };
    assert_eq!(status(&files), json!({"shipped": all.len(), "missing": [], "filesLoaded": true}));
    assert_eq!(status(&none)["filesLoaded"], json!(false));
}
