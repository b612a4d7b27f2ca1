//! A bench's own program, started once more to serve in another role.
//!
//! A server that is measured waits for its calls in a process of its own. A floor in the process of the load would share threads that
//! are awake already, and so wouldn't be compared with the same.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outrigger_runtime::bind::{Bind, Listener};

const ROLE: &str = "OUTRIGGER_BENCH_ROLE";
const DIR: &str = "OUTRIGGER_BENCH_DIR";

/// The role of this process and the directory with its files, unless it is the bench itself.
pub fn own() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok().filter(|role| !role.is_empty())?;
    Some((role, std::env::var_os(DIR).expect("a directory").into()))
}

/// A loopback port of this role's, which the bench reads from standard output.
pub fn listen() -> Listener {
    let listener = "127.0.0.1:0".parse::<Bind>().expect("an address").listen().expect("a port");
    let port = listener.address().expect("an address").port();
    writeln!(std::io::stdout(), "{port}").expect("standard output");
    listener
}

/// A process in a role, until it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// On which it serves.
    pub port: u16,
}

impl Process {
    /// Starts this program in a role, which calls [`listen`].
    ///
    /// # Panics
    ///
    /// Where it doesn't say its port.
    pub fn start(role: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .env(ROLE, role)
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("standard output")).read_line(&mut line);
        read.expect("a line");
        Self { child, port: line.trim().parse().expect("a port") }
    }

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
