//! Whether this replica's clock agrees with the API server's.
//!
//! Two replicas whose clocks differ by more than two thirds of a certificate's lifetime would replace each other's certificates for
//! ever: to one each is due for renewal, to the other it isn't valid yet. So a replica whose clock is far from the API server's makes no
//! change, and says why. It goes on serving the certificate in the Secret.

use anyhow::Context;
use http::Request;
use http::header::DATE;
use jiff::fmt::rfc2822::DateTimeParser;
use kube::Client;
use kube::client::Body;

/// The part of a certificate's lifetime by which a clock may be wrong: a quarter. No two such clocks differ by two thirds.
const PART: i64 = 4;

/// What a clock may be wrong by at any lifetime, in seconds.
const TOLERATED: i64 = HOUR;

const HOUR: i64 = 3600;

/// Pause before a clock that is wrong is compared again, in seconds: it may be set at any time.
pub(super) const PAUSE: i64 = 60;

/// The API server's time, Unix time in seconds; `None` if its response doesn't say it. Each response has it, also one that refuses the
/// request, so no permission is needed.
pub(super) async fn of_api_server(client: &Client) -> anyhow::Result<Option<i64>> {
    let request = Request::get("/version").body(Body::empty())?;
    let response = client.send(request).await.context("the API server's time")?;
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
    Ok(date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok()).map(|time| time.as_second()))
}

/// A warning if a clock is so wrong that its replica must not write certificates with this lifetime. All in seconds.
pub(super) fn warning(ours: i64, theirs: i64, life: i64) -> Option<String> {
    let off = ours.saturating_sub(theirs);
    (off.saturating_abs() > (life / PART).max(TOLERATED)).then(|| {
        let direction = if off > 0 { "ahead of" } else { "behind" };
        format!(
            "this replica's clock is {} h {direction} the API server's, so it creates and renews no certificates; correct the clock of \
             its node",
            off.saturating_abs() / HOUR
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * HOUR;

    #[test]
    fn a_clock_may_be_wrong_by_a_quarter_of_the_lifetime() {
        let of = |off| warning(100 * DAY + off, 100 * DAY, 80 * DAY);
        for off in [0, 20 * DAY, -20 * DAY] {
            assert_eq!(of(off), None, "{off}");
        }
        assert!(
            of(20 * DAY + 1).is_some_and(|text| text.starts_with("this replica's clock is 480 h ahead of "))
        );
        assert!(of(-61 * DAY).is_some_and(|text| text.starts_with("this replica's clock is 1464 h behind ")));
        assert_eq!(warning(HOUR, 0, 10), None, "an hour always");
        assert!(warning(HOUR + 1, 0, 10).is_some());
    }
}
