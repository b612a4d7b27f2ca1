//! The Nodes with their slices, the namespaces with their templates, and which of them have to be written.
//!
//! All limits of rates are kept here. Level-based: however often a DPU changes, the next write of its Node holds the last state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::core::PartialObjectMeta;
use outrigger_core::gate::Hold;
use outrigger_core::keys;
use outrigger_core::map::HashMap;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::Warning;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::warn;

use self::binding::Binding;
use self::taken::Taken;
use super::plan::{Found, Seen, plan, template};
use super::write::{Key, Publishing, Write};
use crate::companions::Board;
use crate::metrics::WriteOutcome;
use crate::namespaces::Scope;
use crate::nodes::{Knowledge, ReceivedHosts};
use crate::paced::{self, Pace, Queue, Wait};

mod binding;
mod hosts;
mod taken;

/// Writes of all objects.
const WRITES: Rate = Rate { burst: 200.0, minute: 3000.0 };
/// Changes of one pool or template, as of one Node: of a DPU that comes and goes the first changes are written at once, then one every
/// ten seconds.
const CHANGES: Rate = Rate { burst: 5.0, minute: 6.0 };
/// Pause after the API server has forbidden a write. Only an administrator can change that.
const FORBIDDEN: Duration = Duration::from_secs(60);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Devices {
    clock: Clock,
    state: Mutex<State>,
    publishing: watch::Sender<Publishing>,
    /// It is known whether devices have binding conditions.
    settled: watch::Sender<bool>,
    /// Learns which Nodes have no devices any longer.
    board: Arc<Board>,
    /// Set while namespaces have templates of somebody else.
    foreign: Warning,
    /// Set while slices of others keep Nodes from having devices.
    taken: Warning,
    /// Wakes a writer.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    pools: BTreeMap<String, Pool>,
    /// The pool of each slice.
    slices: HashMap<String, String>,
    homes: BTreeMap<String, Home>,
    scope: Option<Scope>,
    received: ReceivedHosts,
    queue: Queue<Key>,
    writes: Bucket,
    /// What the API server has forbidden to write.
    forbidden: BTreeSet<Key>,
    taken: Taken,
    /// Everything has been listed.
    listed: bool,
    /// Something could not be listed for long.
    unread: bool,
    unsupported: bool,
    binding: Binding,
    class: Class,
}

/// The DeviceClass of the devices. What is published belongs to it, so its end is the end of everything that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Class {
    /// Nobody has asked yet.
    Unknown,
    /// The agent may not ask.
    Forbidden,
    Missing,
    /// It has this uid.
    Exists(String),
}

/// A Node, or what slices say of one.
#[derive(Debug, Default)]
struct Pool {
    node: Option<Capacity>,
    slices: BTreeMap<String, Seen>,
    pace: Pace,
}

/// How many Pods a Node can run; `None` while its kubelet hasn't said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Capacity(Option<usize>);

/// A namespace.
#[derive(Debug, Default)]
struct Home {
    /// It exists, and isn't being deleted.
    alive: bool,
    templates: BTreeMap<Hold, Template>,
    pace: Pace,
}

#[derive(Debug)]
struct Template {
    uid: String,
    found: Found,
    /// It was deleted, and the watch hasn't shown that yet.
    deleted: bool,
}

impl Devices {
    /// `foreign` is set while namespaces have templates of somebody else, `taken` while slices of others keep Nodes from having devices.
    /// `board` learns which Nodes have no devices any longer.
    pub(crate) fn new(clock: Clock, foreign: Warning, taken: Warning, board: Arc<Board>) -> Self {
        let now = clock.now();
        let state = State {
            pools: BTreeMap::new(),
            slices: HashMap::default(),
            homes: BTreeMap::new(),
            scope: None,
            received: ReceivedHosts::new(now),
            queue: Queue::default(),
            writes: Bucket::new(now),
            forbidden: BTreeSet::new(),
            taken: Taken::default(),
            listed: false,
            unread: false,
            unsupported: false,
            binding: Binding::default(),
            class: Class::Unknown,
        };
        let (publishing, settled) = (watch::Sender::new(Publishing::Working), watch::Sender::new(false));
        let (state, changed) = (Mutex::new(state), Notify::new());
        Self { clock, state, publishing, settled, board, foreign, taken, changed }
    }

