//! Two managers, one of which leads.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, leads, ports};
use outrigger_tests::wrapped::at_time;
use outrigger_tests::{InWords, always, eventually, holds, merge};
use serde_json::json;
use std::time::Duration;

use crate::outages::stage::{StreamedTenant, stage};

#[tokio::test]
#[ignore = "long"]
async fn a_leader_that_was_suspended_changes_nothing_when_it_comes_back() {
    let (_turn, o) = stage().await;
    leads("the manager leads", o.manager_admin, true).await;
    let (port, admin) = o.another_manager("manager-2", &[]).await;
    let mut t = StreamedTenant::new(o, "suspended").await;
    let before = t.sync_at(port, &["w1", "w2"]).await;

    o.plane.command("pause manager").unwrap();
    leads("the other one leads", admin, true).await;
    // What a leader writes: whose a host is.
    let node = t.tenant.node("a");
    t.tenant.set(json!({"hosts": []})).await.unwrap();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(t.tenant.infra.clone());
    let dpu = format!("{node}-dpu1");
    let owned = async || {
        let found = nodes.get(&dpu).await.in_words()?;
        Ok::<bool, String>(found.metadata.labels.unwrap_or_default().contains_key(keys::TENANT))
    };
    eventually("no tenant owns the DPU", || async {
        if owned().await? { Err("it has an owner".to_owned()) } else { Ok(()) }
    })
    .await;
    o.plane.command("resume manager").unwrap();
    leads("the former leader knows", o.manager_admin, false).await;
    always("the former leader writes nothing", Duration::from_secs(20), || async {
        if owned().await? { Err("the DPU has an owner again".to_owned()) } else { Ok(()) }
    })
    .await;
    assert!(Outrigger::leads(admin).await.unwrap(), "nobody leads");
    t.tenant.set(json!({"hosts": [node]})).await.unwrap();
    let after = t.sync_at(port, &["w1", "w2"]).await;
    println!("companions before {before:?}, after {after:?}");
    o.plane.command("term manager-2").unwrap();
    leads("the manager leads again", o.manager_admin, true).await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_lease_that_somebody_takes_is_given_up_and_taken_again_when_it_ends() {
    let (_turn, o) = stage().await;
    leads("the manager leads", o.manager_admin, true).await;
    let leases: Api<Lease> = Api::namespaced(o.plane.infra.client().await, SYSTEM);
    let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
    let stolen = json!({"spec": {"holderIdentity": "somebody-else", "acquireTime": now, "renewTime": now}});
    merge(&leases, keys::MANAGER, stolen).await.unwrap();
    leads("the manager leads no more", o.manager_admin, false).await;
    let holder = leases.get(keys::MANAGER).await.unwrap().spec.unwrap().holder_identity;
    println!("when it had noticed, the holder was {holder:?}");
    leads("the manager leads again", o.manager_admin, true).await;
    // Everything goes on.
    let mut t = StreamedTenant::new(o, "stolen").await;
    t.sync(&["w1"]).await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_replica_with_another_time_does_not_take_a_lease_that_is_renewed() {
    let (_turn, o) = stage().await;
    leads("the manager leads", o.manager_admin, true).await;
    let leases: Api<Lease> = Api::namespaced(o.plane.infra.client().await, SYSTEM);
    let holder = async || leases.get(keys::MANAGER).await.unwrap().spec.unwrap().holder_identity;
    let before = holder().await;
    for offset in ["+120s", "-120s"] {
        let [port, admin] = ports().unwrap();
        let name = format!("manager{}", offset.replace('+', "-plus"));
        at_time(o, offset, || o.start_replica(&name, port, admin, &[]).unwrap());
        o.ready_at(&name, admin).await;
        always(offset, Duration::from_secs(40), || async {
            let now = holder().await;
            holds(
                now == before && !Outrigger::leads(admin).await?,
                format!("{now:?} took it from {before:?}"),
            )
        })
        .await;
        o.plane.command(&format!("term {name}")).unwrap();
    }
}
