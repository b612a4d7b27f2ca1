//! Readiness: what has to be done before traffic may come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Named tasks that have to be done first. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: Mutex<Vec<Task>>,
    warnings: Mutex<Vec<(&'static str, Option<String>)>>,
    /// Told whenever a task is done.
    done: Notify,
    ending: AtomicBool,
}

/// A task and whether it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// What it is called in `/readyz`. Several may be called the same.
    pub name: &'static str,
    /// Whether it is done.
    pub done: bool,
}

/// A task that readiness waits for, until [`ReadyHandle::done`] or until it is dropped without that, which leaves it
/// waiting for ever: a task that failed has not been done.
#[derive(Debug)]
pub struct ReadyHandle {
    inner: Arc<Inner>,
    at: usize,
}

/// Something that is well now and will not stay so by itself: readiness doesn't depend on it, `/readyz?verbose` tells it.
#[derive(Debug)]
pub struct Warning {
    inner: Arc<Inner>,
    at: usize,
}

impl Readiness {
    /// A task that has to be done before the process is ready.
    pub fn wait_for(&self, name: &'static str) -> ReadyHandle {
        let mut tasks = self.inner.tasks.lock();
        tasks.push(Task { name, done: false });
        ReadyHandle { inner: self.inner.clone(), at: tasks.len() - 1 }
    }

    /// Something to warn of; nothing is wrong with it yet.
    pub fn warning(&self, name: &'static str) -> Warning {
        let mut warnings = self.inner.warnings.lock();
        warnings.push((name, None));
        Warning { inner: self.inner.clone(), at: warnings.len() - 1 }
    }

    /// What there is to warn of now: its name, and what is wrong with it.
    pub fn warnings(&self) -> Vec<(&'static str, String)> {
        let warnings = self.inner.warnings.lock();
        warnings.iter().filter_map(|(name, text)| Some((*name, text.clone()?))).collect()
    }

    /// The process is about to end: it is not ready from now on, whatever its tasks say.
    pub fn end(&self) {
        self.inner.ending.store(true, Ordering::Relaxed);
    }

    /// What is still missing; empty when the process is ready.
    pub fn missing(&self) -> Vec<&'static str> {
        self.tasks().iter().filter(|task| !task.done).map(|task| task.name).collect()
    }

    /// All tasks, in the order in which they were named; at the end of the process also that it ends.
    pub fn tasks(&self) -> Vec<Task> {
        let mut tasks = self.inner.tasks.lock().clone();
        if self.inner.ending.load(Ordering::Relaxed) {
            tasks.push(Task { name: "shutting down", done: false });
        }
        tasks
    }

    /// Waits until every task that has been named is done, whether or not the process is about to end.
    pub async fn done(&self) {
        loop {
            let told = self.inner.done.notified();
            if self.inner.tasks.lock().iter().all(|task| task.done) {
                return;
            }
            told.await;
        }
    }

    /// Whether nothing is missing.
    pub fn is_ready(&self) -> bool {
        !self.inner.ending.load(Ordering::Relaxed) && self.inner.tasks.lock().iter().all(|task| task.done)
    }
}

impl ReadyHandle {
    /// The task is done.
    pub fn done(self) {
        // Tasks are only ever added, so the place stays its own.
        if let Some(task) = self.inner.tasks.lock().get_mut(self.at) {
            task.done = true;
        }
        self.inner.done.notify_waiters();
    }
}

impl Warning {
    /// Says what is wrong, or that nothing is any more. Whether that is another thing than before.
    pub fn set(&self, text: Option<String>) -> bool {
        let mut warnings = self.inner.warnings.lock();
        // Warnings are only ever added, so the place stays its own.
        let Some((_, last)) = warnings.get_mut(self.at) else { return false };
        let other = *last != text;
        *last = text;
        other
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
    }

    #[test]
    fn tasks_of_one_name_are_each_waited_for() {
        let ready = Readiness::default();
        let (first, second) = (ready.wait_for("pods"), ready.wait_for("pods"));
        first.done();
        assert_eq!(ready.missing(), ["pods"]);
        second.done();
        assert!(ready.is_ready());
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let ready = Readiness::default();
        let (a, b) = (ready.wait_for("a"), ready.wait_for("b"));
        let waiting = tokio::spawn({
            let ready = ready.clone();
            async move { ready.done().await }
        });
        a.done();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        b.done();
        waiting.await.unwrap();
        ready.done().await;
    }

    #[test]
    fn warnings_are_told_and_hinder_nothing() {
        let ready = Readiness::default();
        let warning = ready.warning("a");
        assert!(warning.set(Some("is old".to_owned())));
        assert!(!warning.set(Some("is old".to_owned())), "nothing new");
        assert_eq!((ready.is_ready(), ready.warnings()), (true, vec![("a", "is old".to_owned())]));
        assert!(warning.set(None));
        assert!(ready.warnings().is_empty());
    }

    #[test]
    fn who_ends_is_not_ready() {
        let ready = Readiness::default();
        ready.end();
        assert!(!ready.is_ready());
        assert_eq!(ready.missing(), ["shutting down"]);
    }
}
