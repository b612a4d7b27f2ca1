//! Runs jobs, one after the other or several beside each other, each with a log of its own.
//!
//! A job is a process group. It has ended when its first process has, and all that this has started and left; until then the job's
//! processor time isn't complete, and its control planes are still in memory. What is left behind becomes a child of this process
//! (`PR_SET_CHILD_SUBREAPER`), which is how it knows.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::jiff::Timestamp;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use outrigger_tests::control_plane::RARE_COLLECTION;
use tokio::signal::unix::{SignalKind, signal};

use crate::jobs::Job;
use crate::log;
use crate::results::Record;

/// What is left of a job this long after its first process has ended is killed.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// The part of the processors that has to be idle before a further job begins. Control planes cost as much for each second in which they
/// run, whatever they do, so suites beside each other on busy processors take longer altogether than one after the other.
const IDLE: f64 = 0.2;

/// How long the processors are watched for that, and the least time between two beginnings: a job's load shows later.
const WATCHED: Duration = Duration::from_secs(10);

/// How often all of this is looked at.
const TICK: Duration = Duration::from_millis(200);

/// How jobs are run.
pub(crate) struct Pool<'a> {
    /// Where logs are written.
    pub(crate) dir: &'a Path,
    pub(crate) commit: &'a str,
    /// So many jobs at once at most.
    pub(crate) most: usize,
    /// When a job that hangs is ended.
    pub(crate) limit: Duration,
}

/// A job that was started, until its process group is empty.
struct Running {
    name: String,
    group: Pid,
    log: PathBuf,
    /// How much of the log has been looked at.
    read: u64,
    date: Timestamp,
    began: Instant,
    /// When its first process ended, and whether well.
    ended: Option<(Instant, bool)>,
    /// Processor time of all its processes that have ended.
    ticks: u64,
}

impl Pool<'_> {
    /// Runs all jobs, and hands over the record of each when it has ended. What is returned are the jobs that a SIGTERM or SIGINT has
    /// prevented: those that were running, which it kills, and those that hadn't begun.
    pub(crate) async fn run(
        &self,
        jobs: Vec<Job>,
        mut begins: impl FnMut(&Job) -> anyhow::Result<()>,
        mut ended: impl FnMut(Record) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<String>> {
        set_child_subreaper(true)?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (mut waiting, mut running) = (VecDeque::from(jobs), Vec::<Running>::new());
        let mut processors = Processors::default();
        while !(waiting.is_empty() && running.is_empty()) {
            processors.look();
            if running.len() < self.most
                && (running.is_empty() || processors.have_room())
                && let Some(job) = waiting.pop_front()
            {
                begins(&job)?;
                running.push(self.start(&job)?);
                processors.begin();
            }
            reap(&mut running)?;
            for job in running.extract_if(.., |job| job.is_over(self.limit)) {
                ended(job.record(self.commit))?;
            }
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = tokio::time::sleep(TICK) => {}
            }
        }
        running.iter().for_each(Running::kill);
        Ok(running.into_iter().map(|job| job.name).chain(waiting.into_iter().map(|job| job.name)).collect())
    }

    fn start(&self, job: &Job) -> anyhow::Result<Running> {
        let file: String =
            job.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let log = self.dir.join(format!("{file}.log"));
        let out = File::create(&log).with_context(|| log.display().to_string())?;
        let (date, began) = (Timestamp::now(), Instant::now());
        let child = Command::new(&job.program.path)
            .args(&job.args)
            .envs([RARE_COLLECTION])
            .envs(job.env.iter().cloned())
            .env("CARGO_MANIFEST_DIR", &job.program.directory)
            .current_dir(&job.program.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| job.program.path.display().to_string())?;
        let group = Pid::from_raw(child.id().try_into()?);
        Ok(Running { name: job.name.clone(), group, log, read: 0, date, began, ended: None, ticks: 0 })
    }
}

impl Running {
    /// Whether nothing of it is left. Says which of its tests have failed meanwhile, and kills what takes too long.
    #[allow(clippy::print_stdout)] // Who watches the run learns it at once.
    fn is_over(&mut self, limit: Duration) -> bool {
        for test in self.lines().unwrap_or_default().iter().filter_map(|line| log::failed(line)) {
            println!("    FAILED: {test} ({})", self.log.display());
        }
        let late = match self.ended {
            Some((ended, _)) => ended.elapsed() > LEFT_OVER,
            None => self.began.elapsed() > limit,
        };
        if late {
            println!("    {} is killed: something of it still runs ({})", self.name, self.log.display());
            self.kill();
        }
        self.ended.is_some() && killpg(self.group, None).is_err()
    }

    /// The whole lines that were added to the log since the last time.
    fn lines(&mut self) -> anyhow::Result<Vec<String>> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1));
        self.read += bytes.len() as u64;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    /// Ends all its processes. Its control planes end with the supervisor that is among them.
    fn kill(&self) {
        let _ = killpg(self.group, Signal::SIGKILL);
    }

    fn record(self, commit: &str) -> Record {
        let (ended, passed) = self.ended.unwrap_or((self.began, false));
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        Record {
            test: self.name,
            date: self.date.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            commit: commit.to_owned(),
            seconds: ended.duration_since(self.began).as_secs_f64(),
            cpu: self.ticks as f64 / ticks as f64,
            passed,
            log: self.log,
        }
    }
}

