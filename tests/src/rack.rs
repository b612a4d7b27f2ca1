//! A rack with real Nodes: kubelets, containers and a network, in namespaces of their own (`tests/node`). Nothing of the machine is touched.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use outrigger_core::keys;
use serde_json::json;
use tokio::net::TcpStream;

use crate::control_plane::{Cluster, ControlPlane, tool};
use crate::outrigger::binary;
use crate::shipped::output;
use crate::{InWords, eventually, root};

pub use install::{HOSTS, ready, way_to_manager};

pub mod blue;
mod install;
mod policies;
pub mod workloads;

/// The name of Outrigger's image on all Nodes.
pub const IMAGE: &str = "outrigger.example/outrigger:test";

/// The port of the infrastructure cluster's DNS server, behind its Service.
pub const INFRA_DNS: u16 = 5301;

/// A control plane to which real Nodes can be added. All of it ends when this is dropped, or its process ends.
#[derive(Debug)]
pub struct Rack {
    /// Both clusters.
    pub plane: ControlPlane,
    /// The program of the Nodes (`tests/node`).
    pub program: PathBuf,
    /// The directory of their containerd.
    containerd: PathBuf,
    /// Names of the rack's cgroups begin with it.
    cgroup: String,
}

/// A Node of a rack.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// `infra` or `tenant`.
    pub cluster: &'static str,
    /// Its name as a Node.
    pub name: &'static str,
    /// From 2 to 60; no other Node has it. It has the address 10.77.0.NUMBER.
    pub number: u8,
    /// The host that it is the DPU of, if it is one.
    pub host: Option<&'static str>,
}

impl Machine {
    /// One of the infrastructure cluster's.
    pub const fn infra(name: &'static str, number: u8, host: Option<&'static str>) -> Self {
        Self { cluster: "infra", name, number, host }
    }

    /// One of the tenant's cluster.
    pub const fn tenant(name: &'static str, number: u8) -> Self {
        Self { cluster: "tenant", name, number, host: None }
    }

    /// Its address on the rack's switch.
    pub fn address(self) -> String {
        format!("10.77.0.{}", self.number)
    }
}

/// An image that runs a script by busybox.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// The name of the image, with its tag.
    pub image: &'static str,
    /// What its containers run.
    pub script: &'static str,
}

/// What this machine lacks for real Nodes, if it lacks anything.
pub fn lacking() -> Option<String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Some("you are not root".to_owned());
    }
    let found = |program: &str| {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|directory| std::path::Path::new(directory).join(program).exists())
    };
    if !found("runc") && !found("apt-get") {
        return Some("there is no runc, and no apt-get to install it".to_owned());
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--fork", "--cgroup", "true"]);
    output(unshare).err().map(|_| "root can't create namespaces".to_owned())
}

impl Rack {
    /// Starts both clusters without Nodes, with their DNS, and makes the images that Nodes have: pause, busybox, Outrigger's and these.
    /// An error says what the machine lacks.
    pub fn start(scripts: &[Script]) -> anyhow::Result<Self> {
        if let Some(what) = lacking() {
            bail!("real Nodes can't start on this machine: {what}");
        }
        let (program, containerd) = (tool("node")?, tool("containerd")?);
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("outrigger-{number}-{}", std::process::id());
        let wrapper = [root().join("tests/node/rack.sh").display().to_string(), cgroup.clone()];
        let plane = ControlPlane::start_in(&wrapper, &["--nodes-address=10.77.0.1", "--cert-manager"])?;
        let rack = Self { plane, program, containerd, cgroup };
        rack.make_images(scripts)?;
        let netns = rack.network()?;
        for cluster in [&rack.plane.infra, &rack.plane.tenant] {
            forward(&netns, cluster)?;
        }
        rack.start_dns("infra", INFRA_DNS)?;
        rack.start_dns("tenant", INFRA_DNS + 1)?;
        Ok(rack)
    }

