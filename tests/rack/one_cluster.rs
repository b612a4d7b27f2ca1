//! All parts in one cluster, whose policies apply to all of them.

use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::rack::ready;
use outrigger_tests::tenant::tenant;
use serde_json::json;

use super::shared::{CONTROL, turn};

#[tokio::test]
async fn all_parts_start_in_one_cluster_where_no_pod_starts_before_its_companions() {
    let turn = turn().await;
    let infra = &turn.rack.plane.infra;
    // The agent of the tenant blue is in the other cluster.
    let components = ["cert-manager", "companions-first"];
    let spec = json!({"identities": [tenant_identity("green")], "hosts": [CONTROL.name]});
    infra.apply(&[tenant("green", spec)]).unwrap();
    turn.rack.connect(infra, "green").await.unwrap();
    infra.apply(&turn.rack.overlay("deploy/overlays/all-in-one", &components, "green").unwrap()).unwrap();
    let parts = [
        "deployment/outrigger-webhook",
        "deployment/outrigger-manager",
        "deployment/outrigger-agent",
        "daemonset/outrigger-host",
    ];
    ready(infra, &parts).await;
    // A DaemonSet without Pods is complete too.
    let hosts = infra.get(&["daemonset", "outrigger-host", "-n", "outrigger-hosts"]).unwrap();
    assert_eq!(hosts["status"]["numberReady"], json!(1), "{hosts}");
}
