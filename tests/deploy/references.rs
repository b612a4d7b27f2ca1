//! What the objects say of each other is true, and the binary takes the arguments that they give it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outrigger_runtime::duration;
use outrigger_tests::outrigger::binary;
use outrigger_tests::root;
use outrigger_tests::shipped::{chart, container, kustomize, name, of_kind};
use serde_json::Value;

use crate::deploy::{COMPONENTS, OVERLAYS, overlay, with_component};

/// What of a process stays under way at most, after it has drained.
const SPARE: Duration = Duration::from_secs(3);

/// Everything that is shipped, with the name of each lot.
fn everything() -> Vec<(String, Vec<Value>)> {
    let overlays = OVERLAYS.iter().map(|(name, _)| (overlay(name), kustomize(&overlay(name)).unwrap()));
    let charts = OVERLAYS.iter().map(|(name, values)| (format!("chart {name}"), chart(values).unwrap()));
    let with = COMPONENTS.iter().flat_map(|(overlay, component, values)| {
        [
            (format!("{overlay} with {component}"), with_component(overlay, component)),
            (format!("chart with {component}"), chart(values).unwrap()),
        ]
    });
    overlays.chain(charts).chain(with).collect()
}

/// The Deployments of each lot, with the arguments and the environment of their containers.
fn deployments() -> Vec<(String, Value, Vec<String>, Vec<String>)> {
    let of = |(lot, objects): (String, Vec<Value>)| {
        let all = of_kind(&objects, "Deployment").map(|deployment| {
            let (args, env) = container(&objects, deployment["metadata"]["name"].as_str().unwrap()).unwrap();
            (lot.clone(), deployment.clone(), args, env)
        });
        all.collect::<Vec<_>>()
    };
    everything().into_iter().flat_map(of).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether labels are as a map of labels asks. An empty map asks for nothing.
fn matches(wanted: &Value, labels: &Value) -> bool {
    wanted.as_object().into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
}

/// The objects that make Pods.
fn parts(objects: &[Value]) -> impl Iterator<Item = &Value> {
    of_kind(objects, "Deployment").chain(of_kind(objects, "DaemonSet"))
}

/// The Pods of the parts that these labels choose.
fn chosen<'a>(objects: &'a [Value], wanted: &Value) -> Vec<&'a Value> {
    let of_jobs = of_kind(objects, "CronJob").map(|job| &job["spec"]["jobTemplate"]["spec"]["template"]);
    parts(objects)
        .map(|deployment| &deployment["spec"]["template"])
        .chain(of_jobs)
        .filter(|pod| matches(wanted, &pod["metadata"]["labels"]))
        .collect()
}

/// Names of the ports of a Pod.
fn ports(pod: &Value) -> BTreeSet<&str> {
    list(&pod["spec"]["containers"])
        .flat_map(|container| list(&container["ports"]))
        .filter_map(|port| port["name"].as_str())
        .collect()
}

#[test]
fn selectors_choose_one_part_and_ports_are_there() {
    for (lot, objects) in everything() {
        for deployment in parts(&objects) {
            let wanted = &deployment["spec"]["selector"]["matchLabels"];
            assert_eq!(
                chosen(&objects, wanted),
                [&deployment["spec"]["template"]],
                "{lot}: {}",
                name(deployment)
            );
            let pod = &deployment["spec"]["template"]["spec"];
            for spread in list(&pod["topologySpreadConstraints"]) {
                assert_eq!(&spread["labelSelector"]["matchLabels"], wanted, "{lot}: {}", name(deployment));
            }
            for container in list(&pod["containers"]) {
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    let port = container[probe]["httpGet"]["port"].as_str().unwrap();
                    assert!(ports(&deployment["spec"]["template"]).contains(port), "{lot}: {probe}");
                }
            }
        }
        for service in of_kind(&objects, "Service") {
            let [pod] = chosen(&objects, &service["spec"]["selector"])[..] else {
                panic!("{lot}: {} chooses not one", name(service));
            };
            for port in list(&service["spec"]["ports"]) {
                let target = port["targetPort"].as_str().unwrap();
                assert!(ports(pod).contains(target), "{lot}: {}: {target}", name(service));
            }
        }
        for budget in of_kind(&objects, "PodDisruptionBudget") {
            let pods = chosen(&objects, &budget["spec"]["selector"]["matchLabels"]);
            assert_eq!(pods.len(), 1, "{lot}: {}", name(budget));
        }
        for policy in of_kind(&objects, "NetworkPolicy") {
            let pods = chosen(&objects, &policy["spec"]["podSelector"]["matchLabels"]);
            assert!(!pods.is_empty(), "{lot}: {}", name(policy));
            let open = list(&policy["spec"]["ingress"]).flat_map(|rule| list(&rule["ports"]));
            for port in open.filter_map(|port| port["port"].as_str()) {
                assert!(pods.iter().all(|pod| ports(pod).contains(port)), "{lot}: {}: {port}", name(policy));
            }
        }
    }
}

