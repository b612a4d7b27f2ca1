//! Policies that API servers load from files (KEP-5793). Their API doesn't show these; their metrics have a hash of the files.

use std::path::Path;

use futures::{AsyncBufReadExt, AsyncReadExt, TryStreamExt};
use kube::Client;
use outrigger_core::yaml::OF_FILES;
use sha2::{Digest, Sha256};

use crate::cluster::{Unread, in_time};
use crate::files::{self, InputError, Object};

/// What the names of all policies and bindings in files end with, and of none in the API.
const SUFFIX: &str = ".static.k8s.io";

/// The metric whose labels have the hash of the files that an API server has loaded.
const METRIC: &str = "apiserver_manifest_admission_config_controller_last_config_info{";

/// Most bytes of an API server's metrics that are read.
const MOST: u64 = 256 << 20;

/// What is in a directory of files for API servers.
#[derive(Debug)]
pub(crate) struct Files {
    /// The hash of all files, as API servers compute it: `sha256:` and hexadecimal digits.
    hash: String,
    /// Names without their suffix.
    pub(crate) policies: Vec<String>,
    pub(crate) bindings: Vec<String>,
}

impl Files {
    /// Reads the files of a directory that API servers would read.
    ///
    /// # Errors
    /// If a file can't be read, or isn't YAML or JSON.
    pub(crate) fn read(dir: &Path) -> Result<Self, InputError> {
        let (mut hash, mut objects) = (Sha256::new(), Vec::new());
        for file in files::files(dir)? {
            let text = files::text_of_file(&file)?;
            files::parse(&file.display().to_string(), &text, OF_FILES, &mut objects)?;
            if !text.is_empty() {
                hash.update(text.as_bytes());
                hash.update([0]);
            }
        }
        let names = |kind: &str| {
            let of_kind = objects.iter().filter(|o: &&Object| o.is("admissionregistration.k8s.io", kind));
            of_kind.filter_map(|o| o.name.strip_suffix(SUFFIX)).map(str::to_owned).collect()
        };
        Ok(Self {
            hash: format!("sha256:{:x}", hash.finalize()),
            policies: names("ValidatingAdmissionPolicy"),
            bindings: names("ValidatingAdmissionPolicyBinding"),
        })
    }

    /// Whether the metrics of the API server that answers say that it has loaded these files.
    pub(crate) async fn are_loaded(&self, client: &Client) -> Result<bool, Unread> {
        in_time(async {
            let request = http::Request::get("/metrics").body(Vec::new()).map_err(kube::Error::HttpError)?;
            let mut lines = client.request_stream(request).await?.take(MOST).lines();
            while let Some(line) = lines.try_next().await.map_err(kube::Error::ReadEvents)? {
                if self.are_named(&line) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }

    /// Whether a line of metrics names these files. The label `apiserver_id_hash` has a hash too.
    fn are_named(&self, line: &str) -> bool {
        let Some(labels) = line.strip_prefix(METRIC).and_then(|rest| rest.split('}').next()) else {
            return false;
        };
        let has = |label: &str| labels.split(',').any(|other| other == label);
        has("plugin=\"ValidatingAdmissionPolicy\"") && has(&format!("hash=\"{}\"", self.hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::summary::policies;

    const POLICY: &str = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: outrigger-pods.static.k8s.io}\n";

    /// What `sha256sum` prints for the file and a zero byte.
    const HASH: &str = "1339d61a29397367d378a20dee57a3f5157454f154cc8080e25100066189c86f";

    fn files(content: &[(&str, &str)]) -> Files {
        let dir = tempfile::tempdir().unwrap();
        content.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
        Files::read(dir.path()).unwrap()
    }

    #[test]
    fn an_api_server_names_the_hash_of_the_files_that_it_has_loaded() {
        // Neither empty files nor others count.
        let one = files(&[("a.yaml", POLICY), ("b.yml", ""), ("c.txt", "x")]);
        assert_eq!(one.hash, format!("sha256:{HASH}"));
        let line = |plugin: &str, api_server: &str, hash: &str| {
            format!(
                "{METRIC}apiserver_id_hash=\"sha256:{api_server}\",hash=\"sha256:{hash}\",plugin=\"{plugin}\"}} 1"
            )
        };
        for (line, named) in [
            (line("ValidatingAdmissionPolicy", "a", HASH), true),
            (line("ValidatingAdmissionPolicy", HASH, "a"), false),
            (line("MutatingAdmissionPolicy", "a", HASH), false),
            (line("ValidatingAdmissionPolicy", "a", HASH).replace("last_config_info", "other"), false),
        ] {
            assert_eq!(one.are_named(&line), named, "{line}");
        }
        let two = files(&[("a.yaml", POLICY), ("b.yaml", "# other\n")]);
        assert_ne!(two.hash, one.hash);
    }

    #[test]
    fn files_count_where_the_api_server_has_loaded_them() {
        let binding = POLICY.replace("Policy\n", "PolicyBinding\n");
        let both = files(&[("a.yaml", POLICY), ("b.yaml", &binding)]);
        let name = "outrigger-pods".to_owned();
        let is_missing = |api: &[String], bound: &[String], files: Option<(&Files, bool)>| {
            policies((api, bound), files).missing.contains(&name)
        };
        assert!(is_missing(&[], &[], None) && is_missing(&[], &[], Some((&both, false))));
        assert!(!is_missing(&[], &[], Some((&both, true))));
        // A binding in the API doesn't bind a policy of a file.
        let (policy, api) = (files(&[("a.yaml", POLICY)]), [name.clone()]);
        assert!(is_missing(&[], &api, Some((&policy, true))));
        assert!(!is_missing(&api, &api, Some((&policy, false))));
        // Those of the API have other names.
        let of_api = POLICY.replace(".static.k8s.io", "");
        assert!(files(&[("a.yaml", &of_api)]).policies.is_empty());
    }
}
