//! Reads lists and watches with a limit of bytes, one object at a time.
//!
//! A page of 500 large Pods can have 700 MB, and several times as much when it is decoded. So a page that is too long is requested
//! again with half as many objects, and only one object is decoded at a time.

use std::borrow::Cow;
use std::io;

use futures::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, Request, WatchParams};
use kube::core::Status;
use kube::{Api, Error, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tracing::debug;

use super::unreadable::Unreadable;
use crate::calls::causes;

/// Maximum size of a page of a list and of a line of a watch, in bytes. An object has at most 1.5 MiB in etcd, and up to six times
/// as much as JSON because of escaped characters, so every object fits.
pub(super) const MOST: usize = 16 << 20;

/// Maximum memory for pages and for a line of a watch, in bytes.
pub const READ_BYTES: usize = (PAGES + 1) * MOST;

/// Objects in the first page, before their size is known.
const FIRST: u32 = 16;
/// Maximum number of objects in a page.
const LARGEST: u32 = 500;

/// Limits the pages in memory: a process has a dozen watches, and all of them list when it starts.
static AT_ONCE: Semaphore = Semaphore::const_new(PAGES);
/// Maximum number of pages in memory.
const PAGES: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an object exceeds the limit of {most} bytes; delete it or make it smaller: {}",
    first.as_deref().unwrap_or("its name could not be read")
)]
pub(super) struct TooLong {
    most: usize,
    /// Its first object, `namespace/name`, if that could be read.
    first: Option<String>,
}

impl TooLong {
    fn error(most: usize, text: &[u8]) -> Error {
        Error::ReadEvents(io::Error::other(Self { most, first: first_name(text) }))
    }

    pub(super) fn is(error: &Error) -> bool {
        matches!(error, Error::ReadEvents(io) if io.get_ref().is_some_and(|inner| inner.is::<Self>()))
    }
}

/// The number of objects per page: it is doubled after short pages, and halved if a page is too long.
#[derive(Debug)]
pub(super) struct Pages {
    size: u32,
    most: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { size: FIRST, most: MOST }
    }
}

