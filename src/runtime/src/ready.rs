//! Readiness: tasks that have to be done before the process receives traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The tasks of a process. Cheap to clone; all clones share the tasks.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    shared: Arc<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    tasks: Mutex<Vec<Task>>,
    /// Number of tasks that aren't done. Every admission request that depends on a list asks for it, and needs no lock for that.
    undone: AtomicUsize,
    warnings: Mutex<Vec<(&'static str, Option<String>)>>,
    /// Notified whenever a task is done.
    done: Notify,
    ending: AtomicBool,
}

/// A task and whether it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Its name in `/readyz`. Several tasks can have the same name.
    pub name: &'static str,
    /// Whether it is done.
    pub done: bool,
}

/// A task that readiness waits for, until [`ReadyHandle::done`] is called. If the handle is dropped before, the process never
/// becomes ready, because the task has failed.
#[derive(Debug)]
pub struct ReadyHandle {
    shared: Arc<Tasks>,
    index: usize,
}

/// A warning in `/readyz?verbose`, which doesn't affect readiness.
#[derive(Debug)]
pub struct Warning {
    shared: Arc<Tasks>,
    index: usize,
}

impl Readiness {
    /// Adds a task that has to be done before the process is ready.
    pub fn wait_for(&self, name: &'static str) -> ReadyHandle {
        let mut tasks = self.shared.tasks.lock();
        tasks.push(Task { name, done: false });
        self.shared.undone.fetch_add(1, Ordering::Relaxed);
        ReadyHandle { shared: self.shared.clone(), index: tasks.len() - 1 }
    }

    /// Adds a warning, which isn't set yet.
    pub fn warning(&self, name: &'static str) -> Warning {
        let mut warnings = self.shared.warnings.lock();
        warnings.push((name, None));
        Warning { shared: self.shared.clone(), index: warnings.len() - 1 }
    }

    /// The warnings that are set: their names and texts.
    pub fn warnings(&self) -> Vec<(&'static str, String)> {
        let warnings = self.shared.warnings.lock();
        warnings.iter().filter_map(|(name, text)| Some((*name, text.clone()?))).collect()
    }

    /// The process is shutting down: from now on it is not ready.
    pub fn end(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
    }

    /// The names of tasks that aren't done; empty when the process is ready.
    pub fn missing(&self) -> Vec<&'static str> {
        if self.is_ready() {
            return Vec::new();
        }
        self.tasks().iter().filter(|task| !task.done).map(|task| task.name).collect()
    }

    /// All tasks, in the order in which they were added, and one more while the process is shutting down.
    pub fn tasks(&self) -> Vec<Task> {
        let mut tasks = self.shared.tasks.lock().clone();
        if self.shared.ending.load(Ordering::Relaxed) {
            tasks.push(Task { name: "shutting down", done: false });
        }
        tasks
    }

    /// Waits until all tasks are done, whether or not the process is shutting down.
    pub async fn done(&self) {
        self.until(|task| task.done).await;
    }

    /// As [`Self::done`], for all tasks but those of a name: what such a task consists of may only begin after all others are done.
    pub async fn done_but(&self, name: &str) {
        self.until(|task| task.done || task.name == name).await;
    }

    async fn until(&self, is_done: impl Fn(&Task) -> bool) {
        loop {
            let notified = self.shared.done.notified();
            if self.shared.tasks.lock().iter().all(&is_done) {
                return;
            }
            notified.await;
        }
    }

    /// Whether the process is ready.
    pub fn is_ready(&self) -> bool {
        !self.shared.ending.load(Ordering::Relaxed) && self.shared.undone.load(Ordering::Acquire) == 0
    }
}

impl ReadyHandle {
    /// The task is done.
    pub fn done(self) {
        let mut tasks = self.shared.tasks.lock();
        // Tasks are never removed, so the index stays valid.
        if let Some(task) = tasks.get_mut(self.index) {
            task.done = true;
        }
        // Who reads 0 finds what the tasks have done.
        self.shared.undone.fetch_sub(1, Ordering::Release);
        drop(tasks);
        self.shared.done.notify_waiters();
    }
}

impl Warning {
    /// Sets or clears the text. Returns whether it has changed.
    pub fn set(&self, text: Option<String>) -> bool {
        let mut warnings = self.shared.warnings.lock();
        // Warnings are never removed, so the index stays valid.
        let Some((_, last)) = warnings.get_mut(self.index) else { return false };
        let changed = *last != text;
        *last = text;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_task_has_to_be_done() {
        let ready = Readiness::default();
        assert!(ready.is_ready());
        let (a, b) = (ready.wait_for("a"), ready.wait_for("b"));
        a.done();
        assert_eq!(ready.missing(), ["b"]);
        drop(b);
        assert!(!ready.is_ready(), "a task whose handle was dropped is not done");
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

    #[test]
    fn a_process_that_is_ready_says_so_without_a_lock() {
        let ready = Readiness::default();
        ready.wait_for("a").done();
        let (answer, answered) = mpsc::channel();
        let held = ready.shared.tasks.lock();
        thread::spawn({
            let ready = ready.clone();
            move || answer.send(ready.missing())
        });
        let missing = answered.recv_timeout(Duration::from_secs(20));
        drop(held);
        assert_eq!(missing, Ok(Vec::new()), "it waited for the lock");
        let later = ready.wait_for("later");
        assert_eq!((ready.is_ready(), ready.missing()), (false, vec!["later"]));
        later.done();
        assert_eq!((ready.is_ready(), ready.missing()), (true, Vec::new()));
    }

    #[tokio::test]
    async fn waiting_ends_when_all_tasks_are_done() {
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

    #[tokio::test]
    async fn a_task_that_begins_after_the_others_waits_for_them_alone() {
        let ready = Readiness::default();
        let (list, last) = (ready.wait_for("list"), ready.wait_for("last"));
        let waiting = tokio::spawn({
            let ready = ready.clone();
            async move { ready.done_but("last").await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        list.done();
        waiting.await.unwrap();
        assert_eq!(ready.missing(), ["last"]);
        last.done();
        assert!(ready.is_ready());
    }

    #[test]
    fn warnings_are_shown_and_do_not_affect_readiness() {
        let ready = Readiness::default();
        let warning = ready.warning("a");
        assert!(warning.set(Some("is old".to_owned())));
        assert!(!warning.set(Some("is old".to_owned())), "it is unchanged");
        assert_eq!((ready.is_ready(), ready.warnings()), (true, vec![("a", "is old".to_owned())]));
        assert!(warning.set(None));
        assert!(ready.warnings().is_empty());
    }

    #[test]
    fn a_process_that_shuts_down_is_not_ready() {
        let ready = Readiness::default();
        ready.end();
        assert!(!ready.is_ready());
        assert_eq!(ready.missing(), ["shutting down"]);
    }
}
