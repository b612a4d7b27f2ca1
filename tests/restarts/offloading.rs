//! NamespaceOffloadings that change while no manager runs.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::tenant::namespace;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;

use super::alone;

#[tokio::test]
async fn a_label_goes_with_its_object_and_for_no_other_reason() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let namespaces: Api<Namespace> = Api::all(infra.client().await);
    let label = async |name: &str| {
        namespaces.get(name).await.map(|n| n.labels().get(keys::OFFLOADED).cloned()).in_words()
    };
    let labelled = |name: &'static str, wanted: Option<&'static str>| {
        let is = &label;
        eventually("the label is right", move || async move {
            let is = is(name).await?;
            holds(is.as_deref() == wanted, format!("{name}: {is:?}"))
        })
    };
    let object = |name: &str| {
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": name}, "spec": {"podOffloadingStrategy": "Remote"}})
    };
    infra
        .apply(&[
            namespace("stays"),
            namespace("goes"),
            namespace("by-hand"),
            namespace("left"),
            object("stays"),
            object("goes"),
        ])
        .unwrap();
    let set = format!("{}=true", keys::OFFLOADED);
    infra.kubectl(&["label", "namespace", "by-hand", &set]).unwrap();
    // A request of a manager that leads no longer may arrive as late as this. It is noticed at once.
    let late = || {
        let mut left = namespace("left");
        left["metadata"]["labels"] = json!({keys::OFFLOADED: "true"});
        let manager = format!("--field-manager={}", keys::MANAGER);
        let arguments = ["apply", "--server-side", &manager, "--force-conflicts", "-f", "-"];
        infra.kubectl_with(&arguments, &left.to_string()).unwrap();
    };
    late();
    labelled("left", None).await;
    labelled("stays", Some("true")).await;
    labelled("goes", Some("true")).await;
    o.plane.command("stop manager").unwrap();
    infra.kubectl(&["delete", "nsoff", "offloading", "-n", "goes", "--wait=false"]).unwrap();
    late();
    assert_eq!(label("goes").await.unwrap().as_deref(), Some("true"), "nobody is there to take it off");
    o.plane.command("start manager").unwrap();
    o.ready().await;
    labelled("goes", None).await;
    labelled("left", None).await;
    // The manager has looked at everything by now.
    for name in ["stays", "by-hand"] {
        assert_eq!(label(name).await.unwrap().as_deref(), Some("true"), "{name}");
    }
    eventually("the object is gone", || async {
        let left = infra.kubectl(&["get", "nsoff", "-n", "goes", "-o", "name"]).in_words()?;
        holds(left.is_empty(), left)
    })
    .await;
    infra.kubectl(&["delete", "namespace", "stays", "goes", "by-hand", "left", "--timeout=100s"]).unwrap();
}