/// Takes note of all processes that have ended: the first ones of jobs, and what jobs have left behind.
fn reap(running: &mut [Running]) -> anyhow::Result<()> {
    loop {
        // It stays a zombie until its times have been read.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let pid = match waitid(Id::All, flags) {
            Ok(status) => match status.pid() {
                Some(pid) => pid,
                None => return Ok(()),
            },
            Err(Errno::ECHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (group, ticks) = times(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?).context("stat")?;
        let exit = waitpid(pid, None)?;
        if let Some(job) = running.iter_mut().find(|job| job.group.as_raw() == group) {
            job.ticks += ticks;
            if job.group == pid {
                job.ended = Some((Instant::now(), matches!(exit, WaitStatus::Exited(_, 0))));
            }
        }
    }
}

/// Group and processor time of a process, with the children that it has waited for, in clock ticks: fields 5 and 14 to 17 of `stat`, see proc(5).
fn times(stat: &str) -> Option<(i32, u64)> {
    // The name before it is in parentheses, and may contain any.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>()).sum::<Result<_, _>>().ok()?;
    Some((fields.get(2)?.parse().ok()?, ticks))
}

/// How much the processors had to do lately.
#[derive(Default)]
struct Processors {
    /// When, and how many ticks they had worked and been idle until then.
    samples: VecDeque<(Instant, [u64; 2])>,
    /// When the last job began.
    began: Option<Instant>,
}

impl Processors {
    fn look(&mut self) {
        let Some(now) = std::fs::read_to_string("/proc/stat").ok().and_then(|stat| worked(&stat)) else {
            return;
        };
        self.samples.push_back((Instant::now(), now));
        while self.samples.get(1).is_some_and(|(at, _)| at.elapsed() >= WATCHED) {
            self.samples.pop_front();
        }
    }

    fn begin(&mut self) {
        self.began = Some(Instant::now());
        self.samples.clear();
    }

    /// Whether there is room for a further job.
    fn have_room(&self) -> bool {
        let (Some((first, [worked, idle])), Some((_, now))) = (self.samples.front(), self.samples.back())
        else {
            return false;
        };
        let (worked, idle) = (now[0] - worked, now[1] - idle);
        first.elapsed() >= WATCHED && idle as f64 >= IDLE * (worked + idle) as f64
    }
}

/// How many ticks all processors have worked and been idle, in the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq,
/// steal.
fn worked(stat: &str) -> Option<[u64; 2]> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let all: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle: u64 = all.get(3..5)?.iter().sum();
    Some([all.iter().sum::<u64>() - idle, idle])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Program;

    fn job(name: &str, script: &str) -> Job {
        let program = Program { name: name.to_owned(), path: "/bin/bash".into(), directory: "/".into() };
        Job {
            name: name.to_owned(),
            program,
            args: vec!["-c".to_owned(), script.to_owned()],
            env: Vec::new(),
        }
    }

    // One test, because each pool would reap the other one's processes.
    #[tokio::test]
    async fn a_job_ends_with_what_it_has_left_behind_whose_time_is_its_own_and_is_killed_when_it_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool { dir: dir.path(), commit: "c", most: 1, limit: Duration::from_secs(2) };
        let spins = "for ((i = 0; i < 200000; i++)); do :; done";
        let jobs = vec![
            job("fails", "echo why; exit 3"),
            job("leaves", &format!("(sleep 0.5; {spins}) & exit 0")),
            job("hangs", "sleep 600"),
        ];
        let mut records = Vec::new();
        let record = |record| {
            records.push(record);
            Ok(())
        };
        assert!(pool.run(jobs, |_| Ok(()), record).await.unwrap().is_empty());
        let ended: Vec<_> = records.iter().map(|record| (record.test.as_str(), record.passed)).collect();
        assert_eq!(ended, [("fails", false), ("leaves", true), ("hangs", false)]);
        assert_eq!(std::fs::read_to_string(&records[0].log).unwrap(), "why\n");
        assert!(records[1].cpu > 0.0 && records[1].seconds < 0.5, "{records:?}");
    }

    #[test]
    fn times_are_those_of_the_process_and_of_the_children_that_it_has_waited_for() {
        let stat = "7 (a) b) c) Z 1 5 5 0 -1 0 0 0 0 0 10 20 300 4000 20 0 1 0 9 0";
        assert_eq!(times(stat), Some((5, 4330)));
        assert_eq!(times("7 (a"), None);
    }

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_work() {
        assert_eq!(worked("cpu  1 2 3 40 50 6 7 8 9 9\ncpu0 1"), Some([27, 90]));
        assert_eq!(worked("intr 1"), None);
    }
}
