use super::super::data::tests::{companion, data, rows, tenant};
use super::*;

type Texts = Kept<String>;

/// Objects are a name and a text; those with an empty text aren't shown.
fn take(kept: &mut Texts, event: Event<(&str, &str)>) -> bool {
    kept.take(
        event,
        |(name, _)| Id { namespace: String::new(), name: (*name).to_owned() },
        |(_, text)| Some((*text).to_owned()).filter(|text| !text.is_empty()),
    )
}

fn list(kept: &mut Texts, objects: &[(&str, &str)]) {
    take(kept, Event::ListStarted);
    for object in objects {
        take(kept, Event::Listed(*object));
    }
    take(kept, Event::ListCompleted { version: 1 });
}

fn shown(kept: &Texts) -> Vec<(String, String)> {
    kept.shown().1.into_iter().map(|(id, text)| (id.name.clone(), (*text).clone())).collect()
}

fn notes(kept: &Texts) -> Vec<String> {
    let mut notes = Vec::new();
    kept.notes(&mut notes);
    notes
}

fn failed(status: Option<u16>) -> Event<(&'static str, &'static str)> {
    Event::Failed(Failed { status, message: "no".to_owned() })
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn rows_follow_a_watch_and_say_whether_something_has_changed() {
    let mut kept = Texts::new("texts");
    take(&mut kept, Event::ListStarted);
    assert!(take(&mut kept, Event::Listed(("a", "1"))));
    assert_eq!(notes(&kept), ["texts: still being read, 1 so far"]);
    assert!(take(&mut kept, Event::ListCompleted { version: 1 }));
    assert!(take(&mut kept, Event::Applied(("b", "1"))));
    assert!(!take(&mut kept, Event::Applied(("b", "1"))), "a heartbeat changes nothing that is shown");
    assert!(take(&mut kept, Event::Applied(("b", "2"))));
    assert_eq!((shown(&kept), notes(&kept)), (pairs(&[("a", "1"), ("b", "2")]), vec![]));
    assert!(take(&mut kept, Event::Applied(("a", ""))), "it is no longer one that is shown");
    assert!(!take(&mut kept, Event::Deleted(("a", "1"))));
    assert!(take(&mut kept, Event::Deleted(("b", "1"))));
    assert!(!take(&mut kept, Event::Bookmark { version: 9 }));
    assert_eq!(shown(&kept), []);
}

#[test]
fn rows_stay_until_a_later_list_is_complete() {
    let mut kept = Texts::new("texts");
    list(&mut kept, &[("a", "1"), ("b", "1")]);
    take(&mut kept, Event::ListStarted);
    take(&mut kept, Event::Listed(("b", "2")));
    assert_eq!(shown(&kept), pairs(&[("a", "1"), ("b", "2")]));
    take(&mut kept, Event::ListCompleted { version: 2 });
    assert_eq!(shown(&kept), pairs(&[("b", "2")]));
}

#[test]
fn rows_of_objects_that_cannot_be_decoded_stay_until_they_are_deleted() {
    let unreadable = |name: &str, deleted: bool| {
        let (namespace, uid, resource_version, error) = Default::default();
        Event::Unreadable(Unreadable {
            namespace,
            name: name.to_owned(),
            uid,
            resource_version,
            deleted,
            error,
        })
    };
    let mut kept = Texts::new("texts");
    list(&mut kept, &[("a", "1"), ("b", "1")]);
    take(&mut kept, Event::ListStarted);
    assert!(!take(&mut kept, unreadable("a", false)));
    assert!(!take(&mut kept, unreadable("never read", false)));
    take(&mut kept, Event::ListCompleted { version: 2 });
    assert_eq!((shown(&kept), kept.current), (pairs(&[("a", "1")]), 1));
    assert!(take(&mut kept, unreadable("a", true)));
    assert_eq!(shown(&kept), []);
}

#[test]
fn rows_that_may_be_stale_are_shown_with_a_note() {
    let mut kept = Texts::new("texts");
    list(&mut kept, &[("a", "1")]);
    assert!(take(&mut kept, failed(None)));
    assert!(!take(&mut kept, failed(None)));
    assert_eq!(shown(&kept), pairs(&[("a", "1")]));
    assert_eq!(notes(&kept), ["texts: perhaps not the newest, they can't be watched at the moment: no"]);
    take(&mut kept, Event::ListStarted);
    take(&mut kept, Event::Listed(("a", "1")));
    assert_eq!(notes(&kept).len(), 1, "a list that has begun may fail as well");
    assert!(take(&mut kept, Event::Bookmark { version: 2 }));
    assert_eq!(notes(&kept), [""; 0]);
}

#[test]
fn whoever_may_not_read_rows_does_not_see_those_of_before() {
    for status in [401, 403, 404] {
        let mut kept = Texts::new("texts");
        list(&mut kept, &[("a", "1")]);
        assert!(take(&mut kept, failed(Some(status))));
        let note = if status == 404 { vec![] } else { vec!["texts: no".to_owned()] };
        assert_eq!((shown(&kept), notes(&kept), kept.is_shown()), (vec![], note, false), "{status}");
    }
    let mut kept = Texts::new("texts");
    take(&mut kept, failed(None));
    assert_eq!((kept.is_reported(), notes(&kept)), (true, vec!["texts: no".to_owned()]));
    kept.begin(None);
    assert_eq!(notes(&kept), ["texts: no"], "the reason stays until there is another one");
    kept.begin(Some("blue".to_owned()));
    list(&mut kept, &[("a", "1")]);
    assert_eq!(notes(&kept), ["texts: only those of the namespace blue are read"]);
    kept.begin(Some("blue".to_owned()));
    assert_eq!(shown(&kept), pairs(&[("a", "1")]), "it is watched again");
    kept.begin(None);
    assert_eq!(shown(&kept), []);
}

#[test]
fn there_are_at_most_so_many_rows() {
    let most = 9;
    let names: Vec<String> = (0..=most).map(|i| i.to_string()).collect();
    let mut kept = Texts { most, ..Texts::new("texts") };
    list(&mut kept, &names.iter().map(|name| (name.as_str(), "1")).collect::<Vec<_>>());
    assert_eq!(kept.rows.len(), most);
    assert_eq!(notes(&kept), ["texts: only the first 9 were read"]);
    assert!(!take(&mut kept, Event::Applied(("more", "1"))));
    assert!(take(&mut kept, Event::Applied(("0", "2"))), "one that is known");
    // Lists that end early keep the note, and don't add up.
    for prefix in ["x", "y", "z"] {
        take(&mut kept, Event::ListStarted);
        for name in &names {
            take(&mut kept, Event::Listed((&format!("{prefix}{name}"), "1")));
        }
    }
    assert!(kept.rows.len() <= 2 * most);
    assert_eq!(notes(&kept).len(), 1);
    list(&mut kept, &[("a", "1")]);
    assert_eq!((shown(&kept), notes(&kept)), (pairs(&[("a", "1")]), vec![]));
}

#[test]
fn the_report_counts_what_is_shown() {
    let objects = [
        tenant("blue", "tenant-blue", &["a"], "x"),
        companion("tenant-blue", "one", "a", &serde_json::json!({})),
    ];
    let report = data(&objects).report;
    assert_eq!(report.companions.unwrap()["tenant-blue"], [("Starting", 1)].into());
    assert_eq!(report.tenants.unwrap()[0].name, "blue");
    let mut rows = rows(&objects);
    rows.pods = Kept::new("pods");
    assert!(!rows.are_reported());
    let report = rows.picture().unwrap().data().report;
    assert!(report.companions.is_none() && report.dpus.is_some());
    assert_eq!(report.not_visible, ["pods: still being read, 0 so far"]);
    rows.error = Some("it is away".to_owned());
    assert!(rows.are_reported());
}
