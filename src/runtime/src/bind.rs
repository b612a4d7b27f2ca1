//! Addresses to listen on.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// An address to listen on: `:9090` (all addresses), `127.0.0.1:9090`, `[::1]:9090`, each with an optional `tcp://`, or
/// `unix:///run/outrigger.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bind {
    /// All addresses of the machine, with this port.
    AnyAddress(u16),
    /// This address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// An open listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(format!("{text:?}: the path must be absolute, as in unix:///run/outrigger.sock"))
            };
        }
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        if let Some(port) = address.strip_prefix(':') {
            return port.parse().map(Self::AnyAddress).map_err(|e| format!("{text:?}: port: {e}"));
        }
        let address = address.replace("localhost:", "127.0.0.1:");
        address.parse().map(Self::Tcp).map_err(|_| {
            format!("{text:?} is not an address: use :PORT, IP:PORT, tcp://IP:PORT or unix:///PATH")
        })
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyAddress(port) => write!(f, ":{port}"),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Bind {
    /// Whether it can be reached only from this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::AnyAddress(_) => false,
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Opens a listener.
    ///
    /// # Errors
    /// If that fails; the message names the address.
    pub fn listen(&self) -> anyhow::Result<Listener> {
        self.try_listen().with_context(|| format!("failed to listen on {self}"))
    }

    fn try_listen(&self) -> anyhow::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(tcp(*address, false)?)),
            // One socket for IPv6 and IPv4, or only IPv4 if the machine has no IPv6.
            Self::AnyAddress(port) => {
                let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), *port);
                let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), *port);
                Ok(Listener::Tcp(tcp(v6, true).or_else(|_| tcp(v4, false))?))
            }
            Self::Unix(path) => {
                remove_stale(path)?;
                Ok(Listener::Unix(UnixListener::bind(path)?))
            }
        }
    }
}

/// Removes a socket file on which no process listens, left behind by a process that was killed. No other file is removed.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !file.file_type().is_socket() {
        bail!("the path exists and is no socket");
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another process listens on it"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(std::fs::remove_file(path)?),
        Err(error) => {
            Err(error).context("the socket exists, and it is unknown whether a process listens on it")
        }
    }
}

fn tcp(address: SocketAddr, both: bool) -> anyhow::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if both {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(TcpListener::from_std(socket.into())?)
}

pub(crate) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    /// The address of the client; `None` on a Unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl Listener {
    /// The TCP address, with the assigned port if the port was 0.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    pub(crate) async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Responses are small and latency matters. If this fails the connection is broken, which reading it shows.
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Tcp(stream, address))
            }
            Self::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(f),
                Err(_) => f.write_str("tcp"),
            },
            Self::Unix(listener) => match listener.local_addr() {
                Ok(address) => {
                    write!(f, "unix://{}", address.as_pathname().unwrap_or(Path::new("")).display())
                }
                Err(_) => f.write_str("unix"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown, local) in [
            (":9090", ":9090", false),
            ("tcp://:9090", ":9090", false),
            ("127.0.0.1:0", "127.0.0.1:0", true),
            ("tcp://[::1]:80", "[::1]:80", true),
            ("localhost:80", "127.0.0.1:80", true),
            ("0.0.0.0:1", "0.0.0.0:1", false),
            ("unix:///run/x.sock", "unix:///run/x.sock", true),
        ] {
            let bind: Bind = text.parse().unwrap();
            assert_eq!((bind.to_string().as_str(), bind.is_local()), (shown, local));
        }
        for bad in ["", "9090", ":x", ":70000", "host:80", "unix://x", "tcp://"] {
            assert!(bad.parse::<Bind>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let bind = Bind::Unix(dir.path().join("s"));
        drop(bind.listen().unwrap());
        let listener = bind.listen().unwrap();
        let error = format!("{:#}", bind.listen().unwrap_err());
        assert!(error.contains("another process listens on it"), "{error}");
        assert!(error.contains(&bind.to_string()), "{error}");
        assert_eq!(listener.to_string(), bind.to_string());
        drop(listener);
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = format!("{:#}", Bind::Unix(path.clone()).listen().unwrap_err());
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "data");
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let first = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
        let address = first.address().unwrap();
        let error = format!("{:#}", Bind::Tcp(address).listen().unwrap_err());
        assert!(error.contains(&address.to_string()) && error.contains("in use"), "{error}");
    }
}
