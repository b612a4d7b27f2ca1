//! Writes to the API server, as all controllers make them.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use outrigger_core::keys;
pub(crate) use outrigger_runtime::calls::found;
use outrigger_runtime::watch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Parameters of a creation or a replacement.
pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() }
}

/// Parameters of a creation that is validated and not stored.
pub(crate) fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..post() }
}

/// Parameters of a patch that is no server-side apply.
pub(crate) fn patch() -> PatchParams {
    PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() }
}

/// Parameters of a server-side apply.
pub(crate) fn apply() -> PatchParams {
    PatchParams::apply(keys::MANAGER).force()
}

/// Deletes nothing but the object with this uid.
pub(crate) fn only(uid: &str) -> DeleteParams {
    only_at(uid, None)
}

/// The same; where a resourceVersion is given, in this state only.
pub(crate) fn only_at(uid: &str, resource_version: Option<String>) -> DeleteParams {
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// An object in the state that a write was computed from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl Version {
    pub(crate) fn of<K: Resource>(object: &K) -> Self {
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
        }
    }

    fn metadata(&self) -> Value {
        json!({"uid": self.uid, "resourceVersion": self.resource_version})
    }

    /// Deletes nothing but the object in this state.
    pub(crate) fn deletion(&self) -> DeleteParams {
        only_at(&self.uid, Some(self.resource_version.clone()))
    }
}

/// Writes a status, or the fields of it that have to change, over the version that it was computed from, and over no other: a
/// replica that has been replaced overwrites nothing. Fails with a conflict where the object has changed since.
pub(crate) async fn status<K>(api: &Api<K>, over: &Version, status: impl Serialize) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let body = json!({"metadata": over.metadata(), "status": status});
    api.patch_status(&over.name, &patch(), &Patch::Merge(&body)).await
}

/// Adds the manager's finalizer to an object, or removes it. `None` where nothing had to be written. The list is replaced as a
/// whole, so it is written only if nobody has changed it meanwhile. Fails with a conflict where the object has
/// changed since.
pub(crate) async fn finalizer<K>(
    api: &Api<K>,
    object: &K,
    ours: &str,
    wanted: bool,
) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let (finalizers, over) = (object.finalizers(), Version::of(object));
    if finalizers.iter().any(|finalizer| finalizer == ours) == wanted {
        return Ok(None);
    }
    let mut metadata = over.metadata();
    let others = finalizers.iter().map(String::as_str).filter(|finalizer| *finalizer != ours);
    metadata["finalizers"] = others.chain(wanted.then_some(ours)).collect();
    let body = json!({"metadata": metadata});
    api.patch(&over.name, &patch(), &Patch::Merge(&body)).await.map(Some)
}

/// An object that no longer exists, or another one of its name, counts as deleted.
pub(crate) fn deleted<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a manager has written an entry of `f:labels` or `f:annotations` of an object, by the field managers that the API server
/// keeps.
pub(crate) fn has_written(metadata: &ObjectMeta, map: &str, key: &str) -> bool {
    owns(metadata, &["f:metadata", map, &format!("f:{key}")])
}

/// Whether a manager has written a field of an object's spec, by the field managers that the API server keeps.
pub(crate) fn has_written_spec(metadata: &ObjectMeta) -> bool {
    owns(metadata, &["f:spec"])
}

/// Whether a manager owns the field at a path, which `metadata.managedFields` writes as `FieldsV1`.
fn owns(metadata: &ObjectMeta, path: &[&str]) -> bool {
    let writes = metadata.managed_fields.iter().flatten();
    let fields = writes.filter(|entry| entry.manager.as_deref() == Some(keys::MANAGER));
    let mut fields = fields.filter_map(|entry| entry.fields_v1.as_ref());
    fields.any(|fields| path.iter().try_fold(&fields.0, |fields, key| fields.get(key)).is_some())
}

/// Lists the objects that a selector and `wanted` select, and deletes those that are not being deleted yet. The API server is
/// asked, past all caches. `may` is awaited once they are listed, and says whether they may be deleted: what is made since isn't in the list.
/// Returns how many are still there, and the names of those that were deleted now.
pub(crate) async fn delete_all<K>(
    objects: &Api<PartialObjectMeta<K>>,
    selection: ListParams,
    wanted: impl Fn(&ObjectMeta) -> bool,
    may: impl Future<Output = kube::Result<bool>>,
) -> kube::Result<(usize, Vec<String>)>
where
    K: Resource<DynamicType = ()> + Clone + Debug,
{
    let (mut left, mut stay) = (0, Vec::new());
    watch::list(objects, selection, |object| {
        if wanted(&object.metadata) {
            left += 1;
            if object.metadata.deletion_timestamp.is_none() {
                stay.push((object.name_any(), object.uid().unwrap_or_default()));
            }
        }
    })
    .await?;
    let mut names = Vec::new();
    if !stay.is_empty() && !may.await? {
        return Ok((left, names));
    }
    for (name, uid) in stay {
        deleted(objects.delete(&name, &only(&uid)).await)?;
        names.push(name);
    }
    Ok((left, names))
}
