//! A Machine, its reservations, its two slots, and the guests that have them.

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DeleteParams};
use outrigger_api::Machine;
use outrigger_api::machine::Usage;
use outrigger_core::keys;
use outrigger_tests::tenant::{is_ready, machine};
use outrigger_tests::{InWords, create, holds};
use serde_json::{Value, json};

use crate::crash::run::Run;

const SLOTS: usize = 2;

fn guest(group: &str, name: &str) -> Value {
    let labels = json!({keys::MACHINE_GROUP: group, keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST});
    json!({"metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}})
}

/// Waits until the usage is this: reserved, used.
async fn usage(run: &Run, reserved: u32, used: u32) -> Result<bool, String> {
    let machines: Api<Machine> = Api::all(run.infra.clone());
    let wanted = Usage { maximum: 2, reserved, used, waiting: 0, gated: 0, slots: Some(2) };
    run.reach(&format!("the usage is {wanted:?}"), || async {
        let machine = machines.get(&run.id).await.in_words()?;
        let all = machine.status.unwrap_or_default().available_machines;
        match all.iter().find(|m| m.name == "t") {
            Some(found) if found.usage == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Makes a guest, and waits until it runs.
async fn admitted(run: &Run, guests: &Api<Pod>, name: &str) -> Result<Pod, String> {
    let guest = guest(&run.id, name);
    let create = || async {
        match create(guests, &guest).await {
            // It was created, and the answer got lost.
            Err(kube::Error::Api(status)) if status.code == 409 => guests.get(name).await.in_words(),
            other => other.in_words(),
        }
    };
    let guest = run.act(&format!("guest {name} is admitted"), create).await?;
    run.reach(&format!("guest {name} runs"), || async {
        let pod = guests.get(name).await.in_words()?;
        holds(is_ready(&pod), format!("{:?}", pod.status))
    })
    .await?;
    Ok(guest)
}

/// Asks for slots for more guests than there are slots, all at once. As many as there are slots are admitted, and deleted; `offered`: all
/// slots are there, which they may not be while a watch is frozen.
async fn crowd(run: &Run, guests: &Api<Pod>, offered: bool) -> Result<(), String> {
    let names: Vec<String> = (0..2 * SLOTS).map(|i| format!("c{i}")).collect();
    let asked = names.iter().map(|name| async move {
        let guest = guest(&run.id, name);
        let create = || async {
            match create(guests, &guest).await {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(true),
                Err(error) if error.to_string().contains("there is no <t> left") => Ok(false),
                Err(error) => Err(error.to_string()),
            }
        };
        run.act(&format!("an answer about guest {name}"), create).await
    });
    let answers = futures::future::try_join_all(asked).await?;
    let admitted = answers.iter().filter(|admitted| **admitted).count();
    if admitted > SLOTS || offered && admitted < SLOTS {
        return Err(format!("{admitted} of {} guests were admitted to {SLOTS} slots", answers.len()));
    }
    for (name, _) in names.iter().zip(answers).filter(|(_, admitted)| *admitted) {
        guests.delete(name, &DeleteParams::default()).await.in_words()?;
    }
    Ok(())
}

/// Four guests ask for two slots at once. Then two guests take the slots, and a third is refused until one of them has gone.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let infra = &run.outrigger().plane.infra;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": run.id, "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{}-n1", run.id)}});
    infra.apply(&[namespace, node]).in_words()?;
    let accounts: Api<ServiceAccount> = Api::namespaced(run.infra.clone(), &run.id);
    let account = || async { accounts.get("default").await.map(drop).in_words() };
    run.act("the namespace takes Pods", account).await?;
    run.slots("t", SLOTS);
    run.begin();
    let object = machine(&run.id, &[(&format!("{}-n1", run.id), "t")], &[("t", 2)]);
    let apply = || async { infra.apply(std::slice::from_ref(&object)).in_words() };
    run.act("the Machine is taken", apply).await?;
    let offered = usage(run, 2, 0).await?;
    let guests: Api<Pod> = Api::namespaced(run.infra.clone(), &run.id);
    crowd(run, &guests, offered).await?;
    usage(run, 2, 0).await?;
    admitted(run, &guests, "g1").await?;
    let stays = admitted(run, &guests, "g2").await?;
    run.hold(&[stays]).await?;
    usage(run, 0, 2).await?;
    let third = guest(&run.id, "g3");
    run.reach("a third is refused", || async {
        match create(&guests, &third).await {
            Ok(_) => Err("it was admitted".to_owned()),
            Err(error) if error.to_string().contains("there is no <t> left") => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    guests.delete("g1", &DeleteParams::default()).await.in_words()?;
    admitted(run, &guests, "g3").await?;
    usage(run, 0, 2).await?;
    Ok(())
}