    /// Whether devices are published.
    pub(crate) fn publishing(&self) -> watch::Receiver<Publishing> {
        self.publishing.subscribe()
    }

    /// Changes the state, and wakes a writer.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.announce(&state);
        drop(state);
        self.changed.notify_one();
    }

    /// Announces whether devices are published.
    fn announce(&self, state: &State) {
        let now = state.publishing();
        self.publishing.send_if_modified(|before| std::mem::replace(before, now) != now);
        let Binding { supported, claims, unread } = state.binding;
        let settled =
            state.unsupported || supported == Some(false) || supported.is_some() && (claims || unread);
        self.settled.send_if_modified(|before| std::mem::replace(before, settled) != settled);
        let taken = state.taken.warning();
        if self.taken.set(taken.clone())
            && let Some(reason) = taken
        {
            warn!(reason, "slices of others keep Nodes from having devices");
        }
    }

    /// Records a change of a slice of the driver.
    pub(super) fn slice(&self, change: Change<ResourceSlice>) {
        self.update(|state| {
            let (_, name, slice) = change.into_parts();
            let pool = match slice {
                Some(slice) => {
                    let (pool, seen) = Seen::of(&slice);
                    state.slices.insert(name.clone(), pool.clone());
                    state.pools.entry(pool.clone()).or_default().slices.insert(name, seen);
                    pool
                }
                None => {
                    let Some(pool) = state.slices.remove(&name) else { return };
                    if let Some(known) = state.pools.get_mut(&pool) {
                        known.slices.remove(&name);
                    }
                    pool
                }
            };
            state.queue.push(Key::Node(pool), false);
        });
    }

    /// A slice of a Node can't be created, because one of others has its name: that of this tenant, or one without a tenant if that is
    /// empty.
    pub(super) fn taken(&self, node: &str, slice: &str, tenant: &str) {
        self.update(|state| state.taken.insert(node, slice, tenant));
    }

    /// Records a change of a namespace.
    pub(super) fn namespace(&self, change: Change<PartialObjectMeta<Namespace>>) {
        self.update(|state| {
            let (_, name, namespace) = change.into_parts();
            let alive = namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none());
            state.homes.entry(name.clone()).or_default().alive = alive;
            state.queue.push(Key::Namespace(name), false);
        });
    }

    /// Records a change of a template of one of Outrigger's names.
    pub(super) fn template(&self, change: Change<ResourceClaimTemplate>) {
        self.update(|state| {
            let (namespace, name, template) = change.into_parts();
            let Some(hold) = Hold::of_template(&name) else { return };
            let templates = &mut state.homes.entry(namespace.clone()).or_default().templates;
            match template {
                Some(template) => {
                    let template = Template {
                        found: Found::of(&template, hold),
                        uid: template.metadata.uid.unwrap_or_default(),
                        deleted: template.metadata.deletion_timestamp.is_some(),
                    };
                    templates.insert(hold, template);
                }
                None => _ = templates.remove(&hold),
            }
            state.queue.push(Key::Namespace(namespace), false);
        });
        self.warn_of_foreign();
    }

    fn warn_of_foreign(&self) {
        let state = self.state.lock();
        let foreign = |home: &Home| {
            home.templates.iter().find(|(_, t)| t.found == Found::Foreign).map(|(hold, _)| hold.template())
        };
        let first = state.homes.iter().find_map(|(name, home)| Some((name.clone(), foreign(home)?)));
        drop(state);
        let text = first.as_ref().map(|(namespace, name)| {
            format!(
                "the ResourceClaimTemplate {namespace}/{name} isn't Outrigger's, so Pods there don't wait for their companions before \
                 they start; delete it, and the agent creates its own"
            )
        });
        if self.foreign.set(text)
            && let Some((namespace, name)) = first
        {
            warn!(namespace, name, "a template of Outrigger's name isn't Outrigger's");
        }
    }

    /// Sets the namespaces whose Pods are sent.
    pub(super) fn scope(&self, scope: Option<Scope>) {
        self.update(|state| {
            state.scope = scope;
            state.push_all();
        });
    }

    /// Everything has been listed.
    pub(super) fn listed(&self) {
        self.update(|state| {
            (state.listed, state.unread) = (true, false);
            state.push_all();
        });
    }

    /// Something could not be listed for long.
    pub(super) fn unread(&self) {
        self.update(|state| state.unread = true);
    }

    /// Records whether the cluster has the kinds.
    pub(super) fn supported(&self, supported: bool) {
        self.update(|state| {
            state.unsupported = !supported;
            state.push_all();
        });
    }

    /// Records what is known of the DeviceClass. Nothing is published without it.
    pub(super) fn classed(&self, class: Class) {
        self.update(|state| state.class = class);
    }

    /// Waits for the next write.
    pub(super) async fn next(&self) -> (Key, Write) {
        paced::next(&self.changed, || self.take()).await
    }

    /// Returns the next write, or when there may be one.
    fn take(&self) -> Result<(Key, Write), Option<Instant>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if !state.listed || state.unsupported {
            return Err(None);
        }
        let Class::Exists(class) = state.class.clone() else { return Err(None) };
        let examine = |state: &mut State, key: &Key| {
            let withdrawn = state.withdrawn(key, now);
            let step = state.examine(key, now);
            self.announce(state);
            if let (Key::Node(node), Some(cause)) = (key, withdrawn) {
                self.board.withdrawn(node, cause);
            }
            step
        };
        let (key, write) = paced::take(&mut *state, |state| &mut state.queue, now, examine)?;
        Ok((key, write.owned_by(&class)))
    }

    /// Records that a write has deleted the object with this uid, before the write is done: a list may bring it back meanwhile.
    pub(super) fn deleted(&self, key: &Key, uid: &str) {
        self.update(|state| match key {
            Key::Node(name) => {
                let slices = state.pools.get_mut(name).into_iter().flat_map(|pool| pool.slices.values_mut());
                slices.for_each(|seen| seen.deleted |= seen.uid == uid);
            }
            Key::Namespace(name) => {
                let templates =
                    state.homes.get_mut(name).into_iter().flat_map(|home| home.templates.values_mut());
                templates.for_each(|template| template.deleted |= template.uid == uid);
            }
        });
    }

    /// Records what came of a write.
    pub(super) fn done(&self, key: &Key, outcome: WriteOutcome, jitter: f64) {
        let now = self.clock.now();
        self.update(|state| {
            let is_forbidden = matches!(outcome, WriteOutcome::Refused | WriteOutcome::Forbidden);
            if is_forbidden {
                state.forbidden.insert(key.clone());
            } else if outcome == WriteOutcome::Ok {
                state.forbidden.remove(key);
                state.taken.remove(key);
            }
            let pace = match key {
                Key::Node(name) => state.pools.get_mut(name).map(|pool| &mut pool.pace),
                Key::Namespace(name) => state.homes.get_mut(name).map(|home| &mut home.pace),
            };
            if let Some(pace) = pace {
                pace.done(outcome, now, jitter);
                if is_forbidden {
                    pace.pause(now + FORBIDDEN);
                }
            }
            // It may have changed meanwhile.
            state.queue.push(key.clone(), false);
        });
    }
}

