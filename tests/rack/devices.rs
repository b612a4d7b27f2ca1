//! Devices: the driver of a DPU prepares what the scheduler has allocated to companions, and the containers that ask for it see it.

use outrigger_cases::merged;
use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::{account, binding, namespace, rule};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use super::shared::{DPU, turn};
use super::workloads::{deployment, name, ready, runs, spec};

/// The driver's name, which is that of its namespace and of the class of its devices too.
const DRIVER: &str = "regex-dpu-example";

/// Kubernetes' own driver for tests, as a platform installs one: a DaemonSet, here on one DPU, of which it publishes one device. It gives
/// containers no files but variables, by CDI.
fn driver(rack: &Rack) -> Vec<Value> {
    let metadata = json!({"name": DRIVER, "namespace": DRIVER});
    let rbac = "rbac.authorization.k8s.io";
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let may = |group: &str, resource: &str, verbs: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": words(verbs)});
    let selector = format!("device.driver == \"{DRIVER}\"");
    let program = rack.program.display().to_string();
    let plugins = "/var/lib/kubelet/plugins";
    let directories =
        [format!("{plugins}/{DRIVER}"), format!("{plugins}_registry"), "/var/run/cdi".to_owned()];
    let mut volumes = vec![json!({"name": "program", "hostPath": {"path": program, "type": "File"}})];
    let mut mounts = vec![json!({"name": "program", "mountPath": "/node"})];
    for (i, path) in directories.iter().enumerate() {
        let name = format!("directory-{i}");
        volumes.push(json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}));
        mounts.push(json!({"name": name, "mountPath": path}));
    }
    let mut container = runs("");
    let command = format!(
        "/node dra-test-driver kubelet-plugin --node-name=$(NODE) --num-devices=1 --drivername={DRIVER}"
    );
    container["command"] = json!(words(&command));
    container["env"] = json!([{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    container["volumeMounts"] = json!(mounts);
    container["securityContext"] = json!({"runAsUser": 0});
    let labels = json!({"app": DRIVER});
    vec![
        namespace(DRIVER),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": selector}}]}}),
        account(DRIVER, DRIVER),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": DRIVER}, "rules": [
            may("", "nodes", "get"), may("resource.k8s.io", "resourceclaims", "get"),
            may("resource.k8s.io", "resourceslices", "get list watch create update patch delete")]}),
        binding(DRIVER, None, DRIVER, (DRIVER, DRIVER)),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"serviceAccountName": DRIVER, "terminationGracePeriodSeconds": 1, "containers": [container],
                    "nodeSelector": {"kubernetes.io/hostname": DPU.name}, "tolerations": [{"operator": "Exists"}], "volumes": volumes}}}}),
    ]
}

