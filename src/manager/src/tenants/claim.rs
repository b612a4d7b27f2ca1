//! Which replica serves a tenant's stream: a claim in `Tenant.status.stream`, one write for each connection.
//!
//! The claim carries a counter that is raised under the Tenant's resourceVersion before a stream's first message is used,
//! so of two replicas with a stream of the same tenant exactly one has the latest. The other one sees it (every replica
//! watches Tenants), drops its stream and stops writing.
//!
//! A claim is on the Tenant with one uid: the counter of a Tenant that is deleted and created again restarts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, Patch};
use outrigger_api::{StreamStatus, Tenant};
use outrigger_core::ids::TenantId;
use outrigger_runtime::cache::version;
use serde_json::{Value, json};
use tonic::Status;
use tracing::{debug, info};

use crate::context::Context;
use crate::queue::{self, Queue};
use crate::state::TenantState;
use crate::state::stream::{RaisedClaim, StreamFields};
use crate::worker::{Action, Controller};
use crate::writes::{self, Version};

/// Attempts at a claim while others write the same Tenant.
const ATTEMPTS: usize = 20;

/// A claim is on its way to the API server, and isn't taken for one that no stream is for ([`UnusedClaims`]) before what is returned is
/// dropped: once the stream has it, or has failed.
pub(crate) fn raising(state: &TenantState) -> impl Drop {
    state.lock().stream.raise_begins();
    scopeguard::guard((), |()| state.lock().stream.raise_ends())
}

/// Raises the claim on a tenant's stream, beyond what this replica has seen in the tenant's state. Returns UNAVAILABLE when the
/// API server can't be asked. The claim may have been raised all the same, see [`UnusedClaims`]. NOT_FOUND when the tenant is
/// deleted. ABORTED when a newer stream has begun here: its claim has to be the higher one.
pub(crate) async fn raise(
    context: &Context,
    id: &TenantId,
    state: &TenantState,
    stream: u64,
) -> Result<RaisedClaim, Status> {
    let gone = || Status::not_found(format!("tenant {id} no longer exists"));
    let mut tenant = context.caches.registry.get(id).ok_or_else(gone)?.object.as_ref().clone();
    for _ in 0..ATTEMPTS {
        let before = tenant.status.clone().and_then(|status| status.stream).unwrap_or_default();
        let uid = tenant.uid().unwrap_or_default();
        let highest = {
            let data = state.lock();
            data.stream.check(stream)?;
            data.stream.highest(&uid)
        };
        let stream = StreamStatus {
            claim: before.claim.max(highest) + 1,
            holder: context.replica.identity.to_string(),
            connected: true,
            since: Some(Time(context.environment.clock.wall())),
            ..before
        };
        match writes::status(&api(context), &Version::of(&tenant), json!({"stream": stream})).await {
            Ok(written) => {
                let resource_version = version(written.resource_version().as_deref());
                // What a list shows after that isn't the state from before that the cache has: the cluster was restored.
                context.feeds.tenants.answer(written);
                return Ok(RaisedClaim { uid, resource_version, claim: stream.claim });
            }
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(gone()),
            // The cache was stale, or another replica was faster: the next claim has to be higher than that one.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(unavailable(&error)),
        }
        tenant = api(context).get_opt(id.as_str()).await.map_err(|e| unavailable(&e))?.ok_or_else(gone)?;
    }
    Err(Status::unavailable("the tenant's stream could not be claimed: too many others try; connect again"))
}

/// Writes what the tenant's state has for the stream's status. The stream doesn't depend on it.
pub(crate) async fn write_status(
    context: &Context,
    id: &TenantId,
    state: &TenantState,
) -> Result<(), kube::Error> {
    let Some(unwritten) = state.lock().stream.unwritten() else { return Ok(()) };
    let stored = write(context, id, &unwritten).await?;
    if !stored {
        debug!(tenant = %id, claim = unwritten.claim.number, "stream status not written: the claim is not the latest");
    }
    // The answer may be of a state before which the cluster was restored, and come after a list of the restored one.
    let shown = context.caches.registry.get(id).and_then(|entry| entry.object.status.clone()?.stream);
    let shown = shown.filter(|shown| *shown.holder == *context.replica.identity);
    let mut data = state.lock();
    data.stream.written(&unwritten, stored);
    if shown.is_some_and(|shown| data.stream.shown(shown.claim, || json!(shown))) {
        context.queues.stream_statuses.add([id.clone()]);
    }
    Ok(())
}

