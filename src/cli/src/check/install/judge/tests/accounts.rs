//! Versions and rights.

use super::*;

#[test]
fn versions_beside_each_other() {
    let parse = |text: &str| Version::parse(text).map(|v| v.to_string());
    for (text, expected) in [
        ("1.2.3", Some("1.2.3")),
        ("v1.34.2+k3s1", Some("1.34.2")),
        ("1.2.3-rc.1", Some("1.2.3")),
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
    assert_eq!(image("registry.example:5000/outrigger:0.1.0").as_deref(), Some("0.1.0"));
    assert_eq!(image("registry.example:5000/outrigger:v0.1.0@sha256:abc").as_deref(), Some("0.1.0"));
    assert_eq!(image("registry.example:5000/outrigger:0.2.0-dev").as_deref(), Some("0.2.0"));
    assert_eq!(image("registry.example:5000/outrigger@sha256:abc"), None);
    assert_eq!(image("outrigger"), None);

    let subject = Subject::cluster("Deployment", "d");
    let of = |text: &str| Version::parse(text).unwrap();
    for (a, b, expected) in [
        ("0.1.0", "0.1.0", None),
        ("0.1.9", "0.1.0", None),
        ("0.2.0-dev", "0.2.0", None),
        ("0.2.0", "0.1.0", Some("versions-differ")),
        ("0.2.0-dev", "0.1.0", Some("versions-differ")),
        ("0.3.0", "0.2.0-dev", Some("versions-differ")),
        ("0.1.0", "0.2.5", Some("versions-differ")),
        ("0.3.0", "0.1.0", Some("version-skew")),
        ("0.4.0", "0.2.0-dev", Some("version-skew")),
        ("1.1.0", "0.1.0", Some("version-skew")),
    ] {
        let found = versions::skew(&subject, "p", "the agent", of(a), ("the manager", of(b)));
        assert_eq!(found.map(|f| f.check.id), expected, "{a} {b}");
    }
    let images = |list: &[(&str, usize)]| {
        let list: Vec<(String, usize)> = list.iter().map(|(image, n)| ((*image).to_owned(), *n)).collect();
        versions::replicas(&subject, "a:1", &list).map(|f| f.message)
    };
    assert_eq!((images(&[("a:1", 2)]), images(&[])), (None, None));
    assert_eq!(images(&[("a:2", 2)]).as_deref(), Some("is a:1; its Pods have another image: a:2 (2)"));
    let mirrored = [("mirror.example/o:1.2.3@sha256:abc".to_owned(), 2)];
    assert_eq!(versions::replicas(&subject, "o:v1.2.3", &mirrored), None);
    assert_eq!(
        images(&[("a:1", 2), ("a:2", 1)]).as_deref(),
        Some("its Pods have different images: a:1 (2), a:2 (1)")
    );
    let old = |version: &str| versions::kubernetes(&subject, version).is_some();
    assert!(old("v1.33.9") && !old("v1.34.0") && !old("v1.40.1+x") && !old("?"));
}

/// Roles and bindings of a service account `s/a`.
fn roles(rules: &Value) -> Vec<Value> {
    let who = json!([{"kind": "ServiceAccount", "namespace": "s", "name": "a"}]);
    vec![
        json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules}),
        json!({"kind": "ClusterRoleBinding", "metadata": {"name": "b"}, "subjects": who,
            "roleRef": {"kind": "ClusterRole", "name": "r"}}),
        json!({"kind": "Role", "metadata": {"name": "r", "namespace": "s"}, "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["l"], "verbs": ["get", "patch"]}]}),
        json!({"kind": "RoleBinding", "metadata": {"name": "b", "namespace": "s"}, "subjects": who,
            "roleRef": {"kind": "Role", "name": "r"}}),
    ]
}

#[test]
fn rights_that_are_missing_or_too_many() {
    let account = Account { namespace: "s".to_owned(), name: "a".to_owned() };
    let rule = json!([{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list"]}]);
    let shipped = roles(&rule);
    let needed = rights::needed(&shipped, &account);
    assert_eq!(needed.len(), 6);
    let missing = |objects: &[Value]| -> Vec<String> {
        let lacking = rights::lacking(objects, &account, &needed);
        rights::missing(&account, lacking).into_iter().map(|f| f.message).collect()
    };
    let own = ["tenant-blue".to_owned()].into();
    let more = |objects: &[Value]| -> Vec<String> {
        let except = Except { role: "bound-by-itself", namespaces: Some(&own) };
        let found = rights::unneeded(objects, &account, &needed, Some(&except));
        found.into_iter().map(|f| format!("{}: {}", f.subject, f.message)).collect()
    };
    assert_eq!((missing(&shipped), more(&shipped)), (vec![], vec![]));

    let less = roles(&json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]));
    assert_eq!(missing(&less), ["may not list pods", "may not get, list pods/status"]);
    assert_eq!(missing(&less[..2])[0], "may not get, patch leases.coordination.k8s.io/l in s");
    // Others' rights are nobody's business here, wildcards give all.
    for rules in [
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        json!([{"apiGroups": [""], "resources": ["pods", "*/status"], "verbs": ["*"]}]),
    ] {
        assert_eq!(missing(&roles(&rules)), Vec::<String>::new(), "{rules}");
    }
    let mut wide = shipped;
    wide.push(json!({"kind": "ClusterRole", "metadata": {"name": "cluster-admin"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}));
    let bound = |subject: Value, role: &str| {
        json!({"kind": "ClusterRoleBinding", "metadata": {"name": "x"}, "subjects": [subject],
            "roleRef": {"kind": "ClusterRole", "name": role}})
    };
    for (who, expected) in [
        (json!({"kind": "ServiceAccount", "namespace": "s", "name": "a"}), true),
        (json!({"kind": "User", "name": "system:serviceaccount:s:a"}), true),
        (json!({"kind": "Group", "name": "system:serviceaccounts:s"}), true),
        (json!({"kind": "Group", "name": "system:authenticated"}), false),
        (json!({"kind": "ServiceAccount", "namespace": "t", "name": "a"}), false),
    ] {
        let mut objects = wide.clone();
        objects.push(bound(who.clone(), "cluster-admin"));
        let told = more(&objects);
        assert_eq!(!told.is_empty(), expected, "{who}: {told:?}");
        if expected {
            assert_eq!(
                told,
                [
                    "ClusterRoleBinding x: ClusterRole cluster-admin lets ServiceAccount s/a * *.*, which it doesn't need"
                ]
            );
        }
        let last = objects.len() - 1;
        // The role that it binds itself is an excuse in tenants' namespaces only.
        objects[last]["roleRef"]["name"] = json!("bound-by-itself");
        for (kind, of, namespace, excused) in [
            ("RoleBinding", "ClusterRole", "tenant-blue", true),
            ("RoleBinding", "ClusterRole", "kube-system", false),
            ("RoleBinding", "Role", "tenant-blue", false),
            ("ClusterRoleBinding", "ClusterRole", "", false),
        ] {
            objects[last]["kind"] = json!(kind);
            objects[last]["roleRef"]["kind"] = json!(of);
            objects[last]["metadata"]["namespace"] = json!(namespace);
            let namespace = if of == "Role" { namespace } else { "" };
            objects.push(json!({"kind": of, "metadata": {"name": "bound-by-itself", "namespace": namespace},
                "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}));
            assert_eq!(more(&objects).is_empty(), excused || !expected, "{who} {kind} {of} {namespace}");
            objects.pop();
        }
    }
    // What a cluster gives to every service account of a namespace is its own business.
    wide.push(json!({"kind": "ClusterRole", "metadata": {"name": "system:image-puller"},
        "rules": [{"apiGroups": ["image"], "resources": ["layers"], "verbs": ["get"]}]}));
    for (who, expected) in [
        (json!({"kind": "Group", "name": "system:serviceaccounts:s"}), false),
        (json!({"kind": "ServiceAccount", "namespace": "s", "name": "a"}), true),
    ] {
        let mut objects = wide.clone();
        objects.push(bound(who.clone(), "system:image-puller"));
        assert_eq!(!more(&objects).is_empty(), expected, "{who}");
    }
    let role = |verbs: Value| {
        json!({"kind": "ClusterRole", "metadata": {"name": "t"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
    };
    let wanted = role(json!(["get", "create"]));
    assert_eq!(rights::role(&wanted, &wanted), []);
    let found = rights::role(&wanted, &role(json!(["get", "delete"])));
    let ids: Vec<(&Check, &str)> = found.iter().map(|f| (f.check, f.message.as_str())).collect();
    assert_eq!(ids[0], (&crate::check::findings::RIGHT_MISSING, "doesn't allow to create pods"));
    assert_eq!(ids[1], (&crate::check::findings::RIGHT_UNNEEDED, "allows to delete pods"));
}
