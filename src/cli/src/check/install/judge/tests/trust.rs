//! Certificates, and whether those who serve can be reached.

use super::*;

fn days(from: i64, to: i64, warning: i64) -> Life {
    let day = 24 * 3600;
    let text = |days: i64| format!("day {days}");
    Life {
        not_before: from * day,
        not_after: to * day,
        warning: warning * day,
        end: text(to),
        beginning: text(from),
        renewal: text(to * 2 / 3),
    }
}

#[test]
fn ends_of_certificates() {
    let subject = Subject::cluster("Secret", "s");
    let life = days(0, 90, 83);
    for (now, expected) in [
        (0, None),
        (82, None),
        (83, Some(("certificate-ends", "it ends at day 90, in 7 days; it was to be renewed at day 60"))),
        (90, Some(("certificate-ends", "it ends at day 90, in 0 h; it was to be renewed at day 60"))),
        (91, Some(("certificate-ended", "it has ended at day 90, 1 day ago"))),
        (-1, Some(("certificate-ended", "it isn't good before day 0: somebody's clock is wrong"))),
    ] {
        let found = certificates::life(&subject, "", "it", &life, now * 24 * 3600);
        assert_eq!(
            found.map(|f| (f.check.id, f.message)),
            expected.map(|(id, message)| (id, message.to_owned())),
            "{now}"
        );
    }
    for (bundle, expected) in [
        (Bundle::Empty, Some("ca-unusable")),
        (Bundle::Unreadable("no base64".to_owned()), Some("ca-unusable")),
        (Bundle::Of(vec![]), Some("ca-unusable")),
        (Bundle::Of(vec![days(0, 50, 43)]), Some("ca-unusable")),
        (Bundle::Of(vec![days(0, 104, 97)]), Some("certificate-ends")),
        // An old one beside the new one may end.
        (Bundle::Of(vec![days(0, 50, 43), days(40, 200, 193)]), None),
    ] {
        let found = certificates::bundle(&subject, "", &bundle, 100 * 24 * 3600);
        assert_eq!(found.map(|f| f.check.id), expected, "{bundle:?}");
    }
}

#[test]
fn services() {
    let service = json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {
        "ports": [{"name": "https", "port": 443, "targetPort": "https"}]}});
    let slice = |ready: Value| json!({"ports": [{"name": "https", "port": 9443}], "endpoints": [{"conditions": {"ready": ready}}]});
    let judged = |service: &Value, slices: &[Value], port| {
        reach::service(service, slices, port).map(|f| (f.path, f.message))
    };
    assert_eq!(judged(&service, &[slice(json!(true))], 443), None);
    assert_eq!(judged(&service, &[slice(json!(null))], 443), None);
    assert_eq!(judged(&service, &[slice(json!(true))], 8443).unwrap().1, "has 443; 8443 is called");
    assert_eq!(
        judged(&service, &[slice(json!(false))], 443).unwrap().1,
        "leads to 1 Pods, and none is ready"
    );
    assert!(judged(&service, &[], 443).unwrap().1.starts_with("leads to nobody"));
    let nowhere = json!({"ports": [], "endpoints": [{"conditions": {"ready": true}}]});
    assert_eq!(judged(&service, &[nowhere], 443).unwrap().0, "spec.ports");
    let elsewhere = json!({"spec": {"type": "ExternalName"}});
    assert_eq!(judged(&elsewhere, &[], 443), None);
}

#[test]
fn connections_and_the_api_servers_own() {
    let subject = Subject::cluster("ValidatingWebhookConfiguration", "outrigger");
    let told = |outcome, told: &[Finding]| {
        reach::connection(&subject, "", "h:1", &outcome, told).map(|f| f.check.id)
    };
    let id = |outcome| told(outcome, &[]);
    assert_eq!(id(Outcome::Trusted), None);
    // What has ended is told of by somebody, and once.
    let [ended, unusable] =
        [&CERTIFICATE_ENDED, &CA_UNUSABLE].map(|check| Finding::new(check, &subject, "", "x"));
    for (told_already, expected) in [
        (vec![], [Some("certificate-ended"), Some("ca-unusable")]),
        (vec![ended.clone()], [None, Some("ca-unusable")]),
        (vec![unusable.clone()], [Some("certificate-ended"), None]),
        (vec![ended, unusable], [None, None]),
    ] {
        let outcomes = [Outcome::Untimely("x".to_owned()), Outcome::CaUntimely];
        assert_eq!(outcomes.map(|outcome| told(outcome, &told_already)), expected);
    }
    assert_eq!(id(Outcome::Untrusted("x".to_owned())), Some("ca-mismatch"));
    assert_eq!(id(Outcome::Failed("x".to_owned())), Some("unreachable"));
    let ours = ["pods.outrigger.dev"].into();
    let failed = |why: &str| {
        format!(
            "Internal error occurred: failed calling webhook \"pods.outrigger.dev\": failed to call webhook: Post \
             \"https://w.s.svc:443/validate/pods?timeout=10s\": {why}"
        )
    };
    let ended =
        "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time";
    for (why, check) in [
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "ca-mismatch"),
        ("x509: certificate is valid for a, not w.s.svc", "ca-mismatch"),
        (ended, CERTIFICATE_ENDED.id),
        ("unable to load root certificates: unable to parse bytes as PEM block", "ca-unusable"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", "unreachable"),
        ("service \"outrigger-webhook\" not found", "unreachable"),
        ("no endpoints available for service \"outrigger-webhook\"", "unreachable"),
        ("context deadline exceeded", "unreachable"),
    ] {
        let found = reach::attempt(&subject, &failed(why), &ours).unwrap();
        assert_eq!((found.check.id, found.path.as_str()), (check, "webhooks[pods.outrigger.dev]"), "{why}");
        assert!(
            found.message.ends_with(why.rsplit_once("\": ").map_or(why, |(_, w)| w)),
            "{}",
            found.message
        );
    }
    for answer in [
        "admission webhook \"pods.outrigger.dev\" denied the request: spec.hostNetwork: is true",
        "pods is forbidden: User \"x\" cannot create resource \"pods\"",
        "ValidatingAdmissionPolicy 'outrigger-pods' with binding denied request",
    ] {
        assert_eq!(reach::attempt(&subject, answer, &ours), None, "{answer}");
    }
    // Somebody else's webhook is nobody's fault here.
    let other = failed("connection refused").replace("pods.outrigger.dev", "other.example.com");
    assert_eq!(reach::attempt(&subject, &other, &ours), None);

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
