//! When certificates end. Dates come as text and as Unix time: this crate knows no calendar.

use crate::check::findings::{CA_UNUSABLE, CERTIFICATE_ENDED, CERTIFICATE_ENDS, Finding, Subject};

const DAY: i64 = 24 * 3600;

/// From when to when a certificate is good, and when somebody should do something about it. Unix time in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Life {
    /// The first second.
    pub(crate) not_before: i64,
    /// The last second.
    pub(crate) not_after: i64,
    /// From when on it is to be warned of.
    pub(crate) warning: i64,
    /// When it ends, for people.
    pub(crate) end: String,
    /// When it begins, for people.
    pub(crate) beginning: String,
    /// When whoever renews it does so, for people.
    pub(crate) renewal: String,
}

/// What is wrong with a certificate's dates at this time. `what` says whose it is.
pub(crate) fn life(subject: &Subject, path: &str, what: &str, life: &Life, now: i64) -> Option<Finding> {
    let Life { end, beginning, renewal, .. } = life;
    if now > life.not_after {
        let message = format!("{what} has ended at {end}, {} ago", days(now - life.not_after));
        return Some(Finding::new(&CERTIFICATE_ENDED, subject, path, message));
    }
    if now < life.not_before {
        let message = format!("{what} isn't good before {beginning}: somebody's clock is wrong");
        return Some(Finding::new(&CERTIFICATE_ENDED, subject, path, message));
    }
    (now >= life.warning).then(|| {
        let left = days(life.not_after - now);
        let message = format!("{what} ends at {end}, in {left}; it was to be renewed at {renewal}");
        Finding::new(&CERTIFICATE_ENDS, subject, path, message)
    })
}

/// What is in a CA bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bundle {
    /// Nothing.
    Empty,
    /// Something that can't be read, and why.
    Unreadable(String),
    /// These certificates.
    Of(Vec<Life>),
}

/// What is wrong with a CA bundle, apart from whom it verifies: of several CAs the one that ends last counts, because
/// while a CA is being changed the old one may end.
pub(crate) fn bundle(subject: &Subject, path: &str, bundle: &Bundle, now: i64) -> Option<Finding> {
    let all = match bundle {
        Bundle::Empty => {
            return Some(Finding::new(&CA_UNUSABLE, subject, path, "is empty: nothing is trusted"));
        }
        Bundle::Unreadable(why) => {
            return Some(Finding::new(&CA_UNUSABLE, subject, path, format!("can't be read: {why}")));
        }
        Bundle::Of(all) => all,
    };
    let Some(last) = all.iter().max_by_key(|life| life.not_after) else {
        return Some(Finding::new(&CA_UNUSABLE, subject, path, "has no certificate: nothing is trusted"));
    };
    if now > last.not_after {
        let ago = days(now - last.not_after);
        let message = format!("has ended at {}, {ago} ago: nothing is trusted", last.end);
        return Some(Finding::new(&CA_UNUSABLE, subject, path, message));
    }
    life(subject, path, "the CA", last, now)
}

fn days(seconds: i64) -> String {
    match seconds / DAY {
        0 => format!("{} h", seconds / 3600),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}
