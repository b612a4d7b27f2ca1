//! A proxy of calls between an agent and a manager that speak in plain text: for answers that are lost.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_util::sync::DropGuard;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A port that leads to a manager's. It ends when this is dropped, and serves on a thread of its own.
pub struct Calls {
    /// Its port.
    pub port: u16,
    faults: Arc<Faults>,
    /// Ends its thread.
    _end: DropGuard,
}

/// What happens to the answer that the manager has given to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The call ends as cancelled by the other side.
    Dropped,
    /// The caller never hears of it.
    Withheld,
}

/// Method, answer, and how often still.
type Faults = Mutex<Vec<(String, Answer, u32)>>;

impl Calls {
    /// A port on loopback that leads to another one.
    pub fn start(to: u16) -> anyhow::Result<Self> {
        let faults = Arc::<Faults>::default();
        let serving = faults.clone();
        let (port, _, _end) = super::serve_on_thread(move |client| {
            tokio::spawn(connection(serving.clone(), client, to));
        })?;
        Ok(Self { port, faults, _end })
    }

    /// The next so many answers to a method, such as `Create`, are lost.
    pub fn fault(&self, method: &str, answer: Answer, times: u32) {
        self.faults.lock().push((format!("/{method}"), answer, times));
    }

    /// Whether some faults have not been used up.
    pub fn pending(&self) -> bool {
        self.faults.lock().iter().any(|(.., left)| *left > 0)
    }
}

async fn connection(faults: Arc<Faults>, client: TcpStream, to: u16) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let Ok((sender, upstream)) = http2::handshake(TokioExecutor::new(), TokioIo::new(server)).await else {
        return;
    };
    let service = service_fn(move |request| call(faults.clone(), sender.clone(), request));
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service);
    // When one side ends, so does the other.
    tokio::select! {
        _ = serving => {}
        _ = upstream => {}
    }
}

async fn call(
    faults: Arc<Faults>,
    mut sender: SendRequest<Incoming>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let answer = sender.send_request(request).await?;
    let fault = {
        let mut faults = faults.lock();
        let found = faults.iter_mut().find(|(method, _, left)| *left > 0 && path.ends_with(method.as_str()));
        found.map(|(_, fault, left)| {
            *left -= 1;
            *fault
        })
    };
    match fault {
        None => Ok(answer.map(BodyExt::boxed_unsync)),
        Some(Answer::Withheld) => pending().await,
        // The code of a call that its server gives up.
        Some(Answer::Dropped) => {
            let mut lost =
                Response::new(Full::new(Bytes::new()).map_err(|e: Infallible| match e {}).boxed_unsync());
            lost.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
            lost.headers_mut().insert("grpc-status", http::HeaderValue::from_static("14"));
            Ok(lost)
        }
    }
}
