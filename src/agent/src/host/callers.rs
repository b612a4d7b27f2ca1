//! Who asks: a plugin on a host, by a token of its service account, which the API server reviews.
//!
//! The audience of the token is the agent alone, so a token that was sent here can't be used at the API server, nor one for the API
//! server here. The API server writes into the token which Node the plugin's Pod runs on; no caller can choose that.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use outrigger_core::keys;
use outrigger_runtime::callers;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::Warning;
use outrigger_runtime::serve::host;
use thiserror::Error;

/// The key of the Node in what the API server says of a token of a Pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Why a caller isn't answered.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Denied {
    #[error(
        "there is no token; send the projected token of the plugin's service account as Authorization: Bearer"
    )]
    NoToken,
    #[error("the API server doesn't accept the token for the audience outrigger-agent")]
    NotAccepted,
    #[error("the token isn't one of the service account outrigger-host in the namespace of --host-namespace")]
    OtherUser,
    #[error("the token names no Node; use a projected token of a Pod, on Kubernetes 1.32 or later")]
    NoNode,
    #[error("too many tokens of this address, or of all, have to be reviewed; ask again later")]
    Busy,
    #[error("the API server could not review the token; the agent's log says why")]
    Failed,
}

impl From<callers::Denied> for Denied {
    fn from(denied: callers::Denied) -> Self {
        match denied {
            callers::Denied::NotAccepted => Self::NotAccepted,
            callers::Denied::Busy => Self::Busy,
            callers::Denied::Failed => Self::Failed,
        }
    }
}

/// Determines who asks.
pub(super) struct Callers {
    /// Of the tokens for the agent.
    callers: callers::Callers,
    /// Name of the user whose tokens are accepted.
    user: String,
}

impl Callers {
    pub(super) fn new(client: Client, clock: Clock, user: String, failing: Warning) -> Self {
        let callers = callers::Callers::new(client, clock, Some(keys::AGENT_AUDIENCE), failing);
        Self { callers: callers.of_addresses(host), user }
    }

    /// Returns the Node that a token names.
    pub(super) async fn node(&self, address: Option<IpAddr>, token: &str) -> Result<Arc<str>, Denied> {
        let caller = self.callers.caller(address, token).await?;
        Ok(node_of(&caller.user, &self.user)?.into())
    }
}

/// Returns the Node of a token that the API server has accepted.
fn node_of<'a>(caller: &'a UserInfo, user: &str) -> Result<&'a str, Denied> {
    if caller.username.as_deref() != Some(user) {
        return Err(Denied::OtherUser);
    }
    match caller.extra.as_ref().and_then(|extra| extra.get(NODE_NAME)).map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Ok(node),
        _ => Err(Denied::NoNode),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const USER: &str = "system:serviceaccount:outrigger-system:outrigger-host";

    #[test]
    fn only_a_token_of_the_plugin_names_a_node() {
        let of = |change: &dyn Fn(&mut Value)| {
            let mut user = json!({"username": USER, "extra": {NODE_NAME: ["host-a"]}});
            change(&mut user);
            node_of(&serde_json::from_value(user).unwrap(), USER).map(str::to_owned)
        };
        assert_eq!(of(&|_| {}), Ok("host-a".to_owned()));
        for user in [
            "system:serviceaccount:other:outrigger-host",
            "system:serviceaccount:outrigger-system:default",
            "",
        ] {
            assert_eq!(of(&|u| u["username"] = json!(user)), Err(Denied::OtherUser));
        }
        for extra in
            [json!({}), json!({NODE_NAME: []}), json!({NODE_NAME: [""]}), json!({NODE_NAME: ["a", "b"]})]
        {
            assert_eq!(of(&|u| u["extra"] = extra.clone()), Err(Denied::NoNode));
        }
    }
}
