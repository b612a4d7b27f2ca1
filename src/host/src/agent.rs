//! The client of the agent: one connection by HTTP/2, which all questions share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outrigger_api::prepare::{self, Answer, Claim, HOLD, MAX_ANSWER, Prepared, Question};
use outrigger_core::fault;
use outrigger_core::text::truncate_bytes;
use outrigger_runtime::ready::Warning;
use outrigger_runtime::tls::ClientTls;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{debug, warn};

use crate::settings::HostArgs;

/// How long connecting may take, with TLS.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the agent may take beyond the time for which it holds a question.
const SLACK: Duration = Duration::from_secs(5);
/// Interval and timeout of pings: a connection to an agent that is gone is noticed within their sum.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));
/// Largest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// Longest text of the agent that becomes part of an error, in bytes.
const MAX_TEXT: usize = 1024;

type Sender = SendRequest<Full<Bytes>>;

/// The agent.
pub(crate) struct Agent {
    authority: String,
    name: ServerName<'static>,
    tls: ClientTls,
    token: PathBuf,
    connection: Mutex<Option<Sender>>,
    /// Set while it can't be asked.
    unreachable: Warning,
}

impl Agent {
    pub(crate) fn new(args: &HostArgs, unreachable: Warning) -> anyhow::Result<Self> {
        let address = &args.agent_address;
        let name = args.server_name.clone().unwrap_or_else(|| address.host.clone());
        let name = ServerName::try_from(name.clone())
            .with_context(|| format!("--server-name: {name:?} is not a server name"))?;
        let tls = ClientTls { ca: args.ca_file.clone(), identity: None };
        // A wrong file is noticed when the process starts.
        tls.config(&[b"h2"]).context("--ca-file")?;
        Ok(Self {
            authority: address.authority.clone(),
            name,
            tls,
            token: args.token_file.clone(),
            connection: Mutex::new(None),
            unreachable,
        })
    }

    /// Asks whether the Pods of these claims may start. Returns one answer for each claim, in their order.
    ///
    /// # Errors
    /// If the agent can't be asked, or doesn't answer as it should; the message is for people.
    pub(crate) async fn ask(&self, claims: Vec<Claim>) -> anyhow::Result<Vec<Prepared>> {
        let asked = timeout(HOLD + SLACK, self.try_ask(claims)).await;
        let asked = asked.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")));
        let failure = asked.as_ref().err().map(|error| format!("{error:#}"));
        if self.unreachable.set(failure.clone())
            && let Some(error) = failure
        {
            warn!(
                agent = self.authority,
                error, "failed to ask the agent; Pods that wait for companions don't start"
            );
        }
        asked
    }

    async fn try_ask(&self, claims: Vec<Claim>) -> anyhow::Result<Vec<Prepared>> {
        let uids: Vec<String> = claims.iter().map(|claim| claim.uid.clone()).collect();
        let body = serde_json::to_vec(&Question { claims })?;
        let request = Request::post(format!("https://{}{}", self.authority, prepare::PATH))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token().await?))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .context("the token can't be sent")?;
        let response = self.sender().await?.send_request(request).await.context("the connection failed")?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            bail!("it answers {status}: {}", truncate_bytes(&printable(&text), MAX_TEXT, "..."));
        }
        answers(&body, &uids)
    }

    /// The kubelet replaces the file of a projected token before the token expires.
    async fn token(&self) -> anyhow::Result<String> {
        read_token(&self.token).await.with_context(|| format!("--token-file: {}", self.token.display()))
    }

    /// Returns the connection, and opens it if there is none. Calls that come meanwhile wait for it.
    async fn sender(&self) -> anyhow::Result<Sender> {
        let mut connection = self.connection.lock().await;
        let usable = match connection.as_mut() {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if usable && let Some(sender) = connection.as_ref() {
            return Ok(sender.clone());
        }
        *connection = None;
        let sender = timeout(CONNECT, self.connect()).await.context("connecting took too long")??;
        *connection = Some(sender.clone());
        Ok(sender)
    }

    /// Opens a connection. The CA file is read again, so that a renewed CA is used.
    async fn connect(&self) -> anyhow::Result<Sender> {
        let config = TlsConnector::from(Arc::new(self.tls.config(&[b"h2"])?));
        let stream = TcpStream::connect(&self.authority).await.context("connecting")?;
        stream.set_nodelay(true)?;
        let stream = config.connect(self.name.clone(), stream).await.context("TLS")?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .keep_alive_while_idle(true)
            .max_header_list_size(16 << 10)
            .handshake(TokioIo::new(stream))
            .await?;
        // It ends with the connection, which pings keep from lasting longer than the agent.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "connection to the agent failed");
            }
        });
        Ok(sender)
    }
}

async fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = tokio::fs::read_to_string(path).await?;
    let token = text.trim();
    ensure!(!token.is_empty() && token.len() <= MAX_TOKEN, "is no token: it has {} bytes", token.len());
    Ok(token.to_owned())
}

/// The agent's texts become Events of Pods and lines of logs.
fn cleaned(claim: Prepared) -> Prepared {
    let short = |text: &str| truncate_bytes(&printable(text), MAX_TEXT, "...").into_owned();
    Prepared { cause: short(&claim.cause), message: short(&claim.message), ..claim }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns what an answer says of the claims with these uids, in their order.
fn answers(body: &[u8], uids: &[String]) -> anyhow::Result<Vec<Prepared>> {
    let answer: Answer = serde_json::from_slice(body).context("the answer is invalid")?;
    ensure!(
        answer.claims.iter().map(|claim| &claim.uid).eq(uids) || fault("answers-are-about-any-claims"),
        "the answer is about other claims than the question"
    );
    Ok(answer.claims.into_iter().map(cleaned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_has_a_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(read_token(&path).await.is_err(), "a missing file is no token");
        for (content, expected) in
            [("", None), ("a.b.c\n", Some("a.b.c")), (&*"x".repeat(MAX_TOKEN + 1), None), ("\n", None)]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_token(&path).await.ok().as_deref(), expected);
        }
    }

    #[test]
    fn an_answer_is_about_the_claims_of_the_question_in_their_order() {
        let uids = |uids: &[&str]| -> Vec<String> { uids.iter().map(|uid| (*uid).to_owned()).collect() };
        let body = serde_json::json!({"claims": [{"uid": "a", "ready": true}, {"uid": "b", "ready": false}]});
        let body = serde_json::to_vec(&body).unwrap();
        let ready = |asked: &[&str]| -> Option<Vec<bool>> {
            let answers = answers(&body, &uids(asked)).ok()?;
            Some(answers.iter().map(|claim| claim.ready).collect())
        };
        assert_eq!(ready(&["a", "b"]), Some(vec![true, false]));
        for other in [&["b", "a"][..], &["a"], &["a", "b", "c"], &["a", "c"], &[]] {
            assert_eq!(ready(other), None, "{other:?}");
        }
        assert!(answers(b"{", &[]).is_err());
    }

    #[test]
    fn texts_of_the_agent_are_bounded_and_printable() {
        let claim = Prepared {
            uid: "u".to_owned(),
            ready: false,
            cause: "NoDPU".to_owned(),
            message: format!("a\u{1b}[2J\n{}", "é".repeat(2000)),
        };
        let cleaned = cleaned(claim);
        assert_eq!(cleaned.cause, "NoDPU");
        assert!(
            cleaned.message.starts_with("a [2J é") && cleaned.message.len() <= MAX_TEXT,
            "{}",
            cleaned.message
        );
        assert!(!cleaned.message.chars().any(char::is_control));
    }
}