/// Every port that some part is configured to connect to is open to it.
#[test]
fn ports_of_services_are_open() {
    for (lot, objects) in everything() {
        for service in of_kind(&objects, "Service") {
            let open: BTreeSet<&str> = of_kind(&objects, "NetworkPolicy")
                .filter(|policy| policy["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"])
                .flat_map(|policy| list(&policy["spec"]["ingress"]))
                .flat_map(|rule| list(&rule["ports"]))
                .filter_map(|port| port["port"].as_str())
                .collect();
            for port in list(&service["spec"]["ports"]) {
                assert!(open.contains(port["targetPort"].as_str().unwrap()), "{lot}: {}", name(service));
            }
        }
    }
}

#[test]
fn what_is_named_exists() {
    for (lot, objects) in everything() {
        let names: BTreeSet<String> = objects.iter().map(name).collect();
        let has = |wanted: String, by: &Value| {
            assert!(names.contains(&wanted), "{lot}: {} names {wanted}", name(by));
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for deployment in parts(&objects) {
            let pod = &deployment["spec"]["template"]["spec"];
            let namespace = text(&deployment["metadata"]["namespace"]);
            has(format!("ServiceAccount {namespace}/{}", text(&pod["serviceAccountName"])), deployment);
            let class = text(&pod["priorityClassName"]);
            // Kubernetes makes those of the system.
            if !class.starts_with("system-") {
                has(format!("PriorityClass {class}"), deployment);
            }
            let volumes: BTreeSet<String> = list(&pod["volumes"]).map(|v| text(&v["name"])).collect();
            let mounted: BTreeSet<String> = list(&pod["containers"])
                .flat_map(|c| list(&c["volumeMounts"]))
                .map(|mount| text(&mount["name"]))
                .collect();
            assert_eq!(volumes, mounted, "{lot}: {}", name(deployment));
        }
        for binding in
            objects.iter().filter(|o| o["kind"] == "RoleBinding" || o["kind"] == "ClusterRoleBinding")
        {
            let (kind, role) = (text(&binding["roleRef"]["kind"]), text(&binding["roleRef"]["name"]));
            let namespace = if kind == "Role" {
                format!("{}/", text(&binding["metadata"]["namespace"]))
            } else {
                String::new()
            };
            has(format!("{kind} {namespace}{role}"), binding);
            for who in list(&binding["subjects"]) {
                has(format!("ServiceAccount {}/{}", text(&who["namespace"]), text(&who["name"])), binding);
            }
        }
        // Who has an autoscaler says nothing of replicas: each apply would reset them.
        let mut scaled = BTreeSet::new();
        for scaler in of_kind(&objects, "HorizontalPodAutoscaler") {
            let (namespace, target) = (&scaler["metadata"]["namespace"], &scaler["spec"]["scaleTargetRef"]);
            let wanted = format!("{} {}/{}", text(&target["kind"]), text(namespace), text(&target["name"]));
            has(wanted.clone(), scaler);
            scaled.insert(wanted);
        }
        for deployment in of_kind(&objects, "Deployment") {
            let says = deployment["spec"].get("replicas").is_some();
            assert_ne!(says, scaled.contains(&name(deployment)), "{lot}: {}", name(deployment));
        }
        for binding in of_kind(&objects, "ValidatingAdmissionPolicyBinding") {
            has(format!("ValidatingAdmissionPolicy {}", text(&binding["spec"]["policyName"])), binding);
        }
        for webhook in objects.iter().flat_map(|object| list(&object["webhooks"])) {
            let target = &webhook["clientConfig"]["service"];
            let wanted = format!("Service {}/{}", text(&target["namespace"]), text(&target["name"]));
            let service = objects.iter().find(|object| name(object) == wanted);
            let service = service.unwrap_or_else(|| panic!("{lot}: no {wanted}"));
            let open = list(&service["spec"]["ports"]).any(|port| port["port"] == target["port"]);
            assert!(open, "{lot}: {wanted} has no port {}", target["port"]);
        }
    }
}

/// The one part that needs more of its node than restricted permits is alone in its namespace.
#[test]
fn only_the_plugin_on_hosts_is_in_a_privileged_namespace() {
    for (lot, objects) in everything() {
        let level =
            |namespace: &Value| namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone();
        for namespace in of_kind(&objects, "Namespace") {
            let of = namespace["metadata"]["name"].as_str().unwrap();
            match of {
                "outrigger-system" => assert_eq!(level(namespace), "restricted", "{lot}"),
                "outrigger-hosts" => assert_eq!(level(namespace), "privileged", "{lot}"),
                _ => assert_ne!(level(namespace), "privileged", "{lot}: {of}"),
            }
        }
        for part in parts(&objects) {
            let alone = part["metadata"]["namespace"] == "outrigger-hosts";
            assert_eq!(alone, part["kind"] == "DaemonSet", "{lot}: {}", name(part));
            let hosts = list(&part["spec"]["template"]["spec"]["volumes"])
                .any(|volume| volume.get("hostPath").is_some());
            assert_eq!(alone, hosts, "{lot}: {}", name(part));
        }
    }
}

#[test]
fn prometheus_finds_every_part() {
    let monitoring = kustomize("deploy/monitoring").unwrap();
    let monitor = of_kind(&monitoring, "PodMonitor").next().unwrap();
    let parts = kustomize(&overlay("all-in-one")).unwrap();
    let pods = chosen(&parts, &monitor["spec"]["selector"]["matchLabels"]);
    assert_eq!(pods.len(), 3);
    for endpoint in list(&monitor["spec"]["podMetricsEndpoints"]) {
        assert!(pods.iter().all(|pod| ports(pod).contains(endpoint["port"].as_str().unwrap())));
    }
}

#[test]
fn pods_have_the_time_to_drain() {
    for (lot, deployment, args, _) in deployments() {
        let time = |flag: &str| {
            let value = args.iter().find_map(|arg| arg.strip_prefix(flag)).expect(flag);
            duration(value.trim_start_matches('=')).unwrap()
        };
        let needed = time("--shutdown-delay") + time("--drain-timeout") + SPARE;
        let grace = &deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
        let grace = Duration::from_secs(grace.as_u64().unwrap());
        assert!(needed <= grace, "{lot}: {}: {needed:?} of {grace:?}", name(&deployment));
    }
}

/// Files that are named are in a volume.
#[test]
fn files_in_arguments_are_mounted() {
    for (lot, deployment, args, _) in deployments() {
        let pod = &deployment["spec"]["template"]["spec"];
        let mut files = BTreeSet::new();
        for mount in list(&pod["containers"][0]["volumeMounts"]) {
            let volume = list(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]).unwrap();
            let projected = list(&volume["projected"]["sources"]).flat_map(|source| {
                list(&source["secret"]["items"]).chain(list(&source["configMap"]["items"]))
            });
            for item in list(&volume["secret"]["items"]).chain(projected) {
                let (dir, path) = (mount["mountPath"].as_str().unwrap(), item["path"].as_str().unwrap());
                files.insert(format!("{dir}/{path}"));
            }
        }
        let named: BTreeSet<String> =
            args.iter().filter_map(|arg| arg.split_once("-file=").map(|(_, file)| file.to_owned())).collect();
        assert_eq!(named, files, "{lot}: {}", name(&deployment));
    }
}

