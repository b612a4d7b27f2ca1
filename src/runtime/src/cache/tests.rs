//! The cache against a model of an API server: whatever order events, answers and lists come in.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Names that objects have; few, so that they are used again.
const NAMES: u8 = 3;

/// What happens next. Numbers pick among what there is at that time.
#[derive(Debug, Clone)]
enum Op {
    /// Somebody writes an object: creates, changes or deletes it. `own`: an answer will come.
    Write { name: u8, delete: bool, own: bool },
    /// The watch shows its next event.
    Watch,
    /// The watch says how far it is.
    Bookmark,
    /// One of the answers that are on their way arrives.
    Answer(u8),
    /// The watch begins with a list again.
    ListStarts,
    /// The API server takes the list.
    ListTaken,
    /// One more object of the list arrives, or its end.
    ListArrives,
    /// The storage is restored from an older snapshot.
    Restore(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..NAMES, prop::bool::weighted(0.3), any::<bool>())
            .prop_map(|(name, delete, own)| Op::Write { name, delete, own }),
        5 => Just(Op::Watch),
        1 => Just(Op::Bookmark),
        4 => any::<u8>().prop_map(Op::Answer),
        1 => Just(Op::ListStarts),
        2 => Just(Op::ListTaken),
        4 => Just(Op::ListArrives),
        1 => any::<u8>().prop_map(Op::Restore),
    ];
    prop::collection::vec(op, 0..120)
}

/// What the storage holds.
type Objects = BTreeMap<u8, State>;

/// An API server with one kind, one watch, and answers on their way.
#[derive(Default)]
struct Server {
    objects: Objects,
    revision: u64,
    uids: u64,
    /// Every write: the name, and the state after it or at its deletion.
    history: Vec<(u8, State, bool)>,
    /// How many of these the watch has shown.
    shown: usize,
    answers: Vec<(u8, State)>,
    list: List,
}

#[derive(Default)]
enum List {
    #[default]
    None,
    Started,
    Taken {
        left: Vec<(u8, State)>,
        version: u64,
    },
}

/// The cache, and the objects that its user keeps.
#[derive(Default)]
struct Client {
    versions: Versions<u8>,
    view: Objects,
}

impl Client {
    fn news(&mut self, news: bool, name: u8, state: State) {
        if news {
            self.view.insert(name, state);
        }
    }
}

impl Server {
    fn write(&mut self, name: u8, delete: bool, own: bool) {
        self.revision += 1;
        let before = self.objects.remove(&name);
        let (uid, gone) = match before {
            Some(before) => (before.uid, delete),
            None if delete => return,
            None => {
                self.uids += 1;
                (self.uids.to_string().into(), false)
            }
        };
        let state = State { uid, version: self.revision };
        if !gone {
            self.objects.insert(name, state.clone());
            if own {
                self.answers.push((name, state.clone()));
            }
        }
        self.history.push((name, state, gone));
    }

    fn watch(&mut self, client: &mut Client) {
        let Some((name, state, gone)) = self.history.get(self.shown).cloned() else { return };
        self.shown += 1;
        if gone {
            if client.versions.gone(&name, &state) {
                client.view.remove(&name);
            }
        } else {
            let news = client.versions.event(name, state.clone());
            client.news(news, name, state);
        }
    }

    fn list_starts(&mut self, client: &mut Client) {
        client.versions.list_started();
        self.list = List::Started;
    }

    fn list_taken(&mut self) {
        if matches!(self.list, List::Started) {
            let left = self.objects.iter().map(|(name, state)| (*name, state.clone())).collect();
            self.list = List::Taken { left, version: self.revision };
        }
    }

    fn list_arrives(&mut self, client: &mut Client) {
        let List::Taken { left, version } = &mut self.list else { return };
        if let Some((name, state)) = left.pop() {
            let news = client.versions.listed(name, state.clone());
            client.news(news, name, state);
            return;
        }
        for (name, _) in client.versions.list_completed(*version) {
            client.view.remove(&name);
        }
        // The watch goes on from the list.
        self.shown = self.history.iter().take_while(|(_, state, _)| state.version <= *version).count();
        self.list = List::None;
    }

    /// Back to an earlier revision, which the next writes count on from. Watches have to begin with a list.
    fn restore(&mut self, client: &mut Client, to: u8) {
        let kept = usize::from(to) * self.history.len() / 256;
        self.history.truncate(kept);
        self.shown = self.shown.min(kept);
        self.revision = self.history.last().map_or(0, |(_, state, _)| state.version);
        self.objects.clear();
        for (name, state, gone) in &self.history {
            if *gone {
                self.objects.remove(name);
            } else {
                self.objects.insert(*name, state.clone());
            }
        }
        self.answers.clear();
        self.list_starts(client);
        self.list_taken();
        while !matches!(self.list, List::None) {
            self.list_arrives(client);
        }
    }

