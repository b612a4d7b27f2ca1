//! The chart: the same objects as the kustomizations, and what its values change.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_tests::root;
use outrigger_tests::shipped::{chart, chart_in, container, kustomize, name, of_kind};
use serde_json::{Value, json};

use crate::deploy::{COMPONENTS, OVERLAYS, overlay, with_component};

/// An object without what only one of the two says of it.
fn bare(mut object: Value) -> Value {
    for (field, keys) in [
        ("labels", &["helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"][..]),
        // It keeps definitions when a release goes.
        ("annotations", &["helm.sh/resource-policy"]),
    ] {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) else { continue };
        map.retain(|key, _| !keys.contains(&key.as_str()));
        if map.is_empty() {
            metadata.remove(field);
        }
    }
    plain(&mut object);
    object
}

/// Without differences of writing. kustomize gives some expressions more line breaks than they had, which mean nothing, and
/// writes numbers in another way.
fn plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.split_whitespace().collect::<Vec<_>>().join(" "),
        Value::Number(number) if number.is_f64() => *value = json!(number.to_string().trim_end_matches(".0")),
        Value::Number(number) => *value = json!(number.to_string()),
        Value::Array(all) => all.iter_mut().for_each(plain),
        Value::Object(all) => all.values_mut().for_each(plain),
        _ => {}
    }
}

/// Compares kustomize's objects with Helm's, and says of each what would have to change.
fn assert_same(what: &str, ours: &BTreeMap<String, Value>, theirs: &BTreeMap<String, Value>) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{what}");
    for (key, object) in ours {
        let difference = json_patch::diff(object, &theirs[key]);
        assert!(difference.is_empty(), "{what}: {key}: Helm's is otherwise: {difference}");
    }
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let count = objects.len();
    let all: BTreeMap<_, _> = objects.into_iter().map(|object| (name(&object), bare(object))).collect();
    assert_eq!(all.len(), count, "an object is there twice");
    all
}

#[test]
fn kustomize_and_helm_make_the_same_objects() {
    for (name, values) in OVERLAYS {
        let mut ours = by_name(kustomize(&overlay(name)).unwrap());
        let theirs = by_name(chart(values).unwrap());
        // Helm puts a release into a namespace that is there already.
        assert!(ours.remove("Namespace outrigger-system").is_some(), "{name}");
        assert_same(name, &ours, &theirs);
    }
}

#[test]
fn monitoring_is_the_same_too() {
    let ours = by_name(kustomize("deploy/monitoring").unwrap());
    let with = chart(&["--set", "monitoring.enabled=true,monitoring.dashboard=true"]).unwrap();
    let mut theirs = by_name(with);
    theirs.retain(|key, _| ours.contains_key(key));
    assert_eq!(ours.len(), 3);
    assert_same("monitoring", &ours, &theirs);
}

#[test]
fn components_are_values() {
    for (overlay, component, values) in COMPONENTS {
        let mut ours = by_name(with_component(overlay, component));
        ours.remove("Namespace outrigger-system");
        let mut theirs = by_name(chart(values).unwrap());
        // A patch puts a flag last.
        for objects in [&mut ours, &mut theirs] {
            for deployment in objects.values_mut().filter(|object| object["kind"] == "Deployment") {
                let args = &mut deployment["spec"]["template"]["spec"]["containers"][0]["args"];
                args.as_array_mut().unwrap().sort_by_key(Value::to_string);
            }
        }
        assert_same(component, &ours, &theirs);
    }
}

/// What the Pods mount is what cert-manager makes.
#[test]
fn certificates_are_those_that_are_mounted() {
    let made: BTreeSet<String> = of_kind(&kustomize("certs").unwrap(), "Certificate")
        .map(|certificate| certificate["spec"]["secretName"].as_str().unwrap().to_owned())
        .collect();
    for deployment in of_kind(&kustomize(&overlay("infrastructure")).unwrap(), "Deployment") {
        for volume in deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap() {
            let secret = volume["secret"]["secretName"].as_str().unwrap();
            assert!(made.contains(secret), "nobody makes {secret}: {made:?}");
        }
    }
}