impl State {
    fn publishing(&self) -> Publishing {
        if self.unsupported {
            Publishing::Unsupported
        } else if self.unread || !self.forbidden.is_empty() || self.class == Class::Forbidden {
            Publishing::Forbidden
        } else if self.class == Class::Missing {
            Publishing::NoClass
        } else if self.binding.supported == Some(true) && self.binding.unread {
            Publishing::BindingForbidden
        } else if !self.binding() {
            Publishing::NoBinding
        } else {
            Publishing::Working
        }
    }

    fn push_all(&mut self) {
        let keys = self.pools.keys().cloned().map(Key::Node);
        for key in keys.chain(self.homes.keys().cloned().map(Key::Namespace)) {
            self.queue.push(key, false);
        }
    }

    fn examine(&mut self, key: &Key, now: Instant) -> Result<(Key, Write), Wait> {
        let (wish, due) = match key {
            Key::Node(name) => self.slices_of(name, now),
            Key::Namespace(name) => (self.template_of(name), None),
        };
        let pace = match key {
            Key::Node(name) => self.pools.get_mut(name).map(|pool| &mut pool.pace),
            Key::Namespace(name) => self.homes.get_mut(name).map(|home| &mut home.pace),
        };
        let (Some(pace), Some(write)) = (pace, wish) else {
            self.forbidden.remove(key);
            self.taken.remove(key);
            return Err(Wait::until(due));
        };
        // A write in progress examines it once more.
        if pace.is_busy() {
            return Err(Wait::Change);
        }
        pace.begin(Some(CHANGES), (&mut self.writes, WRITES), write.cost(), now)?;
        Ok((key.clone(), write))
    }

