//! The next step, as a function of the Secret, the published bundles and the time.

use std::cmp::Reverse;

use super::issue::{authority, common_name, leaf};
use super::state::{Certificate, Inherited, NextCa, State};

pub(super) const MAX_NAMES: usize = 100;
/// Maximum number of CAs that are inherited: fewer than a bundle can have, so that there is always room for Outrigger's own.
const MAX_INHERITED: usize = 3;
/// Longest time for which these stay trusted, in seconds: 30 days, enough to replace all servers that use them.
pub(super) const INHERITED_FOR: i64 = 30 * 24 * 3600;

#[derive(Debug, Clone)]
pub(super) struct CertificateSpec {
    /// Name in the subjects of CAs.
    pub(super) name: String,
    /// DNS names and IP addresses of the server. The first becomes the common name.
    pub(super) names: Vec<String>,
    /// Lifetime of a serving certificate, in seconds.
    pub(super) life: i64,
    /// Lifetime of a CA, in seconds.
    pub(super) ca_life: i64,
    /// How long all bundles contain a new CA before it signs, in seconds.
    pub(super) overlap: i64,
    /// Whether CAs that the targets contain when the first CA is created stay trusted for a while.
    pub(super) inherit: bool,
}

/// A step of the plan. Each is one write of the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to do until this time (Unix time in seconds), unless something else changes.
    Wait(i64),
    /// There is no CA, or it has expired: create one that signs at once. The CAs that the targets contain can be inherited.
    CreateCa,
    /// Create the next CA. It doesn't sign yet.
    CreateNextCa,
    /// Record that all bundles contain the next CA since now.
    MarkPublished,
    /// The next CA has been published for long enough: it signs from now on, and the key of the old one is deleted.
    PromoteCa,
    /// Create a serving certificate, because the current one is due for renewal, or isn't valid yet because of a clock that was
    /// ahead.
    RenewLeaf,
    /// Create a serving certificate with additional names. It keeps the current names, so that replicas with different settings
    /// during a rollout agree on all of them.
    AddNames,
    RemoveExpired,
}

impl Step {
    /// Its name in logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wait(_) => "wait",
            Self::CreateCa => "create CA",
            Self::CreateNextCa => "create next CA",
            Self::MarkPublished => "mark next CA as published",
            Self::PromoteCa => "promote next CA",
            Self::RenewLeaf => "renew serving certificate",
            Self::AddNames => "add names to serving certificate",
            Self::RemoveExpired => "remove expired CAs",
        }
    }
}

/// The next step. `published`: every target contains the CA bundle of the state. `now`: Unix time in seconds.
pub(super) fn plan(state: Option<&State>, spec: &CertificateSpec, published: bool, now: i64) -> Step {
    let Some(state) = state else { return Step::CreateCa };
    let (ca, leaf) = (&state.signer.certificate, &state.leaf.certificate);
    let next = state.next.as_ref().filter(|next| now <= next.ca.certificate.validity.not_after);
    if now > ca.validity.not_after {
        return if next.is_some() && published { Step::PromoteCa } else { Step::CreateCa };
    }
    if leaf.issuer != ca.subject || now >= leaf.validity.renewal() || now < leaf.validity.not_before {
        return Step::RenewLeaf;
    }
    if spec.names.iter().any(|name| !leaf.names.contains(name)) {
        return Step::AddNames;
    }
    let mut until = leaf.validity.renewal();
    match next {
        None if now >= ca.validity.renewal() => return Step::CreateNextCa,
        None => until = until.min(ca.validity.renewal()),
        Some(NextCa { published_since: None, .. }) if published => return Step::MarkPublished,
        Some(NextCa { published_since: None, .. }) => {}
        Some(NextCa { published_since: Some(since), .. }) => {
            let signs = since.saturating_add(spec.overlap);
            if now >= signs && published {
                return Step::PromoteCa;
            }
            until = until.min(signs.max(now.saturating_add(1)));
        }
    }
    let expired = |ca: &Certificate| now > ca.validity.not_after;
    let inherited = state.inherited.as_ref();
    if state.former.iter().any(expired)
        || inherited.is_some_and(|i| now > i.until || i.cas.iter().any(expired))
    {
        return Step::RemoveExpired;
    }
    let ends = state.former.iter().chain(inherited.iter().flat_map(|i| &i.cas));
    let ends = ends.map(|ca| ca.validity.not_after).chain(inherited.map(|i| i.until));
    let ends = ends.map(|end| end.saturating_add(1));
    Step::Wait(ends.fold(until, i64::min))
}

