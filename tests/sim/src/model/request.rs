//! HTTP requests as the API server reads them.

use std::collections::BTreeMap;

use http::Method;
use http::request::Parts;
use jiff::Timestamp;

use super::kinds::ModelKind;
use super::link::{RequestInfo, Verb};
use super::refusal::Refusal;

/// A request for a resource.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) info: RequestInfo,
    query: BTreeMap<String, String>,
    /// The client wants the metadata of objects only.
    pub(super) metadata_only: bool,
    pub(super) content_type: String,
}

impl ParsedRequest {
    /// Reads a request of a user, sent by this party at this time. `None` if the path isn't that of a resource.
    pub(super) fn new(parts: &Parts, user: &str, client: &str, sent: Timestamp) -> Option<Self> {
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        let (group, version, rest) = match path.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // `/namespaces/a` and its subresources are about the namespace itself.
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return None,
        };
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let watch = query.get("watch").is_some_and(|watch| matches!(watch.as_str(), "true" | "1"));
        let verb = match (&parts.method, name) {
            (&Method::GET, _) if watch => Verb::Watch,
            (&Method::GET, Some(_)) => Verb::Get,
            (&Method::GET, None) => Verb::List,
            (&Method::POST, None) => Verb::Create,
            (&Method::PUT, Some(_)) => Verb::Update,
            (&Method::PATCH, Some(_)) => Verb::Patch,
            (&Method::DELETE, Some(_)) => Verb::Delete,
            _ => return None,
        };
        let header = |name: http::HeaderName| {
            parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Self {
            info: RequestInfo {
                user: user.to_owned(),
                client: client.to_owned(),
                sent,
                verb,
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                namespace: owned(namespace),
                name: owned(name),
                subresource: owned(subresource),
                dry_run: query.get("dryRun").is_some_and(|value| value == "All"),
            },
            metadata_only: header(http::header::ACCEPT).contains("as=PartialObjectMetadata"),
            content_type: header(http::header::CONTENT_TYPE),
            query,
        })
    }

    /// A parameter of the query; empty if there is none.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// A parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        match self.parameter(name) {
            "" => Ok(None),
            text => {
                let wrong = |_| Refusal::new(400, format!("{name}: Invalid value: \"{text}\""));
                text.parse().map(Some).map_err(wrong)
            }
        }
    }

    /// Whether the path fits to the kind. `resizes`: Pods have the subresource `resize`.
    pub(super) fn fits(&self, kind: &ModelKind, resizes: bool) -> bool {
        let subresource = self.info.subresource.as_deref();
        let status = match subresource {
            Some("resize") => resizes && kind.plural == "pods" && self.info.verb == Verb::Patch,
            subresource => subresource == Some("status") && kind.has_status_subresource,
        };
        let scope = match self.info.verb {
            Verb::List | Verb::Watch => kind.namespaced || self.info.namespace.is_none(),
            _ => kind.namespaced == self.info.namespace.is_some(),
        };
        let verb = !matches!(self.info.verb, Verb::Create | Verb::Delete | Verb::List | Verb::Watch);
        self.info.version == kind.version && scope && (subresource.is_none() || (status && verb))
    }
}
