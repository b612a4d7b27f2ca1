//! The tenants whose companions are compared.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use outrigger_api::Tenant;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;

use super::proposal::{RuleSet, tenant_of};
use crate::explain::live::Source;
use crate::explain::view::{View, ViewArgs};
use crate::files::{InputError, Object};
use crate::rules::{AnyRule, Filing};
use crate::state::State;

/// What tells the tenants.
pub(super) struct Question<'a> {
    pub(super) state: &'a State,
    pub(super) source: Source,
    pub(super) args: &'a ViewArgs,
    pub(super) host_labels: &'a HostLabels,
    pub(super) new: &'a [Object],
    /// WorkloadRules are applied or deleted.
    pub(super) has_own: bool,
    /// The admin rules, where some are applied or deleted.
    pub(super) platform: Option<&'a RuleSet>,
}

/// The tenants, each with its part of the state.
pub(super) struct Asked {
    pub(super) views: Vec<View>,
    /// The one whose WorkloadRules are applied or deleted.
    pub(super) own: Option<TenantId>,
    pub(super) notes: Vec<String>,
}

impl Question<'_> {
    /// The tenant that is named, or that of the WorkloadRules, and all that the admin rules are about before or after the change.
    pub(super) fn ask(&self) -> Result<Asked, InputError> {
        let mut args = self.args.clone();
        if args.tenant.is_none() {
            args.tenant = tenant_of(self.state, self.new);
        }
        let Some(platform) = self.platform.filter(|_| self.args.tenant.is_none()) else {
            let view = self.view(&args)?;
            return Ok(Asked { own: view.tenant.clone(), views: vec![view], notes: Vec::new() });
        };
        let own = if self.has_own { self.view(&args)?.tenant } else { None };
        let tenants: Vec<Tenant> = self.state.all(keys::GROUP, "Tenant")?;
        let mut ids = selected(&tenants, platform)?;
        ids.extend(own.clone());
        if self.source.is_of_one_tenant() && ids.len() > 1 {
            let names: Vec<&str> = ids.iter().map(TenantId::as_str).collect();
            let message = format!(
                "is the cluster of one tenant, and the rules are about several ({}): say by --tenant which",
                names.join(", ")
            );
            return Err(InputError::new("--tenant-kubeconfig", message));
        }
        let of = |id: &TenantId| self.view(&ViewArgs { tenant: Some(id.to_string()), ..args.clone() });
        let mut views = ids.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let mut notes = Vec::new();
        if views.is_empty() {
            notes.push("the AdminWorkloadRules select no Tenant".to_owned());
        }
        if self.source.is_files() && tenants.len() > 1 {
            notes.extend(distribute(&tenants, &mut views));
        }
        Ok(Asked { views, own, notes })
    }

    fn view(&self, args: &ViewArgs) -> Result<View, InputError> {
        let view = View::new(self.state, args, self.host_labels, None, self.source.clone())?;
        if view.tenant.is_none() {
            return Err(InputError::new("--tenant", "there is no Tenant to which the rules would belong"));
        }
        Ok(view)
    }
}

/// The tenants that the given rules are about, as they are or as they would be.
fn selected(tenants: &[Tenant], rules: &RuleSet) -> Result<BTreeSet<TenantId>, InputError> {
    let mut ids = BTreeSet::new();
    for (old, new) in rules.given() {
        let (old, new) = (old.map(AnyRule::read).transpose()?, new.map(AnyRule::read).transpose()?);
        for tenant in tenants {
            let Ok(id) = TenantId::new(&tenant.name_any()) else { continue };
            let filing = |rule: &AnyRule| rule.filing(&id, Some(tenant.labels()));
            // An invalid rule keeps companions of any tenant, but will not be applied.
            let was = old.as_ref().is_some_and(|rule| !matches!(filing(rule), Filing::Elsewhere));
            if was || new.as_ref().is_some_and(|rule| matches!(filing(rule), Filing::Served(_))) {
                ids.insert(id);
            }
        }
    }
    Ok(ids)
}

/// Leaves each tenant the workloads on its hosts: files have the Pods of all tenants in one place. Returns a note on workloads that
/// are no known tenant's.
fn distribute(tenants: &[Tenant], views: &mut [View]) -> Option<String> {
    // A Node that several tenants have in their clusters has no known owner.
    let mut owners: BTreeMap<String, Option<String>> = BTreeMap::new();
    for tenant in tenants.iter().filter_map(|tenant| tenant.compile().ok()) {
        for node in tenant.hosts.iter().filter_map(|host| tenant.host_names.node(host)) {
            let name = Some(tenant.policy.tenant.to_string());
            owners.entry(node.to_owned()).and_modify(|owner| *owner = None).or_insert(name);
        }
    }
    let owner = |node: &Option<String>| node.as_ref().and_then(|node| owners.get(node)?.as_ref());
    let nobodys =
        views.first()?.workloads.iter().filter(|workload| owner(&workload.node_name).is_none()).count();
    for view in views {
        let tenant = view.tenant.as_ref().map(ToString::to_string);
        view.workloads.retain(|workload| owner(&workload.node_name) == tenant.as_ref());
    }
    (nobodys > 0).then(|| {
        format!(
            "Pods that are on no Tenant's host are left out ({nobodys}), because whose workloads they are isn't known: name \
             their tenant by --tenant"
        )
    })
}