    /// Returns what has to be written for a Node, and when silence about it will mean something.
    fn slices_of(&mut self, name: &str, now: Instant) -> (Option<Write>, Option<Instant>) {
        let Some(pool) = self.pools.get(name) else { return (None, None) };
        let Some(Capacity(pods)) = pool.node else {
            // The watch may be behind: the API server is asked before anything is deleted.
            let slices = pool.slices.iter().filter(|(_, seen)| !seen.deleted);
            let orphans: Vec<_> = slices.map(|(name, seen)| (name.clone(), seen.uid.clone())).collect();
            if pool.slices.is_empty() && !pool.pace.is_busy() {
                self.pools.remove(name);
            }
            return ((!orphans.is_empty()).then_some(Write::Orphans(orphans)), None);
        };
        let (devices, due) = match self.received.knowledge(name, now) {
            (Knowledge::Reported(None), due) => (pods, due),
            (Knowledge::Reported(Some(_)) | Knowledge::Absent, due) => (Some(0), due),
            // The last truth stays.
            (Knowledge::Unknown, due) => (None, due),
        };
        let binding = self.binding();
        let ops = devices.map(|devices| plan(name, devices, binding, &pool.slices)).unwrap_or_default();
        ((!ops.is_empty()).then_some(Write::Slices(ops)), due)
    }

    /// Returns what has to be written next for a namespace. Templates stay if its Pods are no longer sent, or if the cluster has no
    /// binding conditions any longer: Pods may claim them.
    fn template_of(&mut self, name: &str) -> Option<Write> {
        let home = self.homes.get(name)?;
        if !home.alive {
            if home.templates.is_empty() && !home.pace.is_busy() {
                self.homes.remove(name);
            }
            return None;
        }
        let sent = match self.scope.as_ref()? {
            Scope::All => true,
            Scope::Only(names) => names.contains(name),
        };
        if !sent || keys::SYSTEM_NAMESPACES.contains(&name) || name == keys::HOST_NAMESPACE {
            return None;
        }
        let wanted = if self.binding() { &Hold::ALL[..] } else { &[Hold::Start] };
        wanted.iter().find_map(|hold| match home.templates.get(hold) {
            None => Some(Write::CreateTemplate(Box::new(template(name, *hold)))),
            Some(Template { found: Found::Outdated, uid, deleted: false }) => {
                Some(Write::DeleteTemplate(*hold, uid.clone()))
            }
            Some(_) => None,
        })
    }
}

#[cfg(test)]
mod tests;
