//! Expiry of certificates: a metric, and a warning when a certificate expires soon.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls_pki_types::CertificateDer;
use tracing::{info, warn};

use crate::environment::Clock;
use crate::metrics;
use crate::ready::{Readiness, Warning};

/// Longest time before the expiry at which to warn, in seconds: a week.
const WARN_BEFORE: i64 = 7 * 24 * 3600;

/// Interval of reading a file that [`follow`] reads. The kubelet itself takes up to a minute to update it.
const LOOK: Duration = Duration::from_secs(30);

/// The validity of a certificate. Unix time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

impl Validity {
    /// Reads the validity of a certificate with x509-parser, because rustls doesn't expose it.
    ///
    /// # Errors
    /// If it is no certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> anyhow::Result<Self> {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(certificate).context("the certificate can't be parsed")?;
        let validity = parsed.validity();
        Ok(Self { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
    }

    /// When the certificate is due for renewal: after two thirds of its lifetime.
    pub fn renewal(&self) -> i64 {
        self.not_before.saturating_add(self.life() / 3 * 2 + self.life() % 3 * 2 / 3)
    }

    /// When to warn that it was not renewed in time.
    pub fn warning(&self) -> i64 {
        self.not_after.saturating_sub((self.life() / 6).min(WARN_BEFORE))
    }

    fn life(&self) -> i64 {
        self.not_after.saturating_sub(self.not_before).max(0)
    }
}

/// The expiry of a certificate in use, or of the last one of several.
#[derive(Debug)]
pub struct Expiry {
    /// The metric's label.
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    validity: Option<Validity>,
    shown: Option<(Ends, Warning)>,
}

/// The metric. It has a certificate once its validity is known.
type Ends = Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>;

/// Registers the metric of all certificates of this process, and their warnings. It is called once, because it is one metric.
pub fn register(all: &[&Expiry], registry: &mut Registry, readiness: &Readiness) {
    let ends = Ends::default();
    metrics::CERTIFICATE_ENDS.register(registry, ends.clone());
    for expiry in all {
        let warning = readiness.warning(match expiry.what {
            "serving" => "serving certificate",
            "client" => "client certificate",
            "client_ca" => "CA of clients' certificates",
            other => other,
        });
        let mut state = expiry.state.lock();
        if let Some(validity) = state.validity {
            ends.get_or_create(&[("use", expiry.what)]).set(validity.not_after);
        }
        state.shown = Some((ends.clone(), warning));
    }
}

impl Expiry {
    /// The expiry of the certificate for this use: `serving`, `client` or `client_ca`.
    pub fn new(what: &'static str) -> Self {
        Self { what, state: Mutex::default() }
    }

    /// Sets the validity of the certificate that is now in use.
    pub fn set(&self, validity: Validity) {
        let mut state = self.state.lock();
        if let Some((ends, _)) = &state.shown {
            ends.get_or_create(&[("use", self.what)]).set(validity.not_after);
        }
        state.validity = Some(validity);
    }

    /// When the certificate in use expires, Unix time in seconds.
    pub fn not_after(&self) -> Option<i64> {
        self.state.lock().validity.map(|validity| validity.not_after)
    }

    /// Sets or clears the warning that the certificate isn't valid yet, has expired or expires soon. `now`: Unix time in seconds.
    pub fn look(&self, now: i64) {
        let state = self.state.lock();
        let (Some(validity), Some((_, warning))) = (state.validity, &state.shown) else { return };
        let end = at(validity.not_after);
        let text = if now < validity.not_before {
            let begin = at(validity.not_before);
            Some(format!("is not valid before {begin}: verification fails until then, or a clock is wrong"))
        } else if now > validity.not_after {
            Some(format!("expired at {end}: verification fails"))
        } else if now >= validity.warning() {
            Some(format!("expires at {end} and was not renewed in time"))
        } else {
            None
        };
        let set = text.clone();
        if warning.set(text) {
            match set {
                Some(text) => warn!(certificate = self.what, "{text}"),
                None => info!(certificate = self.what, %end, "certificate is valid again"),
            }
        }
    }
}

/// Follows the expiry of the first certificate in a file for as long as it is polled, for a file that is otherwise read only
/// occasionally.
pub async fn follow(file: impl AsRef<Path> + Send + Sync + 'static, expiry: Arc<Expiry>) {
    let file = Arc::new(file);
    loop {
        let (path, shown) = (file.clone(), expiry.clone());
        // Reading files on a network file system may block. The code that uses the file reports errors.
        let _ = tokio::task::spawn_blocking(move || {
            let first = crate::tls::first_certificate((*path).as_ref());
            if let Ok(validity) = first.and_then(|certificate| Validity::of(&certificate)) {
                shown.set(validity);
            }
            shown.look(now());
        })
        .await;
        tokio::time::sleep(LOOK).await;
    }
}

/// Formats a time in RFC 3339. `seconds`: Unix time.
pub(crate) fn at(seconds: i64) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(
        UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
    )
}

/// Unix time in seconds.
pub fn now() -> i64 {
    Clock::system().unix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_at_two_thirds_and_warned_of_in_the_last_sixth_or_week() {
        let day = 24 * 3600;
        for (days, renewal, warning) in [(90, 60, 83), (30, 20, 25), (3650, 2433, 3643), (1, 0, 0), (0, 0, 0)]
        {
            let validity = Validity { not_before: 0, not_after: days * day };
            assert_eq!((validity.renewal() / day, validity.warning() / day), (renewal, warning), "{days}");
        }
        let whole = Validity { not_before: i64::MIN, not_after: i64::MAX };
        assert!(whole.renewal() <= whole.not_after && whole.warning() <= whole.not_after);
        let turned = Validity { not_before: 10, not_after: 0 };
        assert_eq!((turned.renewal(), turned.warning()), (10, 0));
    }

    #[test]
    fn a_warning_comes_and_goes() {
        let (readiness, mut registry) = (Readiness::default(), Registry::default());
        let expiry = Expiry::new("serving");
        register(&[&expiry], &mut registry, &readiness);
        expiry.look(0);
        assert!(readiness.warnings().is_empty(), "nothing is known yet");
        expiry.set(Validity { not_before: 0, not_after: 600 });
        for (now, expected) in [
            (
                -1,
                Some(
                    "is not valid before 1970-01-01T00:00:00Z: verification fails until then, or a clock is wrong",
                ),
            ),
            (0, None),
            (499, None),
            (500, Some("expires at 1970-01-01T00:10:00Z and was not renewed in time")),
            (601, Some("expired at 1970-01-01T00:10:00Z: verification fails")),
        ] {
            expiry.look(now);
            let expected = expected.map(|text| ("serving certificate", text.to_owned()));
            assert_eq!(readiness.warnings(), Vec::from_iter(expected), "{now}");
            assert!(readiness.is_ready());
        }
        expiry.set(Validity { not_before: 600, not_after: 1200 });
        expiry.look(601);
        assert!(readiness.warnings().is_empty());
        assert_eq!(expiry.not_after(), Some(1200));
    }
}
