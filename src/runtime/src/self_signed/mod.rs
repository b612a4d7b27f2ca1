//! Certificates without cert-manager: all replicas of a server share a CA and a serving certificate in one Secret, and publish
//! the CA bundle to the clients.
//!
//! **In**: the Secret, the time. **Out**: the serving certificate ([`ServerTls::give`]), updates of the Secret, and the CA bundle
//! in the [`BundleTarget`]s of the component. There is no leader: each replica reconciles, and every write has the resourceVersion
//! that was read as its precondition, so of two replicas with the same change one gets a conflict. The Secret has to exist, and
//! may be empty: so no server needs permission to create Secrets, which would include Secrets with the token of any service
//! account of the namespace.
//!
//! A CA is replaced before it expires. The new CA is first added to the Secret and to the bundles. Once all targets have contained
//! it for the overlap, it signs certificates. The private key of the old CA is then deleted, and the old CA stays trusted until it
//! expires.
//!
//! When servers change from another certificate source to this one, old replicas still serve their old certificates while new
//! ones start. The CAs that the targets contain at that time can stay trusted beside the first CA, for 30 days at most and only
//! with `--self-signed-inherit`, because anybody who can write a target could add a CA.
//!
//! Certificates are due by the wall clock. A replica whose clock is far from the API server's makes no change (`clock`).
//!
//! Targets are read *before* the Secret, and written with their own resourceVersion as a precondition. So a replica that has read
//! the Secret before a CA was added can't remove this CA from a target: its write has an older resourceVersion.

mod args;
mod clock;
mod contention;
mod issue;
mod plan;
mod state;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

pub use self::args::{SelfSignedArgs, TlsSource};
use self::contention::Contention;
use self::plan::{CertificateSpec, Step, apply, clock_warning, foreign_cas, plan};
use self::state::{Certificate, State};
pub use self::targets::BundleTarget;
use self::targets::{is_conflict, notify_changes};
use crate::environment::Environment;
use crate::ready::{ReadyHandle, Warning};
use crate::tls::ServerTls;
use crate::{Process, expiry};

/// Minimum pause between two rounds: events come in bursts.
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// Maximum pause between two rounds: the wall clock may be changed.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// First and longest pause after failures.
const FAILURE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Longest pause before a round is retried because another replica has written.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of such retries in a row. Replicas that write concurrently need a few.
const MAX_RETRIES: u32 = 20;

/// A server that has self-signed certificates.
#[derive(Debug, Clone, Copy)]
pub struct Component {
    /// Name of its Service; also the field manager of its writes.
    pub service: &'static str,
    /// Name of its Secret.
    pub secret: &'static str,
    /// Where its CA bundle is published.
    pub bundle_targets: &'static [BundleTarget],
}

/// Starts to manage a server's certificate if the settings say so. The process is ready once there is a certificate.
pub fn start(
    process: &Process,
    client: &Client,
    args: &SelfSignedArgs,
    component: Component,
    tls: Arc<ServerTls>,
) {
    start_with_config_maps_in(&args.self_signed_namespace, process, client, args, component, tls);
}

/// As [`start`], with the ConfigMaps of the component in a namespace of their own.
pub fn start_with_config_maps_in(
    config_maps: &str,
    process: &Process,
    client: &Client,
    args: &SelfSignedArgs,
    component: Component,
    tls: Arc<ServerTls>,
) {
    if args.tls != TlsSource::SelfSigned {
        return;
    }
    let controller = CertificateController {
        client: client.clone(),
        environment: process.environment.clone(),
        spec: args.spec(&component),
        namespace: args.self_signed_namespace.clone(),
        config_maps: config_maps.to_owned(),
        component,
        tls,
        changed: Arc::default(),
        warning: process.readiness.warning("self-signed certificates"),
    };
    let ready = process.readiness.wait_for("serving certificate");
    process.spawn("self-signed certificates", controller.run(ready));
}

/// Reconciles the Secret and the bundle targets of one component.
struct CertificateController {
    client: Client,
    environment: Environment,
    spec: CertificateSpec,
    namespace: String,
    /// Namespace of ConfigMaps.
    config_maps: String,
    component: Component,
    tls: Arc<ServerTls>,
    /// Notified when the Secret or a target has changed.
    changed: Arc<Notify>,
    warning: Warning,
}

enum RoundResult {
    /// An object was written, by this replica or by another: run the next round.
    Retry,
    /// Nothing to do until this time (Unix time in seconds), and a warning.
    Wait(i64, Option<String>),
}

/// The result of publishing the CA bundle to the targets.
#[derive(Debug, Default, Clone, Copy)]
struct PublishResult {
    /// A target was written by others in the meantime.
    conflict: bool,
    /// A target is not written for this time, because others keep changing it.
    backoff: Option<Duration>,
}

impl PublishResult {
    /// Whether all targets contain the CA bundle.
    fn is_complete(self) -> bool {
        !self.conflict && self.backoff.is_none()
    }
}

