//! Processes of Outrigger's that see another time, or whose log nobody reads.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::control_plane::tool;
use crate::outrigger::Outrigger;

/// As long as there is a pipe of this name, processes that are started log to it, whatever they do, and nobody reads it.
pub fn pipe(o: &Outrigger) -> PathBuf {
    o.plane.dir.join("log.pipe")
}

/// Processes that are started while `start` runs see a time that is so much later (`+60s`) or earlier (`-60s`).
pub fn at_time<T>(o: &Outrigger, offset: &str, start: impl FnOnce() -> T) -> T {
    let library = tool("faketime").unwrap();
    let file = o.plane.dir.join("clock.sh");
    // Timers go on as they are: only what the wall clock says is another time.
    let text = format!(
        "export LD_PRELOAD='{}' FAKETIME='{offset}' FAKETIME_DONT_FAKE_MONOTONIC=1\n",
        library.display()
    );
    std::fs::write(&file, text).unwrap();
    let started = start();
    // The program reads it before it does anything else.
    while !file.with_extension("read").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(file.with_extension("read")).unwrap();
    started
}

/// A program that runs Outrigger's, with its log where [`pipe`] says, and at the time that [`at_time`] says. The pipe is opened for
/// reading as well, because opening it would wait for a reader otherwise.
pub fn wrapped(o: &Outrigger) -> anyhow::Result<PathBuf> {
    let (file, clock, pipe) = (o.plane.dir.join("outrigger.sh"), o.plane.dir.join("clock"), pipe(o));
    let (pipe, clock, binary) = (pipe.display(), clock.display(), o.binary.display());
    let text = format!(
        "#!/bin/sh\nif [ -f '{clock}.sh' ]; then\n  . '{clock}.sh'\n  : >'{clock}.read'\nfi\nif [ -p '{pipe}' ]; then\n  export OUTRIGGER_LOG_LEVEL=trace\n  \
         exec '{binary}' \"$@\" 1<>'{pipe}' 2<>'{pipe}'\nfi\nexec '{binary}' \"$@\"\n"
    );
    std::fs::write(&file, text)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(file)
}
