//! Which versions run beside each other.

use std::cmp::Ordering;
use std::fmt;

use crate::check::findings::{Finding, KUBERNETES, SKEW, Subject, VERSIONS};

/// The oldest API server of an infrastructure cluster, major and minor.
const OLDEST: (u64, u64) = (1, 34);

/// A version, as far as skew goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version {
    /// Another one promises nothing.
    pub(crate) major: u64,
    /// One apart works in both directions.
    pub(crate) minor: u64,
    /// Any of these work together.
    pub(crate) patch: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Reads `1.2.3`, `v1.2.3` and what is like it: `1.2.3-rc.1`, `1.34.0+k3s1`. `None` where it is something else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split(['-', '+']).next()?;
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(version)
    }

    /// The version in an image's tag. `None` where the tag is something else, or there is only a digest.
    pub(crate) fn of_image(image: &str) -> Option<Self> {
        let name = image.split('@').next()?;
        let (_, tag) = name.rsplit_once('/').map_or(name, |(_, last)| last).split_once(':')?;
        Self::parse(tag)
    }
}

/// Whether two parts go together. `what` says whose `found` is, `other` whose the other.
pub(crate) fn skew(
    subject: &Subject,
    path: &str,
    what: &str,
    found: Version,
    (other, version): (&str, Version),
) -> Option<Finding> {
    let apart = found.minor.abs_diff(version.minor);
    let which = if found < version { "older" } else { "newer" };
    let message = format!("{what} is {found}, {which} than {other}, {version}");
    match (found.cmp(&version), found.major == version.major, apart) {
        (Ordering::Equal, ..) | (_, true, 0) => None,
        (_, true, 1) => Some(Finding::new(&VERSIONS, subject, path, message)),
        _ => Some(Finding::new(&SKEW, subject, path, message)),
    }
}

/// Whether the replicas of a part are of one version, and the one of its template, by their images and how many Pods have
/// each. Admission may name the same version otherwise, by a mirror or a digest.
pub(crate) fn replicas(subject: &Subject, template: &str, images: &[(String, usize)]) -> Option<Finding> {
    let is_same = |image: &str| {
        let version = Version::of_image(image);
        image == template || (version.is_some() && version == Version::of_image(template))
    };
    let what = match images {
        [] => return None,
        [(image, _)] if is_same(image) => return None,
        [_] => format!("is {template}; its Pods have another image"),
        _ => "its Pods have different images".to_owned(),
    };
    let all: Vec<String> =
        images.iter().take(super::EACH).map(|(image, count)| format!("{image} ({count})")).collect();
    let message = format!("{what}: {}", all.join(", "));
    Some(Finding::new(&VERSIONS, subject, "spec.template.spec.containers[0].image", message))
}

/// Whether an infrastructure cluster's API server, of which `/version` says this, is new enough.
pub(crate) fn kubernetes(subject: &Subject, git_version: &str) -> Option<Finding> {
    let version = Version::parse(git_version)?;
    ((version.major, version.minor) < OLDEST).then(|| {
        let message = format!("is {git_version}; {}.{} is the oldest that works", OLDEST.0, OLDEST.1);
        Finding::new(&KUBERNETES, subject, "gitVersion", message)
    })
}
