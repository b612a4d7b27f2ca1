//! Whether versions of parts work together.

use std::cmp::Ordering;
use std::fmt;

use crate::check::findings::{Finding, SKEW, Subject, VERSIONS};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version {
    /// Different major versions don't work together.
    pub(crate) major: u64,
    /// Parts one minor version apart work together.
    pub(crate) minor: u64,
    /// Patch versions work together.
    pub(crate) patch: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Parses `1.2.3`, `v1.2.3`, `1.2.3-rc.1` and `1.34.0+k3s1`.
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

/// Compares the versions of two parts: `what` has the version `found`, `other` has `version`.
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
