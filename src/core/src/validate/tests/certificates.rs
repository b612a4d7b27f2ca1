//! Certificates that a kubelet asks for in the Pod's name.

use serde_json::json;

use super::{check, good, policy, with};

#[test]
fn no_signer_says_who_a_tenants_pod_is() {
    let source = |source| with(&good(), "/spec/volumes/1/projected/sources/9", source);
    let faults = |pod: serde_json::Value| -> Vec<String> {
        check(&policy(), false, &pod, None).into_iter().map(|fault| fault.to_string()).collect()
    };
    let bad = source(json!({"podCertificate": {"signerName": "example.com/agents", "keyType": "ED25519"}}));
    let said = faults(bad);
    let path = "spec.volumes[1].projected.sources[2].podCertificate.signerName: is \"example.com/agents\"";
    assert!(said.len() == 1 && said[0].starts_with(path), "{said:?}");
    assert_eq!(faults(source(json!({"configMap": {"name": "example.com"}}))), Vec::<String>::new());
    // One without a signer is none that the API server takes; it is refused all the same.
    assert_eq!(faults(source(json!({"podCertificate": {}}))).len(), 1);
}