    fn make_images(&self, scripts: &[Script]) -> anyhow::Result<()> {
        let dir = self.plane.dir.join("images");
        std::fs::create_dir_all(&dir)?;
        let busybox = ["sh", "sleep", "cat", "ls", "echo", "date", "wget", "nc"]
            .iter()
            .map(|name| format!("bin/{name}=->busybox"))
            .chain(["bin/busybox=/usr/bin/busybox".to_owned()])
            .collect::<Vec<_>>();
        image(&dir, "docker.io/library/pause:1", r#"["/bin/busybox","sleep","2147483647"]"#, &busybox)?;
        image(&dir, "docker.io/library/busybox:1", "[]", &busybox)?;
        for Script { image: name, script } in scripts {
            image(&dir, name, &json!(["sh", "-c", script]).to_string(), &busybox)?;
        }
        let stripped = self.plane.dir.join("outrigger");
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&stripped).arg(binary()?);
        output(strip)?;
        let mut files = vec![
            format!("outrigger={}", stripped.display()),
            format!("etc/nsswitch.conf={}", root().join("deploy/nsswitch.conf").display()),
        ];
        // The program that tests use isn't static as a released one is.
        let mut ldd = Command::new("ldd");
        ldd.arg(&stripped);
        for library in output(ldd)?.split_whitespace().filter(|word| word.starts_with('/')) {
            files.push(format!("{}={library}", &library[1..]));
        }
        image(&dir, IMAGE, r#"["/outrigger"]"#, &files)?;
        Ok(std::fs::remove_file(stripped)?)
    }

    /// The file of the control plane's network namespace.
    fn network(&self) -> anyhow::Result<PathBuf> {
        let child = |of: u32| -> anyhow::Result<u32> {
            let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"))?;
            Ok(children.split_whitespace().next().context("the rack has ended")?.parse()?)
        };
        // The script, unshare, and the first process inside.
        let first = child(child(self.plane.supervisor())?)?;
        Ok(PathBuf::from(format!("/proc/{first}/ns/net")))
    }

    fn start_dns(&self, cluster: &str, port: u16) -> anyhow::Result<()> {
        let file = self.plane.dir.join(format!("{cluster}.corefile"));
        let kubeconfig = self.plane.dir.join(format!("{cluster}.kubeconfig"));
        let zones = "cluster.local in-addr.arpa";
        std::fs::write(
            &file,
            format!(
                ".:{port} {{\n errors\n kubernetes {zones} {{\n  kubeconfig {}\n }}\n}}\n",
                kubeconfig.display()
            ),
        )?;
        let args = [
            self.program.display().to_string(),
            "coredns".into(),
            "-conf".into(),
            file.display().to_string(),
        ];
        self.plane.run(&format!("{cluster}-dns"), &args, &[])?;
        let metadata = json!({"name": "kube-dns", "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"}});
        self.cluster(cluster).apply(&[
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "10.96.0.10", "ports": [
                {"name": "udp", "protocol": "UDP", "port": 53}, {"name": "tcp", "protocol": "TCP", "port": 53}]}}),
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.77.0.1"], "conditions": {"ready": true}}],
                "ports": [{"name": "udp", "protocol": "UDP", "port": port}, {"name": "tcp", "protocol": "TCP", "port": port}]}),
        ])
    }

    /// One of the clusters.
    pub fn cluster(&self, name: &str) -> &Cluster {
        if name == "infra" { &self.plane.infra } else { &self.plane.tenant }
    }

    /// Switches machines on, and waits until they are Nodes.
    pub async fn add(&self, machines: &[Machine]) {
        for machine in machines {
            self.on(*machine).expect("a machine");
        }
        for machine in machines {
            let node = format!("node/{}", machine.name);
            let labels = machine.host.map_or(json!({}), |host| json!({keys::DPU_NODE_NAME: host}));
            let labels = json!({"metadata": {"labels": labels}});
            eventually(&format!("{node} is there"), || async {
                self.cluster(machine.cluster)
                    .patch(&node, &[], &labels)
                    .with_context(|| self.last_words(*machine))
                    .in_words()
            })
            .await;
        }
    }

    /// The end of what a machine's programs have said, for those who wait for it.
    fn last_words(&self, machine: Machine) -> String {
        let logs = self.disk(machine).join("log");
        let files = ["containerd", "kubelet"].map(|program| logs.join(format!("{program}.log")));
        let files = [vec![self.plane.log(&format!("machine-{}", machine.name))], files.to_vec()].concat();
        let end = |file: &PathBuf| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(3).collect();
            format!("{}: {}", file.display(), lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        files.iter().map(end).collect::<Vec<_>>().join("\n")
    }

    /// Switches a machine on, which then becomes a Node, or is one again.
    pub fn on(&self, machine: Machine) -> anyhow::Result<()> {
        let Machine { cluster, name, number, .. } = machine;
        let node = json!({"cluster": cluster, "name": name, "address": machine.address()});
        self.plane.command(&format!("node {node}"))?;
        let script = root().join("tests/node/node.sh").display().to_string();
        let args = [
            script,
            self.plane.dir.display().to_string(),
            cluster.to_owned(),
            name.to_owned(),
            number.to_string(),
            format!("{}/{name}", self.cgroup),
            self.program.display().to_string(),
            self.containerd.display().to_string(),
        ];
        self.plane.run(&format!("machine-{name}"), &args, &[])
    }

    /// Kills the processes on a machine that are this part of Outrigger or of the Node, such as `webhook` or `kubelet`: the word that their
    /// program gets first. Returns how many there were.
    pub fn kill(&self, machine: Machine, part: &str) -> anyhow::Result<usize> {
        let processes = self.processes(machine, part)?;
        for pid in &processes {
            kill(*pid, Signal::SIGKILL)?;
        }
        Ok(processes.len())
    }

    /// The processes on a machine that are a part of Outrigger or of the Node.
    pub fn processes(&self, machine: Machine, part: &str) -> anyhow::Result<Vec<Pid>> {
        let cgroup = format!("/{}/{}/", self.cgroup, machine.name);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process may end meanwhile.
            let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            if read("cmdline").split('\0').nth(1) == Some(part) && read("cgroup").contains(&cgroup) {
                found.push(Pid::from_raw(pid));
            }
        }
        Ok(found)
    }

    /// Uses up the memory that one container of a part of Outrigger may have, until the kernel kills the part's process there.
    pub fn exhaust_memory(&self, machine: Machine, part: &str) -> anyhow::Result<()> {
        let pid = *self.processes(machine, part)?.first().with_context(|| format!("no {part}"))?;
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let of = |marks: &str| cgroups.lines().find_map(|line| line.split_once(marks).map(|(_, path)| path));
        let (path, limit) = match of(":memory:") {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            None => (format!("/sys/fs/cgroup{}", of("0::").context("no cgroup")?), "memory.max"),
        };
        let limit: u64 = std::fs::read_to_string(format!("{path}/{limit}"))?.trim().parse()?;
        // A file in memory belongs to the cgroup of its writer, and the writer itself has almost none: the kernel kills the other one.
        let file = PathBuf::from(format!("/dev/shm/{}-memory", self.cgroup));
        let mut writer = Command::new("sh");
        let script = r#"echo $$ >"$1/cgroup.procs" && exec head -c "$2" /dev/zero >"$3""#;
        writer.args(["-c", script, "sh", &path, &limit.to_string()]).arg(&file);
        let written = writer.status();
        std::fs::remove_file(&file)?;
        written.context("no writer").map(drop)
    }

    /// Changes a machine's kubelet by a file of its configuration, or takes that file away, and restarts it.
    pub fn configure_kubelet(
        &self,
        machine: Machine,
        settings: Option<&serde_json::Value>,
    ) -> anyhow::Result<()> {
        let file = self.disk(machine).join("kubelet.conf.d/test.conf");
        match settings {
            Some(settings) => {
                let mut settings = settings.clone();
                settings["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
                settings["kind"] = json!("KubeletConfiguration");
                std::fs::write(file, settings.to_string())?;
            }
            None => std::fs::remove_file(file)?,
        }
        self.kill(machine, "kubelet").map(drop)
    }

    /// Gives a machine's kubelet an empty file system of so many MiB for its root directory, or that of the machine again, from the next time on
    /// that the machine is switched on.
    pub fn limit_disk(&self, machine: Machine, mebibytes: Option<u32>) -> anyhow::Result<()> {
        let file = self.disk(machine).join("kubelet.size");
        match mebibytes {
            Some(size) => std::fs::write(file, format!("{size}m"))?,
            None => std::fs::remove_file(file)?,
        }
        Ok(())
    }

    /// The directory that is a machine's disk: static Pods are in its directory `manifests`, logs in `log`.
    pub fn disk(&self, machine: Machine) -> PathBuf {
        self.plane.dir.join("nodes").join(machine.name)
    }

    /// Switches a machine off: all that runs on it ends at once. Its disk stays.
    pub fn off(&self, machine: Machine) -> anyhow::Result<()> {
        self.plane.command(&format!("stop machine-{}", machine.name))
    }
}

fn image(dir: &std::path::Path, name: &str, entrypoint: &str, files: &[String]) -> anyhow::Result<()> {
    let archive = dir.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    let mut command = Command::new(root().join("tests/node/image.sh"));
    command.arg(name).arg(archive).arg(entrypoint).args(files);
    output(command).map(drop)
}

/// Lets this process reach an API server in another network at the address that its kubeconfig names.
fn forward(netns: &std::path::Path, cluster: &Cluster) -> anyhow::Result<()> {
    let address: SocketAddr = cluster.server.trim_start_matches("https://").parse()?;
    let listener = TcpListener::bind(address).with_context(|| format!("{address} is taken"))?;
    listener.set_nonblocking(true)?;
    let netns = std::fs::File::open(netns)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A thread of its own: sockets belong to the network that their thread is in.
    thread::Builder::new().name("rack".to_owned()).spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).expect("root may");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((mut outside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut inside) = TcpStream::connect(address).await {
                        let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
                    }
                });
            }
        });
    })?;
    Ok(())
}
