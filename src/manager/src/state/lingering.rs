//! Room for companions that outlive their workloads. Their number would otherwise follow from how fast workloads come and go: each that
//! ends leaves one, for as long as its rule asks for.

use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::tenant::Limits;

use super::companions::CompanionCache;
use super::tenant::TenantData;

/// Companions of a rule that are asked to give way after one step.
const AT_ONCE: usize = 64;

/// How many companions lingered, and how much room there was, when those beyond it were asked to give way last.
#[derive(Debug, Default)]
pub(crate) struct LingeringAsked {
    own: Option<(usize, usize)>,
    admin: Option<(usize, usize)>,
}

impl TenantData {
    /// The Tenant allows this. Returns the companions that this concerns.
    pub(crate) fn set_limits(&mut self, limits: Limits) -> Vec<CompanionKey> {
        self.limits = Some(limits);
        let mut keys = self.index.limit(limits.matches());
        keys.extend(self.companions.lingering_beyond(self.lingering_room(false), AT_ONCE));
        if let Some(store) = &self.admin_companions {
            keys.extend(store.lock().lingering_beyond(self.lingering_room(true), AT_ONCE));
        }
        keys
    }

    /// How many companions of the tenant may outlive their workloads: beside those that the tenant's own rules want, so that both
    /// together keep to `spec.limits.companions`; and as many again of admin rules, whose other companions have no limit.
    fn lingering_room(&self, admin: bool) -> usize {
        let most =
            self.limits.map_or(usize::MAX, |limits| usize::try_from(limits.companions).unwrap_or(usize::MAX));
        if admin { most } else { most.saturating_sub(self.index.own_matches()) }
    }

    /// Companions that have to give way to others, of admin rules if this is one, else of the tenant's own. None where as many linger as
    /// before, with as much room: those have been returned, and a step that failed keeps its pause. None either before all workloads are
    /// known, because nothing is done about a companion whose workload may exist.
    pub(crate) fn lingering_beyond(&mut self, rule: &RuleName) -> Vec<CompanionKey> {
        if !self.index.synced() {
            return Vec::new();
        }
        let admin = rule.is_admin();
        let room = self.lingering_room(admin);
        let Some(count) = self.read_companions(rule, CompanionCache::lingering) else { return Vec::new() };
        let asked = if admin { &mut self.lingering_asked.admin } else { &mut self.lingering_asked.own };
        if asked.replace((count, room)) == Some((count, room)) {
            return Vec::new();
        }
        self.read_companions(rule, |companions| companions.lingering_beyond(room, AT_ONCE))
            .unwrap_or_default()
    }

    /// Whether the companion of a workload that has ended has to give way to others.
    pub(crate) fn gives_way(&self, key: &CompanionKey) -> bool {
        let room = self.lingering_room(key.rule.is_admin());
        let gives_way = |companions: &CompanionCache| companions.gives_way(key, room);
        room == 0 || self.read_companions(&key.rule, gives_way).unwrap_or_default()
    }
}