#[test]
fn versions_are_one() {
    let text = std::fs::read_to_string(root().join("deploy/helm/outrigger/Chart.yaml")).unwrap();
    let chart: Value = serde_yaml::from_str(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(version), Some(version)));
    for (name, _) in OVERLAYS {
        for deployment in of_kind(&kustomize(&overlay(name)).unwrap(), "Deployment") {
            let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
            assert_eq!(image, format!("registry.example/outrigger:{version}"), "{name}");
        }
    }
}

/// The text of all objects, as JSON.
pub(crate) fn text(objects: &[Value]) -> String {
    serde_json::to_string(objects).unwrap()
}

#[test]
fn another_namespace_is_used_everywhere() {
    for certificates in ["files", "certManager.enabled=true", "selfSigned.enabled=true"] {
        let values = if certificates == "files" { vec![] } else { vec!["--set", certificates] };
        let objects = chart_in("companions", &values).unwrap();
        assert!(!text(&objects).contains("outrigger-system"), "{certificates}");
        let (webhook, _) = container(&objects, "outrigger-webhook").unwrap();
        let user = "--manager-user=system:serviceaccount:companions:outrigger-manager".to_owned();
        assert!(webhook.contains(&user), "{webhook:?}");
        let (manager, _) = container(&objects, "outrigger-manager").unwrap();
        assert!(manager.contains(&"--lease-namespace=companions".to_owned()), "{manager:?}");
        // Where they look for their Secrets, and what their certificates are for.
        for args in [webhook, manager] {
            let is_passed = args.contains(&"--self-signed-namespace=companions".to_owned());
            assert_eq!(is_passed, certificates.starts_with("selfSigned"), "{args:?}");
            crate::deploy::references::accepted(&args, &[]);
        }
    }
}

/// Two who write the same field, each what the other doesn't want, never end.
#[test]
fn one_alone_puts_the_ca_into_the_configurations() {
    let inject = "cert-manager.io/inject-ca-from";
    assert!(text(&chart(&["--set", "certManager.enabled=true"]).unwrap()).contains(inject));
    assert!(!text(&chart(&["--set", "selfSigned.enabled=true"]).unwrap()).contains(inject));
    assert!(!text(&with_component("infrastructure", "self-signed")).contains(inject));
}

#[test]
fn priority_classes_of_the_system_are_used_and_not_made() {
    for (class, made) in [("system-cluster-critical", false), ("mine", true)] {
        let objects = chart(&["--set", &format!("priorityClass.name={class}")]).unwrap();
        let classes: Vec<String> = of_kind(&objects, "PriorityClass").map(name).collect();
        assert_eq!(classes.contains(&format!("PriorityClass {class}")), made, "{classes:?}");
    }
}

/// The ports that policies let the agent connect to, but for those that everybody may.
#[test]
fn the_agent_gets_out_to_where_its_manager_is() {
    for (port, expected) in [
        ("9090", json!([9090])),
        ("31090", json!([9090, 31090])),
        ("31090,networkPolicy.managerPort=50051", json!([50051, 31090])),
        ("31090,agent.proxy.url=http://proxy.example:3128", json!([9090, 31090, 3128])),
    ] {
        let values =
            format!("agent.enabled=true,agent.tenantId=blue,agent.managerAddress=https://m.example:{port}");
        let objects = chart(&["--set", &values]).unwrap();
        let ports = find(&objects, "NetworkPolicy", "outrigger-agent")["spec"]["egress"][0]["ports"].clone();
        let ports: Vec<_> = ports.as_array().unwrap().iter().map(|port| port["port"].clone()).collect();
        assert_eq!(json!(ports), expected, "{values}");
    }
}

