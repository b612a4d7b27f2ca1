//! A real browser: Debian's Chromium, driven by its chromedriver.
//!
//! The protocol is WebDriver, which is JSON over HTTP, with Chromium's own commands where WebDriver has none: the colour scheme, the
//! size of a phone, the tree that screen readers get.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::control_plane::{ControlPlane, tool};
use crate::outrigger::{exchange, ports};
use crate::{InWords, eventually, holds};

/// How long a command may take: a page waits until the console has read the cluster.
const COMMAND: Duration = Duration::from_secs(120);

/// The Tab key, as WebDriver names it.
pub const TAB: char = '\u{e004}';

/// The Enter key.
pub const ENTER: char = '\u{e007}';

/// The Shift key.
pub const SHIFT: char = '\u{e008}';

/// A colour scheme that the reader prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Dark text on a light page.
    Light,
    /// Light text on a dark page.
    Dark,
}

impl Scheme {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// Its name in style sheets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// The size of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

/// A window on a desk.
pub const DESK: Screen = Screen { width: 1280, height: 800 };

/// A phone.
pub const PHONE: Screen = Screen { width: 390, height: 844 };

/// A browser with one window. It is closed when this is dropped, and when the control plane ends.
pub struct Browser {
    plane: &'static ControlPlane,
    /// The process of its driver.
    process: String,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts it, with an empty profile.
    pub async fn start(plane: &'static ControlPlane) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let driver = tool("chromium").expect("chromedriver");
        let [port] = ports().expect("a port");
        let process = format!("browser-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let command = [driver.display().to_string(), format!("--port={port}")];
        plane.run(&process, &command, &[]).expect("chromedriver starts");
        let mut this = Self { plane, process, port, session: String::new() };
        eventually("chromedriver is ready", || async {
            let status = this.command(Method::GET, "/status", None).await?;
            holds(status["ready"] == true, status.to_string())
        })
        .await;
        let profile = plane.dir.join(&this.process);
        let args = [
            "--headless=new",
            // Tests run as root in containers, where Chromium has no sandbox and little shared memory.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            // With its driver it ends too.
            "--remote-debugging-pipe",
            // It talks to this machine only.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": "/usr/bin/chromium", "args": args},
        }}});
        let session = this.command(Method::POST, "/session", Some(wanted)).await.expect("Chromium starts");
        this.session = session["sessionId"].as_str().expect("a session").to_owned();
        this.screen(DESK).await;
        this.scheme(Scheme::Light).await;
        this
    }

    async fn command(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let asked = async {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await.in_words()?;
            exchange(stream, http::Request::builder().method(method).uri(path), body).await
        };
        let (status, body) = timeout(COMMAND, asked).await.map_err(|_| format!("{path}: no answer"))??;
        let mut answer: Value = serde_json::from_str(&body).in_words()?;
        let value = answer["value"].take();
        if status == 200 { Ok(value) } else { Err(format!("{path}: {status}: {value}")) }
    }

    /// A command of the session.
    async fn ask(&self, path: &str, body: Value) -> Result<Value, String> {
        self.command(Method::POST, &format!("/session/{}/{path}", self.session), Some(body)).await
    }

    /// As [`Self::ask`] where a failure is a failure of the test.
    async fn ask_or_panic(&self, path: &str, body: Value) -> Value {
        self.ask(path, body).await.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Opens a URL, and waits until all of the page is there.
    pub async fn open(&self, url: impl Display) {
        self.ask_or_panic("url", json!({"url": url.to_string()})).await;
    }

    /// Runs a function's body in the page, and returns what it returns. Promises are awaited.
    pub async fn run(&self, script: &str) -> Value {
        self.run_with(script, &[]).await
    }

    /// As [`Self::run`], with arguments.
    pub async fn run_with(&self, script: &str, args: &[Value]) -> Value {
        self.ask_or_panic("execute/sync", json!({"script": script, "args": args})).await
    }

    /// The text that the page shows.
    pub async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows all of these words, without being loaded again.
    pub async fn shows(&self, words: &[&str]) -> String {
        eventually(&format!("the page shows {words:?}"), || async {
            let text = self.text().await;
            let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
            holds(missing.is_empty(), format!("lacks {missing:?}: {text}")).map(|()| text)
        })
        .await
    }

    /// Waits until the page no longer shows these words.
    pub async fn hides(&self, words: &str) {
        eventually(&format!("the page doesn't show {words:?}"), || async {
            let text = self.text().await;
            holds(!text.contains(words), text)
        })
        .await;
    }

    /// Presses these keys one after the other. [`SHIFT`] stays pressed until the last of them.
    pub async fn press(&self, keys: impl IntoIterator<Item = char>) {
        let mut held = Vec::new();
        let mut actions = Vec::new();
        for key in keys {
            actions.push(json!({"type": "keyDown", "value": key.to_string()}));
            if key == SHIFT {
                held.push(key);
            } else {
                actions.push(json!({"type": "keyUp", "value": key.to_string()}));
            }
        }
        actions.extend(held.iter().map(|key| json!({"type": "keyUp", "value": key.to_string()})));
        self.ask_or_panic(
            "actions",
            json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}),
        )
        .await;
    }

    /// A command of Chromium's own protocol.
    pub async fn chromium(&self, command: &str, params: Value) -> Value {
        self.ask_or_panic("goog/cdp/execute", json!({"cmd": command, "params": params})).await
    }

    /// Sets the colour scheme that the reader prefers.
    pub async fn scheme(&self, scheme: Scheme) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme.as_str()}]);
        self.chromium("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Sets the size of the screen.
    pub async fn screen(&self, screen: Screen) {
        let params = json!({"width": screen.width, "height": screen.height, "deviceScaleFactor": 1,
            "mobile": screen.width < 600});
        self.chromium("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// A picture of the page as PNG: what the window shows, without empty space below.
    pub async fn picture(&self) -> Vec<u8> {
        let size = "return [innerWidth, Math.min(innerHeight, Math.ceil(document.body.getBoundingClientRect().height))]";
        let size = self.run(size).await;
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let picture = self.chromium("Page.captureScreenshot", json!({"format": "png", "clip": clip})).await;
        STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }

    /// What the console of the developer tools has shown since the last call: errors of scripts, files that weren't loaded, and
    /// whatever the Content Security Policy has refused.
    pub async fn complaints(&self) -> Vec<String> {
        let log = self.ask_or_panic("se/log", json!({"type": "browser"})).await;
        let message = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        log.as_array().into_iter().flatten().map(message).collect()
    }

    /// What axe-core finds wrong with the page: the rule, and where.
    pub async fn findings(&self) -> Vec<String> {
        let axe = std::fs::read_to_string(tool("axe").expect("axe-core")).expect("axe.min.js");
        self.run(&format!("if (!window.axe) {{ {axe} }}")).await;
        let found = self.run("return axe.run().then((all) => [all.violations, all.passes.length])").await;
        assert!(
            found[1].as_u64().is_some_and(|passes| passes > 10),
            "axe-core has looked at nothing: {found}"
        );
        let of = |finding: &Value| {
            let nodes = finding["nodes"].as_array().into_iter().flatten();
            let places: Vec<String> =
                nodes.map(|node| format!("{} {}", node["html"], node["failureSummary"])).collect();
            format!("{}: {}", finding["id"].as_str().unwrap_or_default(), places.join("; "))
        };
        found[0].as_array().into_iter().flatten().map(of).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The control plane ends it too; a failure here is none of the test.
        let _ = self.plane.command(&format!("term {}", self.process));
    }
}
