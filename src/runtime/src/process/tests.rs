use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::get;
use clap::{CommandFactory, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::cluster::ClusterArgs;
use crate::testing::SOON;
use crate::tls::ServerTlsArgs;

/// All settings of this crate, as a server has them.
#[derive(Debug, Parser)]
struct All {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    tls: ServerTlsArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn process(delay: &str, drain: &str) -> Process {
    let flags = ["x", "--admin-address=127.0.0.1:0", "--shutdown-delay", delay, "--drain-timeout", drain];
    Process::silent(All::try_parse_from(flags).unwrap().process)
}

/// A process with a request that never ends, and the sender of its signals.
async fn with_endless_request(
    process: Process,
) -> (mpsc::Sender<()>, tokio::task::JoinHandle<anyhow::Result<()>>, TcpStream) {
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    let (begun, mut begins) = mpsc::channel::<()>(1);
    let endless = get(async move || {
        begun.send(()).await.unwrap();
        std::future::pending::<()>().await;
    });
    process.serve(Server::new("test", listener), Router::new().route("/", endless));
    let (send, signals) = mpsc::channel(2);
    let running = tokio::spawn(process.run_until(signals));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    begins.recv().await.unwrap();
    (send, running, stream)
}

#[test]
fn settings_have_defaults_help_and_environment_variables() {
    All::command().debug_assert();
    let all = All::try_parse_from(["x"]).unwrap();
    assert_eq!(all.process.admin_address, Bind::AnyAddress(8080));
    assert_eq!(all.process.drain_timeout, Duration::from_secs(20));
    assert_eq!(all.tls.tls_reload_interval, Duration::from_secs(5));
    for flag in All::command().get_arguments().filter(|flag| flag.get_id() != "help") {
        let long = flag.get_long().unwrap();
        let variable = format!("OUTRIGGER_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        assert!(flag.get_help().is_some(), "{long} has no help");
    }
    for bad in ["--drain-timeout=soon", "--admin-address=somewhere", "--log-format=xml"] {
        assert!(All::try_parse_from(["x", bad]).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_signal_makes_unready_then_drains() {
    let process = process("200ms", "20s");
    let (readiness, drain) = (process.readiness.clone(), process.drain.clone());
    let finished = Arc::new(AtomicBool::new(false));
    let (ends, flag) = (process.drain.clone(), finished.clone());
    process.drained(async move {
        ends.cancelled().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        flag.store(true, Ordering::Relaxed);
    });
    process.spawn("goes on", std::future::pending());
    let (send, signals) = mpsc::channel(1);
    let running = tokio::spawn(process.run_until(signals));
    assert!(readiness.is_ready());
    send.send(()).await.unwrap();
    timeout(SOON, async {
        while readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it is no longer ready");
    assert!(!drain.is_cancelled(), "it serves during the delay");
    timeout(SOON, running).await.expect("it ends").unwrap().unwrap();
    assert!(finished.load(Ordering::Relaxed), "the process waits for drained tasks");
}

#[tokio::test]
async fn real_signals_are_handled() {
    for name in ["TERM", "INT"] {
        let running = tokio::spawn(process("0s", "10m").run());
        // One thread: by now it has run up to its first wait, and no other test waits for signals.
        tokio::task::yield_now().await;
        let kill = ["-s", name, &std::process::id().to_string()].map(str::to_owned);
        assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
        timeout(SOON, running).await.expect("it ends").unwrap().unwrap();
    }
}

#[tokio::test]
async fn open_requests_at_the_deadline_are_closed_forcibly() {
    let (send, running, mut stream) = with_endless_request(process("0s", "100ms")).await;
    send.send(()).await.unwrap();
    timeout(SOON, running).await.expect("it ends").unwrap().unwrap();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or_default(), 0);
}

#[tokio::test]
async fn a_second_signal_closes_everything_at_once() {
    for delay in ["0s", "10m"] {
        let (send, running, _stream) = with_endless_request(process(delay, "10m")).await;
        send.send(()).await.unwrap();
        send.send(()).await.unwrap();
        timeout(SOON, running).await.expect("it ends").unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_task_that_ends_or_panics_ends_the_process() {
    for panics in [false, true] {
        let process = process("10m", "20s");
        process.spawn("short", async move {
            tokio::task::yield_now().await;
            assert!(!panics, "as the test wants it");
        });
        let (_send, signals) = mpsc::channel(1);
        assert!(timeout(SOON, process.run_until(signals)).await.expect("it ends").is_err());
    }
}

/// All workers are busy during the test, and many connections to the port are idle.
#[test]
fn probes_are_answered_while_all_workers_are_busy() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let flag = format!("--admin-address={port}");
    let process = Process::silent(All::try_parse_from(["x", &flag, "--shutdown-delay=0s"]).unwrap().process);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (send, signals) = mpsc::channel(1);
    let (busy, is_busy) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let running = runtime.spawn(process.run_until(signals));
    // The port is open once the process is running.
    let connect = || loop {
        match std::net::TcpStream::connect(port) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    drop(connect());
    runtime.spawn(async move {
        busy.send(()).unwrap();
        let _ = ends.recv();
    });
    is_busy.recv().unwrap();
    let probe = || {
        use std::io::{Read, Write};
        let mut stream = connect();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let mut hanging = Vec::new();
    for _ in 0..100 {
        use std::io::Write;
        let mut stream = connect();
        stream.write_all(b"GET /metr").unwrap();
        hanging.push(stream);
        assert!(probe().ends_with("ok\n"));
    }
    end.send(()).unwrap();
    send.blocking_send(()).unwrap();
    runtime.block_on(running).unwrap().unwrap();
}
