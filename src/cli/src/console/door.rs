//! Who is let in, and with whose rights a request is answered: on a user's machine the browser that has opened the URL with the token; in
//! the cluster users who have logged in.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap, LOCATION, ORIGIN, RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use outrigger_runtime::serve::Peer;

use super::access::{Access, only};
use super::page::{self, View};
use super::sessions::{NoSession, Session, Sessions, unset_cookie};
use super::web::{self, URL};

/// Where users log in and out.
pub(super) const LOGIN: &str = "/login";
pub(super) const LOGOUT: &str = "/logout";

/// Who is let in.
pub(super) enum Door {
    /// One browser on the same machine.
    Own(Box<Access>, Arc<Session>),
    /// Users with tokens.
    Users(Box<Sessions>),
}

impl Door {
    /// The session in which a request is answered, or the answer to a request that gets no page.
    pub(super) async fn enter(&self, request: &Parts) -> Result<Option<Arc<Session>>, Response> {
        match self {
            Self::Own(access, session) => match own_refusal(access, request) {
                Some(refusal) => Err(refusal),
                None => Ok(Some(session.clone())),
            },
            Self::Users(sessions) => {
                if let Some(refusal) = refusal(request) {
                    return Err(refusal);
                }
                let path = request.uri.path();
                if path == LOGIN || path == web::STYLE_PATH {
                    return Ok(None);
                }
                sessions.of(&request.headers).await.map(Some).map_err(|why| no_session(&why, request))
            }
        }
    }

    /// Whether a session may be answered in now; `None`: never again.
    pub(super) async fn admits(&self, session: &Session) -> Option<bool> {
        let Self::Users(sessions) = self else { return Some(true) };
        match sessions.check(session).await {
            Ok(()) => Some(true),
            Err(NoSession::Failed(_)) => Some(false),
            Err(_) => None,
        }
    }

    /// The answer to the form of the login.
    pub(super) async fn login(&self, address: Option<IpAddr>, token: &str, namespace: &str) -> Response {
        let Self::Users(sessions) = self else { return StatusCode::NOT_FOUND.into_response() };
        match sessions.login(address, token.trim(), namespace.trim()).await {
            Ok(cookie) => {
                (StatusCode::SEE_OTHER, [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)]).into_response()
            }
            Err(why) => {
                let html = page::login(Some(&why.to_string())).into_string();
                (status(&why), [(CONTENT_TYPE, web::HTML)], html).into_response()
            }
        }
    }

    /// The page of the login.
    pub(super) fn login_page(&self) -> Response {
        match self {
            Self::Own(..) => StatusCode::NOT_FOUND.into_response(),
            Self::Users(_) => ([(CONTENT_TYPE, web::HTML)], page::login(None).into_string()).into_response(),
        }
    }

    /// Ends the sessions that have lasted too long.
    pub(super) fn sweep(&self) {
        if let Self::Users(sessions) = self {
            sessions.sweep();
            sessions.trim();
        }
    }

    /// Ends the session of a request.
    pub(super) fn logout(&self, headers: &HeaderMap) -> Response {
        let Self::Users(sessions) = self else { return StatusCode::NOT_FOUND.into_response() };
        sessions.logout(headers);
        let answer = [(LOCATION, LOGIN.to_owned()), (SET_COOKIE, unset_cookie())];
        (StatusCode::SEE_OTHER, answer).into_response()
    }
}

fn status(why: &NoSession) -> StatusCode {
    match why {
        NoSession::None | NoSession::NotAccepted => StatusCode::UNAUTHORIZED,
        NoSession::Namespace => StatusCode::BAD_REQUEST,
        NoSession::Busy => StatusCode::TOO_MANY_REQUESTS,
        NoSession::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The answer to a request without a session: a browser that wants a page is sent to the login.
fn no_session(why: &NoSession, request: &Parts) -> Response {
    let is_page = View::ALL.iter().any(|view| view.path() == request.uri.path());
    if is_page && request.method == Method::GET && status(why) == StatusCode::UNAUTHORIZED {
        return (StatusCode::SEE_OTHER, [(LOCATION, LOGIN)]).into_response();
    }
    (status(why), [(RETRY_AFTER, "5")], format!("{why}\n")).into_response()
}

fn too_long(request: &Parts) -> Option<Response> {
    request.uri.path_and_query().filter(|whole| whole.as_str().len() > URL).map(|_| {
        let why = format!("the URL has more than {URL} bytes\n");
        (StatusCode::URI_TOO_LONG, why).into_response()
    })
}

fn only_reads(allow: &'static str) -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, allow)], "the console only reads\n").into_response()
}

fn foreign() -> Response {
    let why = "another page has caused the request; open the console by itself\n";
    (StatusCode::FORBIDDEN, why).into_response()
}

/// The answer to a request on a user's machine that gets no page: the exchange of the token too.
fn own_refusal(access: &Access, request: &Parts) -> Option<Response> {
    let (url, headers) = (&request.uri, &request.headers);
    if !access.is_own_host(headers) {
        return Some((StatusCode::FORBIDDEN, "the host is not this console's\n").into_response());
    }
    let is_form = request.method == Method::POST && url.path() == View::WhatIf.path();
    if request.method != Method::GET && !is_form {
        return Some(only_reads("GET"));
    }
    if let Some(refusal) = too_long(request) {
        return Some(refusal);
    }
    if access.has_session(headers) {
        let is_foreign = Access::is_foreign(headers) || is_form && !access.is_own_form(headers);
        return is_foreign.then(foreign);
    }
    let query = url.query().unwrap_or_default();
    let token = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "token");
    if let Some(cookie) = token.and_then(|(_, token)| access.exchange(&token)) {
        // The browser's history keeps the URL without the token.
        let answer = (StatusCode::SEE_OTHER, [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)]);
        return Some(answer.into_response());
    }
    let why = "no session: open the URL that `outrigger console` has printed. It works once; start the command again for another\n";
    Some((StatusCode::UNAUTHORIZED, why).into_response())
}

/// The answer to a request in the cluster that nobody may send, whoever it is.
fn refusal(request: &Parts) -> Option<Response> {
    let (path, headers) = (request.uri.path(), &request.headers);
    let is_form = request.method == Method::POST && [View::WhatIf.path(), LOGIN, LOGOUT].contains(&path);
    if !is_form && (request.method != Method::GET || path == LOGOUT) {
        return Some(only_reads("GET, POST"));
    }
    if let Some(refusal) = too_long(request) {
        return Some(refusal);
    }
    // A link on another site may lead to a page, and to nothing else. The cookie isn't sent with it.
    let is_foreign = Access::is_foreign(headers) && (is_form || !is_navigation(headers));
    (is_foreign || is_form && !is_own_form(request)).then(foreign)
}

/// Whether somebody has followed a link.
fn is_navigation(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
        && headers.get("sec-fetch-dest").is_some_and(|dest| dest == "document")
}

/// Whether a page of the host that was asked has sent a form. Browsers name the origin of each form that they send.
fn is_own_form(request: &Parts) -> bool {
    // HTTP/2 has the host in the URL.
    let host = request.uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| only(&request.headers, HOST));
    let origin = only(&request.headers, ORIGIN).and_then(|origin| origin.strip_prefix("https://"));
    host.is_some() && host == origin
}

/// The address of whoever has sent a request.
pub(super) fn address(request: &Parts) -> Option<IpAddr> {
    request.extensions.get::<Peer>()?.address.map(|address| address.ip())
}
