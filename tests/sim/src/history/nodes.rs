//! Nodes that are lost and come back, and machines that reboot.

use std::time::Duration;

use super::History;
use super::dpus::hosts;
use crate::world::hosts::start_host;
use crate::world::nodes::{NOT_READY, UNREACHABLE, find, is_lost, lose};
use crate::world::{Scope, text};

/// How long a DPU is lost at most.
const LOST: Duration = Duration::from_secs(60);
/// How long a reboot takes at most.
const REBOOTS: Duration = Duration::from_secs(15);

impl History {
    /// One of the events that are here happens, by its number among all that a history has besides. Returns whether it does.
    pub(super) fn node_event(&self, number: u64, tenant: &'static str) -> bool {
        let Scope { losses, reboots, evictions, orderings, .. } = self.world.scope;
        match number {
            40..43 if losses => self.lose_dpu(),
            43 if reboots => self.reboot_dpu(),
            44..46 if reboots && orderings => self.reboot_host(tenant),
            46 if evictions => self.evict_dpu(),
            47 if evictions && orderings => self.evict_host(tenant),
            _ => return false,
        }
        true
    }

    /// One of the DPUs that are there and aren't lost.
    fn any_dpu(&self) -> Option<String> {
        let infra = &self.world.infra;
        let all = hosts().into_iter().flat_map(|host| self.world.dpus(host));
        let names = all.map(|node| text(&node, "/metadata/name").to_owned());
        let there = names.filter(|name| infra.get("nodes", None, name).is_some() && !is_lost(infra, name));
        self.pick(&there.collect::<Vec<_>>())
    }

    /// The Node of a DPU is lost for up to a minute.
    fn lose_dpu(&self) {
        let Some(name) = self.any_dpu() else { return };
        let ready = if self.below(3) == 0 { NOT_READY } else { UNREACHABLE };
        self.line(format_args!("{name} is lost: Ready is {ready}"));
        lose(&self.world.infra, &name, ready);
        let (world, until) = (self.world.clone(), self.random().random.below(LOST));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.trace.line(&world.environment, format_args!("{name} is back"));
            find(&world.infra, &name);
        });
    }

    /// A DPU reboots: the containers of its companions start again after a while.
    fn reboot_dpu(&self) {
        let Some(name) = self.any_dpu() else { return };
        self.line(format_args!("{name} reboots"));
        lose(&self.world.infra, &name, UNREACHABLE);
        let (world, until) = (self.world.clone(), self.random().random.below(REBOOTS));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.trace.line(&world.environment, format_args!("{name} has rebooted"));
            world.start_dpu(&name);
        });
    }

    /// The same of one of a tenant's hosts. Its kubelet asks again before it starts containers of Pods that wait for their companions.
    fn reboot_host(&self, tenant: &'static str) {
        let model = self.world.tenants[tenant].clone();
        let names = model.list("nodes").into_iter().map(|node| text(&node, "/metadata/name").to_owned());
        let there: Vec<String> = names.filter(|name| !is_lost(&model, name)).collect();
        let Some(name) = self.pick(&there) else { return };
        self.line(format_args!("{name} of {tenant} reboots"));
        lose(&model, &name, UNREACHABLE);
        let (world, until) = (self.world.clone(), self.random().random.below(REBOOTS));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.trace.line(&world.environment, format_args!("{name} of {tenant} has rebooted"));
            start_host(&model, &name);
        });
    }
}
