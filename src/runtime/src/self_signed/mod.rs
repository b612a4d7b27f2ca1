//! Certificates without cert-manager: replicas keep a CA and a serving certificate in one Secret, and tell those who
//! verify them whom to trust.
//!
//! **In**: the Secret, the time. **Out**: the certificate that is served ([`ServerTls::give`]); the Secret's next state;
//! the CAs, in the [`Place`]s of the component. No replica is a leader: each looks at what there is, and every write is
//! made under the resourceVersion that was read, so of two that do the same at once one finds it done. The Secret has to be
//! there, and may be empty: then nobody needs the right to make Secrets, which is more than it seems (one with the token of
//! any service account of the namespace).
//!
//! A CA is followed by another before it ends. The new one is first trusted: it is in the Secret beside the old one, and
//! published. When every place has carried it for the overlap, it signs; the old one's key is gone from then on, and it
//! stays trusted until it ends.
//!
//! Where servers get their certificates otherwise, and are told to keep them themselves from now on, the old ones still
//! serve while the new ones start. So what the places carry then can stay beside our first CA, for 30 days at most. It does only where
//! a setting says so: whoever may write to a place could put a CA of their own there.
//!
//! Places are read *before* the Secret and written under their own resourceVersion. So a replica that read the Secret
//! before a CA was added can't take that CA out of a place again: its write is older than the one that put it there.

mod contention;
mod issue;
mod plan;
mod state;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use rustls_pki_types::{DnsName, IpAddr};
use serde_json::json;
use tokio::sync::Notify;
use tracing::{info, warn};

use self::contention::Contention;
use self::plan::{Step, Wanted, of_others, plan, take, trouble};
use self::state::{Certificate, State};
pub use self::targets::Place;
use self::targets::{is_conflict, wake};
use crate::environment::Environment;
use crate::ready::{ReadyHandle, Warning};
use crate::tls::ServerTls;
use crate::{Process, duration, expiry};

/// Names in one certificate, at most.
const MAX_NAMES: usize = 100;

/// Pause between two looks, at least: events come in bursts, and somebody else may write what we write.
const PAUSE: Duration = Duration::from_millis(500);

/// Pause between two looks, at most: clocks may jump.
const LONGEST: Duration = Duration::from_secs(600);

/// Pauses after a failure.
const FAILED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Longest pause between two rounds where another replica has just written.
const AGAIN: Duration = Duration::from_millis(100);

/// Rounds at a stretch that only find that they have to look again. Replicas that race need a few.
const MAX_AGAIN: u32 = 20;

/// Lives shorter than this are for nobody: certificates have whole seconds.
const SHORTEST: Duration = Duration::from_secs(5);

/// Where a server's certificate comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum TlsSource {
    /// The files that --tls-cert-file and --tls-key-file name: cert-manager's, say.
    #[default]
    Files,
    /// A CA of our own, kept with the certificate in a Secret that all replicas share, and published by ourselves.
    SelfSigned,
}

/// Settings of self-signed certificates.
#[derive(Debug, Clone, Args)]
pub struct SelfSignedArgs {
    /// Where the server's certificate comes from.
    #[arg(long, env = "OUTRIGGER_TLS", value_enum, default_value_t, value_name = "SOURCE")]
    pub tls: TlsSource,

    /// Further DNS name or IP address of the server, beside those of its Service. May be given several times, or separated
    /// by commas.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_NAME", value_delimiter = ',', value_name = "NAME")]
    pub self_signed_name: Vec<String>,

    /// Namespace of the Service, of the Secret, and of the ConfigMap outrigger-ca.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_NAMESPACE", default_value = NAMESPACE, value_name = "NAMESPACE")]
    pub self_signed_namespace: String,

    /// How long a certificate lives: 90d. It is renewed at two thirds of that.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_LIFETIME", default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_lifetime: Duration,

    /// How long a CA lives: 1825d. The next one is announced at two thirds of that.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_CA_LIFETIME", default_value = "1825d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_ca_lifetime: Duration,

    /// How long a new CA is published before it signs: 7d. Who verifies needs that time to take it over.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_OVERLAP", default_value = "7d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_overlap: Duration,

    /// Trust the CAs on for up to 30 days, three at most, that the bundles carry when the first CA is made: while servers with
    /// certificates of another origin are replaced. Whoever may write to the bundles chooses these, so set it for that time only.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_INHERIT")]
    pub self_signed_inherit: bool,
}

