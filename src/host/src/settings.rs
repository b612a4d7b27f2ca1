//! Command-line options of the plugin.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use http::Uri;
use outrigger_runtime::process::ProcessArgs;

/// Command-line options of the plugin.
#[derive(Debug, Clone, Args)]
pub struct HostArgs {
    /// Address of the agent's --host-address: https://HOST:PORT.
    #[arg(long, env = "OUTRIGGER_AGENT_ADDRESS", value_name = "ADDRESS")]
    pub(crate) agent_address: AgentAddress,

    /// PEM file with the CA certificates that verify the agent's certificate. It is read for each connection.
    #[arg(long, env = "OUTRIGGER_CA_FILE", value_name = "FILE")]
    pub(crate) ca_file: PathBuf,

    /// Expected name in the agent's certificate. Defaults to the host of its address.
    #[arg(long, env = "OUTRIGGER_SERVER_NAME", value_name = "NAME")]
    pub(crate) server_name: Option<String>,

    /// File with the plugin's token: a projected token of its service account with the audience outrigger-agent, which names the
    /// Node. It is read for each call.
    #[arg(
        long,
        env = "OUTRIGGER_TOKEN_FILE",
        default_value = "/var/run/secrets/outrigger/token",
        value_name = "FILE"
    )]
    pub(crate) token_file: PathBuf,

    /// Directory in which the kubelet looks for the sockets of plugins, by the same path as on the host.
    #[arg(
        long,
        env = "OUTRIGGER_PLUGINS_REGISTRY",
        default_value = "/var/lib/kubelet/plugins_registry",
        value_name = "DIR"
    )]
    pub(crate) plugins_registry: PathBuf,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

/// Address of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentAddress {
    /// Host and port.
    pub(crate) authority: String,
    /// The name that the certificate has to have.
    pub(crate) host: String,
}

impl FromStr for AgentAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an address: use https://HOST:PORT");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        match (uri.scheme_str(), uri.authority(), uri.port_u16(), uri.path()) {
            (Some("https"), Some(authority), Some(_), "/" | "") if !authority.as_str().contains('@') => {
                Ok(Self { authority: authority.to_string(), host })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_called_by_https_with_a_port() {
        let parse = |text: &str| text.parse::<AgentAddress>();
        let expected = |authority: &str, host: &str| {
            Ok(AgentAddress { authority: authority.to_owned(), host: host.to_owned() })
        };
        assert_eq!(
            parse("https://outrigger-agent.x.svc:9444"),
            expected("outrigger-agent.x.svc:9444", "outrigger-agent.x.svc")
        );
        assert_eq!(parse("https://[::1]:9444"), expected("[::1]:9444", "::1"));
        for wrong in
            ["http://agent:1", "https://agent", "agent:1", "https://a@agent:1", "https://agent:1/path", ""]
        {
            assert!(parse(wrong).unwrap_err().contains("use https://HOST:PORT"), "{wrong}");
        }
    }
}
