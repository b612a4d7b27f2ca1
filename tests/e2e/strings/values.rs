//! Edge cases of the API server's rules.

use serde_json::{Value, json};

fn texts<const N: usize>(texts: [&str; N]) -> Vec<Value> {
    texts.map(Value::from).to_vec()
}

/// A text of this length, with a dot at every tenth place if it is to be a DNS subdomain.
fn long(part: &str, length: usize) -> Value {
    part.repeat(length)[..length].into()
}

/// For keys of labels and annotations, with and without prefix.
pub(super) fn keys_of_labels() -> Vec<Value> {
    let mut all = texts([
        "",
        "a",
        "a_B.c-d",
        "a/b",
        "example.com/x",
        "Example.com/x",
        "a/b/c",
        "/a",
        "a/",
        "-a",
        "a-",
        "a b",
        " a",
        "ä",
        "a_b/c",
    ]);
    let prefix = |length: usize| Value::from(format!("{}/x", long("xxxxxxxxx.", length).as_str().unwrap()));
    all.extend([long("x", 63), long("x", 64), prefix(253), prefix(254)]);
    all
}

/// For values of labels.
pub(super) fn values_of_labels() -> Vec<Value> {
    let mut all = texts([
        "",
        "a",
        "A_b.c-d",
        "5",
        "24.10",
        "-5",
        "+5",
        "eu west",
        "A,B",
        "a/b",
        "a-",
        ".a",
        "ä",
        "a=b",
        "NVIDIA A100 80GB",
    ]);
    all.extend([long("x", 63), long("x", 64)]);
    all
}

/// For names of objects, containers and volumes.
pub(super) fn names() -> Vec<Value> {
    let mut all = texts(["", "a", "7", "a-b", "a.b", "a..b", "A", "-a", "a-", "a_b", "a b", "ä"]);
    let lengths = [63, 64].map(|length| long("x", length));
    all.extend(lengths.into_iter().chain([253, 254].map(|length| long("xxxxxxxxx.", length))));
    all
}

/// For names of ports.
pub(super) fn ports() -> Vec<Value> {
    let mut all = texts(["http", "a-1", "80", "a--b", "-a", "a-", "A", "a.b", "ä"]);
    all.extend([long("x", 15), long("x", 16)]);
    all
}

/// For numbers of ports.
pub(super) fn numbers() -> Vec<Value> {
    [1, 80, 65_535, 65_536, -1].map(Value::from).to_vec()
}

/// For names of resources.
pub(super) fn resources() -> Vec<Value> {
    let mut all = texts([
        "",
        "cpu",
        "memory",
        "ephemeral-storage",
        "hugepages-2Mi",
        "gpu",
        "pods",
        "nvidia.com/gpu",
        "nvidia.com/A_b",
        "requests.nvidia.com/gpu",
        "x.kubernetes.io/y",
        "kubernetes.io/y",
        "a b/c",
        "a/b/c",
        "a/",
        "nvidia.com/g u",
    ]);
    let domain = |length: usize| Value::from(format!("{}/x", long("xxxxxxxxx.", length).as_str().unwrap()));
    all.extend([domain(244), domain(245)]);
    all
}

/// For quantities.
pub(super) fn amounts() -> Vec<Value> {
    let mut all =
        texts(["0", "1", "1.5", "500m", ".5", "1e3", "2Ki", "-1", "many", "0x1", "1 ", "1Kii", "1K"]);
    all.push(json!(2));
    all
}

/// For effects of taints.
pub(super) fn effects() -> Vec<Value> {
    texts(["", "NoSchedule", "PreferNoSchedule", "NoExecute", "None", "noschedule", "NoSchedule "])
}

/// For lists of values of a bound.
pub(super) fn numbers_of_values() -> Vec<Value> {
    vec![json!([]), json!(["1"]), json!(["1", "2"])]
}

/// For operators of node selectors.
pub(super) fn operators() -> Vec<Value> {
    ["In", "NotIn", "Gt", "Lt", "Exists", "DoesNotExist", "Has", "in", ""].map(Value::from).to_vec()
}
