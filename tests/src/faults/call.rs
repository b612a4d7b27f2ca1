//! Requests to an API server, as the proxy reads them.

use std::fmt;

use bytes::Bytes;
use http::Method;
use http::request::Parts;
use serde_json::Value;
use tokio::time::Instant;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads one object, or something that is no object of a resource.
    Get,
    /// Reads a collection.
    List,
    /// Follows a collection.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH, of any kind.
    Patch,
    /// DELETE of an object or of a collection.
    Delete,
}

impl Verb {
    /// All verbs that write.
    pub const WRITES: [Self; 4] = [Self::Create, Self::Update, Self::Patch, Self::Delete];

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        Self::WRITES.contains(&self)
    }

    /// Its name in roles.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A request, and its result.
#[derive(Debug, Clone)]
pub struct Call {
    /// Counts the requests of a proxy, from 1.
    pub number: u64,
    /// When the proxy had read it.
    pub at: Instant,
    /// What it asks for.
    pub verb: Verb,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
    /// Group of the resource; empty for the core group.
    pub group: String,
    /// Plural of the resource, with its subresource: `pods`, `pods/status`. Empty for a path that is no resource's.
    pub resource: String,
    /// Its namespace, if it is about one.
    pub namespace: Option<String>,
    /// Name of the object, also of one that is created with a name.
    pub name: Option<String>,
    /// The path with the query.
    pub path: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// Status of the answer; `None` while there is none.
    pub status: Option<u16>,
    /// What a write sends.
    pub body: Option<Value>,
}

impl Call {
    /// Reads a request.
    pub(super) fn read(parts: &Parts, body: &Bytes) -> Self {
        let query = parts.uri.query().unwrap_or_default();
        let has = |name: &str, value: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).any(|(n, v)| n == name && v == value)
        };
        let path = Path::read(parts.uri.path());
        let watch = has("watch", "true") || has("watch", "1");
        let verb = match parts.method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if watch => Verb::Watch,
            _ if path.name.is_none() && !path.resource.is_empty() => Verb::List,
            _ => Verb::Get,
        };
        let body: Option<Value> = if verb.is_write() { serde_json::from_slice(body).ok() } else { None };
        let named = || body.as_ref()?.pointer("/metadata/name")?.as_str().map(str::to_owned);
        Self {
            number: 0,
            at: Instant::now(),
            verb,
            dry_run: has("dryRun", "All"),
            group: path.group,
            name: path.name.or_else(|| if verb == Verb::Create { named() } else { None }),
            resource: path.resource,
            namespace: path.namespace,
            path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            user_agent: parts
                .headers
                .get(http::header::USER_AGENT)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
            status: None,
            body,
        }
    }

    /// Whether it changes what is stored, other than Leases, Events and reviews: those are written at any time, whatever
    /// else happens.
    pub fn is_write(&self) -> bool {
        const ASIDE: [&str; 5] =
            ["leases", "events", "subjectaccessreviews", "selfsubjectaccessreviews", "tokenreviews"];
        self.verb.is_write() && !self.dry_run && !ASIDE.contains(&self.resource.as_str())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.as_str(), self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}/{}", self.name.as_deref().unwrap_or_default())?;
        } else if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        if self.dry_run {
            write!(f, " (dry run)")?;
        }
        match self.status {
            Some(status) => write!(f, " -> {status}"),
            None => Ok(()),
        }
    }
}

/// What a path says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Path {
    group: String,
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Path {
    fn read(path: &str) -> Self {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return Self::default(),
        };
        let subresource_of_namespace = |name: &str| ["status", "finalize"].contains(&name);
        let (namespace, rest) = match rest {
            ["namespaces", namespace, resource, ..] if !subresource_of_namespace(resource) => {
                (Some((*namespace).to_owned()), &rest[2..])
            }
            rest => (None, rest),
        };
        let resource = match rest {
            [] => String::new(),
            [plural] | [plural, _] => (*plural).to_owned(),
            [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
        };
        let name = rest.get(1).map(|name| (*name).to_owned());
        Self { group: group.to_owned(), resource, namespace, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, group, resource, namespace, name) in [
            ("/api/v1/pods", "", "pods", None, None),
            ("/api/v1/namespaces/n/pods/p", "", "pods", Some("n"), Some("p")),
            ("/api/v1/namespaces/n/pods/p/binding", "", "pods/binding", Some("n"), Some("p")),
            ("/api/v1/namespaces", "", "namespaces", None, None),
            ("/api/v1/namespaces/n", "", "namespaces", None, Some("n")),
            ("/api/v1/namespaces/n/finalize", "", "namespaces/finalize", None, Some("n")),
            (
                "/apis/outrigger.dev/v1alpha1/tenants/t/status",
                "outrigger.dev",
                "tenants/status",
                None,
                Some("t"),
            ),
            ("/apis/apps/v1", "apps", "", None, None),
            ("/version", "", "", None, None),
        ] {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let expected = Path {
                group: group.into(),
                resource: resource.into(),
                namespace: owned(namespace),
                name: owned(name),
            };
            assert_eq!(Path::read(path), expected, "{path}");
        }
    }

    fn read(method: &str, uri: &str, body: &str) -> Call {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        Call::read(&parts, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn verbs() {
        for (method, uri, verb) in [
            ("GET", "/api/v1/nodes?limit=500", Verb::List),
            ("GET", "/api/v1/nodes?watch=true&x=y", Verb::Watch),
            ("GET", "/api/v1/nodes/n", Verb::Get),
            ("GET", "/version", Verb::Get),
            ("PUT", "/api/v1/nodes/n", Verb::Update),
            ("PATCH", "/api/v1/nodes/n", Verb::Patch),
            ("DELETE", "/api/v1/nodes/n", Verb::Delete),
        ] {
            assert_eq!(read(method, uri, "").verb, verb, "{method} {uri}");
        }
    }

    #[test]
    fn writes_that_count() {
        let pod = r#"{"metadata":{"name":"p"}}"#;
        let create = read("POST", "/api/v1/namespaces/n/pods?", pod);
        assert_eq!(create.name.as_deref(), Some("p"));
        assert!(create.is_write() && !create.dry_run);
        let trial = read("POST", "/api/v1/namespaces/n/pods?dryRun=All", pod);
        assert!(trial.dry_run && !trial.is_write());
        assert!(!read("PATCH", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", "{}").is_write());
        assert!(!read("GET", "/api/v1/nodes/n", "").is_write());
        assert_eq!(create.to_string(), "create pods n/p");
    }
}
