//! Manager processes, and what they cost.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_tests::outrigger::{ADMIN, INFRASTRUCTURE, Outrigger, binary, get, ports};
use outrigger_tests::pki::{Authority, Pair};
use outrigger_tests::{cost, eventually, holds, openmetrics, shipped};

/// Starts a program, says its process, and kills it when standard input ends: also when the bench ends by a signal.
const UNTIL_END: &str = r#""$@" </dev/null >/dev/null & echo $!; read -r _; kill -9 $!; wait"#;

/// A manager process with the shipped arguments. It is killed when this is dropped.
pub(crate) struct Manager {
    name: String,
    shell: Child,
    process: u32,
    pub(crate) port: u16,
    admin: u16,
}

impl Manager {
    /// Starts one with more arguments, and doesn't wait until it is ready.
    pub(crate) fn start(
        dir: &Path,
        authority: &Authority,
        client_ca: &Path,
        kubeconfig: &Path,
        name: &str,
        more: &[String],
    ) -> Self {
        let [port, admin] = ports().unwrap();
        let pair = certificate(authority, name);
        let shipped_objects = shipped::kustomize(INFRASTRUCTURE).unwrap();
        let (args, _) = shipped::container(&shipped_objects, "outrigger-manager").unwrap();
        let forced = [
            "--log-format=text".to_owned(),
            "--shutdown-delay=0s".to_owned(),
            format!("--bind-address=tcp://127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--admin-identity={ADMIN}"),
            format!("--tls-client-ca-file={}", client_ca.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let args = shipped::with(&shipped::with(&args, &forced), &[&pair.serving_flags()[..], more].concat());
        let log = File::create(dir.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", UNTIL_END, "sh"]).arg(binary().unwrap()).args(&args);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut process = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut process).unwrap();
        Self { name: name.to_owned(), shell, process: process.trim().parse().unwrap(), port, admin }
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Replaces its certificate.
    pub(crate) fn renew(&self, authority: &Authority) {
        certificate(authority, &self.name);
    }

    /// Whether no queue has a key that is worked on or could be.
    async fn is_idle(&self) -> bool {
        let text = Outrigger::metrics_of(self.admin).await.unwrap_or_default();
        let families = openmetrics::parse(&text).unwrap_or_default();
        let count =
            |state| families.get("outrigger_queue_keys").map(|keys| keys.sum("", &[("state", state)]));
        count("Ready").zip(count("Busy")).is_some_and(|(ready, busy)| ready + busy < 0.5)
    }

    pub(crate) async fn ready(&self) {
        eventually("a manager is ready", || async {
            let (status, body) = get(self.admin, "/readyz").await?;
            holds(status == 200, body)
        })
        .await;
    }

    /// Companions whose annotations it has changed.
    pub(crate) async fn annotated(&self) -> usize {
        let text = Outrigger::metrics_of(self.admin).await.unwrap_or_default();
        let families = openmetrics::parse(&text).unwrap_or_default();
        let labels = [("operation", "Annotate"), ("outcome", "Ok")];
        let writes = families.get("outrigger_companion_write_seconds");
        writes.map_or(0, |writes| writes.sum("_count", &labels) as usize)
    }

    /// The sum of all samples of a metric; 0 while the manager doesn't answer, because it has more to do than it can.
    pub(crate) async fn metric(&self, family: &str) -> usize {
        Outrigger::metric(self.admin, family, "").await.unwrap_or_default() as usize
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A new certificate of a manager, in the files of its name.
fn certificate(authority: &Authority, name: &str) -> Pair {
    authority.issue(name, &["127.0.0.1"]).unwrap()
}

/// The processor time of processes together.
pub(crate) fn processor_time(managers: &[Manager]) -> Duration {
    managers.iter().map(|manager| cost::processor_time(manager.process())).sum()
}

/// How long a manager has to do nothing before it counts as done, and how much processor time counts as nothing meanwhile: pings of
/// connections go on.
const QUIET: (Duration, Duration) = (Duration::from_millis(600), Duration::from_millis(30));

/// Waits until the queues of all managers are empty. With thousands of connections their pings alone keep a manager from being
/// [`quiet`].
pub(crate) async fn idle(managers: &[Manager]) {
    let mut times = 0;
    while times < 3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut all = true;
        for manager in managers {
            all &= manager.is_idle().await;
        }
        times = if all { times + 1 } else { 0 };
    }
}

/// Waits until the managers have nothing more to do.
pub(crate) async fn quiet(managers: &[Manager]) {
    let began = Instant::now();
    let mut last = processor_time(managers);
    let mut times = 0;
    while times < 2 {
        tokio::time::sleep(QUIET.0).await;
        let now = processor_time(managers);
        times = if now - last <= QUIET.1 * u32::try_from(managers.len()).unwrap() { times + 1 } else { 0 };
        last = now;
        assert!(began.elapsed() < Duration::from_secs(600), "the managers don't come to rest");
    }
}
