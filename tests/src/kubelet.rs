//! What a kubelet does with a Secret: its files in a directory, swapped as a whole.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;

/// A Secret that is mounted.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    generation: AtomicU32,
}

impl Mount {
    /// A directory for a Secret; nothing is in it yet.
    ///
    /// # Panics
    /// When the directory can't be made.
    pub fn new(dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).expect("a directory");
        Self { dir, generation: AtomicU32::new(0) }
    }

    /// A file of the Secret.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A new directory with the files, then a swap of the `..data` link to it. The files' own paths are links that never
    /// change.
    ///
    /// # Panics
    /// When the directory can't be written.
    pub fn publish<'a>(&self, files: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        let name = format!("..{}", self.generation.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(self.path(&name)).expect("a directory");
        for (file, content) in files {
            std::fs::write(self.path(&name).join(file), content).expect("a file");
            let _ = symlink(Path::new("..data").join(file), self.path(file));
        }
        symlink(&name, self.path("..data_tmp")).expect("a link");
        std::fs::rename(self.path("..data_tmp"), self.path("..data")).expect("a swap");
    }

    /// Publishes the Secret whenever it has changed, for ever.
    pub async fn follow(&self, secrets: &Api<Secret>, name: &str) {
        let mut last = None;
        loop {
            if let Ok(secret) = secrets.get(name).await
                && last != secret.data
            {
                last = secret.data;
                let files = last.iter().flatten().map(|(file, data)| (file.as_str(), data.0.as_slice()));
                self.publish(files);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
