use super::*;
use crate::workload::tests::nginx;
use proptest::prelude::*;

fn entry(map: &str, key: &str) -> Path {
    Path::ExtraEntry(map.into(), key.into())
}

#[test]
fn every_documented_spelling() {
    let status = entry("annotations", "k8s.v1.cni.cncf.io/networks-status");
    for (text, path) in [
        (".state.nodeName", Path::NodeName),
        ("$.state.nodeName", Path::NodeName),
        ("{.state.nodeName}", Path::NodeName),
        ("{$.state.nodeName}", Path::NodeName),
        ("state.nodeName", Path::NodeName),
        (" .state.nodeName ", Path::NodeName),
        ("{ .state.nodeName }", Path::NodeName),
        ("@.state.nodeName", Path::NodeName),
        ("['state']['nodeName']", Path::NodeName),
        ("$['state'].nodeName", Path::NodeName),
        (".metadata.id", Path::Id),
        (".metadata.orchestrator", Path::Orchestrator),
        (".metadata.resourceType", Path::ResourceType),
        (".metadata.resourceName", Path::ResourceName),
        ("metadata.resourceNamespace", Path::ResourceNamespace),
        (".state.extra.annotations['k8s.v1.cni.cncf.io/networks-status']", status.clone()),
        (".state.extra.annotations[\"k8s.v1.cni.cncf.io/networks-status\"]", status.clone()),
        (".state.extra.annotations.k8s\\.v1\\.cni\\.cncf\\.io/networks-status", status),
        (".state.extra.labels.k8s-app", entry("labels", "k8s-app")),
        (".state.extra.labels['it\\'s']", entry("labels", "it's")),
        (".state.extra.labels", Path::ExtraMap("labels".into())),
        (".state.extra", Path::Extra),
        (".metadata", Path::Metadata),
        ("", Path::Whole),
        ("  ", Path::Whole),
        ("@", Path::Whole),
        ("$", Path::Whole),
        (".", Path::Whole),
        ("{}", Path::Whole),
        ("{@}", Path::Whole),
        ("{.}", Path::Whole),
        ("{ }", Path::Whole),
        (" ['state'] ", Path::State),
        (".['state']", Path::State),
    ] {
        assert_eq!(Path::parse(text), Ok(path), "{text:?}");
    }
}

#[test]
fn errors_say_where_and_what() {
    for (text, position, part) in [
        (".spec.nodeName", 2, "there are metadata, state"),
        (".metadata.uid", 11, "resourceNamespace"),
        (".state.node", 8, "nodeName, ready, extra"),
        ("['spec']", 2, "there are metadata, state"),
        (".state['node']", 8, "nodeName, ready, extra"),
        (".state.ready.x", 14, "single value"),
        (".state.extra.labels.app.kubernetes.io/name", 25, "labels['app.kubernetes.io/name']"),
        (".state..nodeName", 8, "missing"),
        (".state.extra.labels[app]", 21, "in quotes"),
        (".state.extra.labels['app", 25, "closing '"),
        (".state.extra.labels['app'", 26, "']'"),
        (".state.extra.labels['app']x", 27, "expected '.'"),
        ("{.state.nodeName", 2, "closing '}'"),
        (".state.nodeName}", 16, "unexpected '}'"),
        (".state.*", 8, "unexpected '*'"),
        (".state.extra.labels.a\\", 23, "nothing follows"),
        ("..", 2, "missing"),
        (".state.", 8, "missing"),
        ("$x", 2, "expected '.'"),
        ("{", 2, "closing '}'"),
        ("{.state}}", 8, "unexpected '}'"),
        (".state[0]", 8, "in quotes"),
        (".state.extra.labels[?(@.x)]", 21, "in quotes"),
        (&format!(".state.extra.labels.{}", "k".repeat(318)), 21, "318 characters"),
        (&format!(".state.extra.labels.a{}", ".b".repeat(400)), 23, "nothing below it"),
    ] {
        let error = Path::parse(text).unwrap_err();
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(error.message.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_longest_key_that_kubernetes_has_can_be_named() {
    let key = format!("{}/{}", "p".repeat(253), "n".repeat(63));
    for text in [format!(".state.extra.labels.{key}"), format!(".state.extra.labels['{key}']")] {
        assert_eq!(Path::parse(&text), Ok(entry("labels", &key)));
    }
    // A key with dots is proposed as a whole, and none that is longer.
    for (parts, proposed) in [(158, true), (159, false)] {
        let key = format!("a{}", ".b".repeat(parts));
        let message = Path::parse(&format!(".state.extra.labels.{key}")).unwrap_err().message;
        assert_eq!(message.contains(&format!("labels['{key}']")), proposed, "{message}");
        assert_eq!(message.contains("brackets"), proposed, "{message}");
    }
}

#[test]
fn values() {
    let w = nginx();
    let render = |text: &str| Path::parse(text).unwrap().render(&w);
    assert_eq!(render(".state.ready").as_deref(), Some("true"));
    assert_eq!(render(".state.nodeName").as_deref(), Some("cloud-dev-12"));
    assert_eq!(render(".state.extra.labels").as_deref(), Some(r#"{"k8s-app":"nginx"}"#));
    assert_eq!(render(".state.extra.labels.none"), None);
    assert_eq!(render(".state.extra.other"), None);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&render("@").unwrap()).unwrap(), w.to_json());
    let whole = w.to_json();
    for part in ["metadata", "state", "state.extra", "state.extra.annotations"] {
        let json: serde_json::Value = serde_json::from_str(&render(part).unwrap()).unwrap();
        assert_eq!(Some(&json), whole.pointer(&format!("/{}", part.replace('.', "/"))), "{part}");
    }
    for field in ["id", "orchestrator", "resourceType", "resourceName", "resourceNamespace"] {
        assert_eq!(render(&format!("metadata.{field}")).as_deref(), whole["metadata"][field].as_str());
    }
    let unbound = Workload { node_name: None, ..w };
    assert!(!Path::NodeName.exists(&unbound));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let _ = Path::parse(&text);
    }

    #[test]
    fn no_text_of_a_paths_own_characters_panics(text in "[.\\[\\]{}$@'\"\\\\a-c/ -]{0,20}") {
        for text in [format!(".state.extra.labels{text}"), text] {
            if let Ok(path) = Path::parse(&text) {
                prop_assert_eq!(Path::parse(&path.to_string()), Ok(path));
            }
        }
    }

    #[test]
    fn what_is_shown_can_be_read(map in ".{1,8}", key in ".{0,12}") {
        for path in [entry(&map, &key), Path::ExtraMap(map.as_str().into())] {
            prop_assert_eq!(Path::parse(&path.to_string()), Ok(path));
        }
    }
}