/// Where servers run when nothing else is said.
const NAMESPACE: &str = "outrigger-system";

const DAY: u64 = 24 * 3600;

impl Default for SelfSignedArgs {
    /// Files, and what else the flags' defaults are.
    fn default() -> Self {
        Self {
            tls: TlsSource::Files,
            self_signed_name: Vec::new(),
            self_signed_namespace: NAMESPACE.to_owned(),
            self_signed_lifetime: Duration::from_secs(90 * DAY),
            self_signed_ca_lifetime: Duration::from_secs(1825 * DAY),
            self_signed_overlap: Duration::from_secs(7 * DAY),
            self_signed_inherit: false,
        }
    }
}

impl SelfSignedArgs {
    /// Checks what the settings say together.
    ///
    /// # Errors
    /// When they can't be meant; the message names the flag.
    pub fn check(&self) -> anyhow::Result<()> {
        let (life, ca_life) = (self.self_signed_lifetime, self.self_signed_ca_lifetime);
        if life < SHORTEST {
            bail!("--self-signed-lifetime is {life:?}; use {SHORTEST:?} or more");
        }
        if ca_life > Duration::from_secs(36500 * DAY) {
            bail!("--self-signed-ca-lifetime is more than a hundred years; use less");
        }
        // A CA has a third of its life left when the next one is announced. Within that it is published, and what the former
        // one has signed last comes of age.
        if ca_life / 3 < life {
            bail!("--self-signed-ca-lifetime is {ca_life:?}; use three times --self-signed-lifetime or more");
        }
        if self.self_signed_overlap > ca_life / 6 {
            bail!("--self-signed-overlap must be a sixth of --self-signed-ca-lifetime at most");
        }
        // The Service has four names of its own.
        if self.self_signed_name.len() > MAX_NAMES / 2 {
            bail!("--self-signed-name is given more than {} times", MAX_NAMES / 2);
        }
        for name in &self.self_signed_name {
            if DnsName::try_from(name.as_str()).is_err() && IpAddr::try_from(name.as_str()).is_err() {
                bail!("--self-signed-name is {name:?}, neither a DNS name nor an IP address");
            }
        }
        Ok(())
    }

    fn wanted(&self, component: &Component) -> Wanted {
        let service = component.service;
        let namespace = &self.self_signed_namespace;
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service.to_owned(),
        ];
        for name in &self.self_signed_name {
            // As it is read from a certificate: IPv6 addresses may be written in several ways.
            let name = name.parse::<std::net::IpAddr>().map_or_else(|_| name.clone(), |ip| ip.to_string());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Wanted {
            name: service.to_owned(),
            names,
            life: seconds(self.self_signed_lifetime),
            ca_life: seconds(self.self_signed_ca_lifetime),
            overlap: seconds(self.self_signed_overlap),
            inherit: self.self_signed_inherit,
        }
    }
}

/// Who serves.
#[derive(Debug, Clone, Copy)]
pub struct Component {
    /// Name of its Service; also the field manager of its writes.
    pub service: &'static str,
    /// Name of its Secret.
    pub secret: &'static str,
    /// Where it is published whom to trust.
    pub places: &'static [Place],
}

/// Keeps a server's certificate from now on, where the settings ask for that. The process is ready only when there is one.
pub fn start(
    process: &Process,
    client: &Client,
    args: &SelfSignedArgs,
    component: Component,
    tls: Arc<ServerTls>,
) {
    if args.tls != TlsSource::SelfSigned {
        return;
    }
    let keeper = Keeper {
        client: client.clone(),
        environment: process.environment.clone(),
        wanted: args.wanted(&component),
        namespace: args.self_signed_namespace.clone(),
        component,
        tls,
        changed: Arc::default(),
        warning: process.readiness.warning("self-signed certificates"),
    };
    let ready = process.readiness.wait_for("serving certificate");
    process.spawn("self-signed certificates", keeper.run(ready));
}

/// Sees to one component's Secret and places.
struct Keeper {
    client: Client,
    environment: Environment,
    wanted: Wanted,
    namespace: String,
    component: Component,
    tls: Arc<ServerTls>,
    /// Told when the Secret or a place has changed.
    changed: Arc<Notify>,
    warning: Warning,
}

