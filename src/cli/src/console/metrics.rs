//! Metrics of the console in the cluster. On a user's machine they are counted, and nobody reads them.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use axum::http::StatusCode;
use outrigger_runtime::metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::door::{LOGIN, LOGOUT};
use super::page::View;
use super::web::{EVENTS, SCRIPT_PATH, STYLE_PATH};

#[derive(Debug, Default)]
pub(super) struct Metrics {
    requests: Family<[(&'static str, &'static str); 2], Counter>,
    queries: Family<[(&'static str, &'static str); 1], Counter>,
    /// Sessions of users.
    pub(super) sessions: Gauge<i64, AtomicI64>,
    streams: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// Registers all of them.
    pub(super) fn register(&self, registry: &mut Registry) {
        // A family without samples isn't shown at all.
        let _ = self.requests.get_or_create(&labels("/", StatusCode::OK));
        let _ = self.queries.get_or_create(&[("outcome", "Answered")]);
        metrics::CONSOLE_REQUESTS.register(registry, self.requests.clone());
        metrics::CONSOLE_SESSIONS.register(registry, self.sessions.clone());
        metrics::CONSOLE_STREAMS.register(registry, self.streams.clone());
        metrics::CONSOLE_QUERIES.register(registry, self.queries.clone());
    }

    /// A request to this path was answered.
    pub(super) fn requested(&self, path: &str, status: StatusCode) {
        self.requests.get_or_create(&labels(path, status)).inc();
    }

    /// A query of managers has ended.
    pub(super) fn queried(&self, outcome: &'static str) {
        self.queries.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// A stream of events has begun. It counts as long as what is returned.
    pub(super) fn stream(self: &Arc<Self>) -> OpenStream {
        self.streams.inc();
        OpenStream(self.clone())
    }
}

/// A stream of events that is open.
pub(super) struct OpenStream(Arc<Metrics>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.dec();
    }
}

/// The labels of a request. Paths come from outside, so that unknown ones have one name.
fn labels(path: &str, status: StatusCode) -> [(&'static str, &'static str); 2] {
    let view = View::ALL.iter().find(|view| view.path() == path).map(|view| view.name());
    let route = view.unwrap_or(match path {
        LOGIN => "Login",
        LOGOUT => "Logout",
        EVENTS => "Events",
        STYLE_PATH | SCRIPT_PATH => "Files",
        _ => "Other",
    });
    let outcome = match status {
        status if status.is_success() => "Answered",
        status if status.is_redirection() => "Redirected",
        status if status.is_client_error() => "Refused",
        _ => "Failed",
    };
    [("route", route), ("outcome", outcome)]
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::metrics::CONSOLE_REQUESTS;

    use super::*;

    #[test]
    fn every_route_has_a_documented_name_and_an_unknown_one_adds_none() {
        let of = |path: &str| labels(path, StatusCode::OK)[0].1;
        let known = [LOGIN, LOGOUT, EVENTS, STYLE_PATH, SCRIPT_PATH, "/of/somebody"];
        let all: Vec<&str> = View::ALL.iter().map(|view| of(view.path())).chain(known.map(of)).collect();
        assert_eq!(all.iter().filter(|name| **name == "Other").count(), 1, "{all:?}");
        let [(route, routes), (outcome, outcomes)] = CONSOLE_REQUESTS.labels else { panic!("two labels") };
        assert_eq!((*route, *outcome), ("route", "outcome"));
        assert!(all.iter().all(|name| routes.allow(name)), "{all:?}");
        for code in [200, 303, 404, 429, 500, 503] {
            let [_, (_, outcome)] = labels("/", StatusCode::from_u16(code).unwrap());
            assert!(outcomes.allow(outcome), "{outcome}");
        }
    }

    #[test]
    fn a_stream_counts_as_long_as_it_is_open() {
        let metrics = Arc::new(Metrics::default());
        let open = [metrics.stream(), metrics.stream()];
        assert_eq!(metrics.streams.get(), 2);
        drop(open);
        assert_eq!(metrics.streams.get(), 0);
    }
}