/// A target, and the object that was read.
type Target<'a> = (&'a BundleTarget, anyhow::Result<Option<serde_json::Value>>);

impl CertificateController {
    async fn run(self, ready: ReadyHandle) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let (changed, environment) = (&self.changed, &self.environment);
        let mut watches = vec![tokio::spawn(notify_changes(
            secrets,
            self.component.secret,
            environment.clone(),
            changed.clone(),
        ))];
        for target in self.component.bundle_targets {
            let (api, name) = (target.api(&self.client, &self.config_maps), target.name());
            watches.push(tokio::spawn(notify_changes(api, name, environment.clone(), changed.clone())));
        }
        let _watches: Vec<_> = watches.into_iter().map(AbortOnDropHandle::new).collect();
        let mut ready = Some(ready);
        let (mut failures, mut retries) = (0_u32, 0_u32);
        let mut contentions: Vec<Contention> =
            self.component.bundle_targets.iter().map(|_| Contention::default()).collect();
        loop {
            // Created before the round, so that a change during the round starts the next one.
            let changed = self.changed.notified();
            let mut result = self.round(&mut ready, &mut contentions).await;
            retries = if matches!(result, Ok(RoundResult::Retry)) { retries + 1 } else { 0 };
            if retries > MAX_RETRIES {
                result = Err(anyhow::anyhow!(
                    "others write the same objects all the time, or the API server refuses the change"
                ));
            }
            let pause = match result {
                Ok(RoundResult::Retry) => self.environment.random.below(RETRY_PAUSE),
                Ok(RoundResult::Wait(until, warning)) => {
                    failures = 0;
                    if self.warning.set(warning.clone())
                        && let Some(warning) = warning
                    {
                        warn!("self-signed certificates: {warning}");
                    }
                    let left = u64::try_from(until.saturating_sub(self.environment.clock.unix()))
                        .unwrap_or_default();
                    Duration::from_secs(left).clamp(MIN_PAUSE, MAX_PAUSE)
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let error = format!("{error:#}");
                    if self.warning.set(Some(error.clone())) {
                        warn!(error, "failed to reconcile self-signed certificates; retrying");
                    }
                    FAILURE_PAUSES.0.saturating_mul(1 << failures.min(6)).min(FAILURE_PAUSES.1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = async { changed.await; tokio::time::sleep(MIN_PAUSE).await } => {}
            }
        }
    }

    /// Publishes and serves the certificates in the Secret, and makes at most one step of the plan.
    async fn round(
        &self,
        ready: &mut Option<ReadyHandle>,
        contentions: &mut [Contention],
    ) -> anyhow::Result<RoundResult> {
        let mut targets = Vec::new();
        for target in self.component.bundle_targets {
            targets.push((target, target.read(&self.client, &self.config_maps).await));
        }
        let (version, state) = self.read().await?;
        let now = self.environment.clock.unix();
        let found = found(&targets);
        let mut published = Ok(PublishResult::default());
        if let Some(state) = &state {
            published = self.publish(targets, &state.ca_bundle(), contentions).await;
            // Also if the CA bundle could not be published: some clients may have it.
            let leaf = &state.leaf;
            self.tls.give(leaf.certificate.pem.as_bytes(), leaf.key.as_bytes());
            if let Some(ready) = ready.take() {
                ready.done();
            }
        } else if let Some((_, Err(error))) = targets.into_iter().find(|(_, read)| read.is_err()) {
            // The CAs in this target could not be inherited.
            return Err(error);
        }
        let complete = published.as_ref().is_ok_and(|published| published.is_complete());
        let (step, wrong_clock) = self.step(state.as_ref(), complete, now).await?;
        if let Some(next) = apply(step, state.as_ref(), &self.spec, &found, now)? {
            if self.write(&version, &next).await? {
                info!(secret = self.component.secret, step = step.name(), "updated certificates");
                if step == Step::CreateCa {
                    self.log_foreign_cas(&next, &found, now);
                }
            }
            return Ok(RoundResult::Retry);
        }
        let until = match (step, published?) {
            (Step::Wait(until), published) if published.is_complete() => until,
            (Step::Wait(until), PublishResult { conflict: false, backoff: Some(left) }) => {
                let left = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
                until.min(now.saturating_add(left).saturating_add(1))
            }
            _ => return Ok(RoundResult::Retry),
        };
        let contended = std::iter::zip(self.component.bundle_targets, contentions.iter())
            .find(|(_, contention)| contention.is_persistent(self.environment.clock.now()))
            .map(|(target, _)| {
                format!(
                    "others overwrite the CA bundle in {target} each time that it is published; remove the annotation \
                     cert-manager.io/inject-ca-from from it, or stop the tool that applies it repeatedly"
                )
            });
        let clock = wrong_clock.or_else(|| state.as_ref().and_then(|state| clock_warning(state, now)));
        Ok(RoundResult::Wait(until, clock.or(contended)))
    }

    /// The next step of the plan; a wait with the reason where this replica's clock is too wrong to make a step.
    async fn step(
        &self,
        state: Option<&State>,
        published: bool,
        now: i64,
    ) -> anyhow::Result<(Step, Option<String>)> {
        let step = plan(state, &self.spec, published, now);
        if matches!(step, Step::Wait(_)) {
            return Ok((step, None));
        }
        let theirs = clock::of_api_server(&self.client).await?;
        let wrong = theirs.and_then(|theirs| clock::warning(now, theirs, self.spec.life));
        Ok((if wrong.is_some() { Step::Wait(now.saturating_add(clock::PAUSE)) } else { step }, wrong))
    }

    /// Logs the CAs of others that the targets contained when the first CA was created, and whether they stay trusted.
    fn log_foreign_cas(&self, state: &State, found: &[Certificate], now: i64) {
        let inherited = state.inherited.as_ref();
        for ca in foreign_cas(found, &self.spec, now) {
            let (subject, sha256) = (&ca.subject, ca.fingerprint());
            match inherited.filter(|inherited| inherited.cas.contains(&ca)) {
                Some(inherited) => {
                    let until = expiry::at(inherited.until.min(ca.validity.not_after));
                    warn!(subject, sha256, %until, "a CA of others stays trusted because of --self-signed-inherit");
                }
                None => warn!(
                    subject,
                    sha256,
                    "a CA of others is no longer trusted; if servers still use it, empty the Secret's data and restart with \
                     --self-signed-inherit"
                ),
            }
        }
    }

    async fn read(&self) -> anyhow::Result<(String, Option<State>)> {
        let (namespace, name) = (&self.namespace, self.component.secret);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = secrets.get_opt(name).await.with_context(|| format!("Secret {namespace}/{name}"))?;
        let Some(secret) = secret else {
            bail!("Secret {namespace}/{name}: not found; apply certs/self-signed first");
        };
        let data: BTreeMap<String, Vec<u8>> =
            secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        let state = State::read(&data).with_context(|| {
            format!("Secret {namespace}/{name}: invalid; empty its data to create a new CA")
        })?;
        Ok((secret.metadata.resource_version.unwrap_or_default(), state))
    }

    /// Writes the Secret if it still has this resourceVersion. Returns whether it was written.
    async fn write(&self, version: &str, state: &State) -> anyhow::Result<bool> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let data: BTreeMap<_, _> = state
            .write()
            .into_iter()
            .map(|(key, value)| (key, value.map(|text| k8s_openapi::ByteString(text.into_bytes()))))
            .collect();
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "data": data}));
        let params =
            PatchParams { field_manager: Some(self.component.service.to_owned()), ..PatchParams::default() };
        let written = secrets.patch(self.component.secret, &params, &patch).await;
        let failed = || format!("Secret {}/{}", self.namespace, self.component.secret);
        match written.with_context(failed) {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Publishes the CA bundle to all targets. Returns the first error after all of them have been tried.
    async fn publish(
        &self,
        targets: Vec<Target<'_>>,
        bundle: &str,
        contentions: &mut [Contention],
    ) -> anyhow::Result<PublishResult> {
        let mut result = Ok(PublishResult::default());
        for ((target, object), contention) in targets.into_iter().zip(contentions) {
            let published = match object {
                Ok(None) => Ok(PublishResult::default()),
                Ok(Some(object)) => self.publish_one(target, &object, bundle, contention).await,
                Err(error) => Err(error),
            };
            result = match (result, published) {
                (Ok(all), Ok(this)) => {
                    let backoff = all.backoff.into_iter().chain(this.backoff).min();
                    Ok(PublishResult { conflict: all.conflict || this.conflict, backoff })
                }
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    }

    async fn publish_one(
        &self,
        target: &BundleTarget,
        object: &serde_json::Value,
        bundle: &str,
        contention: &mut Contention,
    ) -> anyhow::Result<PublishResult> {
        let Some(patch) = target.patch(object, bundle)? else { return Ok(PublishResult::default()) };
        if let Some(left) = contention.backoff(bundle, self.environment.clock.now()) {
            return Ok(PublishResult { backoff: Some(left), conflict: false });
        }
        let writer = (self.config_maps.as_str(), self.component.service);
        match target.write(&self.client, writer, &patch).await {
            Ok(()) => {
                contention.written(bundle, self.environment.clock.now());
                info!(object = %target, "published the CA bundle");
                Ok(PublishResult::default())
            }
            Err(error) if is_conflict(&error) => Ok(PublishResult { conflict: true, backoff: None }),
            Err(error) => Err(error),
        }
    }
}

/// The certificates in all targets that could be read.
fn found(targets: &[Target<'_>]) -> Vec<Certificate> {
    let objects = targets.iter().filter_map(|(target, read)| Some((target, read.as_ref().ok()?.as_ref()?)));
    let bundles = objects.flat_map(|(target, object)| target.bundles_in(object));
    bundles.flat_map(|bundle| Certificate::found(&bundle)).collect()
}

#[cfg(test)]
mod tests;