/// Makes sure that the binary takes these arguments: it gets as far as to look for what isn't here.
pub(crate) fn accepted(args: &[String], env: &[String]) {
    let env = env.iter().filter_map(|one| one.split_once('='));
    let output = Command::new(binary().unwrap())
        .args(args)
        .arg("--kubeconfig=/nowhere/kubeconfig")
        .env_clear()
        .envs(env)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // 2 is for wrong arguments.
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(said.contains("No such file") || said.contains("can't be read"), "{args:?}: {said}");
}

#[test]
fn the_binary_takes_the_arguments() {
    for (_, _, args, env) in deployments() {
        accepted(&args, &env);
    }
}

/// Who adds a file adds it to the kustomization beside it, or nobody installs it.
#[test]
fn no_file_is_forgotten() {
    let mut dirs = vec![root().join("webhooks"), root().join("deploy")];
    let mut seen = 0;
    while let Some(dir) = dirs.pop() {
        if dir.ends_with("deploy/helm") {
            continue;
        }
        let entries: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        dirs.extend(entries.iter().filter(|path| path.is_dir()).cloned());
        let lists =
            |path: &Path| path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("kustomization"));
        let listed: String = entries
            .iter()
            .filter(|path| lists(path))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        let manifests =
            entries.iter().filter(|path| !lists(path) && path.extension().is_some_and(|e| e == "yaml"));
        for path in manifests {
            let file = path.file_name().unwrap().to_str().unwrap();
            // For the time in which there is no webhook.
            if file == "emergency.yaml" {
                continue;
            }
            assert!(listed.contains(file), "{} is in no kustomization", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}
