//! Waits for what Events, conditions and statuses say.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Event, ServiceAccount};
use kube::Client;
use kube::api::{Api, ListParams};
use outrigger_api::conditions::Status;
use outrigger_api::machine::Usage;
use outrigger_api::{Machine, Tenant};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{InWords, condition_of, eventually, until};

/// Waits for an Event with this reason in a namespace, and returns its message.
pub async fn event(client: &Client, namespace: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    eventually(&format!("an Event {reason}"), || async {
        let list = events.list(&ListParams::default()).await.in_words()?;
        let found = list.items.into_iter().find(|e| e.reason.as_deref() == Some(reason));
        found.and_then(|e| e.message).ok_or_else(|| "no such Event".to_owned())
    })
    .await
}

/// Waits until Pods can be created in a namespace: its default service account is there.
pub async fn takes_pods(client: &Client, namespace: &str) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    eventually("the namespace takes Pods", || async { accounts.get("default").await }).await;
}

/// Waits until a type of a Machine has this usage: maximum, reserved, used, waiting, slots.
pub async fn usage(machines: &Api<Machine>, machine: &str, type_: &str, wanted: [u32; 5]) {
    let [maximum, reserved, used, waiting, slots] = wanted;
    let wanted = Usage { maximum, reserved, used, waiting, gated: 0, slots: Some(slots) };
    until(&format!("the usage of {machine}-{type_} is {wanted:?}"), machines, machine, |machine| {
        let all = machine.status.unwrap_or_default().available_machines;
        match all.iter().find(|m| m.name == type_) {
            // Those with gates are among those that wait.
            Some(found) if (Usage { gated: 0, ..found.usage }) == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Waits until a condition of a Tenant is so, and returns its message.
pub async fn tenant_is(tenants: &Api<Tenant>, id: &str, kind: &str, status: Status, reason: &str) -> String {
    condition(tenants, id, kind, status, reason, &[]).await.1
}

/// Waits until a condition of an object is so, with all these words in its message, and returns the object and the message.
pub(super) async fn condition<K>(
    api: &Api<K>,
    name: &str,
    kind: &str,
    status: Status,
    reason: &str,
    words: &[&str],
) -> (K, String)
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    until(&format!("{name}: {kind}={} {reason} {words:?}", status.as_str()), api, name, |object| {
        let found = condition_of(&object, kind);
        let message = found["message"].as_str().unwrap_or_default();
        let said = words.iter().all(|words| message.contains(words));
        if found["status"] == status.as_str() && found["reason"] == reason && said {
            return Ok((object, message.to_owned()));
        }
        Err(found.to_string())
    })
    .await
}
