//! Writes the log to standard error without blocking. If the reader of the pipe, such as a container runtime, stops reading, the
//! pipe fills up and writes to it block: a process that logs in its request handlers and tasks would stop serving.

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

/// Maximum number of buffered lines. Lines have at most 16 KiB and usually 200 bytes, so these are 32 MiB at most, and usually
/// less than 1 MiB.
const WAITING: usize = 2048;

/// How long a process that ends waits for the log: longer than the timeouts of the library.
const PATIENCE: Duration = Duration::from_secs(2);

/// The thread that writes the log. When this is dropped, buffered lines are written, or discarded if writing blocks.
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
    /// Starts the thread. Fails if standard error isn't open.
    pub(crate) fn new() -> anyhow::Result<(NonBlocking, Self)> {
        // A separate descriptor, so that the thread doesn't hold the lock of standard error while it blocks.
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

    /// The collector of the metric of dropped lines.
    pub(crate) fn lost(&self) -> impl Collector + use<> {
        Lost(self.lost.clone())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let guard = self.guard.take();
        // If writing blocks, the library reports that on standard output, which may be the same pipe.
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

/// Writes a line to standard error, and returns after a timeout if that blocks: for the final message of a server.
pub fn say(line: String) {
    in_time(move || {
        let _ = writeln!(io::stderr(), "{line}");
    });
}

/// Runs a function that may block for ever, and waits for it no longer than [`PATIENCE`].
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

/// Installs a panic hook that doesn't block: the default hook could block the thread that panicked, so that the process never
/// notices that one of its tasks has ended.
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

    /// A pipe. When it is full, writes block.
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
        // Far more than the pipe and the buffer hold. With a blocking writer this would never end.
        for _ in 0..2 * WAITING {
            to.write_all(&line).unwrap();
        }
        assert!(!shown(&output).contains("outrigger_log_lines_dropped_total 0"), "{}", shown(&output));
        // Dropping doesn't block either.
        drop(output);
        drop(reader);
    }

    #[test]
    fn buffered_lines_are_written_at_the_end() {
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

    /// A writer that fails for a while, as on a full disk.
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
