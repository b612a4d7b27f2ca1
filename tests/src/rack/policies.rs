//! NetworkPolicies that are enforced on Nodes, by kube-network-policies (`tests/enforcer`).

use anyhow::Context;

use super::{Machine, Rack};
use crate::control_plane::{Cluster, tool};
use crate::root;
use crate::tenant::{account, binding};

/// The service account of the enforcers of a cluster.
const ACCOUNT: (&str, &str) = ("kube-system", "enforcer");

impl Rack {
    /// Enforces the NetworkPolicies of their clusters on these machines, which are on, until the rack ends.
    pub fn enforce_policies(&self, machines: &[Machine]) -> anyhow::Result<()> {
        let program = tool("enforcer")?;
        for machine in machines {
            let cluster = self.cluster(machine.cluster);
            let account = self.plane.dir.join(format!("enforcer-{}", machine.name));
            std::fs::create_dir_all(&account)?;
            std::fs::copy(&cluster.ca, account.join("ca.crt"))?;
            std::fs::write(account.join("token"), token(cluster)?)?;
            let (_, port) = cluster.server.rsplit_once(':').context("no port")?;
            let args = [
                root().join("tests/enforcer/policies.sh").display().to_string(),
                machine.name.to_owned(),
                machine.number.to_string(),
                port.to_owned(),
                account.display().to_string(),
                program.display().to_string(),
            ];
            self.plane.run(&format!("enforcer-{}", machine.name), &args, &[])?;
        }
        Ok(())
    }
}

/// A token of an account that may read all Pods, namespaces and policies.
fn token(cluster: &Cluster) -> anyhow::Result<String> {
    let (namespace, name) = ACCOUNT;
    cluster.apply(&[account(namespace, name), binding(name, None, "view", ACCOUNT)])?;
    cluster.token(namespace, name)
}
