//! A proxy of bytes between two of our processes: what a network does, whatever is said over it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A port that leads to another one. It ends when this is dropped, and serves on a thread of its own.
pub struct Wire {
    /// Its port.
    pub port: u16,
    shared: Arc<Shared>,
    /// Ends its thread.
    _end: DropGuard,
}

/// What the network does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Bytes pass.
    #[default]
    Open,
    /// Connections are reset, and new ones are reset too.
    Cut,
    /// Bytes are neither delivered nor refused, in either direction. Connections stay open.
    BlackHole,
    /// The same for what the server sends; the client's bytes pass.
    ServerUnheard,
    /// The same for what the client sends; the server's bytes pass.
    ClientUnheard,
    /// Bytes come later by this time.
    Delay(Duration),
    /// So many bytes pass at a time, with a pause before each.
    Slow {
        /// Bytes of a piece.
        bytes: usize,
        /// The pause.
        every: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

impl Network {
    /// Whether bytes from there are on their way now.
    fn passes(self, from: From) -> bool {
        match self {
            Self::BlackHole => false,
            Self::ServerUnheard => from == From::Client,
            Self::ClientUnheard => from == From::Server,
            _ => true,
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    network: watch::Sender<Network>,
    /// Cancelled for connections that are lost.
    lost: Mutex<CancellationToken>,
}

impl Wire {
    /// A port on loopback that leads to another one.
    pub fn start(to: u16) -> anyhow::Result<Self> {
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        let (port, _, _end) = super::serve_on_thread(move |client| {
            tokio::spawn(connection(serving.clone(), client, to));
        })?;
        Ok(Self { port, shared, _end })
    }

    /// What the network does from now on, with connections that are open too. Bytes that were held pass when it is open
    /// again, as after a partition that has healed.
    pub fn set(&self, network: Network) {
        self.shared.network.send_replace(network);
    }

    /// Connections that are open now never carry a byte again, and are not closed either: whatever was in between has
    /// forgotten them. New ones are as [`Self::set`] says.
    pub fn lose(&self) {
        std::mem::take(&mut *self.shared.lost.lock()).cancel();
    }
}

async fn connection(shared: Arc<Shared>, mut client: TcpStream, to: u16) {
    let lost = shared.lost.lock().clone();
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut network = shared.network.subscribe();
    let reset = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let pumps = futures::future::join(
            pump(from_client, to_server, From::Client, shared.network.subscribe()),
            pump(from_server, to_client, From::Server, shared.network.subscribe()),
        );
        let cut = async { drop(network.wait_for(|network| *network == Network::Cut).await) };
        tokio::select! {
            _ = pumps => false,
            () = cut => true,
            // Neither side is ever notified.
            () = lost.cancelled() => pending().await,
        }
    };
    if reset {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Carries what comes from one side to the other until it ends.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    side: From,
    mut network: watch::Receiver<Network>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        let now = match network.wait_for(|network| network.passes(side)).await {
            Ok(now) => *now,
            Err(_) => return,
        };
        if read == 0 {
            let _ = to.shutdown().await;
            return;
        }
        let (size, pause) = match now {
            Network::Slow { bytes, every } => (bytes.max(1), every),
            Network::Delay(time) => (read, time),
            _ => (read, Duration::ZERO),
        };
        for piece in buffer[..read].chunks(size) {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            if to.write_all(piece).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A server that sends back what it gets.
    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        port
    }

    async fn said(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
        stream.write_all(text.as_bytes()).await?;
        heard(stream, text.len()).await
    }

    async fn heard(stream: &mut TcpStream, length: usize) -> std::io::Result<String> {
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn is_silent(stream: &TcpStream) -> bool {
        tokio::time::timeout(Duration::from_millis(100), stream.peek(&mut [0])).await.is_err()
    }

    #[tokio::test]
    async fn bytes_wait_out_a_black_hole_and_lost_connections_stay_silent() {
        let wire = Wire::start(echo().await).unwrap();
        let connect = async || TcpStream::connect(("127.0.0.1", wire.port)).await.unwrap();
        let mut stream = connect().await;
        assert_eq!(said(&mut stream, "one").await.unwrap(), "one");
        for network in [Network::BlackHole, Network::ServerUnheard, Network::ClientUnheard] {
            wire.set(network);
            stream.write_all(b"two").await.unwrap();
            assert!(is_silent(&stream).await, "{network:?}");
            wire.set(Network::Open);
            assert_eq!(heard(&mut stream, 3).await.unwrap(), "two");
        }
        wire.lose();
        stream.write_all(b"three").await.unwrap();
        let mut other = connect().await;
        assert_eq!(said(&mut other, "four").await.unwrap(), "four");
        assert!(is_silent(&stream).await);
    }

    #[tokio::test]
    async fn a_cut_resets_connections() {
        let wire = Wire::start(echo().await).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", wire.port)).await.unwrap();
        assert_eq!(said(&mut stream, "one").await.unwrap(), "one");
        wire.set(Network::Cut);
        let error = heard(&mut stream, 1).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
