//! What the demo's Nodes are: real ones, on which containers run, or kwok's, which say that they run.

use std::str::FromStr;

use anyhow::{Context, bail};
use outrigger_tests::control_plane::{ControlPlane, tool};
use outrigger_tests::gate;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::rack::{Machine, Rack, Script, lacking};
use outrigger_tests::tenant::host;

use crate::pods::LIMIT;
use crate::show::Show;

/// Where webhook and manager run.
const CONTROL: Machine = Machine::infra("control", 10, None);

/// The DPUs of `clusters.yaml`, and the hosts of the tenant blue.
const MACHINES: [Machine; 7] = [
    CONTROL,
    Machine::infra("dpu1-host-a", 11, Some("host-a")),
    Machine::infra("dpu2-host-a", 12, Some("host-a")),
    Machine::infra("dpu1-host-b", 13, Some("host-b")),
    Machine::infra("dpu1-host-c", 14, Some("host-c")),
    Machine::tenant("host-a", 21),
    Machine::tenant("host-b", 22),
];

/// What `rule.yaml` and `workload.yaml` run.
const SCRIPTS: [Script; 2] = [
    Script { image: "registry.example/firewall:1", script: include_str!("firewall.sh") },
    Script { image: "registry.example/web:1", script: include_str!("web.sh") },
];

/// A kind of Nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Real,
    Kwok,
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Self> {
        match word {
            "real" => Ok(Self::Real),
            "kwok" => Ok(Self::Kwok),
            _ => bail!("NODES={word}: use real or kwok"),
        }
    }
}

impl Kind {
    /// Real ones where this machine can have them, and why.
    pub(crate) fn of_machine() -> (Self, String) {
        match lacking() {
            None => {
                (Self::Real, "as this machine can have them (NODES=kwok is for those that can't)".to_owned())
            }
            Some(what) => (Self::Kwok, format!("because for real ones {what}")),
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Real => "real, each a kubelet with containerd and a network of its own",
            Self::Kwok => "kwok's, which say that Pods run",
        }
    }
}

/// Both clusters, with Nodes of a kind.
pub(crate) enum Installed {
    Kwok(Box<Outrigger>),
    Real(Box<Rack>),
}

impl Installed {
    pub(crate) async fn start(show: &mut Show, kind: Kind) -> anyhow::Result<Self> {
        let what = "Start two clusters: infrastructure (its Nodes are DPUs) and tenant (its Nodes are hosts)";
        if kind == Kind::Kwok {
            let plane = show.step(what, async { ControlPlane::start_with(&["--cert-manager"]) }).await?;
            return Ok(Self::Kwok(Box::new(Outrigger::new(plane)?)));
        }
        for program in ["node", "containerd"] {
            tool(program)?;
        }
        let rack = show
            .step(what, async {
                let rack = Rack::start(&SCRIPTS)?;
                rack.add(&MACHINES).await;
                Ok(rack)
            })
            .await?;
        Ok(Self::Real(Box::new(rack)))
    }

    pub(crate) fn are_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        match self {
            Self::Kwok(outrigger) => &outrigger.plane,
            Self::Real(rack) => &rack.plane,
        }
    }

    /// Installs webhook and manager: as they are shipped on real Nodes, and as processes where nothing runs on Nodes.
    pub(crate) async fn install(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Kwok(o) => {
                o.install_issued().await?;
                o.plane.tenant.apply(&[host("host-a"), host("host-b")])?;
                o.start_webhook()?;
                o.start_manager()?;
                tokio::time::timeout(LIMIT, o.ready()).await.context("not ready in time")
            }
            Self::Real(rack) => rack.install().await,
        }
    }

    /// Starts the agent of a tenant.
    pub(crate) async fn install_agent(&self, tenant: &str) -> anyhow::Result<()> {
        match self {
            Self::Kwok(o) => {
                o.issued.as_ref().context("no cert-manager")?.agent(&o.plane.infra, tenant).await?;
                let gate = gate::install(&o.plane.tenant, |configuration| configuration)?;
                o.start_agent_with(tenant, &[&["--namespace=*".to_owned()], &gate[..]].concat())
            }
            Self::Real(rack) => rack.install_agent(tenant, CONTROL).await,
        }
    }
}
