//! Clients and watches of a Kubernetes cluster.

use std::collections::HashSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures::{Stream, StreamExt};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::{debug, info, warn};

use crate::process::Process;
use crate::ready::ReadyHandle;
use crate::watched::{CountingLayer, Watch};

/// Which cluster to talk to.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster. Without it: the Pod's own service account, else $KUBECONFIG or ~/.kube/config.
    #[arg(long, env = "OUTRIGGER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig. Without it: the current one.
    #[arg(long, env = "OUTRIGGER_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// A client of the cluster.
    ///
    /// # Errors
    /// When no configuration is found, or it can't be read.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let config = self.config().await?;
        let builder = ClientBuilder::try_from(config).context("the cluster's configuration can't be used")?;
        Ok(builder.with_layer(&CountingLayer).build())
    }

    /// Whether it is the cluster in which this process is a Pod, whichever way it was named.
    pub async fn is_own(&self) -> bool {
        self.config().await.is_ok_and(|config| is_same(&config, Config::incluster().ok().as_ref()))
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let options = || KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        Ok(if let Some(file) = &self.kubeconfig {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {} can't be read", file.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options())
                .await
                .with_context(|| format!("--kubeconfig {} can't be used", file.display()))?
        } else if self.context.is_some() {
            Config::from_kubeconfig(&options()).await.context("the kubeconfig can't be used")?
        } else {
            Config::infer().await.context("no cluster is configured; use --kubeconfig")?
        })
    }
}

/// Whether a cluster is the one of the Pod's own service account, if there is one.
fn is_same(config: &Config, own: Option<&Config>) -> bool {
    own.is_some_and(|own| own.cluster_url == config.cluster_url)
}

/// What a watch asks for.
pub fn watch_config() -> watcher::Config {
    // Pages of the default 500 objects: the first list of a big cluster doesn't come as one answer.
    watcher::Config::default()
}

/// Follows objects for ever: lists them in pages, watches, begins anew with growing pauses when that fails. `ready` is
/// told after the first whole list.
///
/// `sink` sees every event, and so the beginning and the end of each list: what a new list doesn't show is gone.
pub async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    what: &'static str,
    ready: ReadyHandle,
    sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    drive(watcher::watcher(api, config), what, false, ready, sink).await;
}

/// As [`follow`], for a kind that a cluster may not have: `ready` is told also when the API server says that there is no such
/// kind. One that is defined later is found by a next try, of which the pauses grow to half a minute.
pub async fn follow_optional<K>(
    api: Api<K>,
    config: watcher::Config,
    what: &'static str,
    ready: ReadyHandle,
    sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    drive(watcher::watcher(api, config), what, true, ready, sink).await;
}

/// Follows all objects of a kind for as long as the process serves, which is ready only after the first whole list.
pub fn watch<K>(
    process: &Process,
    client: &Client,
    what: &'static str,
    config: watcher::Config,
    sink: impl FnMut(Event<K>) + Send + 'static,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let ready = process.readiness.wait_for(what);
    process.spawn(what, follow(Api::all(client.clone()), config, what, ready, sink));
}

/// As [`watch`], for a kind that a cluster may not have: see [`follow_optional`].
pub fn watch_optional<K>(
    process: &Process,
    client: &Client,
    what: &'static str,
    config: watcher::Config,
    sink: impl FnMut(Event<K>) + Send + 'static,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let ready = process.readiness.wait_for(what);
    process.spawn(what, follow_optional(Api::all(client.clone()), config, what, ready, sink));
}

/// What a watch says about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<K> {
    /// It is there and looks like this.
    Applied(K),
    /// It is gone, or was when a list was taken anew.
    Gone {
        /// Its namespace; empty for an object of the cluster.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// Turns a watch's events into changes of single objects: remembers the names that were shown, and tells of those that a
/// new list doesn't show.
pub fn changes<K: Resource>(mut sink: impl FnMut(Change<K>)) -> impl FnMut(Event<K>) {
    let mut known: HashSet<(String, String)> = HashSet::new();
    let mut listed = HashSet::new();
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    move |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => {
            listed.insert(key(&object));
            known.insert(key(&object));
            sink(Change::Applied(object));
        }
        Event::Apply(object) => {
            known.insert(key(&object));
            sink(Change::Applied(object));
        }
        Event::Delete(object) => {
            let (namespace, name) = key(&object);
            known.remove(&(namespace.clone(), name.clone()));
            sink(Change::Gone { namespace, name });
        }
        Event::InitDone => {
            for (namespace, name) in std::mem::replace(&mut known, std::mem::take(&mut listed)) {
                if !known.contains(&(namespace.clone(), name.clone())) {
                    sink(Change::Gone { namespace, name });
                }
            }
        }
    }
}

async fn drive<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>>,
    what: &'static str,
    optional: bool,
    ready: ReadyHandle,
    sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + Debug + Send + 'static,
    K::DynamicType: Default,
{
    Watch::follow(what, read(stream, what, optional, ready, sink)).await;
}

