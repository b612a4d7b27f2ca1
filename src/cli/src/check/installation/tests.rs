//! Judgement of an installation, on plain data.

use outrigger_core::json::text;
use outrigger_runtime::expiry::Validity;
use outrigger_runtime::probe::Verdict;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::{Value, json};

use super::parts::{Part, admission, argument, data, levels, mounted, running_versions};
use super::rights::{Account, Right};
use super::roles::{self, Names};
use super::versions::{self, Version};
use super::{certificates, connections, reach, rights};
use crate::admission::default_args;
use crate::check::findings::{CA_UNUSABLE, CERTIFICATE_ENDED, Finding, Subject};

fn names() -> Names {
    Names {
        system: "outrigger-system".to_owned(),
        rules: "universe".to_owned(),
        resources: "universe".to_owned(),
        core: "imperator-system".to_owned(),
        tenant_rules: "universe".to_owned(),
        machines: true,
        webhook_self_signed: false,
        manager_self_signed: false,
        queries: false,
    }
}

/// The rights that a part needs, as text.
fn needs(part: Part, names: &Names) -> Vec<String> {
    let account = Account { namespace: names.system.clone(), name: part.name().to_owned() };
    let shipped = roles::shipped(&Part::ALL, names).unwrap();
    rights::needed(&shipped, &account).iter().map(ToString::to_string).collect()
}

#[test]
fn each_part_needs_what_the_shipped_roles_give_it() {
    let has = |all: &[String], right: &str| all.iter().any(|other| other == right);
    let webhook = needs(Part::Webhook, &names());
    for right in [
        "watch tenants.outrigger.dev",
        "update configmaps in imperator-system",
        "list adminworkloadrules.workload.universe.nvidia.com in universe",
    ] {
        assert!(has(&webhook, right), "{right}: {webhook:?}");
    }
    assert!(!webhook.iter().any(|right| right.contains("secrets")));
    let self_signed = needs(Part::Webhook, &Names { webhook_self_signed: true, ..names() });
    assert!(has(&self_signed, "patch secrets/outrigger-webhook-self-signed in outrigger-system"));
    let manager = needs(Part::Manager, &names());
    assert!(has(&manager, "patch leases.coordination.k8s.io/outrigger-manager in outrigger-system"));
    let without_machines = needs(Part::Manager, &Names { machines: false, ..names() });
    let is_machines = |right: &String| right.contains("imperator.tenzen-y.io");
    assert!(manager.iter().any(is_machines) && !without_machines.iter().any(is_machines));
    let with_queries = needs(Part::Manager, &Names { queries: true, ..names() });
    let reviews = "create tokenreviews.authentication.k8s.io".to_owned();
    assert!(with_queries.contains(&reviews) && !manager.contains(&reviews), "{with_queries:?}");
    assert!(has(&needs(Part::Agent, &names()), "watch pods"));
}

#[test]
fn roles_have_the_names_of_the_installation() {
    let other = Names {
        system: "companions".to_owned(),
        rules: "rules".to_owned(),
        resources: "resources".to_owned(),
        core: "core".to_owned(),
        tenant_rules: "own".to_owned(),
        ..names()
    };
    let name = |o: &Value| {
        format!("{} {}/{}", text(o, "/kind"), text(o, "/metadata/namespace"), text(o, "/metadata/name"))
    };
    let shipped = roles::shipped(&Part::ALL, &other).unwrap();
    for shipped_name in ["\"outrigger-system\"", "\"universe\"", "\"imperator-system\""] {
        let found = shipped.iter().find(|o| o.to_string().contains(shipped_name)).map(name);
        assert_eq!(found, None, "{shipped_name}");
    }
    let all: Vec<String> = shipped.iter().map(name).collect();
    for wanted in [
        "RoleBinding rules/outrigger-manager-admin-rules",
        "RoleBinding rules/outrigger-webhook-admin-rules",
        "RoleBinding resources/outrigger-manager-admin-resources",
        "RoleBinding own/outrigger-agent",
        "RoleBinding core/outrigger-webhook",
    ] {
        assert!(all.contains(&wanted.to_owned()), "{wanted}: {all:#?}");
    }
    // Several parts have the same files.
    let mut unique = all.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), all.len());
    // An empty name names no namespace, so no role is bound there.
    let none =
        Names { rules: String::new(), resources: String::new(), tenant_rules: String::new(), ..names() };
    for part in Part::ALL {
        let rights = needs(part, &none);
        assert!(
            !rights
                .iter()
                .any(|right| right.contains("adminworkloadrules") || right.ends_with(" in universe")),
            "{rights:?}"
        );
    }
}

