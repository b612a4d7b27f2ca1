//! A bench's own program, started once more to serve in another role.
//!
//! A server that is measured waits for its calls in a process of its own. A floor in the process of the load would share threads that
//! are awake already, and so wouldn't be compared with the same.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use axum::Router;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTls;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::pki::Authority;

const ROLE: &str = "OUTRIGGER_BENCH_ROLE";
const DIR: &str = "OUTRIGGER_BENCH_DIR";
/// Name of the files of the certificate that all roles show.
const CERTIFICATE: &str = "server";

/// The role of this process and the directory of its bench, unless it is the bench itself.
pub fn own() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok().filter(|role| !role.is_empty())?;
    Some((role, std::env::var_os(DIR).expect("a directory").into()))
}

/// Serves in a role on a loopback port, which the bench reads from standard output, until the process is killed. `dir` is that of
/// [`own`].
pub async fn serve(dir: &Path, router: Router) {
    let file = |extension: &str| dir.join(CERTIFICATE).with_extension(extension);
    let tls = Arc::new(ServerTls::load(file("crt"), file("key"), None).expect("a certificate"));
    let listener = "127.0.0.1:0".parse::<Bind>().expect("an address").listen().expect("a port");
    let port = listener.address().expect("an address").port();
    writeln!(std::io::stdout(), "{port}").expect("standard output");
    let end = CancellationToken::new();
    Server::new("bench", listener).tls(tls).limits(Limits::default()).run(router, end.clone(), end).await;
}

/// What the processes of a bench have in common: a directory, which is deleted in the end, and a CA.
pub struct Roles {
    dir: TempDir,
    /// Of the certificate that each process shows.
    pub authority: Authority,
}

impl Roles {
    /// A new directory with a CA and a certificate.
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let authority = Authority::new(dir.path(), "bench")?;
        authority.issue(CERTIFICATE, &["127.0.0.1"])?;
        Ok(Self { dir, authority })
    }

    /// The directory, for what a process has to read besides.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts this program in a role, in which it calls [`serve`].
    ///
    /// # Panics
    ///
    /// Where it doesn't say its port.
    pub fn start(&self, role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args(std::env::args_os().skip(1))
            .env(ROLE, role)
            .env(DIR, self.dir())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("standard output")).read_line(&mut line);
        read.expect("a line");
        Process { child, port: line.trim().parse().expect("a port") }
    }
}

/// A process in a role, until it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// On which it serves.
    pub port: u16,
}

impl Process {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
