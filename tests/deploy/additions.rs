//! What users add to what the chart makes: volumes of their own, and types of Services.

use outrigger_tests::shipped::chart;
use serde_json::{Value, json};

use crate::deploy::chart::find;

/// The chart's values that a part needs.
const PARTS: [(&str, &str); 5] = [
    ("webhook", "webhook.enabled=true"),
    // This one has no volumes of its own.
    ("webhook", "selfSigned.enabled=true"),
    ("manager", "manager.enabled=true"),
    ("console", "console.enabled=true"),
    ("agent", "agent.enabled=true,agent.tenantId=blue,agent.managerAddress=https://m.example:9090"),
];

#[test]
fn extra_volumes_come_after_those_of_the_chart() {
    for (part, enabled) in PARTS {
        let pod = |objects: Vec<Value>| {
            find(&objects, "Deployment", &format!("outrigger-{part}"))["spec"]["template"]["spec"].clone()
        };
        let volume = json!({"name": "extra", "configMap": {"name": "mine"}});
        let mount = json!({"name": "extra", "mountPath": "/etc/mine", "readOnly": true});
        let volumes = format!("{part}.extraVolumes=[{volume}]");
        let mounts = format!("{part}.extraVolumeMounts=[{mount}]");
        let with = chart(&["--set", enabled, "--set-json", &volumes, "--set-json", &mounts]).unwrap();
        let mut expected = pod(chart(&["--set", enabled]).unwrap());
        expected["volumes"].as_array_mut().unwrap().push(volume);
        expected["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
        assert_eq!(pod(with), expected, "{part} with {enabled}");
    }
}

#[test]
fn services_have_the_type_that_the_values_say() {
    for part in ["webhook", "manager"] {
        let spec = |value: &str| {
            let objects = chart(&["--set", &format!("{part}.service.{value}")]).unwrap();
            find(&objects, "Service", &format!("outrigger-{part}"))["spec"].clone()
        };
        for kind in ["LoadBalancer", "NodePort"] {
            assert_eq!(spec(&format!("type={kind}"))["type"], kind, "{part}");
        }
        // It is Kubernetes' default, which kustomize leaves out too.
        assert_eq!(spec("type=ClusterIP").get("type"), None, "{part}");
        assert_eq!(spec("ipFamilyPolicy=PreferDualStack")["ipFamilyPolicy"], "PreferDualStack", "{part}");
    }
}

#[test]
fn additions_that_can_not_be_are_refused_with_their_path() {
    for (values, said) in [
        ("webhook.service.type=ExternalName", "/webhook/service/type"),
        ("webhook.extraVolumes[0].configMap.name=mine", "/webhook/extraVolumes/0"),
        ("agent.extraVolumeMounts[0].name=extra", "/agent/extraVolumeMounts/0"),
        (
            "console.extraVolumeMounts[0].name=extra,console.extraVolumeMounts[0].mountPath=etc",
            "/console/extraVolumeMounts/0/mountPath",
        ),
    ] {
        let refusal = chart(&["--set", values]).expect_err(values).to_string();
        assert!(refusal.contains(said), "{values}: {refusal}");
    }
}