#[test]
fn missing_rights_are_reported_with_all_verbs_of_an_object() {
    let account = Account { namespace: "s".to_owned(), name: "a".to_owned() };
    let who = json!([{"kind": "ServiceAccount", "namespace": "s", "name": "a"}]);
    let roles = [
        json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [
            {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list"]}]}),
        json!({"kind": "ClusterRoleBinding", "subjects": who, "roleRef": {"kind": "ClusterRole", "name": "r"}}),
        json!({"kind": "Role", "metadata": {"name": "r", "namespace": "s"}, "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["l"], "verbs": ["get"]}]}),
        json!({"kind": "RoleBinding", "metadata": {"namespace": "s"}, "subjects": who, "roleRef": {"kind": "Role", "name": "r"}}),
    ];
    let needed = rights::needed(&roles, &account);
    assert_eq!(needed.len(), 5);
    assert_eq!(needed.iter().map(Right::parts).filter(|parts| *parts == ("pods", "status")).count(), 2);
    let said: Vec<String> = rights::missing(&account, &needed).into_iter().map(|f| f.message).collect();
    assert_eq!(
        said,
        [
            "may not get leases.coordination.k8s.io/l in s",
            "may not get, list pods",
            "may not get, list pods/status"
        ]
    );
    let other = Account { name: "b".to_owned(), ..account };
    assert!(rights::needed(&roles, &other).is_empty());
}

#[test]
fn versions_beside_each_other() {
    let parse = |text: &str| Version::parse(text).map(|v| v.to_string());
    for (text, expected) in [
        ("1.2.3", Some("1.2.3")),
        ("v1.34.2+k3s1", Some("1.34.2")),
        ("0.2.0-dev", Some("0.2.0")),
        ("latest", None),
        ("1.2", None),
        ("1.2.3.4", None),
        ("", None),
        ("v99999999999999999999.0.0", None),
    ] {
        assert_eq!(parse(text).as_deref(), expected, "{text}");
    }
    let image = |image: &str| Version::of_image(image).map(|v| v.to_string());
    assert_eq!(image("registry.example:5000/outrigger:v0.1.0@sha256:abc").as_deref(), Some("0.1.0"));
    assert_eq!((image("registry.example:5000/outrigger@sha256:abc"), image("outrigger")), (None, None));

    let subject = Subject::cluster("Deployment", "d");
    let of = |text: &str| Version::parse(text).unwrap();
    for (a, b, expected) in [
        ("0.1.9", "0.1.0", None),
        ("0.2.0-dev", "0.2.0", None),
        ("0.2.0-dev", "0.1.0", Some("versions-differ")),
        ("0.1.0", "0.2.5", Some("versions-differ")),
        ("0.3.0", "0.1.0", Some("version-skew")),
        ("1.1.0", "0.1.0", Some("version-skew")),
    ] {
        let found = versions::skew(&subject, "p", "the agent", of(a), ("the manager", of(b)));
        assert_eq!(found.map(|f| f.check.id), expected, "{a} {b}");
    }
}

#[test]
fn the_versions_that_run_are_those_of_the_pods() {
    let deployment = json!({"metadata": {"name": "outrigger-manager", "labels": {"app.kubernetes.io/version": "1.2.3"}},
        "spec": {"selector": {"matchLabels": {"a": "1"}}, "template": {"spec": {"containers": [
            {"name": "mesh", "image": "mesh:8.8.8"}, {"name": "manager", "image": "o:0.3.0"}]}}}});
    let pod = |label: &str, phase: &str, image: &str| {
        json!({"metadata": {"labels": {"a": label}}, "status": {"phase": phase}, "spec": {"containers": [
            {"name": "mesh", "image": "mesh:9.9.9"}, {"name": "manager", "image": image}]}})
    };
    let pods = [
        pod("1", "Running", "o:0.1.0"),
        pod("1", "Failed", "o:0.0.1"),
        pod("2", "Running", "o:0.0.2"),
        pod("1", "Running", "o:0.2.0"),
    ];
    let versions = |deployment: &Value, pods: &[Value]| -> Vec<String> {
        running_versions(deployment, pods).iter().map(ToString::to_string).collect()
    };
    assert_eq!(versions(&deployment, &pods), ["0.1.0", "0.2.0"]);
    assert_eq!(versions(&deployment, &[]), ["0.3.0"]);
    let mut unknown = deployment;
    unknown["spec"]["template"]["spec"]["containers"][1]["image"] = json!("o:latest");
    assert_eq!(versions(&unknown, &[]), ["1.2.3"]);
}

#[test]
fn deployments_say_their_flags_and_files() {
    let deployment = json!({"metadata": {"name": "outrigger-webhook"}, "spec": {"template": {"spec": {
        "containers": [{"name": "mesh", "args": ["--tls=no"]}, {"name": "webhook", "args": ["webhook", "--tls=self-signed", "--a-b", "c", "--tlsx=1"],
            "env": [{"name": "OUTRIGGER_TENANT_ID", "value": "blue"}, {"name": "OUTRIGGER_NONE"},
                {"name": "OUTRIGGER_FROM", "valueFrom": {}}]}],
        "volumes": [{"secret": {"secretName": "a", "items": [{"key": "crt", "path": "tls.crt"}]}}, {"emptyDir": {}},
            {"projected": {"sources": [{"serviceAccountToken": {}},
                {"configMap": {"name": "b", "items": [{"key": "ca", "path": "ca.crt"}]}}]}}]}}}});
    let of = |flag| argument(&deployment, flag);
    assert_eq!(of("tls").as_deref(), Some("self-signed"));
    assert_eq!(of("a-b").as_deref(), Some("c"));
    assert_eq!(of("tenant-id").as_deref(), Some("blue"));
    assert_eq!((of("none").as_deref(), of("tl"), of("from")), (Some(""), None, None));
    let file = |name| mounted(&deployment, name);
    assert_eq!(file("tls.crt"), Some(("Secret", "a".to_owned(), "crt".to_owned())));
    assert_eq!(file("ca.crt"), Some(("ConfigMap", "b".to_owned(), "ca".to_owned())));
    assert_eq!(file("crt"), None);
    let secret = json!({"kind": "Secret", "data": {"a": "eA=="}});
    let map = json!({"kind": "ConfigMap", "data": {"a": "x"}});
    assert_eq!((data(&secret, "a"), data(&map, "a")), (Some(b"x".to_vec()), Some(b"x".to_vec())));
    assert_eq!(data(&secret, "b"), None);
}

#[test]
fn the_webhooks_own_command_reads_its_settings() {
    let read = |mut container: Value| {
        container["name"] = json!("webhook");
        let spec = json!({"containers": [{"name": "mesh", "args": ["--enforcement=x"]}, container]});
        let webhook =
            json!({"metadata": {"name": "outrigger-webhook"}, "spec": {"template": {"spec": spec}}});
        let own = AdmissionArgs { exempt_runtime_class: "own".to_owned(), ..default_args() };
        admission(&webhook, own).map(|args| {
            let users = args.manager_user.join(" ");
            format!("{users} {} {} {}", args.exempt_runtime_class, args.core_namespace, args.enforcement)
        })
    };
    const DEFAULT: &str = "system:serviceaccount:outrigger-system:outrigger-manager";
    let nothing = read(json!({"args": ["webhook"]})).unwrap();
    assert_eq!(nothing, format!("{DEFAULT} own imperator-system Enforce"));
    let args = [
        "webhook",
        "--manager-user",
        "a,b",
        "--exempt-runtime-class=",
        "--bind-address=:1",
        "--log-format=text",
        "--log-level=$(LEVEL)",
    ];
    let env = json!([{"name": "OUTRIGGER_CORE_NAMESPACE", "value": "first"}, {"name": "OUTRIGGER_CORE_NAMESPACE", "value": "core"},
        {"name": "OUTRIGGER_MANAGER_USER", "value": "env"}, {"name": "OUTRIGGER_ENFORCEMENT", "value": "Warn"},
        {"name": "OUTRIGGER_DEBUG_ENDPOINTS", "value": "true"}, {"name": "OUTRIGGER_LOG_LEVEL", "valueFrom": {}}]);
    let all = read(json!({"args": args, "env": env})).unwrap();
    assert_eq!(all, "a b  core Warn");
    let command =
        json!({"command": ["/outrigger", "webhook"], "args": ["--manager-user=a", "--manager-user=b"]});
    assert_eq!(read(command).unwrap(), "a b own imperator-system Enforce");
    for (container, error) in [
        (
            json!({"args": ["webhook", "--of-another-release=1"]}),
            "error: unexpected argument '--of-another-release' found",
        ),
        (
            json!({"args": ["webhook", "--enforcement=Sometimes"]}),
            "error: invalid value 'Sometimes' for '--enforcement <LEVEL>'",
        ),
        (json!({"args": ["webhook", "--manager-user=$(USER)"]}), "$(USER) refers to a variable"),
        (
            json!({"args": ["webhook"], "env": [{"name": "OUTRIGGER_ENFORCEMENT", "valueFrom": {}}]}),
            "OUTRIGGER_ENFORCEMENT has valueFrom",
        ),
        (json!({"args": ["webhook"], "envFrom": [{}]}), "envFrom may have settings"),
        (json!({"args": ["manager"]}), "has no subcommand webhook"),
    ] {
        let said = read(container).unwrap_err();
        assert!(said.starts_with(error), "{said}");
    }
}

#[test]
fn webhook_and_manager_have_one_level_of_enforcement() {
    let of = |name: &str, args: &[&str]| {
        json!({"metadata": {"name": format!("outrigger-{name}")},
            "spec": {"template": {"spec": {"containers": [{"name": name, "args": args}]}}}})
    };
    let found = |webhook: &[&str], manager: &[&str]| {
        let subject = Subject::cluster("Deployment", "outrigger-webhook");
        levels(&subject, "p", &of("webhook", webhook), &of("manager", manager)).map(|f| f.message)
    };
    for same in [&[][..], &["--enforcement=Warn"]] {
        assert_eq!(found(same, same), None);
    }
    assert_eq!(found(&[], &["--enforcement=Enforce"]), None, "the default");
    let said = found(&["--enforcement", "Observe"], &[]).unwrap();
    assert!(
        said.starts_with("--enforcement is Observe, which the webhook applies")
            && said.contains("Enforce for the manager"),
        "{said}"
    );
}

#[test]
fn certificates_expire() {
    const DAY: i64 = 24 * 3600;
    let subject = Subject::cluster("Secret", "s");
    let of = Validity { not_before: 0, not_after: 90 * DAY };
    const END: &str = "1970-04-01T00:00:00Z";
    const RENEWAL: &str = "it was to be renewed at 1970-03-02T00:00:00Z";
    let ends = |left: &str| Some(("certificate-ends", format!("it expires at {END}, in {left}; {RENEWAL}")));
    let ended = |message: String| Some(("certificate-ended", message));
    for (day, expected) in [
        (0, None),
        (82, None),
        (83, ends("7 days")),
        (90, ends("0 h")),
        (91, ended(format!("it expired at {END}, 1 day ago"))),
        (-1, ended("it isn't valid before 1970-01-01T00:00:00Z: check the clocks".to_owned())),
    ] {
        let found = certificates::validity(&subject, "", "it", &of, day * DAY);
        assert_eq!(found.map(|f| (f.check.id, f.message)), expected, "{day}");
    }
}

#[test]
fn ca_bundles() {
    const DAY: i64 = 24 * 3600;
    let ca = |last: i64| {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.not_before = rcgen::date_time_ymd(1971, 1, 1);
        params.not_after =
            params.not_before + std::time::Duration::from_secs(u64::try_from(last * DAY).unwrap());
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    };
    let subject = Subject::cluster("Secret", "s");
    let (old, near, new) = (ca(50), ca(104), ca(200));
    for (bundle, expected) in [
        (" \n".to_owned(), Some("ca-unusable")),
        ("nothing of that kind".to_owned(), Some("ca-unusable")),
        (old.clone(), Some("ca-unusable")),
        (near, Some("certificate-ends")),
        // The old CA beside the new one may expire.
        (format!("{old}{new}"), None),
    ] {
        let found = certificates::bundle(&subject, "", bundle.as_bytes(), (365 + 100) * DAY);
        assert_eq!(found.map(|f| f.check.id), expected, "{bundle}");
    }
}

#[test]
fn certificates_that_are_not_trusted() {
    let subject = Subject::cluster("ValidatingWebhookConfiguration", "outrigger");
    let why = || "x".to_owned();
    let refused = |verdict, known: &[Finding]| {
        reach::refused(&subject, "", "it", &verdict, known).map(|finding| finding.check.id)
    };
    assert_eq!(refused(Verdict::Trusted, &[]), None);
    assert_eq!(refused(Verdict::Untrusted(why()), &[]), Some("ca-mismatch"));
    // The same dates are reported once.
    let [ended, unusable] =
        [&CERTIFICATE_ENDED, &CA_UNUSABLE].map(|check| Finding::new(check, &subject, "", "x"));
    for (known, expected) in [
        (vec![], [Some("certificate-ended"), Some("ca-unusable"), Some("ca-mismatch")]),
        (vec![ended.clone()], [None, Some("ca-unusable"), Some("ca-mismatch")]),
        (vec![unusable.clone()], [Some("certificate-ended"), None, Some("ca-mismatch")]),
        (vec![ended, unusable], [None, None, Some("ca-mismatch")]),
    ] {
        let verdicts = [Verdict::Untimely(why()), Verdict::CaUntimely, Verdict::Untrusted(why())];
        assert_eq!(verdicts.map(|verdict| refused(verdict, &known)), expected);
    }
    let failed = reach::connection(&subject, "", "h:1", &Err(anyhow::anyhow!("x")), &[]);
    assert_eq!(
        failed.map(|f| (f.check.id, f.message)),
        Some(("unreachable", "h:1 doesn't answer: x".to_owned()))
    );
}

#[test]
fn dry_runs_report_why_the_api_servers_own_call_fails() {
    let subject = Subject::cluster("ValidatingWebhookConfiguration", "outrigger");
    let failed = |why: &str| {
        format!(
            "Internal error occurred: failed calling webhook \"pods.outrigger.dev\": failed to call webhook: Post \
             \"https://w.s.svc:443/validate/pods?timeout=3s\": {why}"
        )
    };
    for (why, check) in [
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "ca-mismatch"),
        ("x509: certificate is valid for a, not w.s.svc", "ca-mismatch"),
        (
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: now",
            "certificate-ended",
        ),
        ("unable to load root certificates: unable to parse bytes as PEM block", "ca-unusable"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", "unreachable"),
        ("no endpoints available for service \"outrigger-webhook\"", "unreachable"),
        ("context deadline exceeded", "unreachable"),
    ] {
        let found = reach::dry_run(&subject, &failed(why)).unwrap();
        assert_eq!((found.check.id, found.path.as_str()), (check, "webhooks[pods.outrigger.dev]"), "{why}");
        let reason = why.rsplit_once("\": ").map_or(why, |(_, reason)| reason);
        assert!(found.message.ends_with(reason), "{}", found.message);
    }
    for answer in [
        "admission webhook \"pods.outrigger.dev\" denied the request: spec.hostNetwork: is true",
        "pods is forbidden: User \"x\" cannot create resource \"pods\"",
        "ValidatingAdmissionPolicy 'outrigger-pods' with binding denied request",
        // A webhook of others.
        &failed("connection refused").replace("pods.outrigger.dev", "other.example.com"),
    ] {
        assert_eq!(reach::dry_run(&subject, answer), None, "{answer}");
    }
}

#[test]
fn a_placed_pod_may_run_on_its_tenants_dpus_only() {
    let term = |key: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]});
    let own = || term(outrigger_core::keys::NODE_TENANT, json!(["blue"]));
    for (terms, placed) in [
        (json!([own()]), true),
        (json!([own(), own()]), true),
        (json!([own(), term("a", json!(["blue"]))]), false),
        (json!([term(outrigger_core::keys::NODE_TENANT, json!(["blue", "red"]))]), false),
        (json!([]), false),
        (json!(null), false),
    ] {
        let pod = json!({"spec": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}});
        assert_eq!(reach::is_placed(&pod, "blue"), placed, "{pod}");
    }
}

#[test]
fn addresses_are_those_of_https_urls() {
    let of = |url: &str| connections::Address::of_url(url).map(|address| address.to_string());
    assert_eq!(of("https://a.b/c").as_deref(), Some("a.b:443"));
    assert_eq!(of("https://[::1]:1/c").as_deref(), Some("::1:1"));
    assert_eq!((of("http://a.b"), of("unix:///x"), of("nothing")), (None, None, None));
}