    fn act(&mut self, client: &mut Client, op: &Op) {
        let idle = matches!(self.list, List::None);
        match op {
            Op::Write { name, delete, own } => self.write(*name, *delete, *own),
            Op::Watch if idle => self.watch(client),
            Op::Bookmark if idle => {
                let upto = self.shown.checked_sub(1).map_or(0, |last| self.history[last].1.version);
                client.versions.bookmark(upto);
            }
            Op::Answer(which) if !self.answers.is_empty() => {
                let which = usize::from(*which) % self.answers.len();
                let (name, state) = self.answers.swap_remove(which);
                let news = client.versions.answer(name, state.clone());
                client.news(news, name, state);
            }
            Op::ListStarts => self.list_starts(client),
            Op::ListTaken => self.list_taken(),
            Op::ListArrives => self.list_arrives(client),
            Op::Restore(to) => self.restore(client, *to),
            _ => {}
        }
    }

    /// Nothing that is known is older than what the watch has reached: neither an earlier state of an object, nor one that
    /// was deleted since.
    fn check(&self, client: &Client) {
        if !matches!(self.list, List::None) {
            return;
        }
        for (name, known) in &client.view {
            let newer = self.history.iter().find(|(other, state, _)| {
                other == name && state.version > known.version && state.version <= client.versions.reached
            });
            assert_eq!(newer, None, "{known:?} is known of {name}, at {}", client.versions.reached);
            assert!(self.history.iter().any(|(other, state, _)| other == name && state == known));
        }
        let kept: Vec<_> = client.view.iter().map(|(name, state)| (name, Some(state))).collect();
        let known: Vec<_> = client.view.keys().map(|name| (name, client.versions.get(name))).collect();
        assert_eq!(kept, known, "what is kept is what is known");
        assert_eq!(client.view.len(), client.versions.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_the_order_the_newest_state_wins(ops in ops()) {
        let (mut server, mut client) = (Server::default(), Client::default());
        for op in &ops {
            let before = client.view.clone();
            server.act(&mut client, op);
            server.check(&client);
            if !matches!(op, Op::ListArrives | Op::Restore(_)) {
                for (name, now) in &client.view {
                    assert!(before.get(name).is_none_or(|before| before.version <= now.version), "{op:?}: {name} got older");
                }
            }
        }
        // Everything arrives in the end.
        while !matches!(server.list, List::None) {
            server.list_taken();
            server.list_arrives(&mut client);
        }
        while server.shown < server.history.len() || !server.answers.is_empty() {
            server.act(&mut client, &Op::Answer(0));
            server.act(&mut client, &Op::Watch);
            server.check(&client);
        }
        prop_assert_eq!(client.view, server.objects);
    }
}

fn state(uid: &str, version: u64) -> State {
    State { uid: uid.into(), version }
}

#[test]
fn a_response_that_is_older_than_the_watch_is_ignored() {
    let mut versions = Versions::default();
    assert!(versions.event("a", state("u", 5)));
    assert!(versions.gone(&"a", &state("u", 6)));
    assert!(!versions.answer("a", state("u", 5)), "no ghost");
    assert!(versions.answer("a", state("v", 7)));
    assert!(!versions.gone(&"a", &state("u", 6)), "the end of an earlier object is not the end of this one");
    assert!(!versions.event("a", state("v", 7)), "the response had this state");
    assert!(versions.event("a", state("v", 8)));
}

#[test]
fn a_list_overrides_everything_that_was_known_before_it() {
    let mut versions = Versions::default();
    versions.event("stays", state("1", 10));
    versions.event("gone", state("2", 11));
    versions.answer("answered", state("3", 12));
    versions.list_started();
    assert!(!versions.listed("stays", state("1", 10)), "nothing has changed");
    assert!(versions.answer("new", state("4", 14)), "made since the list was taken");
    let mut gone: Vec<_> = versions.list_completed(13).into_iter().map(|(name, _)| name).collect();
    gone.sort_unstable();
    assert_eq!(gone, ["answered", "gone"]);
    assert!(!versions.answer("late", state("5", 13)), "the list would have shown it");
    // The storage is an older one by now.
    versions.list_started();
    assert!(versions.listed("stays", state("1", 3)));
    assert_eq!(versions.list_completed(4), [("new", state("4", 14))]);
    assert!(versions.event("stays", state("1", 5)));
}

#[test]
fn a_bookmark_shows_how_far_the_watch_is() {
    let mut versions = Versions::default();
    versions.bookmark(9);
    assert!(!versions.answer("a", state("u", 9)));
    assert!(versions.answer("a", state("u", 10)));
    assert_eq!(versions.len(), 1);
}

fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
    let metadata =
        json!({"name": name, "namespace": "n", "uid": uid, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

/// A feed, and the changes that it has passed on.
fn feed() -> (Feed<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let changes = seen.clone();
    let feed = Feed::new(move |change: Change<ConfigMap>| {
        changes.lock().push(match change {
            Change::Applied(object) => {
                format!("+{} {}", object.name_any(), object.resource_version().unwrap())
            }
            Change::Gone { namespace, name, uid } => format!("-{namespace}/{name} {uid}"),
        });
    });
    (feed, seen)
}

#[test]
fn a_feed_passes_new_states_on() {
    let (feed, seen) = feed();
    let mut sink = feed.sink();
    for event in [
        Event::ListStarted,
        Event::Listed(object("a", "1", 1)),
        Event::Listed(object("b", "2", 2)),
        Event::ListCompleted { version: 2 },
        Event::Applied(object("c", "3", 3)),
        Event::Deleted(object("b", "2", 4)),
        // A list that begins, fails, and begins again.
        Event::ListStarted,
        Event::Listed(object("a", "1", 1)),
        Event::ListStarted,
        Event::Listed(object("d", "4", 5)),
        Event::ListCompleted { version: 6 },
        Event::Bookmark { version: 9 },
    ] {
        sink(event);
    }
    assert!(!feed.answer(object("e", "5", 8)));
    assert!(feed.answer(object("e", "5", 10)));
    // Another one of that name: the first must have gone.
    sink(Event::Applied(object("e", "6", 11)));
    let mut seen = seen.lock().clone();
    seen[5..7].sort();
    assert_eq!(
        seen,
        ["+a 1", "+b 2", "+c 3", "-n/b 2", "+d 5", "-n/a 1", "-n/c 3", "+e 10", "-n/e 5", "+e 11"]
    );
}

#[test]
fn an_object_that_a_restored_cluster_has_again_is_passed_on_though_it_is_as_it_was() {
    let (feed, seen) = feed();
    let list = |version| {
        [Event::ListStarted, Event::Listed(object("a", "1", 3)), Event::ListCompleted { version }]
            .into_iter()
            .for_each(|event| feed.event(event));
        std::mem::take(&mut *seen.lock()).len()
    };
    assert_eq!(list(3), 1);
    assert!(feed.deleted(("n", "a"), "other", feed.lists()));
    assert_eq!(list(4), 0, "another object was deleted");
    let lists = feed.lists();
    assert!(feed.deleted(("n", "a"), "1", lists));
    assert_eq!(list(9), 1, "its deletion was never shown, and is undone");
    assert_eq!(list(10), 0);
    assert!(
        !feed.deleted(("n", "a"), "1", lists),
        "the answer comes after a list that may be of the restored cluster"
    );
    assert_eq!(list(11), 0);
}

#[test]
fn an_object_that_cannot_be_decoded_stays_as_it_was_until_it_is_deleted() {
    let (feed, seen) = feed();
    let mut sink = feed.sink();
    let unreadable = |name: &str, uid: &str, version: u64, deleted: bool| {
        Event::Unreadable(Unreadable {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: version.to_string(),
            deleted,
            error: String::new(),
        })
    };
    for event in [
        Event::ListStarted,
        Event::Listed(object("a", "1", 1)),
        Event::Listed(object("b", "2", 2)),
        unreadable("never known", "3", 3, false),
        Event::ListCompleted { version: 3 },
        unreadable("a", "1", 4, false),
        // Of all that is known the list has one, and that can't be decoded.
        Event::ListStarted,
        unreadable("a", "1", 4, false),
        Event::ListCompleted { version: 5 },
    ] {
        sink(event);
    }
    assert_eq!(*seen.lock(), ["+a 1", "+b 2", "-n/b 2"]);
    sink(unreadable("a", "1", 7, false));
    assert!(!feed.answer(object("c", "4", 6)), "the watch has shown that or a later state");
    sink(Event::Applied(object("a", "1", 8)));
    sink(unreadable("never known", "3", 9, true));
    sink(unreadable("a", "1", 10, true));
    assert_eq!(seen.lock()[3..], ["+a 8", "-n/a 1"]);
}

#[test]
fn a_watch_that_goes_on_at_a_server_that_lags_takes_nothing_back() {
    let (feed, seen) = feed();
    let mut sink = feed.sink();
    sink(Event::ListStarted);
    sink(Event::Listed(object("a", "1", 1)));
    sink(Event::ListCompleted { version: 2 });
    // Writes are answered by the server that leads, and the watch goes on at one that is behind: others' writes, the deletion of the former
    // object of that name, and at last what the answers have shown.
    assert!(feed.answer(object("a", "1", 6)));
    sink(Event::Applied(object("a", "1", 4)));
    sink(Event::Bookmark { version: 5 });
    assert!(feed.answer(object("a", "2", 9)));
    sink(Event::Applied(object("a", "1", 6)));
    sink(Event::Deleted(object("a", "1", 7)));
    sink(Event::Applied(object("a", "2", 8)));
    assert!(!feed.answer(object("a", "1", 6)), "an answer that comes late");
    sink(Event::Applied(object("a", "2", 9)));
    sink(Event::Applied(object("a", "2", 10)));
    assert_eq!(*seen.lock(), ["+a 1", "+a 6", "-n/a 1", "+a 9", "+a 10"]);
}
