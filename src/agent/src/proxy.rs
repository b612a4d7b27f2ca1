//! TCP connections to the manager: to its own addresses, or through an HTTP proxy that the environment names.
//!
//! `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` mean what they mean to curl. A proxy gets the manager's address and bytes of TLS: agent
//! and manager still authenticate each other, and the proxy resolves the manager's name.

use std::time::Duration;

use anyhow::{Context, bail};
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::connect::Address;

/// Limit of a TCP connection, over all addresses of a name. The limit of [`crate::connect::endpoint`] covers the answer of the proxy
/// and the TLS handshake too.
const CONNECT: Duration = Duration::from_secs(10);

/// A proxy that opens connections by CONNECT.
#[derive(Clone)]
pub(crate) struct Proxy {
    uri: Uri,
    /// Never logged.
    credentials: Option<HeaderValue>,
}

impl Proxy {
    /// The proxy for an address by the environment of this process, if there is one.
    ///
    /// # Errors
    /// If it isn't an HTTP proxy in plain text.
    pub(crate) fn from_env(address: &Address) -> anyhow::Result<Option<Self>> {
        Self::by(&Matcher::from_env(), address)
    }

    fn by(matcher: &Matcher, address: &Address) -> anyhow::Result<Option<Self>> {
        let Address::Https { authority, .. } = address else { return Ok(None) };
        // To a proxy on another machine, loopback is that machine.
        if address.is_loopback() {
            return Ok(None);
        }
        let target: Uri = uri(authority)?;
        let Some(found) = matcher.intercept(&target) else { return Ok(None) };
        let uri = found.uri().clone();
        match uri.scheme_str() {
            Some("http") => Ok(Some(Self { uri, credentials: found.basic_auth().cloned() })),
            scheme => bail!(
                "HTTPS_PROXY: is a proxy for {}://; use http://HOST:PORT, through which TLS to the manager goes unchanged, or add \
                 the manager's host to NO_PROXY",
                scheme.unwrap_or_default()
            ),
        }
    }

    /// Host and port of the proxy, without credentials.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", http::uri::Authority::as_str)
    }
}

/// Opens a TCP connection to this host and port. Of a name with addresses of both IP families, the other family is tried too when
/// the first one doesn't answer within 300 ms.
///
/// # Errors
/// If nobody answers, or the proxy refuses.
pub(crate) async fn open(authority: &str, proxy: Option<&Proxy>) -> anyhow::Result<TcpStream> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_nodelay(true);
    direct.set_connect_timeout(Some(CONNECT));
    let target = uri(authority)?;
    let Some(proxy) = proxy else {
        return Ok(direct.oneshot(target).await.map(TokioIo::into_inner)?);
    };
    let mut tunnel = Tunnel::new(proxy.uri.clone(), direct);
    if let Some(credentials) = &proxy.credentials {
        tunnel = tunnel.with_auth(credentials.clone());
    }
    let opened = tunnel.oneshot(target).await;
    let opened = opened
        .with_context(|| format!("HTTPS_PROXY: {} doesn't connect to {authority}", proxy.authority()))?;
    Ok(opened.into_inner())
}

fn uri(authority: &str) -> anyhow::Result<Uri> {
    format!("https://{authority}").parse().with_context(|| format!("{authority:?} is not HOST:PORT"))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn found(proxy: &str, no: &str, address: &str) -> anyhow::Result<Option<Proxy>> {
        Proxy::by(
            &Matcher::builder().https(proxy.to_owned()).no(no.to_owned()).build(),
            &address.parse().unwrap(),
        )
    }

    #[test]
    fn the_proxy_is_that_of_the_environment() {
        let authority =
            |proxy, no, address| found(proxy, no, address).unwrap().map(|p| p.authority().to_owned());
        let manager = "https://manager.example:9090";
        let proxy = Some("proxy.example:3128".to_owned());
        assert_eq!(authority("http://proxy.example:3128", "", manager), proxy);
        assert_eq!(authority("proxy.example:3128", "other.example", manager), proxy);
        assert_eq!(authority("http://proxy.example:3128", "", "https://[fd00::1]:9090"), proxy);
        assert_eq!(authority("", "", manager), None);
        for no in ["manager.example", ".example", "*", "10.0.0.0/8, example"] {
            assert_eq!(authority("http://proxy.example:3128", no, manager), None, "{no}");
        }
        for (no, address) in [("10.0.0.0/8", "https://10.1.2.3:9090"), ("fd00::/8", "https://[fd00::1]:9090")]
        {
            assert_eq!(authority("http://proxy.example:3128", no, address), None, "{no}");
        }
        for own in
            ["https://localhost:9090", "https://127.0.0.1:9090", "https://[::1]:9090", "http://127.0.0.1:1"]
        {
            assert_eq!(authority("http://proxy.example:3128", "", own), None, "{own}");
        }
    }

    #[test]
    fn other_kinds_of_proxies_are_refused_without_their_passwords() {
        for proxy in ["https://user:secret@proxy.example:443", "socks5://user:secret@proxy.example:1080"] {
            let error = found(proxy, "", "https://manager.example:9090").err().unwrap().to_string();
            assert!(
                error.starts_with("HTTPS_PROXY: is a proxy for ") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    /// What `open` says of a proxy that answers a connection so, and then waits.
    async fn refused(answer: &'static [u8]) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = async {
            let (mut client, _) = listener.accept().await.unwrap();
            client.write_all(answer).await.unwrap();
            std::future::pending::<()>().await;
        };
        let proxy = found(&url, "", "https://manager.example:9090").unwrap();
        tokio::select! {
            opened = open("manager.example:9090", proxy.as_ref()) => format!("{:#}", opened.unwrap_err()),
            () = answers => unreachable!(),
        }
    }

    #[tokio::test]
    async fn a_proxy_that_answers_something_else_is_refused() {
        static LONG: [u8; 9_000] = [b'x'; 9_000];
        let forbidden = refused(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
        assert!(
            forbidden.ends_with("doesn't connect to manager.example:9090: tunnel error: unsuccessful"),
            "{forbidden}"
        );
        let long = refused([&b"HTTP/1.1 200 "[..], &LONG].concat().leak()).await;
        assert!(long.contains("headers too long"), "{long}");
    }

    /// As the clock stands still while anything else can be done, this takes no time.
    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_says_nothing_is_given_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy =
            found(&format!("http://{}", listener.local_addr().unwrap()), "", "https://manager.example:9090");
        let proxy = proxy.unwrap();
        let connector = tower::service_fn(move |_: Uri| {
            let proxy = proxy.clone();
            async move { open("manager.example:9090", proxy.as_ref()).await.map(TokioIo::new) }
        });
        let error = crate::connect::endpoint().connect_with_connector(connector).await.unwrap_err();
        assert!(format!("{error:?}").contains("TimedOut"), "{error:?}");
    }
}
