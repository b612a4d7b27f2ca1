//! The console: what it may do, and how it reaches managers.

use std::collections::BTreeSet;

use outrigger_tests::shipped::{chart, chart_in, container, kustomize, name};
use serde_json::{Value, json};

use crate::deploy::chart::{find, text};
use crate::deploy::{overlay, with_component};

/// It reads with the tokens of its users, and has none itself.
#[test]
fn the_console_has_no_rights_and_no_token() {
    let names = |objects: &[Value]| objects.iter().map(name).collect::<BTreeSet<_>>();
    let without = names(&kustomize(&overlay("infrastructure")).unwrap());
    let objects = with_component("infrastructure", "console");
    let added: Vec<String> = names(&objects).difference(&without).cloned().collect();
    let kinds = ["Deployment", "NetworkPolicy", "Service", "ServiceAccount"];
    assert_eq!(added, kinds.map(|kind| format!("{kind} outrigger-system/outrigger-console")));
    assert!(
        !text(&objects.iter().filter(|o| name(o).contains("Binding")).cloned().collect::<Vec<_>>())
            .contains("outrigger-console")
    );
    let account = find(&objects, "ServiceAccount", "outrigger-console");
    assert_eq!(account["automountServiceAccountToken"], false);
    for objects in [objects, with_component("infrastructure", "console-queries")] {
        let pod = &find(&objects, "Deployment", "outrigger-console")["spec"]["template"]["spec"];
        assert_eq!(pod.get("automountServiceAccountToken"), None);
        assert!(!pod["volumes"].to_string().contains("serviceAccountToken"), "{}", pod["volumes"]);
    }
}

/// It asks managers by the name of the queries' Service, verifies them by the name of their certificate, has their CA and not their
/// key, and may connect to them and they may be reached.
#[test]
fn a_console_beside_queries_asks_the_managers() {
    for namespace in ["outrigger-system", "companions"] {
        let objects =
            chart_in(namespace, &["--set", "console.enabled=true,manager.queries.enabled=true"]).unwrap();
        let (args, _) = container(&objects, "outrigger-console").unwrap();
        let flag = |name: &str| -> Vec<&str> {
            let of = |arg: &'_ String| arg.strip_prefix(&format!("--{name}=")).is_some();
            args.iter()
                .filter(|arg| of(arg))
                .filter_map(|arg| arg.split_once('='))
                .map(|(_, value)| value)
                .collect()
        };
        let service = find(&objects, "Service", "outrigger-manager-queries");
        let port = &service["spec"]["ports"][0]["port"];
        let url = format!("https://outrigger-manager-queries.{namespace}.svc:{port}");
        assert_eq!(flag("manager-queries"), [url.as_str()]);
        let other = format!("outrigger-manager.{namespace}.svc");
        let named = if namespace == "companions" { vec![other.as_str()] } else { Vec::new() };
        assert_eq!(flag("manager-server-name"), named);
        let console = find(&objects, "Deployment", "outrigger-console");
        let volumes = console["spec"]["template"]["spec"]["volumes"].to_string();
        assert_eq!(volumes.matches("tls.key").count(), 2, "key and path of its own: {volumes}");
        let files = ["/etc/outrigger/manager-ca/ca.crt", "/etc/outrigger/manager-ca/self-signed-ca.crt"];
        assert_eq!(flag("manager-ca-file"), files);
        let egress = &find(&objects, "NetworkPolicy", "outrigger-console")["spec"]["egress"];
        let manager = &find(&objects, "NetworkPolicy", "outrigger-manager")["spec"];
        assert_eq!(egress[0]["to"][0]["podSelector"], manager["podSelector"]);
        assert_eq!(egress[0]["ports"], json!([{"protocol": "TCP", "port": port}]));
    }
    for values in
        ["console.enabled=true", "console.enabled=true,manager.enabled=false,manager.queries.enabled=true"]
    {
        let objects = chart(&["--set", values]).unwrap();
        assert!(!text(&objects).contains("--manager-queries"), "{values}");
    }
}
