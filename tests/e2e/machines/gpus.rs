//! GPUs that Kubernetes claims for guests, instead of an extended resource of the nodes.

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use outrigger_core::{keys, machine};
use outrigger_tests::{holds, until};
use serde_json::json;

use super::stage::Stage;

/// The real scheduler makes a claim for what the container asks for, and allocates it. Reservations hold devices as well; a
/// guest gets one of theirs.
#[tokio::test]
async fn a_gpu_may_come_from_a_device_class() {
    let s = Stage::new("mg-class").await;
    if s.outrigger.plane.infra.skips("DRAExtendedResource") {
        return;
    }
    s.node("n1", 4).await;
    let (class, driver) = ("mg-class-gpu", "mg-class.gpus.test");
    let selector = format!("device.driver == \"{driver}\"");
    let slice = json!({"driver": driver, "nodeName": s.name("n1"), "devices": [{"name": "g0"}, {"name": "g1"}],
        "pool": {"name": s.name("n1"), "generation": 1, "resourceSliceCount": 1}});
    let objects = [
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class},
            "spec": {"selectors": [{"cel": {"expression": selector}}]}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "mg-class-n1"},
            "spec": slice}),
    ];
    s.outrigger.plane.infra.apply(&objects).unwrap();
    let slot = json!({"cpu": "1", "memory": "1Gi", "gpu": {"deviceClass": class, "num": 1}});
    s.machine_of(&[("n1", "ready", false, "t")], &[json!({"name": "t", "spec": slot, "available": 2})]);
    s.usage("t", [2, 2, 0, 0, 2]).await;

    s.admit(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "g", "labels": {keys::MACHINE_GROUP: s.group, keys::MACHINE_TYPE: "t",
            keys::POD_ROLE: keys::GUEST}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await;
    s.usage("t", [2, 1, 1, 0, 2]).await;
    let pod = s.outrigger.plane.infra.get(&["pod", "-n", s.group, "g"]).unwrap();
    let resource = machine::of_device_class(class);
    for kind in ["requests", "limits"] {
        assert_eq!(pod["spec"]["containers"][0]["resources"][kind][&resource], "1", "{pod}");
    }
    let claim =
        pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"].as_str().unwrap().to_owned();
    let claims: Api<ResourceClaim> = Api::namespaced(s.client.clone(), s.group);
    until("the guest's GPU is allocated", &claims, &claim, |found| {
        let allocation = found.status.and_then(|status| status.allocation).ok_or("it isn't")?;
        let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
        let drivers: Vec<&str> = results.iter().map(|result| result.driver.as_str()).collect();
        holds(drivers == [driver], format!("{drivers:?}"))
    })
    .await;
}
