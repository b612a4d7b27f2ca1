//! Somebody who asks an API server, and what it answers.

use std::path::Path;

use http::Method;
use kube::Client;
use serde_json::Value;

use crate::control_plane::config;

/// The answer, or the code and the words of the refusal.
pub type Answer = Result<Value, String>;

/// A client of the administrator, who speaks as this user with these groups if there is one. A 503 is an answer for it.
pub async fn client(kubeconfig: &Path, other: Option<(&str, &[&str])>) -> Client {
    let mut config = config(kubeconfig).await;
    config.default_retry = false;
    if let Some((name, groups)) = other {
        config.auth_info.impersonate = Some(name.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
    }
    Client::try_from(config).expect("a client")
}

/// Sends a request with a body of this type, or with none if it is null. Panics if there is no answer.
pub async fn ask(client: &Client, method: Method, path: &str, content: &str, body: &Value) -> Answer {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", content);
    match client.request(request.body(bytes).expect("a request")).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(format!("{} {}", status.code, status.message)),
        Err(error) => panic!("{path}: {error}"),
    }
}
