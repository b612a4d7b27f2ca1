//! The control plane: two real Kubernetes clusters on one etcd, built from `tests/controlplane`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::shipped::{fed, objects};
use crate::tenant::{account, binding};
use crate::{PATIENCE, SHORTEST, is_true, root};

use self::direct::Direct;

mod direct;

/// The environment variable that names the release of Kubernetes to run on, such as `1.34`. `build.sh` reads it.
pub const RELEASE: &str = "OUTRIGGER_KUBERNETES";

/// How the line of a test begins that a release has no use for.
pub const SKIPPED: &str = "skipped on Kubernetes ";

/// The variable by which programs in Go collect garbage less often. It was more than a third of an API server's time, and a sixth of
/// kubectl's.
pub const RARE_COLLECTION: (&str, &str) = ("GOGC", "400");

/// Two running clusters, or the one that a test needs. They end when this is dropped, or its process ends.
#[derive(Debug)]
pub struct ControlPlane {
    /// Certificates, kubeconfigs, logs.
    pub dir: PathBuf,
    /// Its Nodes are DPUs.
    pub infra: Cluster,
    /// Its Nodes are hosts. Of a control plane with one cluster it is the same as `infra`.
    pub tenant: Cluster,
    /// Seconds from the start to ready.
    pub seconds: f64,
    link: Mutex<Link>,
}

/// See [`ControlPlane::ends`].
#[derive(Debug)]
pub struct Ends {
    plane: &'static ControlPlane,
    name: String,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended already, and so may the control plane.
        let _ = self.plane.command(&format!("stop {}", self.name));
    }
}

/// The supervisor and the line to it.
#[derive(Debug)]
struct Link {
    child: Child,
    /// Its other end closes with our process, also when that is killed: the supervisor ends everything then.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// One cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Kubeconfig of its administrator.
    pub kubeconfig: PathBuf,
    /// URL of its API server.
    pub server: String,
    /// Certificate of its CA.
    pub ca: PathBuf,
    kubectl: Vec<String>,
    direct: Direct,
}

#[derive(Deserialize)]
struct Ready {
    seconds: f64,
    kubectl: Vec<String>,
    clusters: HashMap<String, Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    server: String,
    kubeconfig: PathBuf,
    ca: PathBuf,
}

impl ControlPlane {
    /// Builds the control plane if it isn't built, and starts it.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&[])
    }

    /// As [`Self::start`], without the tenant's cluster, which costs as much processor time as the other one.
    pub fn start_infra() -> anyhow::Result<Self> {
        Self::start_with(&["--clusters=infra"])
    }

    /// As [`Self::start`], with further flags of `up`.
    pub fn start_with(flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(&[], flags)
    }

    /// As [`Self::start_with`], by another program, which gets the command line as its arguments.
    pub fn start_in(wrapper: &[String], flags: &[&str]) -> anyhow::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let program = build()?;
        let runs = root().join("target/control-plane");
        remove_old(&runs);
        let dir = runs.join(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&dir)?;
        let mut line = wrapper.iter().map(OsString::from).chain([program.into_os_string()]);
        let mut command = Command::new(line.next().context("no program")?);
        command.args(line);
        if cfg!(debug_assertions) {
            // Benches measure it as it is.
            command.envs([RARE_COLLECTION, ("GOMEMLIMIT", "4GiB")]);
        }
        let mut child = command
            .args(["up", "--until-stdin-eof", "--dir"])
            .arg(&dir)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the control plane can't be started")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut link = Link { child, stdin, stdout: BufReader::new(stdout.context("no output")?) };
        let ready: Ready = serde_json::from_value(link.answer()?)?;
        let cluster = |name: &str| -> anyhow::Result<Cluster> {
            let endpoint = ready.clusters.get(name).with_context(|| format!("no cluster {name}"))?;
            Ok(Cluster {
                kubeconfig: endpoint.kubeconfig.clone(),
                server: endpoint.server.clone(),
                ca: endpoint.ca.clone(),
                kubectl: ready.kubectl.clone(),
                direct: Direct::new(&endpoint.kubeconfig),
            })
        };
        Ok(Self {
            infra: cluster("infra")?,
            tenant: cluster("tenant").or_else(|_| cluster("infra"))?,
            seconds: ready.seconds,
            dir,
            link: Mutex::new(link),
        })
    }

    /// Starts a process that ends with the control plane. Its log is `logs/<name>.log`.
    pub fn run(&self, name: &str, args: &[String], env: &[String]) -> anyhow::Result<()> {
        self.command(&format!("run {}", json!({"name": name, "args": args, "env": env})))
    }

    /// `term NAME`, `stop NAME` (kill), `start NAME`, `restart NAME`, `pause NAME` (SIGSTOP), `resume NAME`: for any process,
    /// also `infra/kube-apiserver`. The tool's help (`up --help`) tells more.
    pub fn command(&self, line: &str) -> anyhow::Result<()> {
        let mut link = self.link.lock().expect("nobody panics with the line in hand");
        let stdin = link.stdin.as_mut().context("the control plane has ended")?;
        writeln!(stdin, "{line}")?;
        stdin.flush()?;
        link.answer().map(drop)
    }

    /// Kills a process when what is returned is dropped: what a test has started on a shared control plane ends with it. Otherwise it would
    /// watch what all later tests do.
    pub fn ends(&'static self, name: &str) -> Ends {
        Ends { plane: self, name: name.to_owned() }
    }

    /// One of these commands for each of these processes, in turn.
    pub fn command_all<T: std::fmt::Display>(&self, what: &str, names: impl IntoIterator<Item = T>) {
        for name in names {
            self.command(&format!("{what} {name}")).expect(what);
        }
    }

    /// `stop` or `start` for several processes in the same moment.
    pub fn command_at_once(&self, what: &str, names: &[&str]) -> anyhow::Result<()> {
        self.command(&format!("{what} {}", names.join(" ")))
    }

    /// The process that was started: the supervisor, or what it was started by.
    pub fn supervisor(&self) -> u32 {
        self.link.lock().expect("nobody panics with the line in hand").child.id()
    }

    /// Ends all its processes. What would use it from now on fails.
    pub fn end(&self) {
        if let Ok(mut link) = self.link.lock() {
            drop(link.stdin.take());
            let _ = link.child.wait();
        }
    }

    /// Log of a process.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{}.log", name.replace('/', "-")))
    }
}

