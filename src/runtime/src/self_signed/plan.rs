//! What to do next, given what the Secret holds, what the bundles carry, and what time it is.

use std::cmp::Reverse;

use super::issue::{authority, common_name, leaf};
use super::state::{Certificate, Inherited, Next, State};

/// Of what was trusted before us, so many are trusted on: fewer than a bundle may have, so that they never crowd out our own.
const MAX_INHERITED: usize = 3;
/// How long these are trusted on at most, in seconds: 30 days. Servers that still show their certificates are replaced long before.
pub(super) const INHERITED_FOR: i64 = 30 * 24 * 3600;

/// What is wanted of the certificates.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// What the CAs are called.
    pub(super) name: String,
    /// DNS names and IP addresses of the server, the most important first.
    pub(super) names: Vec<String>,
    /// How long a serving certificate lives, in seconds.
    pub(super) life: i64,
    /// How long a CA lives, in seconds.
    pub(super) ca_life: i64,
    /// How long all bundles carry a new CA before it signs, in seconds.
    pub(super) overlap: i64,
    /// Whether CAs of others that are trusted when the first CA of ours is made go on being trusted for a while. Whoever may write
    /// to the bundles chooses these.
    pub(super) inherit: bool,
}

/// One step. Each is one write of the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until then (Unix time in seconds), unless something else changes.
    Wait(i64),
    /// There is no CA, or it has ended: make one, which signs at once. Nobody can have trusted it before. What is trusted
    /// already goes on being trusted beside it, where that is wanted.
    Begin,
    /// Make the CA that will follow. It doesn't sign yet.
    Announce,
    /// All bundles carry it since now.
    Trusted,
    /// It has been trusted for long enough: it signs from now on, and the former one's key goes.
    Promote,
    /// Make a serving certificate: the one there is comes of age, or isn't valid yet, made by a clock that was ahead.
    Renew,
    /// Make one that has the names it lacks, beside those it has. Replicas that want different names, as they do while a
    /// setting is rolled out, agree on all of them.
    Rename,
    /// Trust no longer what has ended.
    Forget,
}

/// The next step. `carried`: every bundle carries everything that the state trusts. `now`: Unix time in seconds.
pub(super) fn plan(state: Option<&State>, wanted: &Wanted, carried: bool, now: i64) -> Step {
    let Some(state) = state else { return Step::Begin };
    let (ca, leaf) = (&state.signer.certificate, &state.leaf.certificate);
    let next = state.next.as_ref().filter(|next| now <= next.ca.certificate.validity.not_after);
    if now > ca.validity.not_after {
        return if next.is_some() && carried { Step::Promote } else { Step::Begin };
    }
    if leaf.issuer != ca.subject || now >= leaf.validity.renewal() || now < leaf.validity.not_before {
        return Step::Renew;
    }
    if wanted.names.iter().any(|name| !leaf.names.contains(name)) {
        return Step::Rename;
    }
    let mut until = leaf.validity.renewal();
    match next {
        None if now >= ca.validity.renewal() => return Step::Announce,
        None => until = until.min(ca.validity.renewal()),
        Some(Next { trusted_since: None, .. }) if carried => return Step::Trusted,
        Some(Next { trusted_since: None, .. }) => {}
        Some(Next { trusted_since: Some(since), .. }) => {
            let signs = since.saturating_add(wanted.overlap);
            if now >= signs && carried {
                return Step::Promote;
            }
            until = until.min(signs.max(now.saturating_add(1)));
        }
    }
    let over = |ca: &Certificate| now > ca.validity.not_after;
    let inherited = state.inherited.as_ref();
    if state.former.iter().any(over) || inherited.is_some_and(|i| now > i.until || i.cas.iter().any(over)) {
        return Step::Forget;
    }
    let ends = state.former.iter().chain(inherited.iter().flat_map(|i| &i.cas));
    let ends = ends.map(|ca| ca.validity.not_after).chain(inherited.map(|i| i.until));
    let ends = ends.map(|end| end.saturating_add(1));
    Step::Wait(ends.fold(until, i64::min))
}

