//! Who may read: the browser that has opened the URL with the token.
//!
//! The token in the URL works once. Whoever has it gets a session, which is a cookie that scripts can't read and other sites
//! can't cause to be sent. So a URL in a history or a log is of no use to anybody.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use axum::http::header::{COOKIE, HOST, HeaderName, ORIGIN};
use sha2::{Digest, Sha256};

/// What browsers say of who has caused a request.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// 32 random bytes, as hexadecimal digits.
pub(super) fn secret() -> String {
    use rand::RngCore;
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digests are compared, so that the time of the comparison says nothing of the secret.
pub(super) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// The value of a header; `None` if there isn't exactly one.
pub(super) fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Names and values of all cookies.
pub(super) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let all = headers.get_all(COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
    all.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

/// The token, and the session into which it is exchanged.
pub(super) struct Access {
    token: [u8; 32],
    used: AtomicBool,
    session: String,
    session_digest: [u8; 32],
    /// Browsers send cookies to every port of a machine, so that the name has the port.
    cookie: String,
    hosts: [String; 2],
}

impl Access {
    /// A new token and session for a port of the machine; returns the token.
    pub(super) fn new(port: u16) -> (Self, String) {
        let (token, session) = (secret(), secret());
        let this = Self {
            token: digest(&token),
            used: AtomicBool::new(false),
            session_digest: digest(&session),
            session,
            cookie: format!("outrigger-console-{port}"),
            hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
        };
        (this, token)
    }

    /// Exchanges the token for the value of `Set-Cookie`, once.
    pub(super) fn exchange(&self, token: &str) -> Option<String> {
        if digest(token) != self.token || self.used.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.session))
    }

    /// Whether the request is for this console and not for a name that somebody has pointed at this machine.
    pub(super) fn is_own_host(&self, headers: &HeaderMap) -> bool {
        only(headers, HOST).is_some_and(|host| self.hosts.iter().any(|own| own == host))
    }

    /// Whether another page has caused the request: one of another port has the same site, so it is sent the cookie.
    pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
        headers.get(SITE).is_some_and(|site| site != "same-origin" && site != "none")
    }

    /// Whether a page of this console has sent a form. Browsers name the origin of each form that they send.
    pub(super) fn is_own_form(&self, headers: &HeaderMap) -> bool {
        let origin = only(headers, ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
        origin.is_some_and(|origin| self.hosts.iter().any(|own| own == origin))
    }

    /// Whether the request has the session's cookie.
    pub(super) fn has_session(&self, headers: &HeaderMap) -> bool {
        cookies(headers).any(|(name, value)| name == self.cookie && digest(value) == self.session_digest)
    }
}