/// The spec of a claim for the device.
fn claim() -> Value {
    json!({"devices": {"requests": [{"name": "engine", "exactly": {"deviceClassName": DRIVER}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": {"mode": "fast"}}}]}})
}

/// The spec of a rule for workloads with the label `app`, whose companions have two containers, one with this claim.
fn with_claim(app: &str, mut claim: Value) -> Value {
    let mut spec = spec(app, &runs("echo here"));
    let mut beside = runs("echo here");
    beside["name"] = json!("beside");
    spec["template"]["spec"]["containers"].as_array_mut().unwrap().push(beside);
    claim["containers"] = json!(["c"]);
    spec["deviceClaims"] = json!([claim]);
    spec
}

/// The only claim in the tenant's namespace, or none.
fn only_claim(rack: &Rack) -> Result<Option<Value>, String> {
    let path = "/apis/resource.k8s.io/v1/namespaces/tenant-blue/resourceclaims";
    let mut all = rack.plane.infra.read(path).in_words()?["items"].take();
    let all = all.as_array_mut().ok_or("no list")?;
    holds(all.len() < 2, json!(all).to_string()).map(|()| all.pop())
}

/// The only companion of an app has the device of its DPU: its claim says so, and the container that asked for it sees it.
async fn has_the_device(rack: &Rack, app: &str) {
    let companion = ready(rack, "infra", app, 1).await.remove(0);
    assert_eq!(companion["spec"]["nodeName"], DPU.name);
    let claim = only_claim(rack).unwrap().unwrap();
    let device = &claim["status"]["allocation"]["devices"]["results"][0];
    let found = ["driver", "pool", "device"].map(|field| device[field].as_str().unwrap());
    assert_eq!(found, [DRIVER, DPU.name, "device-00"], "{claim}");
    let reserved = claim["status"]["reservedFor"].as_array().unwrap();
    assert_eq!((reserved.len(), &reserved[0]["uid"]), (1, &companion["metadata"]["uid"]), "{claim}");
    // The driver's own variable, and that of the claim's configuration.
    let variable =
        format!("claim_{}_engine", name(&claim)).replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let echo = format!("echo $user_mode ${variable}");
    for (container, sees) in [("c", "fast true\n"), ("beside", "\n")] {
        let says = ["exec", name(&companion), "-n", "tenant-blue", "-c", container, "--", "sh", "-c", &echo];
        assert_eq!(rack.plane.infra.kubectl(&says).unwrap(), sees, "{container}");
    }
    assert_eq!(cdi_files(rack), 1);
}

/// How many files the driver has written for the DPU's containerd.
fn cdi_files(rack: &Rack) -> usize {
    let kubelet = rack.processes(DPU, "kubelet").unwrap()[0];
    std::fs::read_dir(format!("/proc/{kubelet}/root/run/cdi")).unwrap().count()
}

/// A Pod in the tenant's namespace whose container has this claim.
fn with_device(name: &str, claim: &Value) -> Value {
    let mut pod = deployment(name, 1)["spec"]["template"].take();
    let mut container = runs("echo here");
    container["resources"]["claims"] = json!([{"name": "regex"}]);
    pod["metadata"] = json!({"name": name, "namespace": "tenant-blue"});
    pod["spec"]["containers"] = json!([container]);
    pod["spec"]["resourceClaims"] = json!([merged(claim, &json!({"name": "regex"}))]);
    merged(&pod, &json!({"apiVersion": "v1", "kind": "Pod"}))
}

/// The tenant is moved from Observe to Enforce. A Pod that uses the device of another one keeps it; the next one is refused, but for an
/// exception.
async fn moved_to_enforce(rack: &Rack) {
    let infra = &rack.plane.infra;
    let set = |spec: Value| infra.patch("tenant/blue", &[], &json!({"spec": spec})).unwrap();
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "regex", "namespace": "tenant-blue"}, "spec": {"spec": claim()}});
    infra.apply(&[template, with_device("keeper", &json!({"resourceClaimTemplateName": "regex"}))]).unwrap();
    let claim = eventually("a claim is made", || async {
        only_claim(rack)?.map(|claim| name(&claim).to_owned()).ok_or_else(|| "none".to_owned())
    })
    .await;
    let create = |name: &str| {
        let pod = with_device(name, &json!({"resourceClaimName": claim}));
        infra.apply(&[pod]).in_words()
    };
    let is_refused = |name: &str| {
        let said = create(name).err().unwrap_or_default();
        holds(said.contains("which was made for Pod \"keeper\" alone"), said)
    };
    let runs_with_device = async |name: &str| {
        eventually(&format!("{name} sees the device"), || async {
            let says = ["exec", name, "-n", "tenant-blue", "--", "sh", "-c", "echo $user_mode"];
            let sees = infra.kubectl(&says).in_words()?;
            holds(sees == "fast\n", sees)
        })
        .await;
    };
    let condition = async |words: &str| {
        eventually(&format!("the condition says {words:?}"), || async {
            let tenant = infra.get(&["tenant", "blue"]).in_words()?;
            let conditions = tenant["status"]["conditions"].to_string();
            holds(conditions.contains(words), conditions)
        })
        .await;
    };
    eventually("it is refused at Enforce", || async { is_refused("taker") }).await;
    set(json!({"enforcement": "Observe"}));
    eventually("it is admitted at Observe", || async { create("taker") }).await;
    runs_with_device("keeper").await;
    runs_with_device("taker").await;
    // The manager looks at what runs when the Tenant changes.
    set(json!({"enforcement": "Warn"}));
    condition("would be refused if created now: taker").await;
    set(json!({"enforcement": "Enforce"}));
    eventually("the next one is refused", || async { is_refused("restore-1") }).await;
    let exception = json!({"name": "shared-scratch", "requestedBy": "test", "checks": ["ClaimsOfOtherPods"],
        "pods": ["restore-*"], "until": "2999-01-01T00:00:00Z"});
    set(json!({"exceptions": [exception]}));
    condition("all checks are enforced, but for exceptions: shared-scratch (until 2999-01-01T00:00:00Z)")
        .await;
    eventually("it is excepted", || async { create("restore-1") }).await;
    runs_with_device("restore-1").await;
    runs_with_device("taker").await;
    assert!(is_refused("other").is_ok(), "an exception is of the Pods that it names");
    set(json!({"enforcement": null, "exceptions": null}));
    infra
        .kubectl(&["delete", "pod", "keeper", "taker", "restore-1", "-n", "tenant-blue", "--wait=false"])
        .unwrap();
    infra.kubectl(&["delete", "resourceclaimtemplate", "regex", "-n", "tenant-blue"]).unwrap();
}

#[tokio::test]
async fn a_container_sees_the_device_that_its_claim_has_and_the_device_is_free_when_the_companion_has_ended()
{
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    infra.apply(&driver(rack)).unwrap();
    let allow =
        |classes: Value| infra.patch("tenant/blue", &[], &json!({"spec": {"deviceClasses": classes}}));
    // The webhook's watches may be behind.
    eventually("the class may be allowed", || async { allow(json!([DRIVER])).in_words() }).await;
    let apply = async |name: &str, spec: Value| {
        let rule = rule("tenant-blue", name, spec);
        eventually("the rule is taken", || async { infra.apply(std::slice::from_ref(&rule)).in_words() })
            .await;
    };
    let deleted = |name: &str| infra.kubectl(&["delete", "workloadrule", name, "-n", "tenant-blue"]).unwrap();
    let is_free = async || {
        eventually("no claim is left, and the driver has nothing prepared", || async {
            let left = only_claim(rack)?;
            holds(left.is_none() && cdi_files(rack) == 0, json!(left).to_string())
        })
        .await;
    };

    // A claim of the companion's own ends with it.
    apply("own", with_claim("own", json!({"name": "regex", "spec": claim()}))).await;
    hosts.apply(&[deployment("own", 1)]).unwrap();
    has_the_device(rack, "own").await;
    hosts.kubectl(&["delete", "deployment", "own"]).unwrap();
    is_free().await;
    deleted("own");

    // A claim of the workload has the only device next. Without a companion that uses it, it stays and has none.
    let mut engine = spec("shared", &runs("echo here"));
    engine["template"] =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": claim()});
    apply("engine", engine).await;
    apply("shared", with_claim("shared", json!({"name": "regex", "fromRule": "engine"}))).await;
    hosts.apply(&[deployment("shared", 1)]).unwrap();
    has_the_device(rack, "shared").await;
    deleted("shared");
    eventually("the claim has no device", || async {
        let status = &only_claim(rack)?.ok_or("no claim")?["status"];
        holds(status["allocation"].is_null() && status["reservedFor"].is_null(), status.to_string())
    })
    .await;
    hosts.kubectl(&["delete", "deployment", "shared"]).unwrap();
    is_free().await;
    deleted("engine");

    moved_to_enforce(rack).await;
    is_free().await;
    allow(Value::Null).unwrap();
    infra.kubectl(&["delete", "namespace", DRIVER, "--wait=false"]).unwrap();
}