#[test]
fn managers_may_have_addresses_of_ipv6() {
    let values = "agent.enabled=true,agent.tenantId=blue,agent.managerAddress=https://[fd00::1]:31090";
    let objects = chart(&["--set", values]).unwrap();
    let (_, env) = container(&objects, "outrigger-agent").unwrap();
    assert!(env.contains(&"OUTRIGGER_MANAGER_ADDRESS=https://[fd00::1]:31090".to_owned()), "{env:?}");
    assert!(text(&objects).contains("\"port\":31090"));
}

#[test]
fn runbooks_may_be_links() {
    let set = "monitoring.enabled=true,monitoring.runbooks=https://wiki.example/runbooks/";
    let objects = chart(&["--set", set]).unwrap();
    let rules = find(&objects, "PrometheusRule", "outrigger")["spec"]["groups"].clone();
    let alerts: Vec<_> =
        rules.as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap()).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        let link = format!("https://wiki.example/runbooks/{}.md", alert["alert"].as_str().unwrap());
        assert_eq!(alert["annotations"]["runbook_url"], link.as_str());
    }
}

#[test]
fn another_label_of_hosts_is_used_everywhere() {
    for labels in ["example.com/host", "example.com/host,example.com/former"] {
        let objects = chart(&["--set-json", &format!("hostLabel={labels:?}")]).unwrap();
        let text = text(&objects);
        assert!(!text.contains("provisioning.dpu.nvidia.com/"));
        for label in labels.split(',') {
            assert!(text.contains(&format!("'{label}'")), "the policy of Nodes names {label}");
        }
        for part in ["outrigger-webhook", "outrigger-manager"] {
            let (args, _) = container(&objects, part).unwrap();
            assert!(args.contains(&format!("--host-label={labels}")), "{args:?}");
        }
    }
}

