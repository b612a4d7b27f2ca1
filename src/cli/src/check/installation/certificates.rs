//! When certificates expire, and whether CA bundles can be used.

use k8s_openapi::jiff::Timestamp;
use outrigger_runtime::expiry::Validity;
use outrigger_runtime::probe;
use rustls_pki_types::CertificateDer;

use super::parts::Entry;
use crate::check::findings::{
    CA_MISMATCH, CA_UNUSABLE, CERTIFICATE_ENDED, CERTIFICATE_ENDS, Finding, Subject,
};

/// Judges the dates of a certificate at a time, in seconds of Unix time. The thresholds are those at which the running parts
/// warn. `what` names the certificate.
pub(super) fn validity(
    subject: &Subject,
    path: &str,
    what: &str,
    of: &Validity,
    now: i64,
) -> Option<Finding> {
    let end = date(of.not_after);
    if now > of.not_after {
        let message = format!("{what} expired at {end}, {} ago", days(now - of.not_after));
        return Some(Finding::new(&CERTIFICATE_ENDED, subject, path, message));
    }
    if now < of.not_before {
        let message = format!("{what} isn't valid before {}: check the clocks", date(of.not_before));
        return Some(Finding::new(&CERTIFICATE_ENDED, subject, path, message));
    }
    (now >= of.warning()).then(|| {
        let left = days(of.not_after - now);
        let renewal = date(of.renewal());
        let message = format!("{what} expires at {end}, in {left}; it was to be renewed at {renewal}");
        Finding::new(&CERTIFICATE_ENDS, subject, path, message)
    })
}

/// Judges the dates of the first certificate of a key.
pub(super) fn first(Entry { subject, path, pem }: &Entry, what: &str, now: i64) -> Option<Finding> {
    let why = match probe::certificates(pem).map(|all| all.into_iter().next()) {
        Ok(Some(certificate)) => return one(subject, path, what, &certificate, now),
        Ok(None) => "there is no certificate in it".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(Finding::new(&CA_MISMATCH, subject, path, format!("{what} can't be used: {why}")))
}

/// Judges the dates of a certificate.
pub(super) fn one(
    subject: &Subject,
    path: &str,
    what: &str,
    certificate: &CertificateDer<'_>,
    now: i64,
) -> Option<Finding> {
    validity(subject, path, what, &Validity::of(certificate).ok()?, now)
}

/// Judges a CA bundle by itself. Of several CAs the one that expires last counts: while a CA is being changed, the old one may
/// expire.
pub(super) fn bundle(subject: &Subject, path: &str, pem: &[u8], now: i64) -> Option<Finding> {
    let unusable = |why: String| Some(Finding::new(&CA_UNUSABLE, subject, path, why));
    if pem.iter().all(u8::is_ascii_whitespace) {
        return unusable("is empty: no certificate is trusted".to_owned());
    }
    let all = match probe::certificates(pem) {
        Ok(all) => all,
        Err(error) => return unusable(format!("can't be read: {error:#}")),
    };
    let validities = all.iter().filter_map(|certificate| Validity::of(certificate).ok());
    let Some(last) = validities.max_by_key(|of| of.not_after) else {
        return unusable("has no certificate: no certificate is trusted".to_owned());
    };
    if now > last.not_after {
        let (end, ago) = (date(last.not_after), days(now - last.not_after));
        return unusable(format!("expired at {end}, {ago} ago: no certificate is trusted"));
    }
    validity(subject, path, "the CA", &last, now)
}

fn date(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |at| at.to_string())
}

fn days(seconds: i64) -> String {
    match seconds / (24 * 3600) {
        0 => format!("{} h", seconds / 3600),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}