/// What is wrong with a state that no step puts right, for people.
pub(super) fn trouble(state: &State, now: i64) -> Option<String> {
    let Certificate { subject, validity, .. } = &state.signer.certificate;
    (now < validity.not_before).then(|| {
        format!(
            "{subject} is not valid before {}, so nobody accepts what it signs: a clock was ahead when it was made, or is \
             behind now; if clocks are right, empty the Secret's data to begin anew",
            crate::expiry::at(validity.not_before)
        )
    })
}

/// Of what places carry already, what could go on being trusted when a CA begins that nobody knows yet. Servers that were
/// started otherwise show certificates of these until the last of them has been replaced. CAs of our own that are in no
/// Secret any more are not among them: somebody wanted them gone.
pub(super) fn of_others(found: &[Certificate], wanted: &Wanted, now: i64) -> Vec<Certificate> {
    let own = common_name(&wanted.name, "");
    let goes_on = |ca: &&Certificate| {
        let name = ca.subject.strip_prefix("CN=").unwrap_or_default();
        now <= ca.validity.not_after && !name.starts_with(&own)
    };
    let mut all: Vec<Certificate> = found.iter().filter(goes_on).cloned().collect();
    all.sort_by_key(|ca| (Reverse(ca.validity.not_before), ca.pem.clone()));
    all.dedup();
    all.truncate(MAX_INHERITED);
    all
}

/// The state after a step. `None`: as it is. `found`: what places carry now.
///
/// # Errors
/// When a certificate can't be made.
pub(super) fn take(
    step: Step,
    state: Option<&State>,
    wanted: &Wanted,
    found: &[Certificate],
    now: i64,
) -> anyhow::Result<Option<State>> {
    let certify = |signer: &_, names: &[String]| leaf(signer, names, now, wanted.life);
    let Some(state) = state.filter(|_| step != Step::Begin) else {
        let signer = authority(&wanted.name, now, wanted.ca_life)?;
        let leaf = certify(&signer, &wanted.names)?;
        let cas = if wanted.inherit { of_others(found, wanted, now) } else { Vec::new() };
        let until = now.saturating_add(INHERITED_FOR);
        let inherited = (!cas.is_empty()).then_some(Inherited { cas, until });
        return Ok(Some(State { leaf, signer, next: None, former: Vec::new(), inherited }));
    };
    let mut new = state.clone();
    match step {
        Step::Wait(_) | Step::Begin => return Ok(None),
        Step::Announce => {
            let ca = authority(&wanted.name, now, wanted.ca_life)?;
            new.next = Some(Next { ca, trusted_since: None });
        }
        Step::Trusted => {
            if let Some(next) = &mut new.next {
                next.trusted_since = Some(now);
            }
        }
        Step::Promote => {
            let Some(next) = new.next.take() else { return Ok(None) };
            new.leaf = certify(&next.ca, &wanted.names)?;
            let former = std::mem::replace(&mut new.signer, next.ca);
            // Certificates of its may be in use by replicas that are slow.
            new.former.insert(0, former.certificate);
        }
        Step::Renew => new.leaf = certify(&new.signer, &wanted.names)?,
        Step::Rename => {
            let mut names = wanted.names.clone();
            names.extend(state.leaf.certificate.names.iter().filter(|n| !wanted.names.contains(n)).cloned());
            names.truncate(super::MAX_NAMES);
            new.leaf = certify(&new.signer, &names)?;
        }
        Step::Forget => {
            new.former.retain(|ca| now <= ca.validity.not_after);
            new.inherited =
                new.inherited.take().filter(|inherited| now <= inherited.until).and_then(|mut inherited| {
                    inherited.cas.retain(|ca| now <= ca.validity.not_after);
                    (!inherited.cas.is_empty()).then_some(inherited)
                });
        }
    }
    Ok(Some(new))
}
