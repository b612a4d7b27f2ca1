//! `outrigger console` and `outrigger console-server`, as processes, and users of the latter.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use outrigger_runtime::tls::ClientTls;

use crate::attacks::dial_from;
use crate::control_plane::Ends;
use crate::outrigger::{Outrigger, binary, ports};
use crate::tenant::{account, binding};
use crate::{eventually, holds};

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

/// A running `outrigger console-server` of the infrastructure cluster.
pub struct ServedConsole {
    /// What it shows.
    pub outrigger: &'static Outrigger,
    /// Of pages.
    pub port: u16,
    /// Of probes and metrics.
    pub admin: u16,
    _ends: Ends,
}

/// A user who has logged in.
pub struct LoggedIn<'a> {
    console: &'a ServedConsole,
    /// The address of the user's browser.
    address: Ipv4Addr,
    /// The session's cookie.
    pub cookie: String,
}

impl ServedConsole {
    /// Starts it, and waits until it is ready. `name` is that of the process.
    ///
    /// # Panics
    /// If it doesn't start.
    pub async fn start(outrigger: &'static Outrigger, name: &str) -> Self {
        Self::with(outrigger, name, &[]).await
    }

    /// As [`Self::start`], with further arguments.
    ///
    /// # Panics
    /// As there.
    pub async fn with(outrigger: &'static Outrigger, name: &str, flags: &[String]) -> Self {
        let [port, admin] = ports().expect("ports");
        let infra = &outrigger.plane.infra;
        let pair = outrigger.authority.issue(name, &["127.0.0.1"]).expect("a certificate");
        let own =
            ["console-server", "--interval=1", "--log-format=text", "--shutdown-delay=0s"].map(str::to_owned);
        let more = [
            format!("--bind-address=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            // As the shipped one: an address and a CA, and no credentials.
            format!("--api-server={}", infra.server),
            format!("--api-server-ca-file={}", infra.ca.display()),
        ];
        let args = [&own[..], &more, flags, &pair.serving_flags()].concat();
        outrigger.run(name, &args).expect("the console starts");
        outrigger.ready_at(name, admin).await;
        Self { outrigger, port, admin, _ends: outrigger.plane.ends(name) }
    }

    /// Sends a request from an address, on a connection of its own.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn send(
        &self,
        from: Ipv4Addr,
        request: http::request::Builder,
        body: &str,
    ) -> Response<Incoming> {
        let tls = ClientTls { ca: self.outrigger.authority.file(), identity: None };
        let stream = dial_from(from, &tls, self.port, b"http/1.1").await.expect("a connection");
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP");
        tokio::spawn(connection);
        let request = request.header(header::HOST, format!("127.0.0.1:{}", self.port));
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        sender.send_request(request).await.expect("an answer")
    }

    /// Sends a form, as a page of the console does.
    pub async fn post(&self, from: Ipv4Addr, path: &str, cookie: &str, body: &str) -> Response<Incoming> {
        let origin = format!("https://127.0.0.1:{}", self.port);
        let request = Request::post(path).header(header::COOKIE, cookie).header(header::ORIGIN, origin);
        self.send(from, request, body).await
    }

    /// The status and the body of a page.
    pub async fn get(&self, from: Ipv4Addr, path: &str, cookie: &str) -> (u16, String) {
        let answer = self.send(from, Request::get(path).header(header::COOKIE, cookie), "").await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("all of the page").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Logs a user in from this machine.
    ///
    /// # Panics
    /// If the token isn't accepted.
    pub async fn login(&self, token: &str, namespace: &str) -> LoggedIn<'_> {
        self.login_from(Ipv4Addr::LOCALHOST, token, namespace).await
    }

    /// As [`Self::login`], from another address.
    ///
    /// # Panics
    /// As there.
    pub async fn login_from(&self, address: Ipv4Addr, token: &str, namespace: &str) -> LoggedIn<'_> {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("token", token)
            .append_pair("namespace", namespace)
            .finish();
        let answer = self.post(address, "/login", "", &form).await;
        let status = answer.status();
        let cookie = answer.headers().get(header::SET_COOKIE).and_then(|cookie| cookie.to_str().ok());
        let cookie = cookie.and_then(|cookie| cookie.split(';').next()).map(str::to_owned);
        let body = answer.into_body().collect().await.expect("all of the answer").to_bytes();
        assert_eq!(status, 303, "{}", String::from_utf8_lossy(&body));
        LoggedIn { console: self, address, cookie: cookie.expect("a cookie") }
    }
}

impl LoggedIn<'_> {
    /// The status and the body of a page.
    pub async fn page(&self, path: &str) -> (u16, String) {
        self.console.get(self.address, path, &self.cookie).await
    }

    /// Waits until a page has this text.
    pub async fn shows(&self, path: &str, text: &str) -> String {
        eventually(&format!("{path} shows {text}"), || async {
            let (status, page) = self.page(path).await;
            holds(status == 200 && page.contains(text), format!("{status}: {page}")).map(|()| page)
        })
        .await
    }

    /// Its stream of events.
    pub async fn events(&self) -> Incoming {
        let request = Request::get("/events").header(header::COOKIE, &self.cookie);
        self.console.send(self.address, request, "").await.into_body()
    }
}

/// The token of a service account in a namespace, which may read Pods and rules there and nothing else.
///
/// # Panics
/// If the API server refuses it.
pub fn reader(o: &Outrigger, namespace: &str, name: &str) -> String {
    let file = o.plane.dir.join(format!("{name}.kubeconfig"));
    o.plane.infra.reader(namespace, name, &["pods", "workloadrules"], &file).expect("a service account");
    o.plane.infra.token(namespace, name).expect("a token")
}

/// The token of a service account that may read everything.
///
/// # Panics
/// If the API server refuses it.
pub fn administrator(o: &Outrigger, name: &str) -> String {
    let infra = &o.plane.infra;
    let objects = [account("default", name), binding(name, None, "cluster-admin", ("default", name))];
    infra.apply(&objects).expect("a service account");
    infra.token("default", name).expect("a token")
}
