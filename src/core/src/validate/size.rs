//! How large a Pod may be. etcd takes objects of 1.5 MiB, and the kubelet's reports have to fit beside what was created: a Pod
//! whose status can no longer be written stays Terminating for ever, and keeps its DPU.

use serde::Serialize;
use serde_json::Value;

use crate::companion::MAX_ANNOTATIONS;
use crate::field::FieldError;

/// Most bytes of JSON of a Pod in a tenant's namespace.
pub const MAX_BYTES: usize = 512 * 1024;

/// Most bytes of JSON of a companion: its template, which is limited to [`MAX_BYTES`] too, and the facts that are injected.
pub const MAX_COMPANION_BYTES: usize = MAX_BYTES + MAX_ANNOTATIONS;

/// Refuses a Pod that is too large, unless it was no smaller before. Sizes are bytes of JSON as the API server sends them;
/// `before` is 0 at creation. The path is that of the largest field that people write.
pub fn too_large(pod: &Value, bytes: usize, before: usize, most: usize) -> Option<FieldError> {
    if bytes <= most || bytes <= before {
        return None;
    }
    let fields = ["metadata", "spec", "status"].into_iter().flat_map(|part| {
        let fields = pod.get(part).and_then(Value::as_object).into_iter().flatten();
        // The API server tracks all fields in managedFields, which no client writes.
        let written = fields.filter(|(name, _)| *name != "managedFields");
        written.map(move |(name, value)| (json_bytes(value), part, name))
    });
    let was = if before == 0 { String::new() } else { format!(" (before the change {before})") };
    let rule = format!(
        "the Pod has {bytes} bytes of JSON{was}, at most {most} are allowed in a tenant's namespace, so that its status fits into \
         etcd beside it; move what is long into ConfigMaps or volumes"
    );
    Some(match fields.max_by_key(|(size, ..)| *size) {
        Some((size, part, name)) => {
            FieldError::new(format_args!("{part}.{name}"), format_args!("takes {size} bytes, and {rule}"))
        }
        None => FieldError::new("metadata", rule),
    })
}

/// Bytes of a value as JSON, counted without writing it down. A value that can't be written counts as far as it was.
pub fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting can't fail, and writing fails for what is larger than anything that is written.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_whose_status_would_not_fit_is_refused_with_its_largest_field() {
        let pod = |long: usize| {
            json!({"metadata": {"name": "p", "managedFields": ["x".repeat(2 * long)]},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "args": ["x".repeat(long)]}]}, "status": {"phase": "Running"}})
        };
        let judge = |now: &Value, before: usize| too_large(now, json_bytes(now), before, MAX_BYTES);
        let (small, large) = (pod(MAX_BYTES / 4), pod(MAX_BYTES));
        assert_eq!(judge(&small, 0), None);
        let bytes = json_bytes(&large);
        assert_eq!(bytes, large.to_string().len());
        let fault = judge(&large, 0).unwrap();
        assert_eq!(fault.path, "spec.containers");
        for part in [format!("has {bytes} bytes of JSON, at most 524288"), "ConfigMaps".to_owned()] {
            assert!(fault.message.contains(&part), "{fault}");
        }
        let grown = judge(&large, bytes - 1).unwrap();
        assert!(grown.message.contains(&format!("(before the change {})", bytes - 1)), "{grown}");
        assert_eq!(judge(&large, bytes), None, "it becomes no larger");
        let companion = pod(MAX_BYTES * 2 / 5);
        assert!(judge(&companion, 0).is_some());
        assert_eq!(too_large(&companion, json_bytes(&companion), 0, MAX_COMPANION_BYTES), None);
        let largest = MAX_BYTES + MAX_ANNOTATIONS;
        assert_eq!(too_large(&large, largest, 0, MAX_COMPANION_BYTES), None);
        assert!(too_large(&large, largest + 1, 0, MAX_COMPANION_BYTES).is_some());
    }
}
