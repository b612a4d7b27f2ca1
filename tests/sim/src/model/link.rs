//! What happens to requests, responses and watch events between a client and the model.

use std::future::Future;

use jiff::Timestamp;

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// One object is read.
    Get,
    /// Objects are listed.
    List,
    /// Objects are watched.
    Watch,
    /// An object is created.
    Create,
    /// An object is replaced.
    Update,
    /// An object is patched, or created by a server-side apply.
    Patch,
    /// An object is deleted.
    Delete,
}

impl Verb {
    /// The verb as RBAC names it.
    pub const fn as_str(self) -> &'static str {
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

/// A request as a link sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// The user of the client.
    pub user: String,
    /// The party that sends it, as [`Link::client`] names it; empty for a request of the harness.
    pub client: String,
    /// When it was sent, by the clock of the API server.
    pub sent: Timestamp,
    /// What it does.
    pub verb: Verb,
    /// API group of the resource; empty for the core group.
    pub group: String,
    /// API version of the resource.
    pub version: String,
    /// Plural name of the resource, in lower case.
    pub plural: String,
    /// Namespace in the URL.
    pub namespace: Option<String>,
    /// Name in the URL.
    pub name: Option<String>,
    /// Subresource in the URL, for example `status`.
    pub subresource: Option<String>,
    /// The write is validated and not stored.
    pub dry_run: bool,
}

/// What a link does with a request, a response or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It arrives.
    Deliver,
    /// The connection fails.
    Fail,
    /// The client gets a response with this HTTP status instead, for example from a load balancer or an overloaded API server. An
    /// open watch gets an event `ERROR` with it, and ends.
    Status(u16),
}

/// The way between a client and the model. A delay is a future that completes later. Each method is awaited in the order of the
/// client's requests, and for each watch in the order of its events.
pub trait Link: Send + Sync + 'static {
    /// The party whose requests take this way; empty if nobody asks.
    fn client(&self) -> &str {
        ""
    }

    /// Called before the model sees a request. Unless it is delivered, the request has no effect.
    fn request(&self, info: &RequestInfo) -> impl Future<Output = Passage> + Send;

    /// Called after the model has handled a request, with the HTTP status of its response. Unless it is delivered, the client
    /// doesn't know whether the request had an effect.
    fn response(&self, info: &RequestInfo, status: u16) -> impl Future<Output = Passage> + Send;

    /// Called before an event of an open watch is delivered, bookmarks and errors included. Unless it is delivered, the watch ends.
    fn event(&self, info: &RequestInfo) -> impl Future<Output = Passage> + Send;
}

/// A link that delivers everything at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Link for Direct {
    async fn request(&self, _: &RequestInfo) -> Passage {
        Passage::Deliver
    }

    async fn response(&self, _: &RequestInfo, _: u16) -> Passage {
        Passage::Deliver
    }

    async fn event(&self, _: &RequestInfo) -> Passage {
        Passage::Deliver
    }
}
