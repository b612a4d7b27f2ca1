//! How a cluster is read: objects and lists, each call with a deadline. What may not be read is never taken for absent.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams, TypeMeta};
use outrigger_core::json::text;
use outrigger_core::text::truncate;
use parking_lot::Mutex;
use serde_json::Value;

/// How long an API server may take for an answer, the webhooks that it calls included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

const AT_ONCE: usize = 16;

/// Most objects of a list. An installation has few Pods, and of namespaces one is enough.
const MOST: usize = 500;

/// Most objects of one answer: lists come in pages.
const PAGE: u32 = 500;

const MAX_NOTES: usize = 30;

/// Most characters of a message from elsewhere.
const SHOWN: usize = 160;

/// API version and name of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind(pub(crate) &'static str, pub(crate) &'static str);

impl Kind {
    pub(crate) fn resource(self) -> ApiResource {
        let Self(api_version, kind) = self;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }
}

pub(crate) const DEPLOYMENT: Kind = Kind("apps/v1", "Deployment");
pub(crate) const POD: Kind = Kind("v1", "Pod");
pub(crate) const NAMESPACE: Kind = Kind("v1", "Namespace");
pub(crate) const MUTATING: Kind = Kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration");
pub(crate) const VALIDATING: Kind = Kind("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");

/// The answer to the question for an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    There(Value),
    Absent,
    /// The object couldn't be read, which is noted: nothing may be said of it.
    Unread,
}

impl Answer {
    /// The object, where it is there.
    pub(crate) fn there(self) -> Option<Value> {
        match self {
            Self::There(value) => Some(value),
            Self::Absent | Self::Unread => None,
        }
    }
}

pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// This process is a Pod of the cluster, so it reaches the cluster's Services.
    pub(crate) is_own: bool,
    notes: Mutex<BTreeSet<String>>,
}

impl Cluster {
    pub(crate) fn new(client: Client, is_own: bool) -> Self {
        Self { client, is_own, notes: Mutex::default() }
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        let mut all: Vec<String> = notes.iter().take(MAX_NOTES).cloned().collect();
        if notes.len() > MAX_NOTES {
            all.push(format!("and {} more that couldn't be examined", notes.len() - MAX_NOTES));
        }
        all
    }

    /// Says what wasn't examined.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.notes.lock().insert(text.into());
    }

    pub(crate) fn api(&self, kind: Kind, namespace: &str) -> (Api<DynamicObject>, ApiResource) {
        let resource = kind.resource();
        of_kind(&self.client, resource, Some(namespace).filter(|namespace| !namespace.is_empty()))
    }

    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Answer {
        let (api, resource) = self.api(kind, namespace);
        match in_time(api.get_opt(name)).await {
            Ok(Some(object)) => with_kind(&resource, object).map_or(Answer::Unread, Answer::There),
            Ok(None) => Answer::Absent,
            Err(why) => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let why = why.brief();
                self.note(format!(
                    "{} {namespace}{slash}{name} can't be read, so it wasn't examined: {why}",
                    kind.1
                ));
                Answer::Unread
            }
        }
    }

    /// The objects of a kind with these labels, in a namespace or, where that is empty, everywhere. `None`: they can't be
    /// read.
    pub(crate) async fn list(&self, kind: Kind, namespace: &str, labels: &str) -> Option<Vec<Value>> {
        let (of_kind, mut all) = (self.api(kind, namespace), Vec::new());
        let read = each(&of_kind, ListParams::default().labels(labels), |object| {
            all.push(object);
            all.len() < MOST
        });
        match read.await {
            Ok(()) => Some(all),
            Err(why) => {
                let (plural, why) = (&of_kind.1.plural, why.brief());
                self.note(format!("{plural} can't be listed, so they weren't examined: {why}"));
                None
            }
        }
    }

    /// Creates an object as a dry run: the API server calls its webhooks, answers with what it would have created, and
    /// stores nothing.
    pub(crate) async fn dry_run(&self, kind: Kind, object: &Value) -> Result<Value, String> {
        let (api, resource) = self.api(kind, text(object, "/metadata/namespace"));
        let object = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let created = in_time(api.create(&dry, &object)).await.map_err(Unread::brief)?;
        with_kind(&resource, created).map_err(|_| "the answer can't be read".to_owned())
    }

    pub(crate) async fn version(&self) -> anyhow::Result<String> {
        let version = tokio::time::timeout(PATIENCE, self.client.apiserver_version()).await;
        Ok(version.context("no answer in time")??.git_version)
    }
}

/// Why something can't be read.
#[derive(Debug)]
pub(crate) struct Unread {
    /// The status of the API server's answer; 0 if there was none.
    pub(crate) status: u16,
    /// The API server's message, all of it: that of a dry run has the reason at its end. Else what has failed.
    pub(crate) why: String,
}

impl Unread {
    /// The user may not read it.
    pub(crate) fn is_refused(&self) -> bool {
        self.status == 403
    }

    /// The cluster doesn't have the kind.
    pub(crate) fn is_no_kind(&self) -> bool {
        self.status == 404
    }

    /// Why, in one line.
    pub(crate) fn brief(self) -> String {
        if self.status == 0 { short(&self.why) } else { self.why }
    }
}

/// Limits the time that a request takes.
pub(crate) async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Unread> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(kube::Error::Api(status))) => Err(Unread { status: status.code, why: status.message.clone() }),
        Ok(Err(error)) => Err(Unread { status: 0, why: error.to_string() }),
        Err(_) => Err(Unread { status: 0, why: format!("no answer within {} s", PATIENCE.as_secs()) }),
    }
}

/// Passes the objects of a list to `take`, page by page, until that has enough: it returns whether it takes more. A page has as many objects as
/// the parameters say, else [`PAGE`].
pub(crate) async fn each(
    (api, resource): &(Api<DynamicObject>, ApiResource),
    params: ListParams,
    mut take: impl FnMut(Value) -> bool,
) -> Result<(), Unread> {
    let page = params.limit.unwrap_or(PAGE);
    let mut params = params.limit(page);
    loop {
        let page = in_time(api.list(&params)).await?;
        for object in page.items {
            let object = with_kind(resource, object);
            if !take(object.map_err(|error| Unread { status: 0, why: error.to_string() })?) {
                return Ok(());
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// An object as JSON. Those of lists don't say of which kind they are.
pub(crate) fn with_kind(resource: &ApiResource, object: DynamicObject) -> serde_json::Result<Value> {
    let types = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
    serde_json::to_value(DynamicObject { types: Some(types), ..object })
}

/// The objects of a kind, of a namespace or of all.
pub(crate) fn of_kind(
    client: &Client,
    resource: ApiResource,
    namespace: Option<&str>,
) -> (Api<DynamicObject>, ApiResource) {
    let api = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    (api, resource)
}

/// Asks several questions at once; the answers come in the order of the questions.
pub(crate) async fn together<T>(questions: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    futures::stream::iter(questions).buffered(AT_ONCE).collect().await
}

/// A text from elsewhere in one line, and not all of a long one.
pub(crate) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    truncate(&line, SHOWN).into_owned()
}