/// What a round found.
enum Round {
    /// Somebody else has written, or we have: look again.
    Again,
    /// Nothing to do until then, Unix time in seconds; and what people should know.
    Until(i64, Option<String>),
}

/// What became of the places.
#[derive(Debug, Default, Clone, Copy)]
struct Published {
    /// Somebody has written meanwhile.
    conflict: bool,
    /// One is disputed, and is left as it is for so long.
    held: Option<Duration>,
}

impl Published {
    /// Whether all carry what is to be trusted.
    fn carried(self) -> bool {
        !self.conflict && self.held.is_none()
    }
}

/// A place with what was read of it.
type Read<'a> = (&'a Place, anyhow::Result<Option<serde_json::Value>>);

impl Keeper {
    async fn run(self, ready: ReadyHandle) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut watching = vec![tokio_util::task::AbortOnDropHandle::new(tokio::spawn(wake(
            secrets,
            self.component.secret,
            self.changed.clone(),
        )))];
        for place in self.component.places {
            let (api, name) = (place.api(&self.client, &self.namespace), place.name());
            let task = wake(api, name, self.changed.clone());
            watching.push(tokio_util::task::AbortOnDropHandle::new(tokio::spawn(task)));
        }
        let mut ready = Some(ready);
        let mut failures: u32 = 0;
        let mut again: u32 = 0;
        let mut disputes: Vec<Contention> =
            self.component.places.iter().map(|_| Contention::default()).collect();
        loop {
            // Before the round: what changes while it runs is looked at afterwards.
            let changed = self.changed.notified();
            let mut round = self.round(&mut ready, &mut disputes).await;
            again = if matches!(round, Ok(Round::Again)) { again + 1 } else { 0 };
            if again > MAX_AGAIN {
                round = Err(anyhow::anyhow!(
                    "somebody else writes the same objects all the time, or the API server refuses our change"
                ));
            }
            let pause = match round {
                Ok(Round::Again) => self.environment.random.below(AGAIN),
                Ok(Round::Until(until, told)) => {
                    failures = 0;
                    if self.warning.set(told.clone())
                        && let Some(text) = told
                    {
                        warn!("self-signed certificates: {text}");
                    }
                    let left = u64::try_from(until.saturating_sub(self.environment.clock.unix()))
                        .unwrap_or_default();
                    Duration::from_secs(left).clamp(PAUSE, LONGEST)
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let text = format!("{error:#}");
                    if self.warning.set(Some(text.clone())) {
                        warn!(error = %text, "self-signed certificates can't be kept; trying on");
                    }
                    FAILED.0.saturating_mul(1 << failures.min(6)).min(FAILED.1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = async { changed.await; tokio::time::sleep(PAUSE).await } => {}
            }
        }
    }

    /// Publishes and serves what the Secret has, and takes one step.
    async fn round(
        &self,
        ready: &mut Option<ReadyHandle>,
        disputes: &mut [Contention],
    ) -> anyhow::Result<Round> {
        let mut places = Vec::new();
        for place in self.component.places {
            places.push((place, place.read(&self.client, &self.namespace).await));
        }
        let (version, state) = self.read().await?;
        let now = self.environment.clock.unix();
        let found = found(&places);
        let mut published = Ok(Published::default());
        if let Some(state) = &state {
            published = self.publish(places, &state.trust(), disputes).await;
            // A server whose CA can't be published is still one to those who have it.
            let leaf = &state.leaf;
            self.tls.give(leaf.certificate.pem.as_bytes(), leaf.key.as_bytes());
            if let Some(ready) = ready.take() {
                ready.done();
            }
        } else if let Some((_, Err(error))) = places.into_iter().find(|(_, read)| read.is_err()) {
            // What it carries would be lost.
            return Err(error);
        }
        let carried = published.as_ref().is_ok_and(|published| published.carried());
        let step = plan(state.as_ref(), &self.wanted, carried, now);
        if let Some(next) = take(step, state.as_ref(), &self.wanted, &found, now)? {
            if self.write(&version, &next).await? {
                info!(secret = self.component.secret, ?step, "certificates changed");
                if step == Step::Begin {
                    self.tell_of_others(&next, &found, now);
                }
            }
            return Ok(Round::Again);
        }
        let until = match (step, published?) {
            (Step::Wait(until), published) if published.carried() => until,
            (Step::Wait(until), Published { conflict: false, held: Some(left) }) => {
                let left = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
                until.min(now.saturating_add(left).saturating_add(1))
            }
            _ => return Ok(Round::Again),
        };
        let disputed = std::iter::zip(self.component.places, disputes.iter())
            .find(|(_, dispute)| dispute.is_told(self.environment.clock.now()))
            .map(|(place, _)| {
                format!(
                    "somebody else changes {place} each time that we have published whom to trust; take the annotation \
                     cert-manager.io/inject-ca-from out of it, or whoever applies it over and over"
                )
            });
        let trouble = state.as_ref().and_then(|state| trouble(state, now));
        Ok(Round::Until(until, trouble.or(disputed)))
    }

    /// A CA has begun. What of the CAs of others that were trusted until now?
    fn tell_of_others(&self, state: &State, found: &[Certificate], now: i64) {
        let inherited = state.inherited.as_ref();
        for ca in of_others(found, &self.wanted, now) {
            let (subject, sha256) = (&ca.subject, ca.fingerprint());
            match inherited.filter(|inherited| inherited.cas.contains(&ca)) {
                Some(inherited) => {
                    let until = expiry::at(inherited.until.min(ca.validity.not_after));
                    warn!(subject, sha256, %until, "a CA of somebody else is trusted on, because of --self-signed-inherit");
                }
                None => warn!(
                    subject,
                    sha256,
                    "a CA of somebody else is trusted no more; where servers still use it, begin anew with \
                     --self-signed-inherit"
                ),
            }
        }
    }

    /// The Secret's resourceVersion and what is in it.
    async fn read(&self) -> anyhow::Result<(String, Option<State>)> {
        let (namespace, name) = (&self.namespace, self.component.secret);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = secrets.get_opt(name).await.with_context(|| format!("Secret {namespace}/{name}"))?;
        let Some(secret) = secret else {
            bail!("Secret {namespace}/{name}: isn't there; apply certs/self-signed first");
        };
        let data: BTreeMap<String, Vec<u8>> =
            secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        let state = State::read(&data).with_context(|| {
            format!("Secret {namespace}/{name}: can't be used; empty its data to begin anew")
        })?;
        Ok((secret.metadata.resource_version.unwrap_or_default(), state))
    }

    /// Writes the Secret unless somebody else has since it was read. Whether it was written.
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

    /// Makes every place carry this trust. What became of that; the first failure when it can't be done.
    async fn publish(
        &self,
        places: Vec<Read<'_>>,
        trust: &str,
        disputes: &mut [Contention],
    ) -> anyhow::Result<Published> {
        let mut result = Ok(Published::default());
        for ((place, object), dispute) in places.into_iter().zip(disputes) {
            let done = match object {
                Ok(None) => Ok(Published::default()),
                Ok(Some(object)) => self.publish_one(place, &object, trust, dispute).await,
                Err(error) => Err(error),
            };
            // The others are told all the same.
            result = match (result, done) {
                (Ok(all), Ok(this)) => {
                    let held = all.held.into_iter().chain(this.held).min();
                    Ok(Published { conflict: all.conflict || this.conflict, held })
                }
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    }

    async fn publish_one(
        &self,
        place: &Place,
        object: &serde_json::Value,
        trust: &str,
        dispute: &mut Contention,
    ) -> anyhow::Result<Published> {
        let Some(patch) = place.patch(object, trust)? else { return Ok(Published::default()) };
        if let Some(left) = dispute.hold(trust, self.environment.clock.now()) {
            return Ok(Published { held: Some(left), conflict: false });
        }
        let by = (self.namespace.as_str(), self.component.service);
        match place.write(&self.client, by, &patch).await {
            Ok(()) => {
                dispute.wrote(trust, self.environment.clock.now());
                info!(%place, "published whom to trust");
                Ok(Published::default())
            }
            Err(error) if is_conflict(&error) => Ok(Published { conflict: true, held: None }),
            Err(error) => Err(error),
        }
    }
}

/// What places carry that could be read.
fn found(places: &[Read<'_>]) -> Vec<Certificate> {
    let objects = places.iter().filter_map(|(place, read)| Some((place, read.as_ref().ok()?.as_ref()?)));
    let bundles = objects.flat_map(|(place, object)| place.carries(object));
    bundles.flat_map(|bundle| Certificate::found(&bundle)).collect()
}

#[cfg(test)]
mod tests;
