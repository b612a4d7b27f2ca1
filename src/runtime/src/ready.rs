//! Readiness: what has to be done before traffic may come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Named tasks that have to be done first. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<Vec<&'static str>>,
    ending: AtomicBool,
}

/// A task that readiness waits for, until [`ReadyHandle::done`] or until it is dropped without that, which leaves it
/// waiting for ever: a task that failed has not been done.
#[derive(Debug)]
pub struct ReadyHandle {
    inner: Arc<Inner>,
    name: &'static str,
}

impl Readiness {
    /// A task that has to be done before the process is ready.
    pub fn wait_for(&self, name: &'static str) -> ReadyHandle {
        self.inner.waiting.lock().push(name);
        ReadyHandle { inner: self.inner.clone(), name }
    }

    /// The process is about to end: it is not ready from now on, whatever its tasks say.
    pub fn end(&self) {
        self.inner.ending.store(true, Ordering::Relaxed);
    }

    /// What is still missing; empty when the process is ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = self.inner.waiting.lock().clone();
        if self.inner.ending.load(Ordering::Relaxed) {
            missing.push("shutting down");
        }
        missing
    }

    /// Whether nothing is missing.
    pub fn is_ready(&self) -> bool {
        !self.inner.ending.load(Ordering::Relaxed) && self.inner.waiting.lock().is_empty()
    }
}

impl ReadyHandle {
    /// The task is done.
    pub fn done(self) {
        let mut waiting = self.inner.waiting.lock();
        if let Some(at) = waiting.iter().position(|name| *name == self.name) {
            waiting.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_to_be_done() {
        let ready = Readiness::default();
        assert!(ready.is_ready());
        let (a, b) = (ready.wait_for("a"), ready.wait_for("b"));
        a.done();
        assert_eq!(ready.missing(), ["b"]);
        drop(b);
        assert!(!ready.is_ready(), "a task that was given up has not been done");
        let ready = Readiness::default();
        ready.end();
        assert_eq!(ready.missing(), ["shutting down"]);
    }
}
