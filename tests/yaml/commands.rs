//! The commands read files as kubectl finds objects in them, and print what it reads back.

use std::path::Path;
use std::process::{Command, Output};

use outrigger_tests::control_plane;
use outrigger_tests::outrigger::binary;
use outrigger_tests::shipped::fed;
use serde_json::{Value, json};

use super::judge::{canonical, judge};
use super::printed::AMBIGUOUS;

/// What the commands know beside the text: a namespace whose Pods the webhook doesn't see.
const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

fn pod(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop}}, spec: {{containers: []}}}}"
    )
}

/// `outrigger render` of a text on standard input, with the namespace.
fn render(dir: &Path, output: &str, text: &[u8]) -> Output {
    let namespace = dir.join("namespace.yaml");
    std::fs::write(&namespace, NAMESPACE).unwrap();
    let mut command = Command::new(binary().unwrap());
    command.args(["render", "-o", output, "-f", "-", "-f"]).arg(namespace);
    fed(&mut command, text).unwrap()
}

/// The Pods that `render` admits, none of which it changes; `None`: it refuses the text.
fn pods(dir: &Path, text: &[u8]) -> Option<Vec<Value>> {
    let output = render(dir, "json", text);
    if output.status.code() == Some(2) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut admitted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods = match admitted.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![admitted],
    };
    Some(pods.iter().map(canonical).collect())
}

/// Files as people write them, some of which kubectl refuses.
fn texts() -> Vec<Vec<u8>> {
    let [a, b, c] = ["a", "b", "c"].map(pod);
    let item = "{metadata: {name: a, namespace: shop}, spec: {containers: []}}";
    let utf_16: Vec<u8> = format!("\u{feff}{a}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    [
        format!("{a}\n---\n{b}\n"),
        format!("{{apiVersion: v1, kind: List, items: [{a}, {b}]}}\n---\n{c}\n"),
        format!("apiVersion: v1\nkind: PodList\nitems:\n- {item}\n"),
        format!("{{apiVersion: v1, kind: PodList, items: [{item}, {b}]}}"),
        // Everything that has items is a list.
        format!("{{apiVersion: v1, kind: Pod, items: [{item}, {b}]}}"),
        format!("{{apiVersion: v1, kind: Other, items: null}}\n---\n{a}\n"),
        format!("{{apiVersion: v1, kind: List}}\n---\n{a}\n"),
        format!("{{apiVersion: v1, kind: List, items: {{a: b}}}}\n---\n{a}\n"),
        format!("{{apiVersion: v1, kind: List, items: [{{apiVersion: v1, kind: List, items: [{a}]}}]}}"),
        format!("{{apiVersion: v1, kind: List, items: [{{apiVersion: v1, kind: Other, items: 1}}, {a}]}}"),
        format!("{{apiVersion: v1, kind: List, items: [1, {a}]}}"),
        "{apiVersion: v1, kind: PodList, items: [{kind: Pod}]}".to_owned(),
        "{apiVersion: 1, kind: Pod, metadata: {name: a, namespace: shop}}".to_owned(),
        format!("\u{feff}{a}"),
        format!("{a}\r\n---\r\n{b}\r\n"),
        format!("{a}\n--- {b}\n"),
        format!("# c\n---\n---\n{a}\n...\n---\n# c\n"),
        "apiVersion: v1\nkind: List\nitems:\n- &p\n  apiVersion: v1\n  kind: Pod\n  metadata: &m {name: a, namespace: shop, labels: {x: \"on\"}}\n  \
         spec: {priority: 0644, terminationGracePeriodSeconds: 1_000, hostNetwork: on, containers: []}\n- <<: *p\n  metadata: {<<: *m, name: b}\n"
            .to_owned(),
    ]
    .map(String::into_bytes)
    .into_iter()
    .chain([utf_16])
    .collect()
}

#[test]
fn commands_find_the_objects_that_kubectl_finds() {
    let texts = texts();
    let dir = tempfile::tempdir().unwrap();
    let (mut refused, mut found) = (0, 0);
    for (text, reading) in texts.iter().zip(judge(&texts)) {
        // Objects of other kinds aren't rendered.
        let is_pod = |object: &Value| object["kind"] == "Pod";
        let theirs = reading.objects().map(|objects| objects.into_iter().filter(is_pod).collect::<Vec<_>>());
        assert_eq!(pods(dir.path(), text), theirs, "{}", String::from_utf8_lossy(text));
        refused += usize::from(theirs.is_none());
        found += theirs.map_or(0, |pods| pods.len());
    }
    assert!(refused >= 6 && found >= 15, "{refused} refused, {found} Pods");
}

/// `kubectl` itself, on a file of whatever is printed.
#[test]
fn kubectl_reads_back_what_render_prints() {
    let lines = ["x\ny\n", " x\n y", "x \n", "\n", "\u{85}\u{2028}\u{feff}", "\u{0}\u{7f}", "'\"\\", "|"];
    let values: Vec<&str> = AMBIGUOUS.split('|').chain(lines).collect();
    let env: Vec<Value> = values.iter().map(|value| json!({"name": value, "value": value})).collect();
    let annotations: serde_json::Map<String, Value> =
        values.iter().map(|value| ((*value).to_owned(), json!(value))).collect();
    let metadata = json!({"name": "a", "namespace": "shop", "annotations": annotations});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c", "env": env}]}});
    let dir = tempfile::tempdir().unwrap();
    let printed = render(dir.path(), "yaml", pod.to_string().as_bytes());
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let mut kubectl = Command::new(control_plane::kubectl().unwrap());
    kubectl.args(["annotate", "--local", "-f", "-", "z=z", "-o", "json"]);
    let read = fed(&mut kubectl, &printed.stdout).unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let mut read: Value = serde_json::from_slice(&read.stdout).unwrap();
    let removed =
        read["metadata"]["annotations"].as_object_mut().and_then(|annotations| annotations.remove("z"));
    assert_eq!(removed, Some(json!("z")));
    assert_eq!(read, pod);
}
