//! The objects of a cluster as small rows, which the watches of a store keep.
//!
//! **In**: the events of one watch of each kind, in their order, and what is read of the installation from time to time. **Out**: a
//! [`Picture`], of which [`Data`] is made without a lock. Only one watch writes the rows of a kind, and a complete list replaces all that
//! was known before, so the newest state is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_runtime::watch::{Event, Failed, Unreadable};

use super::data::{Data, Named, NodeEntry, PodEntry, TenantEntry};
use super::rights::refuses;
use crate::status::report::{Report, RuleRow};
use crate::status::summary;

/// Most objects of a kind that are kept.
pub(super) const MOST: usize = 150_000;

/// The name of an object. The namespace of one that has none is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// How much of a kind is visible.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    /// It is still being listed.
    Listing,
    All,
    /// The cluster doesn't have the kind.
    NoKind,
    /// It can't be read, and why.
    Unread(String),
}

/// The objects of a kind.
#[derive(Debug)]
pub(super) struct Kept<R> {
    plural: &'static str,
    /// [`MOST`], but for tests.
    most: usize,
    /// Each with the number of the last list that has shown it, or after which it was applied.
    rows: BTreeMap<Arc<Id>, (u32, Arc<R>)>,
    list: u32,
    /// Rows with that number. Others are dropped when the list is complete.
    current: usize,
    shown: Shown,
    /// Why they may be stale: the watch has failed since.
    stale: Option<String>,
    /// There are more than [`MOST`], and so the last list had, or the one in progress.
    is_cut: bool,
    list_is_cut: bool,
    /// The only namespace whose objects are watched; `None`: all.
    namespace: Option<String>,
}

impl<R: PartialEq> Kept<R> {
    pub(super) fn new(plural: &'static str) -> Self {
        Self {
            plural,
            most: MOST,
            rows: BTreeMap::new(),
            list: 0,
            current: 0,
            shown: Shown::Listing,
            stale: None,
            is_cut: false,
            list_is_cut: false,
            namespace: None,
        }
    }

    /// A watch of this namespace, or of all, starts. What is known of the same scope stays until a list is complete.
    pub(super) fn begin(&mut self, namespace: Option<String>) {
        if self.namespace != namespace {
            *self = Self { namespace, ..Self::new(self.plural) };
        }
    }

    /// Takes an event. `row` is the row of an object, which is none where the object isn't shown. Returns whether something has changed.
    pub(super) fn take<K>(
        &mut self,
        event: Event<K>,
        id: impl Fn(&K) -> Id,
        row: impl Fn(&K) -> Option<R>,
    ) -> bool {
        let is_over =
            !matches!(event, Event::Failed(_) | Event::ListStarted | Event::Listed(_) | Event::Unreadable(_));
        let was_stale = is_over && self.stale.take().is_some();
        let changed = match event {
            Event::ListStarted => {
                self.list = self.list.wrapping_add(1);
                (self.current, self.list_is_cut) = (0, false);
                false
            }
            Event::Listed(object) | Event::Applied(object) => self.put(id(&object), row(&object)),
            Event::Deleted(object) => self.remove(&id(&object)),
            Event::Unreadable(Unreadable { namespace, name, deleted, .. }) => {
                let id = Id { namespace, name };
                if deleted { self.remove(&id) } else { self.stay(&id) }
            }
            Event::ListCompleted { .. } => {
                let list = self.list;
                self.rows.retain(|_, (last, _)| *last == list);
                (self.shown, self.is_cut) = (Shown::All, self.list_is_cut);
                true
            }
            Event::Bookmark { .. } => false,
            Event::Failed(failed) => self.fail(failed),
        };
        changed || was_stale
    }

    fn put(&mut self, id: Id, row: Option<R>) -> bool {
        let Some(row) = row else { return self.remove(&id) };
        let list = self.list;
        if let Some((last, known)) = self.rows.get_mut(&id) {
            self.current += usize::from(std::mem::replace(last, list) != list);
            let is_new = **known != row;
            if is_new {
                *known = Arc::new(row);
            }
            return is_new;
        }
        // During a list those of before are there too, and those of lists that ended early.
        if self.rows.len() >= 2 * self.most {
            self.rows.retain(|_, (last, _)| *last == list);
        }
        if self.current >= self.most {
            self.list_is_cut = true;
            return !std::mem::replace(&mut self.is_cut, true);
        }
        self.current += 1;
        self.rows.insert(Arc::new(id), (list, Arc::new(row)));
        true
    }

    /// The list has an object that can't be decoded: its row stays as it was, so nothing has changed.
    fn stay(&mut self, id: &Id) -> bool {
        let list = self.list;
        if let Some((last, _)) = self.rows.get_mut(id) {
            self.current += usize::from(std::mem::replace(last, list) != list);
        }
        false
    }

    fn remove(&mut self, id: &Id) -> bool {
        let removed = self.rows.remove(id);
        self.current -= usize::from(removed.as_ref().is_some_and(|(last, _)| *last == self.list));
        removed.is_some()
    }

    /// Whoever may no longer read them doesn't see them any longer. Otherwise what is known stays, and may be stale.
    fn fail(&mut self, failed: Failed) -> bool {
        let shown = match (failed.status, &self.shown) {
            (Some(404), _) => Shown::NoKind,
            (Some(status), _) if refuses(status) => Shown::Unread(failed.message),
            (_, Shown::Listing | Shown::NoKind | Shown::Unread(_)) => Shown::Unread(failed.message),
            (_, Shown::All) => {
                let stale = Some(failed.message);
                return std::mem::replace(&mut self.stale, stale.clone()) != stale;
            }
        };
        self.rows.clear();
        self.current = 0;
        std::mem::replace(&mut self.shown, shown.clone()) != shown
    }

