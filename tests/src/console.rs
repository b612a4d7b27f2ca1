//! `outrigger console`, as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use crate::outrigger::binary;

/// A running console. It is killed when this is dropped.
#[derive(Debug)]
pub struct ConsoleProcess {
    process: Child,
    /// The URL that it has printed. It works once.
    pub url: String,
}

impl ConsoleProcess {
    /// Starts it with these arguments.
    ///
    /// # Errors
    /// If it ends without a URL.
    pub fn start(args: &[String]) -> anyhow::Result<Self> {
        let mut process = Command::new(binary()?)
            .arg("console")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .context("outrigger console")?;
        let out = process.stdout.take().context("no standard output")?;
        let mut this = Self { process, url: String::new() };
        BufReader::new(out).read_line(&mut this.url)?;
        this.url.truncate(this.url.trim_end().len());
        anyhow::ensure!(
            this.url.starts_with("http://127.0.0.1:"),
            "outrigger console printed {:?}",
            this.url
        );
        Ok(this)
    }
}

impl Drop for ConsoleProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