/// Writes fields of the stream's status, as long as the claim is the latest. Whether it is.
async fn write(context: &Context, id: &TenantId, what: &StreamFields) -> Result<bool, kube::Error> {
    let StreamFields { claim, fields } = what;
    let mut patch = vec![
        // Another Tenant of the name counts its claims from the beginning.
        json!({"op": "test", "path": "/metadata/uid", "value": claim.tenant_uid}),
        json!({"op": "test", "path": "/status/stream/claim", "value": claim.number}),
        json!({"op": "test", "path": "/status/stream/holder", "value": &*context.replica.identity}),
    ];
    // `add` replaces what is there.
    patch.extend(fields.iter().map(
        |(field, value)| json!({"op": "add", "path": format!("/status/stream/{field}"), "value": value}),
    ));
    let patch = serde_json::from_value(Value::Array(patch)).map_err(kube::Error::SerdeError)?;
    match api(context).patch_status(id.as_str(), &writes::patch(), &Patch::Json::<()>(patch)).await {
        Ok(written) => {
            // As in `raise`: a restored state that the cache has still is news then.
            context.feeds.tenants.answer(written);
            Ok(true)
        }
        // A test that failed: the claim is another's by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 422) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes over the claim on a Tenant's stream from a replica that no longer runs, for nobody: the leader acts for the tenant then. Fails with
/// a conflict if the Tenant has changed since it was read.
pub(crate) async fn take_over(context: &Context, tenant: &Tenant) -> Result<(), kube::Error> {
    let before = tenant.status.clone().and_then(|status| status.stream).unwrap_or_default();
    let now = Some(Time(context.environment.clock.wall()));
    let stream = StreamStatus {
        claim: before.claim + 1,
        holder: String::new(),
        connected: false,
        since: if before.connected { now } else { before.since.clone() },
        ..before
    };
    let written = writes::status(&api(context), &Version::of(tenant), json!({"stream": stream})).await?;
    context.feeds.tenants.answer(written);
    Ok(())
}

/// Takes in the Tenant as the API server has it now, and with it the latest claim on its stream.
pub(crate) async fn look(context: &Context, id: &TenantId) -> Result<(), kube::Error> {
    if let Some(tenant) = api(context).get_opt(id.as_str()).await? {
        context.feeds.tenants.answer(tenant);
    }
    Ok(())
}

fn api(context: &Context) -> Api<Tenant> {
    Api::all(context.client.clone())
}

/// How long a claim that no stream is for is kept: the agent whose stream it was raised for connects again before that, unless
/// it has gone for good.
pub(crate) const UNUSED: Duration = Duration::from_secs(10);

/// The controller that gives up claims in this replica's name that no stream is for: the answer to their write was lost, and
/// the agent didn't come back. As long as they stay no replica acts for the tenant.
pub(crate) struct UnusedClaims(pub(crate) Arc<Context>);

impl Controller for UnusedClaims {
    type Key = TenantId;

    const NAME: &'static str = "unused claims";
    const LEADER_ONLY: bool = false;
    const QUEUE: fn(&Context) -> &Queue<TenantId> = |context| &context.queues.unused_claims;

    async fn step(&self, id: &TenantId) -> Result<Action, kube::Error> {
        let unused = self.0.states.of(id).iter().find_map(|state| state.lock().stream.unused_claim());
        if let Some(claim) = unused {
            let now = Time(self.0.environment.clock.wall());
            let fields = [("connected", json!(false)), ("since", json!(now)), ("holder", json!(""))].into();
            let number = claim.number;
            if write(&self.0, id, &StreamFields { claim, fields }).await? {
                info!(tenant = %id, claim = number, "gave up a claim that no stream is for");
            }
        }
        Ok(Action::Done)
    }
}

/// The controller that writes what streams of this replica say in their Tenants' statuses, one write of a Tenant at a time.
pub(crate) struct StreamStatuses(pub(crate) Arc<Context>);

impl Controller for StreamStatuses {
    type Key = TenantId;

    const NAME: &'static str = "stream statuses";
    const LEADER_ONLY: bool = false;
    const QUEUE: fn(&Context) -> &Queue<TenantId> = |context| &context.queues.stream_statuses;

    async fn step(&self, id: &TenantId) -> Result<Action, kube::Error> {
        for state in self.0.states.of(id) {
            write_status(&self.0, id, &state).await?;
        }
        Ok(Action::Done)
    }
}

impl queue::Key for TenantId {}

fn unavailable(error: &kube::Error) -> Status {
    Status::unavailable(format!("the tenant's stream could not be claimed: {error}; connect again"))
}

#[cfg(test)]
mod tests {
    use outrigger_core::companion::StreamClaim;
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::{FakeApi, failure};
    use outrigger_runtime::watch::Event;

    use super::*;
    use crate::fixtures;

    #[tokio::test]
    async fn what_a_stream_says_is_written_again_until_it_is_or_another_claim_is_the_latest() {
        const STATUS: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue/status";
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let state = fixtures::served_tenant(&context);
        let controller = StreamStatuses(context);
        let step = async || controller.step(&TenantId::new("blue").unwrap()).await;
        step().await.unwrap();
        assert!(api.calls("PATCH").is_empty(), "there is nothing to say");
        let claim = StreamClaim { tenant_uid: "u".into(), number: 1 };
        let say = || state.lock().stream.say(&claim, [("connected", json!(false))]);
        for (code, stays) in [(500, true), (503, true), (422, false), (200, false)] {
            say();
            let answer = if code == 200 { json!({"metadata": {}, "spec": {}}) } else { failure(code, "") };
            api.answers("PATCH", STATUS, code, answer);
            assert_eq!(step().await.is_err(), stays, "{code}");
            assert_eq!(state.lock().stream.unwritten().is_some(), stays, "{code}");
        }
        let calls = api.calls("PATCH");
        assert_eq!(calls.len(), 4);
        assert_eq!(calls[0].1[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
    }

    /// The watch lists this Tenant, at this version.
    fn list(context: &Context, tenant: Value, version: u64) {
        context.feeds.tenants.event(Event::ListStarted);
        context.feeds.tenants.event(Event::Listed(fixtures::object(tenant)));
        context.feeds.tenants.event(Event::ListCompleted { version });
    }

    #[tokio::test]
    async fn a_restored_claim_is_noticed_where_no_watch_has_shown_the_later_one() {
        const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let state = fixtures::state_of_blue(&context);
        let listed = |version| list(&context, fixtures::tenant_claimed(1, "another"), version);
        listed(9);
        let (id, me) = (TenantId::new("blue").unwrap(), context.replica.identity.clone());
        let stream = state.lock().stream.begin(1, tokio::time::Instant::now()).unwrap().number;
        api.answers("PATCH", &format!("{TENANT}/status"), 200, fixtures::tenant_claimed(2, &me));
        let raised = raise(&context, &id, &state, stream).await.unwrap();
        state.lock().stream.claimed(stream, raised).unwrap();
        assert!(state.lock().stream.check(stream).is_ok());
        listed(1000);
        assert!(state.lock().stream.check(stream).is_err(), "the agent has to connect again");
    }

    #[tokio::test]
    async fn a_claim_is_not_unused_before_its_stream_could_have_it() {
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let state = fixtures::state_of_blue(&context);
        list(&context, fixtures::tenant_claimed(1, "another"), 9);
        let (id, me) = (TenantId::new("blue").unwrap(), context.replica.identity.clone());
        let stream = state.lock().stream.begin(1, tokio::time::Instant::now()).unwrap().number;
        let status = "/apis/outrigger.dev/v1alpha1/tenants/blue/status";
        api.answers("PATCH", status, 200, fixtures::tenant_claimed(2, &me));
        let unused = || state.lock().stream.unused_claim().map(|claim| claim.number);
        let raising = raising(&state);
        raise(&context, &id, &state, stream).await.unwrap();
        assert_eq!(unused(), None, "the stream is about to have it");
        drop(raising);
        assert_eq!(unused(), Some(2), "it has failed");
    }

    #[tokio::test]
    async fn a_restored_status_has_again_what_was_written_of_the_stream() {
        let context = fixtures::context(FakeApi::default().client());
        let state = fixtures::state_of_blue(&context);
        let (number, me) = (fixtures::connect(&state), context.replica.identity.clone());
        let shown = || {
            let tenant = fixtures::object(fixtures::tenant_claimed(1, &me));
            context.tenant(Change::Applied(tenant));
            let again = state.lock().stream.unwritten()?;
            state.lock().stream.written(&again, true);
            Some(again.fields)
        };
        assert_eq!(shown(), None);
        let claim = StreamClaim { tenant_uid: "u".into(), number: 1 };
        let said = [("workloads", json!(3)), ("refused", json!(null)), ("connected", json!(true))];
        state.lock().stream.say(&claim, said);
        assert_eq!(shown().unwrap().len(), 3, "it isn't written yet");
        assert_eq!(shown(), Some([("workloads", json!(3))].into()), "a snapshot of before is restored");
        let claim = state.lock().stream.end(number, jiff::Timestamp::UNIX_EPOCH).unwrap();
        state.lock().stream.say(&claim, [("connected", json!(false))]);
        assert_eq!(shown(), Some([("connected", json!(false))].into()));
        assert_eq!(shown(), Some([("connected", json!(false)), ("workloads", json!(3))].into()));
    }

    #[tokio::test]
    async fn a_restored_status_is_noticed_where_no_watch_has_shown_the_later_one() {
        const STATUS: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue/status";
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let state = fixtures::state_of_blue(&context);
        let number = fixtures::connect(&state);
        let connected = fixtures::tenant_claimed(1, &context.replica.identity);
        list(&context, connected.clone(), 9);
        let claim = state.lock().stream.end(number, jiff::Timestamp::UNIX_EPOCH).unwrap();
        state.lock().stream.say(&claim, [("connected", json!(false))]);
        let mut ended = connected.clone();
        ended["metadata"]["resourceVersion"] = json!("10");
        ended["status"]["stream"]["connected"] = json!(false);
        api.answers("PATCH", STATUS, 200, ended.clone());
        let id = TenantId::new("blue").unwrap();
        write_status(&context, &id, &state).await.unwrap();
        let unwritten = || state.lock().stream.unwritten().map(|said| said.fields["connected"].clone());
        assert_eq!(unwritten(), None);
        list(&context, connected.clone(), 1000);
        assert_eq!(unwritten(), Some(json!(false)));
        // The answer comes after the list of the restored state.
        api.answers("PATCH", STATUS, 200, ended);
        let listing = context.clone();
        api.meanwhile("PATCH", STATUS, move || list(&listing, connected.clone(), 2000));
        write_status(&context, &id, &state).await.unwrap();
        assert_eq!(unwritten(), Some(json!(false)));
    }

    #[tokio::test]
    async fn a_superseded_stream_does_not_claim_again_after_a_newer_one() {
        const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let state = fixtures::served_tenant(&context);
        let tenant = fixtures::object(fixtures::tenant_claimed(1, ""));
        context.caches.registry.tenant(Change::Applied(tenant));
        let begin = move |state: &TenantState| {
            state.lock().stream.begin(9, tokio::time::Instant::now()).map(|begun| begun.number).unwrap()
        };
        let (older, id) = (begin(&state), TenantId::new("blue").unwrap());
        api.answers("GET", TENANT, 200, fixtures::tenant_claimed(2, "me"));
        api.answers("PATCH", &format!("{TENANT}/status"), 409, failure(409, ""));
        let newer = state.clone();
        api.meanwhile("PATCH", &format!("{TENANT}/status"), move || _ = begin(&newer));
        let refused = raise(&context, &id, &state, older).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert_eq!(api.calls("PATCH").len(), 1, "the newer one may have claimed meanwhile");
    }
}