    /// Their user may no longer read them.
    pub(super) fn refuse(&mut self, message: String) {
        self.fail(Failed { status: Some(403), message });
    }

    /// Whether all of them are visible, in the namespace that is watched.
    pub(super) fn is_shown(&self) -> bool {
        self.shown == Shown::All
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn is_reported(&self) -> bool {
        self.shown != Shown::Listing
    }

    /// Whether all of them are visible, and they.
    fn shown(&self) -> (bool, Named<R>) {
        (self.is_shown(), self.rows.iter().map(|(id, (_, row))| (id.clone(), row.clone())).collect())
    }

    /// Adds what isn't visible of them.
    fn notes(&self, notes: &mut Vec<String>) {
        let plural = self.plural;
        if let Some(namespace) = &self.namespace {
            notes.push(format!("{plural}: only those of the namespace {namespace} are read"));
        }
        match &self.shown {
            Shown::Listing => {
                notes.push(format!("{plural}: still being read, {} so far", self.rows.len()));
            }
            Shown::Unread(why) => notes.push(format!("{plural}: {why}")),
            Shown::All | Shown::NoKind => {}
        }
        if let Some(why) = &self.stale {
            notes.push(format!(
                "{plural}: perhaps not the newest, they can't be watched at the moment: {why}"
            ));
        }
        if self.is_cut {
            notes.push(format!("{plural}: only the first {} were read", self.most));
        }
    }
}

/// All that is known of a cluster.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) tenants: Kept<TenantEntry>,
    pub(super) rules: Kept<RuleRow>,
    pub(super) admin_rules: Kept<RuleRow>,
    pub(super) pods: Kept<PodEntry>,
    pub(super) nodes: Kept<NodeEntry>,
    /// The installation as it was read last; `None`: it hasn't been read yet.
    pub(super) installation: Option<Report>,
    /// Why the cluster can't be read at the moment.
    pub(super) error: Option<String>,
    /// It is an infrastructure cluster: Pods and Nodes are watched.
    pub(super) infrastructure: bool,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            tenants: Kept::new("tenants"),
            rules: Kept::new("workloadrules"),
            admin_rules: Kept::new("adminworkloadrules"),
            pods: Kept::new("pods"),
            nodes: Kept::new("nodes"),
            installation: None,
            error: None,
            infrastructure: false,
        }
    }
}

impl Rows {
    /// Whether every list is complete, or couldn't be read, or the cluster can't be read at all.
    pub(super) fn are_reported(&self) -> bool {
        if self.error.is_some() {
            return true;
        }
        let of_all = self.tenants.is_reported() && self.rules.is_reported() && self.admin_rules.is_reported();
        of_all && (!self.infrastructure || (self.pods.is_reported() && self.nodes.is_reported()))
    }

    /// How many rows are kept.
    pub(super) fn len(&self) -> usize {
        let rules = self.rules.len() + self.admin_rules.len();
        self.tenants.len() + rules + self.pods.len() + self.nodes.len()
    }

    /// What there is now; `None` before the installation was read.
    pub(super) fn picture(&self) -> Option<Picture> {
        let mut report = self.installation.clone()?;
        let notes = &mut report.not_visible;
        self.tenants.notes(notes);
        self.rules.notes(notes);
        self.admin_rules.notes(notes);
        if self.infrastructure {
            self.pods.notes(notes);
            self.nodes.notes(notes);
        }
        Some(Picture {
            report,
            tenants: self.tenants.shown(),
            rules: [self.rules.shown(), self.admin_rules.shown()],
            pods: self.pods.shown(),
            nodes: self.nodes.shown(),
        })
    }
}

/// All that is known at a time. Rows are shared with those that are kept. With each kind: whether all of it is visible.
pub(super) struct Picture {
    /// The installation, and what isn't visible.
    report: Report,
    tenants: (bool, Named<TenantEntry>),
    /// Those of tenants, and those of the platform.
    rules: [(bool, Named<RuleRow>); 2],
    pods: (bool, Named<PodEntry>),
    nodes: (bool, Named<NodeEntry>),
}

impl Picture {
    /// What follows from it.
    pub(super) fn data(self) -> Data {
        let Self { mut report, tenants: (tenants_shown, tenants), rules, pods, nodes } = self;
        let mut tenants: BTreeMap<String, TenantEntry> =
            tenants.into_iter().map(|(id, entry)| (id.name.clone(), (*entry).clone())).collect();
        if let Some(since) = report.no_manager_since() {
            tenants.values_mut().for_each(|entry| entry.row.without_manager(since));
        }
        let rules_shown = rules.iter().any(|(is_shown, _)| *is_shown);
        let rules: Vec<Arc<RuleRow>> =
            rules.into_iter().flat_map(|(_, rows)| rows).map(|(_, row)| row).collect();
        report.tenants = tenants_shown.then(|| tenants.values().map(|entry| entry.row.clone()).collect());
        report.rules = rules_shown.then(|| rules.iter().map(|row| (**row).clone()).collect());
        report.companions = pods.0.then(|| {
            let mut counts = summary::Counts::new();
            pods.1.iter().for_each(|(id, pod)| summary::count(&id.namespace, pod.state, &mut counts));
            counts
        });
        report.dpus = nodes.0.then(|| {
            let mut rows = BTreeMap::new();
            nodes
                .1
                .iter()
                .filter_map(|(_, node)| node.state.as_ref())
                .for_each(|state| state.count(&mut rows));
            rows.into_values().collect()
        });
        Data::new(report, tenants, rules, pods.1, &nodes.1)
    }
}

#[cfg(test)]
mod tests;