impl Link {
    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the control plane has ended");
        }
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("unexpected: {line}"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => bail!("control plane: {error}"),
            None => Ok(answer),
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.end();
    }
}

impl Cluster {
    /// A client as the cluster's administrator, for the runtime that it is called on.
    pub async fn client(&self) -> kube::Client {
        kube::Client::try_from(config(&self.kubeconfig).await).expect("client")
    }

    /// The same without retries: a 503 is an answer.
    pub async fn client_without_retries(&self) -> kube::Client {
        let mut config = config(&self.kubeconfig).await;
        config.default_retry = false;
        kube::Client::try_from(config).expect("client")
    }

    /// The command line that kubectl is called by, as this cluster's administrator.
    pub fn kubectl_command(&self) -> Vec<String> {
        let mut command = self.kubectl.clone();
        command.push(format!("--kubeconfig={}", self.kubeconfig.display()));
        command
    }

    /// Runs kubectl as the cluster's administrator.
    pub fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.kubectl_with(args, "")
    }

    /// Runs kubectl with standard input.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> anyhow::Result<String> {
        let command = self.kubectl_command();
        let (program, first) = command.split_first().context("no kubectl")?;
        let output = fed(Command::new(program).args(first).args(args), input.as_bytes())?;
        if !output.status.success() {
            bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Begins to delete all objects of each of these collections, which are paths of the API server's.
    pub fn begin_to_delete_all(&self, paths: Vec<String>) {
        self.direct.begin_to_delete_all(paths);
    }

    /// What is at a path of the API server's, without kubectl: for what is asked again and again.
    pub fn read(&self, path: &str) -> anyhow::Result<Value> {
        self.direct.read(path)
    }

    /// Whether a service account, named with its namespace, may do something: the arguments of `kubectl auth can-i`.
    pub fn can(&self, account: (&str, &str), args: &[&str]) -> anyhow::Result<bool> {
        self.direct.can(account, args)
    }

    /// An object, or a list of objects: the arguments of `kubectl get`.
    pub fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        if let Some(found) = self.direct.get(args)? {
            return Ok(found);
        }
        Ok(serde_json::from_str(&self.kubectl(&[&["get", "-o", "json"], args].concat())?)?)
    }

    /// Changes an object, `kind/name`: by a JSON patch if the patch is a list, else by a merge patch. `more` has further arguments of
    /// kubectl.
    pub fn patch(&self, object: &str, more: &[&str], patch: &Value) -> anyhow::Result<()> {
        if self.direct.patch(&[&[object], more].concat(), patch)? {
            return Ok(());
        }
        let kind = if patch.is_array() { "--type=json" } else { "--type=merge" };
        self.kubectl(&[&["patch", object, kind, "-p", &patch.to_string()], more].concat()).map(drop)
    }

    /// Has a Node take no new Pods, or take them again.
    pub fn cordon(&self, node: &str, cordoned: bool) {
        let patch = json!({"spec": {"unschedulable": cordoned}});
        self.patch(&format!("node/{node}"), &[], &patch).expect("the Node is there");
    }

    /// Whether the API server doesn't have a feature of Kubernetes, by the name of its gate.
    pub fn lacks(&self, gate: &str) -> bool {
        !self.direct.has_feature(gate).expect("metrics")
    }

    /// Whether the API server has the feature that a row of a table needs. If not, a line says so.
    #[allow(clippy::print_stdout)] // A test has no other way to say so.
    pub fn has(&self, row: &str, needs: Option<&str>) -> bool {
        let lacking = needs.filter(|gate| self.lacks(gate));
        if let Some(gate) = lacking {
            println!("without {row:?}: the feature gate {gate} is off");
        }
        lacking.is_none()
    }

    /// Whether a test that needs a feature of Kubernetes has to be skipped. If so, a line says why.
    #[allow(clippy::print_stdout)] // A test has no other way to say so.
    pub fn skips(&self, gate: &str) -> bool {
        let lacks = self.lacks(gate);
        if lacks {
            let version = self.read("/version").expect("version");
            println!(
                "{SKIPPED}{}: the feature gate {gate} is off",
                version["gitVersion"].as_str().unwrap_or_default()
            );
        }
        lacks
    }

    /// Applies objects, each by server-side apply, as `kubectl apply --server-side --force-conflicts` does.
    pub fn apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        self.direct.apply(objects)
    }

    /// Applies a file of the work tree.
    pub fn apply_file(&self, path: &str) -> anyhow::Result<()> {
        self.apply(&objects(&std::fs::read_to_string(root().join(path))?)?)
    }

    /// Waits until the API server serves all custom resources that have been defined.
    pub fn established(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let all = self.read("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")?;
            let mut all = all["items"].as_array().into_iter().flatten();
            match all.find(|definition| !is_true(definition, "Established")) {
                None => return Ok(()),
                Some(definition) if began.elapsed() > PATIENCE => bail!("{}", definition["status"]),
                Some(_) => std::thread::sleep(SHORTEST),
            }
        }
    }

    /// Creates a service account that may get, list and watch these resources of Kubernetes and of WorkloadRules in its namespace, and nothing
    /// else. Writes its kubeconfig.
    pub fn reader(&self, namespace: &str, name: &str, resources: &[&str], file: &Path) -> anyhow::Result<()> {
        let group = "rbac.authorization.k8s.io";
        let metadata = json!({"name": name, "namespace": namespace});
        let rules = json!([{"apiGroups": ["", "workload.universe.nvidia.com"], "resources": resources,
            "verbs": ["get", "list", "watch"]}]);
        self.apply(&[
            account(namespace, name),
            json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}),
            json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]}),
        ])?;
        self.service_account(namespace, name, file)
    }

    /// Creates a service account in the namespace `default` that has these verbs on these resources, each named with its API group, in the whole
    /// cluster, and nothing else. Writes its kubeconfig.
    pub fn viewer(
        &self,
        name: &str,
        verbs: &[&str],
        resources: &[(&str, &str)],
        file: &Path,
    ) -> anyhow::Result<()> {
        let rule = |(group, resource): &(&str, &str)| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        let rules: Vec<Value> = resources.iter().map(rule).collect();
        self.apply(&[
            account("default", name),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
                "rules": rules}),
            binding(name, None, name, ("default", name)),
        ])?;
        self.service_account("default", name, file)
    }

    /// A new token of a service account.
    pub fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        self.direct.token(namespace, name)
    }

    /// Writes a kubeconfig with which a service account talks to this cluster.
    pub fn service_account(&self, namespace: &str, name: &str, file: &Path) -> anyhow::Result<()> {
        let token = self.token(namespace, name)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.server, "certificate-authority": self.ca}}],
            "users": [{"name": "c", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        replace(file, &kubeconfig.to_string())
    }
}

