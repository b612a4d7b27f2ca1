//! Standard error, written to without waiting for whoever reads it. A container runtime that stops reading, or a pipe that nobody
//! reads, fills the pipe, and from then on every write to it blocks its thread: a process that logs in its request handlers and
//! tasks would stop serving.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::metrics;

/// How many lines may wait to be written. Lines have at most 16 KiB and usually 200 bytes, so these are 32 MiB at most, and
/// usually less than 1 MiB.
const WAITING: usize = 2048;

/// How long the end of a process waits for the log: longer than the library's own limits.
const PATIENCE: Duration = Duration::from_secs(2);

/// The thread that writes the log. Lines that still wait are written when this is dropped, or given up soon if nobody reads.
pub(crate) struct Output {
    lost: ErrorCounter,
    guard: Option<WorkerGuard>,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("lost", &self.lost.dropped_lines()).finish_non_exhaustive()
    }
}

impl Output {
    /// Starts the thread.
    ///
    /// # Errors
    /// When standard error isn't open.
    pub(crate) fn new() -> anyhow::Result<(NonBlocking, Self)> {
        // A descriptor of its own: the thread doesn't hold the lock of standard error while it waits for a reader.
        let own = io::stderr().as_fd().try_clone_to_owned().context("standard error can't be used")?;
        Ok(Self::to(File::from(own)))
    }

    fn to(writer: impl Write + Send + 'static) -> (NonBlocking, Self) {
        let (to, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(WAITING)
            .thread_name("log")
            .finish(writer);
        let lost = to.error_counter();
        (to, Self { lost, guard: Some(guard) })
    }

    /// What counts the lines that were dropped.
    pub(crate) fn lost(&self) -> impl Collector + use<> {
        Lost(self.lost.clone())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let guard = self.guard.take();
        // The library reports a reader that has stopped on standard output, which may be the same pipe.
        in_time(move || drop(guard));
    }
}

#[derive(Debug)]
struct Lost(ErrorCounter);

impl Collector for Lost {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let lost = u64::try_from(self.0.dropped_lines()).unwrap_or(u64::MAX);
        metrics::LOG_LINES_DROPPED.show(&mut encoder, &ConstCounter::new(lost))
    }
}

/// Writes a line to standard error, and goes on without it when nobody reads it in time: for the last words of a server.
pub fn say(line: String) {
    in_time(move || {
        let _ = writeln!(io::stderr(), "{line}");
    });
}

/// Does something that may block for ever, and waits for it no longer than [`PATIENCE`].
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let started = std::thread::Builder::new().name("log-end".to_owned()).spawn(move || {
        work();
        let _ = done.send(());
    });
    if started.is_ok() {
        let _ = wait.recv_timeout(PATIENCE);
    }
}

/// Has panics reported without waiting for a reader: the default hook blocks the thread that has panicked, and then the process
/// never notices that one of its tasks has ended.
pub(super) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        let thread = std::thread::current();
        let mut text = format!("thread {:?} {panic}", thread.name().unwrap_or("unnamed"));
        if backtrace.status() == BacktraceStatus::Captured {
            text = format!("{text}\n{backtrace}");
        }
        say(text);
    }));
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use prometheus_client::registry::Registry;

    use super::*;

    /// What is written to it stays there until the other end is read; when it is full, writes block.
    fn pipe() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    fn shown(output: &Output) -> String {
        let mut registry = Registry::with_prefix(metrics::PREFIX);
        metrics::collect(&mut registry, output.lost());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_reader_that_has_stopped_costs_lines_and_nothing_else() {
        let (writer, reader) = pipe();
        let (mut to, output) = Output::to(writer);
        assert!(shown(&output).contains("outrigger_log_lines_dropped_total 0"), "{}", shown(&output));
        let line = [b'x'; 1024];
        // Far more than the pipe and the queue hold. With a writer that waits this never ends.
        for _ in 0..2 * WAITING {
            to.write_all(&line).unwrap();
        }
        assert!(!shown(&output).contains("outrigger_log_lines_dropped_total 0"), "{}", shown(&output));
        // The end isn't held up either.
        drop(output);
        drop(reader);
    }

    #[test]
    fn lines_that_wait_are_written_at_the_end() {
        let (writer, mut reader) = pipe();
        let (mut to, output) = Output::to(writer);
        for n in 0..100 {
            writeln!(to, "line {n}").unwrap();
        }
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        drop(output);
        drop(to);
        assert_eq!(read.join().unwrap().lines().count(), 100);
    }

    /// A disk that is full for a while.
    struct Disk {
        refuses: usize,
        written: mpsc::Sender<String>,
    }

    impl Write for Disk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if self.refuses > 0 {
                self.refuses -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_is_full_costs_the_lines_of_that_time_only() {
        let (written, read) = mpsc::channel();
        let (mut to, output) = Output::to(Disk { refuses: 3, written });
        for n in 0..10 {
            to.write_all(format!("{n}").as_bytes()).unwrap();
        }
        drop(output);
        assert_eq!(read.iter().collect::<String>(), "3456789");
    }
}