impl Pages {
    /// Reads the next page of a list, and passes its objects to `show`, whose error ends it. Returns the metadata of the list.
    pub(super) async fn next<K>(
        &mut self,
        api: &Api<K>,
        params: &ListParams,
        mut show: impl FnMut(Decoded<K>) -> Result<(), Error>,
    ) -> Result<ListMeta, Error>
    where
        K: Resource + Clone + DeserializeOwned,
    {
        loop {
            let asked = params.clone().limit(self.size);
            match text_of(api, &asked, self.most).await {
                Ok((text, _one)) => {
                    self.read(text.len());
                    return shown(&text, &mut show);
                }
                Err(error) if TooLong::is(&error) && self.size > 1 => {
                    self.size /= 2;
                    debug!(
                        url = api.resource_url(),
                        objects = self.size,
                        "page too long; requesting fewer objects"
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Adjusts the number of objects to the size of a page.
    fn read(&mut self, bytes: usize) {
        if bytes <= self.most / 8 {
            self.size = self.size.saturating_mul(2).min(LARGEST);
        }
    }
}

/// Reads one page as text, and returns it with the permit to have it in memory.
async fn text_of<K: Resource + Clone>(
    api: &Api<K>,
    params: &ListParams,
    most: usize,
) -> Result<(Vec<u8>, Option<tokio::sync::SemaphorePermit<'static>>), Error> {
    let request = Request::new(api.resource_url());
    let request = if K::metadata_api() { request.list_metadata(params) } else { request.list(params) };
    let request = request.map_err(Error::BuildRequest)?;
    let answer = api.clone().into_client().request_stream(request).await?;
    // After the request: a list without a response must not block others.
    let leave = AT_ONCE.acquire().await.ok();
    let mut text = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    answer.take(limit).read_to_end(&mut text).await.map_err(Error::ReadEvents)?;
    if text.len() > most {
        return Err(TooLong::error(most, &text));
    }
    Ok((text, leave))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

fn shown<K: DeserializeOwned>(
    text: &[u8],
    show: &mut impl FnMut(Decoded<K>) -> Result<(), Error>,
) -> Result<ListMeta, Error> {
    let list: Envelope<'_> = serde_json::from_slice(text).map_err(Error::SerdeError)?;
    for item in list.items.into_iter().flatten() {
        show(object(item)?)?;
    }
    Ok(list.metadata)
}

/// An object, or one that can't be decoded into its type.
pub(super) type Decoded<K> = Result<K, Unreadable>;

/// One object, without its field managers. Fails if its metadata can't be decoded either.
fn object<K: DeserializeOwned>(text: &RawValue) -> Result<Decoded<K>, Error> {
    match serde_json::from_str(&unmanaged(text.get())) {
        Ok(object) => Ok(Ok(object)),
        Err(error) => Unreadable::read(text.get(), &error).map(Err).ok_or(Error::SerdeError(error)),
    }
}

/// Replaces `metadata.managedFields` by `null`: they can be the larger part of an object, and Outrigger doesn't use them.
fn unmanaged(text: &str) -> Cow<'_, str> {
    // Each of the two steps below reads the whole object.
    if !text.contains("\"managedFields\"") {
        return Cow::Borrowed(text);
    }
    #[derive(Deserialize)]
    struct WithMetadata<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
    }
    let managed = serde_json::from_str::<WithMetadata<'_>>(text)
        .ok()
        .and_then(|object| serde_json::from_str::<Metadata<'_>>(object.metadata?.get()).ok()?.managed_fields);
    let Some(managed) = managed.map(RawValue::get) else { return Cow::Borrowed(text) };
    // It borrows from the text, so its address gives its position.
    let begin = (managed.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    match (text.get(..begin), begin.checked_add(managed.len()).and_then(|end| text.get(end..))) {
        (Some(before), Some(after)) => Cow::Owned([before, "null", after].concat()),
        _ => Cow::Borrowed(text),
    }
}

pub(super) enum Line<K> {
    /// An object was created or changed.
    Applied(Decoded<K>),
    Deleted(Decoded<K>),
    /// All events up to this resourceVersion have been sent.
    Bookmark(String),
    Failed(Error),
}

pub(super) struct Lines<R> {
    answer: R,
    line: Vec<u8>,
    most: usize,
}

/// Opens a watch from a resourceVersion on. Fails if the API server returns an error.
pub(super) async fn open<K: Resource + Clone>(
    api: &Api<K>,
    params: &WatchParams,
    from: &str,
) -> Result<Lines<impl AsyncBufRead + Unpin + use<K>>, Error> {
    let request = Request::new(api.resource_url());
    let request =
        if K::metadata_api() { request.watch_metadata(params, from) } else { request.watch(params, from) };
    let answer = api.clone().into_client().request_stream(request.map_err(Error::BuildRequest)?).await?;
    Ok(Lines { answer: Box::pin(answer), line: Vec::new(), most: MOST })
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Reads the next line. `None` if the watch has ended, as it does every few minutes. Fails if the connection fails, or a line
    /// is too long or invalid.
    pub(super) async fn next<K: DeserializeOwned>(&mut self) -> Result<Option<Line<K>>, Error> {
        loop {
            // Frees the memory of a long line while waiting for the next.
            self.line = Vec::new();
            let limit = u64::try_from(self.most).unwrap_or(u64::MAX).saturating_add(1);
            let read = (&mut self.answer).take(limit).read_until(b'\n', &mut self.line).await;
            match read {
                Ok(0) => return Ok(None),
                Ok(_) if self.line.len() > self.most => return Err(TooLong::error(self.most, &self.line)),
                // The connection was closed within a line.
                Ok(_) if self.line.last() != Some(&b'\n') => return Ok(None),
                Ok(_) if self.line.trim_ascii().is_empty() => {}
                Ok(_) => return line(&self.line).map(Some),
                Err(error) if is_end(&error) => return Ok(None),
                Err(error) => return Err(Error::ReadEvents(error)),
            }
        }
    }
}

fn line<K: DeserializeOwned>(text: &[u8]) -> Result<Line<K>, Error> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: BookmarkMeta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct BookmarkMeta {
        resource_version: String,
    }
    let event: Event<'_> = match serde_json::from_slice(text) {
        Ok(event) => event,
        // Some errors are sent without an event around them.
        Err(error) => {
            return serde_json::from_slice::<Status>(text)
                .map(|status| Line::Failed(Error::Api(status.boxed())))
                .map_err(|_| Error::SerdeError(error));
        }
    };
    Ok(match &*event.kind {
        "ADDED" | "MODIFIED" => Line::Applied(object(event.object)?),
        "DELETED" => Line::Deleted(object(event.object)?),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(event.object.get()).map_err(Error::SerdeError)?;
            Line::Bookmark(bookmark.metadata.resource_version)
        }
        _ => {
            let status: Status = serde_json::from_str(event.object.get()).map_err(Error::SerdeError)?;
            Line::Failed(Error::Api(status.boxed()))
        }
    })
}

/// Whether the connection of a watch was closed without an end of the stream.
fn is_end(error: &io::Error) -> bool {
    let is_eof = |io: &io::Error| io.kind() == io::ErrorKind::UnexpectedEof;
    causes(error).any(|error| error.downcast_ref().is_some_and(is_eof))
        // hyper's decoder of chunks has no error type for it.
        || error.to_string().contains("unexpected EOF during chunk")
}

/// Number of bytes in which the name of the first object is searched.
const HEAD: usize = 4096;

/// The name of the first object in a truncated text, with its namespace: the API server writes `metadata` first, and the name
/// first in it.
fn first_name(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text.get(..HEAD.min(text.len()))?);
    let items = text.find("\"items\":[").or_else(|| text.find("\"object\":{"))?;
    let object = text.get(items..)?;
    let object = object.get(object.find("\"metadata\":{")?..)?;
    let field = |name: &str| {
        let value = object.get(object.find(&format!("\"{name}\":\""))? + name.len() + 4..)?;
        value.split('"').next().map(str::to_owned)
    };
    let name = field("name")?;
    Some(field("namespace").map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}")))
}

#[cfg(test)]
mod tests;