async fn read<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>>,
    what: &'static str,
    optional: bool,
    ready: ReadyHandle,
    mut sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let mut watch = Watch::new(what);
    let mut ready = Some(ready);
    let mut failing = false;
    let mut absent = false;
    let stream = stream
        .backoff(Lasting::default())
        // The field managers' bookkeeping is about half of an object's metadata, and nobody here reads it.
        .modify(|object| object.meta_mut().managed_fields = None);
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                // A list that begins has not succeeded yet.
                failing &= matches!(event, Event::Init);
                let listed = matches!(event, Event::InitDone);
                if listed || matches!(event, Event::Init) {
                    // Where there is no such kind there is nothing to list.
                    watch.synced(listed || absent);
                }
                sink(event);
                absent &= !listed;
                if listed && let Some(ready) = ready.take() {
                    debug!(what, "listed");
                    ready.done();
                }
            }
            Err(error) if optional && is_no_such_kind(&error) => {
                watch.synced(true);
                if !std::mem::replace(&mut absent, true) {
                    info!(what, "this cluster doesn't have the kind; it is looked for again now and then");
                }
                if let Some(ready) = ready.take() {
                    ready.done();
                }
            }
            // Each failure in a row says the same; the first is enough.
            Err(error) if failing => {
                watch.failed();
                debug!(what, %error, "the watch goes on failing");
            }
            Err(error) => {
                watch.failed();
                failing = true;
                warn!(what, %error, "the watch failed and is begun anew; until then this may be out of date");
            }
        }
    }
}

/// The pauses of a watch that fails. A watch begins each try with the beginning of a list, which would count as a success and
/// make every pause the first; so only time makes them short again.
#[derive(Default)]
struct Lasting(watcher::DefaultBackoff);

impl Iterator for Lasting {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Lasting {
    fn reset(&mut self) {}
}

/// A list of all objects of a kind is only ever not found when the API server doesn't serve the kind.
fn is_no_such_kind(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Namespace;

    #[test]
    fn only_the_service_accounts_cluster_is_ones_own() {
        let of = |url: &'static str| Config::new(url.parse().unwrap());
        let own = of("https://10.0.0.1:443");
        assert!(is_same(&of("https://10.0.0.1:443"), Some(&own)));
        // $KUBECONFIG of a Pod may name any cluster.
        assert!(!is_same(&of("https://10.0.0.2:443"), Some(&own)));
        assert!(!is_same(&of("https://10.0.0.1:443"), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_there_is_looked_for_less_and_less_often() {
        let tries = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let seen = tries.clone();
        let missing = || {
            let status = kube::core::Status { code: 404, ..kube::core::Status::default() };
            watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
        };
        let stream = futures::stream::iter(0..).flat_map(move |_| {
            seen.lock().push(tokio::time::Instant::now());
            futures::stream::iter([Ok(Event::<Namespace>::Init), Err(missing())])
        });
        let readiness = crate::ready::Readiness::default();
        let ready = readiness.wait_for("kind");
        let driven = drive(stream, "kind", true, ready, |_| {});
        let _ = tokio::time::timeout(Duration::from_secs(600), driven).await;
        assert!(readiness.is_ready());
        let tries = tries.lock();
        let last = tries[tries.len() - 1].duration_since(tries[tries.len() - 2]);
        assert!(last >= Duration::from_secs(15), "{last:?}");
        assert!(tries.len() < 60, "{} tries in ten minutes", tries.len());
    }

    #[test]
    fn what_a_new_list_does_not_show_is_gone() {
        let named = |name: &str| Namespace {
            metadata: kube::api::ObjectMeta { name: Some(name.into()), ..Default::default() },
            ..Namespace::default()
        };
        let seen = std::cell::RefCell::new(Vec::new());
        let mut sink = changes(|change| {
            seen.borrow_mut().push(match change {
                Change::Applied(object) => format!("+{}", Namespace::name_any(&object)),
                Change::Gone { name, .. } => format!("-{name}"),
            });
        });
        for event in [
            Event::Init,
            Event::InitApply(named("a")),
            Event::InitApply(named("b")),
            Event::InitDone,
            Event::Apply(named("c")),
            Event::Delete(named("b")),
        ] {
            sink(event);
        }
        // A list that begins, fails, and begins again.
        for event in [
            Event::Init,
            Event::InitApply(named("a")),
            Event::Init,
            Event::InitApply(named("d")),
            Event::InitDone,
        ] {
            sink(event);
        }
        drop(sink);
        let mut seen = seen.into_inner();
        seen[6..].sort();
        assert_eq!(seen, ["+a", "+b", "+c", "-b", "+a", "+d", "-a", "-c"].map(String::from).to_vec());
    }

    fn failed(code: u16) -> watcher::Result<Event<Namespace>> {
        let status = kube::core::Status { code, ..kube::core::Status::default() };
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_may_be_missing_keeps_nobody_waiting_and_is_found_later() {
        for (optional, code, done) in
            [(true, 404, true), (false, 404, false), (true, 403, false), (true, 503, false)]
        {
            let readiness = crate::ready::Readiness::default();
            let mut seen = 0;
            let events =
                futures::stream::iter([Ok(Event::Init), failed(code), Ok(Event::Init), failed(code)]);
            drive(events, "things", optional, readiness.wait_for("things"), |_| seen += 1).await;
            assert_eq!((readiness.is_ready(), seen), (done, 2), "{optional} {code}");
        }
        let readiness = crate::ready::Readiness::default();
        let mut seen = Vec::new();
        let namespace = Namespace::default();
        let events = [
            Ok(Event::Init),
            failed(404),
            Ok(Event::Init),
            Ok(Event::InitApply(namespace)),
            Ok(Event::InitDone),
        ];
        let sink = |event| seen.push(matches!(event, Event::InitApply(_)));
        drive(futures::stream::iter(events), "things", true, readiness.wait_for("things"), sink).await;
        assert_eq!(seen, [false, false, true, false]);
    }
}