/// A warning if the CA isn't valid yet, which no step changes.
pub(super) fn clock_warning(state: &State, now: i64) -> Option<String> {
    let Certificate { subject, validity, .. } = &state.signer.certificate;
    (now < validity.not_before).then(|| {
        format!(
            "{subject} is not valid before {}, so clients reject the certificates that it signs: a clock was ahead when it was created, \
             or is behind now; if all clocks are right, empty the Secret's data to create a new CA",
            crate::expiry::at(validity.not_before)
        )
    })
}

/// The CAs of others among the published certificates, which can be inherited when the first CA is created: servers with another
/// certificate source use them until the last of these has been replaced. Outrigger's own CAs are left out: one that is in no
/// Secret any longer was removed on purpose.
pub(super) fn foreign_cas(found: &[Certificate], spec: &CertificateSpec, now: i64) -> Vec<Certificate> {
    let own = common_name(&spec.name, "");
    let is_foreign = |ca: &&Certificate| {
        let name = ca.subject.strip_prefix("CN=").unwrap_or_default();
        now <= ca.validity.not_after && !name.starts_with(&own)
    };
    let mut all: Vec<Certificate> = found.iter().filter(is_foreign).cloned().collect();
    all.sort_by_key(|ca| (Reverse(ca.validity.not_before), ca.pem.clone()));
    all.dedup();
    all.truncate(MAX_INHERITED);
    all
}

/// The state after a step; `None` if it is unchanged. `found`: the certificates in all targets. Fails if a certificate can't be
/// created.
pub(super) fn apply(
    step: Step,
    state: Option<&State>,
    spec: &CertificateSpec,
    found: &[Certificate],
    now: i64,
) -> anyhow::Result<Option<State>> {
    if matches!(step, Step::Wait(_)) {
        return Ok(None);
    }
    let certify = |signer: &_, names: &[String]| leaf(signer, names, now, spec.life);
    let Some(state) = state.filter(|_| step != Step::CreateCa) else {
        let signer = authority(&spec.name, now, spec.ca_life)?;
        let leaf = certify(&signer, &spec.names)?;
        let cas = if spec.inherit { foreign_cas(found, spec, now) } else { Vec::new() };
        let until = now.saturating_add(INHERITED_FOR);
        let inherited = (!cas.is_empty()).then_some(Inherited { cas, until });
        return Ok(Some(State { leaf, signer, next: None, former: Vec::new(), inherited }));
    };
    let mut new = state.clone();
    match step {
        Step::Wait(_) | Step::CreateCa => return Ok(None),
        Step::CreateNextCa => {
            let ca = authority(&spec.name, now, spec.ca_life)?;
            new.next = Some(NextCa { ca, published_since: None });
        }
        Step::MarkPublished => {
            if let Some(next) = &mut new.next {
                next.published_since = Some(now);
            }
        }
        Step::PromoteCa => {
            let Some(next) = new.next.take() else { return Ok(None) };
            new.leaf = certify(&next.ca, &spec.names)?;
            let former = std::mem::replace(&mut new.signer, next.ca);
            // Other replicas may still serve certificates that it has signed.
            new.former.insert(0, former.certificate);
        }
        Step::RenewLeaf => new.leaf = certify(&new.signer, &spec.names)?,
        Step::AddNames => {
            let mut names = spec.names.clone();
            names.extend(state.leaf.certificate.names.iter().filter(|n| !spec.names.contains(n)).cloned());
            names.truncate(MAX_NAMES);
            new.leaf = certify(&new.signer, &names)?;
        }
        Step::RemoveExpired => {
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