/// The object of that kind and name.
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn values_change_what_they_say() {
    let webhook = ("Deployment", "outrigger-webhook", "/spec/template/spec");
    let manager = ("Deployment", "outrigger-manager", "/spec/template/spec");
    let agent = ["agent.enabled=true", "agent.tenantId=blue", "agent.managerAddress=https://m.example:9090"];
    let with_agent = agent.join(",");
    let with_proxy = format!("{with_agent},agent.proxy.url=http://p.example:3128");
    let with_secret = format!("{with_agent},agent.proxy.urlSecret=proxy");
    let with_host =
        format!("{with_agent},agent.companionsFirst.enabled=true,networkPolicy.dnsPorts={{53,5353}}");
    for (values, (kind, name, at), path, expected) in [
        ("image.tag=2.0.0", webhook, "/containers/0/image", json!("registry.example/outrigger:2.0.0")),
        (
            "image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000000",
            webhook,
            "/containers/0/image",
            json!(
                "registry.example/outrigger@sha256:0000000000000000000000000000000000000000000000000000000000000000"
            ),
        ),
        ("image.pullPolicy=Always", manager, "/containers/0/imagePullPolicy", json!("Always")),
        ("image.pullSecrets[0].name=pull", manager, "/imagePullSecrets", json!([{"name": "pull"}])),
        ("webhook.tlsSecret=mine", webhook, "/volumes/0/secret/secretName", json!("mine")),
        ("manager.clientCaSecret=mine", manager, "/volumes/1/secret/secretName", json!("mine")),
        ("manager.nodeSelector.role=infra", manager, "/nodeSelector", json!({"role": "infra"})),
        ("webhook.resources.requests.cpu=1", webhook, "/containers/0/resources/requests/cpu", json!(1)),
        (
            "priorityClass.name=system-cluster-critical",
            webhook,
            "/priorityClassName",
            json!("system-cluster-critical"),
        ),
        ("webhook.replicas=3", ("Deployment", "outrigger-webhook", ""), "/spec/replicas", json!(3)),
        (
            "manager.autoscaling.enabled=true,manager.autoscaling.maxReplicas=9",
            ("HorizontalPodAutoscaler", "outrigger-manager", ""),
            "/spec/maxReplicas",
            json!(9),
        ),
        (
            "webhook.autoscaling.enabled=true,webhook.autoscaling.targetCPU=2",
            ("HorizontalPodAutoscaler", "outrigger-webhook", ""),
            "/spec/metrics/0/resource/target/averageValue",
            json!("2"),
        ),
        (
            "manager.service.type=LoadBalancer",
            ("Service", "outrigger-manager", ""),
            "/spec/type",
            json!("LoadBalancer"),
        ),
        (
            "manager.service.ipFamilyPolicy=PreferDualStack",
            ("Service", "outrigger-manager", ""),
            "/spec/ipFamilyPolicy",
            json!("PreferDualStack"),
        ),
        (
            "networkPolicy.apiServerCIDRs={10.0.0.0/28}",
            ("NetworkPolicy", "outrigger-webhook", ""),
            "/spec/ingress/0/from",
            json!([{"ipBlock": {"cidr": "10.0.0.0/28"}}]),
        ),
        (
            "networkPolicy.apiServerPorts={8443}",
            ("NetworkPolicy", "outrigger", ""),
            "/spec/egress/1/ports",
            json!([{"protocol": "TCP", "port": 8443}]),
        ),
        (
            "networkPolicy.dnsPorts={53,5353}",
            ("NetworkPolicy", "outrigger", ""),
            "/spec/egress/0/ports/3",
            json!({"protocol": "TCP", "port": 5353}),
        ),
        (
            with_host.as_str(),
            ("NetworkPolicy", "outrigger-host", ""),
            "/spec/egress/0/ports/3",
            json!({"protocol": "TCP", "port": 5353}),
        ),
        (
            "webhook.caBundle=QUJD",
            ("ValidatingWebhookConfiguration", "outrigger", ""),
            "/webhooks/0/clientConfig/caBundle",
            json!("QUJD"),
        ),
        (
            with_agent.as_str(),
            ("Deployment", "outrigger-agent", "/spec/template/spec"),
            "/containers/0/env",
            json!([{"name": "OUTRIGGER_TENANT_ID", "value": "blue"},
                {"name": "OUTRIGGER_MANAGER_ADDRESS", "value": "https://m.example:9090"}]),
        ),
        (
            with_proxy.as_str(),
            ("Deployment", "outrigger-agent", "/spec/template/spec"),
            "/containers/0/env/2",
            json!({"name": "HTTPS_PROXY", "value": "http://p.example:3128"}),
        ),
        (
            with_secret.as_str(),
            ("Deployment", "outrigger-agent", "/spec/template/spec"),
            "/containers/0/env/2",
            json!({"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}),
        ),
    ] {
        let objects = chart(&["--set", values]).unwrap();
        let found = find(&objects, kind, name).pointer(&format!("{at}{path}"));
        assert_eq!(found, Some(&expected), "{values}");
    }
}

#[test]
fn values_for_production_and_for_many_workloads_go_together() {
    let files = ["-f", "deploy/helm/values/production.yaml", "-f", "deploy/helm/values/large.yaml"];
    let objects = chart(&files).unwrap();
    for (part, memory) in [("webhook", "512Mi"), ("manager", "8Gi")] {
        let name = format!("outrigger-{part}");
        let spec = &find(&objects, "Deployment", &name)["spec"];
        assert_eq!(spec["replicas"], 3, "{part}");
        let pod = &spec["template"]["spec"];
        let [spread, limits] =
            [&pod["topologySpreadConstraints"][0], &pod["containers"][0]["resources"]["limits"]];
        let of = (spread["topologyKey"].as_str(), spread["whenUnsatisfiable"].as_str());
        assert_eq!(of, (Some("kubernetes.io/hostname"), Some("DoNotSchedule")), "each has a node of its own");
        assert_eq!(limits["memory"], memory, "{part}");
        let budget = find(&objects, "PodDisruptionBudget", &name);
        assert_eq!(budget["spec"]["maxUnavailable"], 1, "{part}");
    }
}

#[test]
fn flags_come_from_values() {
    for (values, part, flag) in [
        ("log.level=debug", "outrigger-webhook", "--log-level=debug"),
        ("log.format=text", "outrigger-manager", "--log-format=text"),
        (
            "manager.adminIdentities={a.example,b.example}",
            "outrigger-manager",
            "--admin-identity=a.example,b.example",
        ),
        ("manager.manageOffloading=false", "outrigger-manager", "--manage-offloading=false"),
        ("manager.manageMachines=false", "outrigger-manager", "--manage-machines=false"),
        ("manager.taintDPUs=false", "outrigger-manager", "--taint-dpus=false"),
        ("enforcement=Warn", "outrigger-webhook", "--enforcement=Warn"),
        ("enforcement=Observe", "outrigger-manager", "--enforcement=Observe"),
        ("console.enabled=true,enforcement=Warn", "outrigger-console", "--enforcement=Warn"),
        ("manager.queries.enabled=true", "outrigger-manager", "--query-address=:9443"),
        (
            "console.enabled=true,manager.queries.enabled=true",
            "outrigger-console",
            "--manager-queries=https://outrigger-manager-queries.outrigger-system.svc:9443",
        ),
        (
            "console.enabled=true,manager.queries.enabled=true",
            "outrigger-manager",
            "--query-reviews-per-minute=2000",
        ),
        (
            "console.enabled=true,manager.queries.enabled=true,manager.extraArgs={--query-reviews-per-minute=600}",
            "outrigger-manager",
            "--query-reviews-per-minute=600",
        ),
        ("manager.maxConcurrentReconciles=20", "outrigger-manager", "--max-concurrent-reconciles=20"),
        ("manager.autoscaling.enabled=true", "outrigger-manager", "--max-connection-age=10m"),
        (
            "manager.autoscaling.enabled=true,manager.extraArgs={--max-connection-age=5m}",
            "outrigger-manager",
            "--max-connection-age=5m",
        ),
        ("webhook.extraArgs={--max-connections=9}", "outrigger-webhook", "--max-connections=9"),
        ("manager.extraArgs={--shutdown-delay=60s}", "outrigger-manager", "--shutdown-delay=60s"),
        ("webhook.extraArgs={--log-format=text}", "outrigger-webhook", "--log-format=text"),
    ] {
        let (args, _) = container(&chart(&["--set", values]).unwrap(), part).unwrap();
        assert!(args.contains(&flag.to_owned()), "{values}: {args:?}");
        crate::deploy::references::accepted(&args, &[]);
    }
}

#[test]
fn what_is_turned_off_is_not_there() {
    for (values, gone) in [
        ("networkPolicy.enabled=false", "\"NetworkPolicy\""),
        ("priorityClass.create=false", "\"value\":1000000000"),
        ("crds.install=false", "\"CustomResourceDefinition\""),
        ("crds.liqo=false", "namespaceoffloadings.offloading.liqo.io"),
        ("crds.imperator=false", "machines.imperator.tenzen-y.io"),
        ("manager.enabled=false", "outrigger-manager-machines"),
        ("machines.createNamespace=false", "\"name\":\"imperator-system\""),
        ("webhook.enabled=false", "outrigger-webhook\",\"namespace"),
        ("webhook.enabled=false", "MutatingWebhookConfiguration"),
        ("webhook.enabled=false", "outrigger-webhook-self-signed"),
        ("manager.enabled=false", "outrigger-manager-self-signed"),
        ("manager.enabled=false", "\"name\":\"outrigger-ca\""),
    ] {
        let own = "selfSigned.enabled=true";
        let all = text(&chart(&["--set", own]).unwrap());
        assert!(all.contains(gone), "{gone} is not there anyhow");
        let rest = text(&chart(&["--set", own, "--set", values]).unwrap());
        assert!(!rest.contains(gone), "{values}: {gone}");
    }
}

#[test]
fn every_clientconfig_gets_the_bundle() {
    let objects = chart(&["--set", "webhook.caBundle=QUJD"]).unwrap();
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        for webhook in find(&objects, kind, "outrigger")["webhooks"].as_array().unwrap() {
            assert_eq!(webhook["clientConfig"]["caBundle"], "QUJD", "{}", webhook["name"]);
        }
    }
}

#[test]
fn uninstallation_keeps_what_people_have_made() {
    for (_, values) in OVERLAYS {
        let objects = chart(values).unwrap();
        let kept = of_kind(&objects, "CustomResourceDefinition").chain(of_kind(&objects, "Namespace"));
        for object in kept {
            let annotation = &object["metadata"]["annotations"]["helm.sh/resource-policy"];
            assert_eq!(annotation, "keep", "{}", name(object));
        }
    }
}

#[test]
fn values_that_can_not_be_are_refused_with_their_path() {
    for (values, said) in [
        ("webhook.replicas=0", "/webhook/replicas"),
        ("webhook.autoscaling.maxReplicas=21", "/webhook/autoscaling/maxReplicas"),
        ("webhook.autoscaling.targetCPU=lots", "/webhook/autoscaling/targetCPU"),
        (
            "manager.autoscaling.enabled=true,manager.autoscaling.minReplicas=6",
            "manager.autoscaling.maxReplicas: is 5, less than minReplicas, which is 6",
        ),
        ("manager.maxConcurrentReconciles=0", "/manager/maxConcurrentReconciles"),
        ("webhook.replica=2", "'replica' not allowed"),
        ("webhooks.replicas=2", "'webhooks' not allowed"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.digest=latest", "/image/digest"),
        ("hostLabel=a b", "/hostLabel"),
        ("enforcement=Off", "/enforcement"),
        ("log.format=xml", "/log/format"),
        ("manager.service.type=Ingress", "/manager/service/type"),
        ("networkPolicy.apiServerCIDRs={nowhere}", "/networkPolicy/apiServerCIDRs/0"),
        ("networkPolicy.apiServerPorts={70000}", "/networkPolicy/apiServerPorts/0"),
        ("agent.enabled=true", "/agent/tenantId"),
        ("agent.enabled=true,agent.tenantId=blue", "/agent/managerAddress"),
        ("agent.enabled=true,agent.tenantId=Blue_,agent.managerAddress=https://m:1", "/agent/tenantId"),
        ("agent.enabled=true,agent.tenantId=blue,agent.managerAddress=http://m:1", "/agent/managerAddress"),
        ("agent.proxy.url=http://user:secret@proxy.example:3128", "/agent/proxy/url"),
        ("agent.proxy.url=https://proxy.example:3128", "/agent/proxy/url"),
        ("manager.service.ipFamilyPolicy=Both", "/manager/service/ipFamilyPolicy"),
        ("webhook.caBundle=-----BEGIN CERTIFICATE-----", "/webhook/caBundle"),
        ("webhook.extraArgs={-v}", "/webhook/extraArgs/0"),
        ("certManager.enabled=true,selfSigned.enabled=true", "choose one"),
        ("webhook.caBundle=QUJD,selfSigned.enabled=true", "webhook.caBundle"),
        ("webhook.caBundle=QUJD,certManager.enabled=true", "webhook.caBundle"),
        ("networkPolicy.dnsPorts={0}", "/networkPolicy/dnsPorts/0"),
        ("monitoring.runbooks=wiki", "/monitoring/runbooks"),
    ] {
        let refusal = chart(&["--set", values]).expect_err(values).to_string();
        assert!(refusal.contains(said), "{values}: {refusal}");
    }
}