/// Writes a file as a whole: a process that reads it meanwhile finds the former content or this one, never a part.
pub fn replace(file: &Path, content: &str) -> anyhow::Result<()> {
    let new = tempfile::NamedTempFile::new_in(file.parent().context("no directory")?)?;
    std::fs::write(&new, content)?;
    new.persist(file)?;
    Ok(())
}

/// The configuration of clients that a kubeconfig describes.
pub async fn config(kubeconfig: &Path) -> kube::Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("kubeconfig");
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("config")
}

/// Builds the control plane and returns its program.
pub fn build() -> anyhow::Result<PathBuf> {
    tool("controlplane")
}

/// Builds the control plane and returns the kubectl beside it.
pub fn kubectl() -> anyhow::Result<PathBuf> {
    Ok(build()?.with_file_name("kubectl"))
}

/// Builds one of the tools beside this crate, unless it is built already, and returns what its `build.sh` prints: the program,
/// or its directory.
pub fn tool(name: &str) -> anyhow::Result<PathBuf> {
    // Building again what is built takes a dozen processes.
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().map_err(|_| anyhow::anyhow!("another test has failed"))?;
    if let Some(path) = built.get(name) {
        return Ok(path.clone());
    }
    let script = root().join("tests").join(name).join("build.sh");
    let output = Command::new(&script).stderr(Stdio::inherit()).output().context("build.sh")?;
    if !output.status.success() {
        bail!("{} failed", script.display());
    }
    let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    built.insert(name.to_owned(), path.clone());
    Ok(path)
}

/// Removes what earlier runs left in a directory, unless they are still running. Names begin with the id of a process.
pub fn remove_old(runs: &Path) {
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().unwrap_or_default().to_owned();
        if !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
