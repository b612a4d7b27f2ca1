//! Whose DPU it is, and how a DPU changes hands: decided from what is seen, one step at a time, so that a controller may
//! stop at any point and go on later.
//!
//! A DPU that a tenant loses goes through three states, each of which is written on the Node: cordoned (still the former
//! tenant's, but nothing new starts), unowned (the label is gone, so that a kubelet refuses what a scheduler with an old
//! view still binds), and the new owner's. Between the first two, and again before the last, the former tenant's Pods
//! have to be *absent*.

use std::collections::BTreeSet;

use crate::fault;
use crate::ids::TenantId;

/// A taint, without the time that only NoExecute taints have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value, often empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The fields of a DPU's Node that Outrigger owns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Marks {
    /// The value of the tenant label, also one that is no tenant's id.
    pub owner: Option<String>,
    /// Values of tenant taints with the effect NoSchedule.
    pub tainted_for: BTreeSet<String>,
    /// The value of the hand-over taint.
    pub handover: Option<String>,
    /// Something else is there under our taints' keys: another effect, say.
    pub untidy: bool,
}

impl Marks {
    /// The marks of a DPU that belongs to this tenant, or is unowned. `tainted`: the platform's Pods that don't tolerate it are kept off a
    /// tenant's DPU.
    pub fn of(owner: Option<&TenantId>, tainted: bool) -> Self {
        let owner = owner.map(ToString::to_string);
        let tainted_for = owner.iter().filter(|_| tainted).cloned().collect();
        Self { tainted_for, owner, handover: None, untidy: false }
    }
}

/// The tenants that claim a DPU's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostClaims<'a> {
    /// Tenants whose spec lists the DPU's host and that aren't being deleted.
    pub tenants: Vec<&'a TenantId>,
    /// Whether the owner that the label names is a tenant that exists, also one that is being deleted.
    pub owner_exists: bool,
}

/// The owner that the DPU should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// This tenant.
    Of(TenantId),
    /// No tenant.
    Nobody,
    /// Leave it as it is: an administrator has labeled it for a tenant that Outrigger doesn't know.
    Foreign,
}

impl HostClaims<'_> {
    /// The owner that the DPU should have. Of two tenants that claim one host neither gets it; the present owner keeps it
    /// until the other's claim is gone.
    pub fn verdict(&self, owner: Option<&str>) -> Ownership {
        match self.tenants.as_slice() {
            [one] => Ownership::Of((*one).clone()),
            [] if owner.is_some() && !self.owner_exists => Ownership::Foreign,
            [] => Ownership::Nobody,
            several => several
                .iter()
                .find(|tenant| Some(tenant.as_str()) == owner)
                .map_or(Ownership::Nobody, |tenant| Ownership::Of((*tenant).clone())),
        }
    }
}

/// The next step for one DPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is as it should be.
    Done,
    /// Write these marks, then look again.
    Mark(Marks),
    /// Other tenants' Pods must be deleted and gone first. Look again when they are.
    Clear,
    /// Look again when the Node has been unowned for a while.
    Settle,
}

/// What is known of the Node for the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeUse {
    /// Whether a Pod of a tenant that isn't the coming owner is on the Node, in whatever phase.
    pub others: bool,
    /// Whether the Node has been cordoned and unowned for long enough that schedulers know.
    pub settled: bool,
}

/// The next step from `marks` to `verdict`; `tainted` is that of [`Marks::of`]. `look` lists the Node's Pods, which costs a request: it is
/// asked only where the answer matters.
pub fn step<E>(
    marks: &Marks,
    verdict: &Ownership,
    tainted: bool,
    look: impl FnOnce() -> Result<NodeUse, E>,
) -> Result<Step, E> {
    let wanted = match verdict {
        Ownership::Foreign => return Ok(Step::Done),
        Ownership::Nobody => None,
        Ownership::Of(tenant) => Some(tenant),
    };
    let end = Marks::of(wanted, tainted);
    if *marks == end {
        return Ok(Step::Done);
    }
    let value = || wanted.map_or_else(String::new, ToString::to_string);
    if marks.owner == end.owner && marks.handover.is_none() {
        // Only taints are wrong: others removed them, an old one is left, or the setting has changed. The label, which decides, is right.
        return Ok(Step::Mark(end));
    }
    let NodeUse { others, settled } = look()?;
    match (&marks.owner, &marks.handover) {
        // It comes back to whom it belongs to still, or it is new and empty.
        (owner, _) if *owner == end.owner && owner.is_some() && !others => Ok(Step::Mark(end)),
        (None, None) if !others => Ok(Step::Mark(end)),
        (_, None) => Ok(Step::Mark(Marks { handover: Some(value()), ..marks.clone() })),
        (_, Some(_)) if others => Ok(Step::Clear),
        (Some(_), Some(_)) => Ok(Step::Mark(Marks { owner: None, handover: Some(value()), ..marks.clone() })),
        (None, Some(_)) if settled || fault("dpu-settles-for-no-time") => Ok(Step::Mark(end)),
        (None, Some(_)) => Ok(Step::Settle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn id(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn of(tenant: &str) -> Marks {
        Marks::of(Some(&id(tenant)), true)
    }

    fn next(marks: &Marks, verdict: &Ownership, others: bool, settled: bool) -> Step {
        step::<Infallible>(marks, verdict, true, || Ok(NodeUse { others, settled })).unwrap()
    }

    #[test]
    fn who_gets_it() {
        let (a, b) = (id("a"), id("b"));
        let claims = |tenants: &[&'static str], owner_exists| -> (Vec<TenantId>, bool) {
            (tenants.iter().map(|t| id(t)).collect(), owner_exists)
        };
        for (tenants, exists, owner, expected) in [
            (&["a"][..], false, None, Ownership::Of(a.clone())),
            (&["a"], true, Some("b"), Ownership::Of(a)),
            (&["a", "b"], true, Some("b"), Ownership::Of(b)),
            (&["a", "b"], false, None, Ownership::Nobody),
            (&["a", "b"], true, Some("c"), Ownership::Nobody),
            (&[], true, Some("a"), Ownership::Nobody),
            (&[], false, Some("x"), Ownership::Foreign),
            (&[], false, None, Ownership::Nobody),
        ] {
            let (tenants, owner_exists) = claims(tenants, exists);
            let claims = HostClaims { tenants: tenants.iter().collect(), owner_exists };
            assert_eq!(claims.verdict(owner), expected, "{tenants:?} {owner:?}");
        }
    }

    #[test]
    fn a_fresh_dpu_is_marked_at_once() {
        let of_a = Ownership::Of(id("a"));
        let end = of("a");
        assert_eq!(next(&Marks::default(), &of_a, false, false), Step::Mark(end.clone()));
        assert_eq!(next(&end, &of_a, true, false), Step::Done);
        // A Node that was deleted and registered again while another tenant's Pods are bound to it.
        let Step::Mark(marks) = next(&Marks::default(), &of_a, true, false) else { panic!() };
        assert_eq!((marks.owner, marks.handover.as_deref()), (None, Some("a")));
    }

    #[test]
    fn a_dpu_changes_hands_step_by_step() {
        let (a, to_b) = (of("a"), Ownership::Of(id("b")));
        let Step::Mark(cordoned) = next(&a, &to_b, true, false) else { panic!() };
        assert_eq!(cordoned, Marks { handover: Some("b".into()), ..a.clone() });
        assert_eq!(next(&cordoned, &to_b, true, true), Step::Clear, "settled or not");
        let Step::Mark(nobodys) = next(&cordoned, &to_b, false, false) else { panic!() };
        assert_eq!(nobodys, Marks { owner: None, ..cordoned.clone() });
        assert_eq!(next(&nobodys, &to_b, true, true), Step::Clear, "one that was bound late");
        assert_eq!(next(&nobodys, &to_b, false, false), Step::Settle);
        assert_eq!(next(&nobodys, &to_b, false, true), Step::Mark(of("b")));
        // Without the cordon nothing moves, even when no Pod is there now.
        assert_eq!(next(&a, &to_b, false, true), Step::Mark(cordoned.clone()));
        // The claim came back before the label went.
        assert_eq!(next(&cordoned, &Ownership::Of(id("a")), false, false), Step::Mark(a.clone()));
        assert_eq!(
            next(&cordoned, &Ownership::Of(id("a")), true, true),
            Step::Clear,
            "not with Pods of others"
        );
        // Another tenant is to get it in the meantime.
        let Step::Mark(nobodys) = next(&cordoned, &Ownership::Of(id("c")), false, false) else { panic!() };
        assert_eq!((nobodys.owner, nobodys.handover.as_deref()), (None, Some("c")));
        // Released to no tenant, by the same way.
        let Step::Mark(marks) = next(&a, &Ownership::Nobody, true, false) else { panic!() };
        assert_eq!(marks.handover.as_deref(), Some(""));
        let nobodys = Marks { owner: None, ..marks };
        assert_eq!(next(&nobodys, &Ownership::Nobody, false, false), Step::Settle);
        assert_eq!(next(&nobodys, &Ownership::Nobody, true, true), Step::Clear);
        assert_eq!(next(&nobodys, &Ownership::Nobody, false, true), Step::Mark(Marks::default()));
        assert_eq!(next(&a, &Ownership::Foreign, true, true), Step::Done);
    }

    #[test]
    fn missing_and_foreign_taints_are_put_right_without_looking() {
        let of_a = Ownership::Of(id("a"));
        let end = of("a");
        let never = || -> Result<NodeUse, ()> { Err(()) };
        let without = Marks { tainted_for: BTreeSet::new(), ..end.clone() };
        assert_eq!(step(&without, &of_a, true, never), Ok(Step::Mark(end.clone())));
        let with_old = Marks { tainted_for: BTreeSet::from(["a".into(), "old".into()]), ..end.clone() };
        assert_eq!(step(&with_old, &of_a, true, never), Ok(Step::Mark(end.clone())));
        let untidy = Marks { untidy: true, ..end.clone() };
        assert_eq!(step(&untidy, &of_a, true, never), Ok(Step::Mark(end)));
        let plain = Marks::of(Some(&id("a")), false);
        assert_eq!(plain, Marks { tainted_for: BTreeSet::new(), ..of("a") });
        assert_eq!(
            step(&of("a"), &of_a, false, never),
            Ok(Step::Mark(plain.clone())),
            "the setting has changed"
        );
        assert_eq!(step(&plain, &of_a, false, never), Ok(Step::Done));
        let left = Marks { tainted_for: BTreeSet::from(["old".into()]), ..Marks::default() };
        assert_eq!(step(&left, &Ownership::Nobody, true, never), Ok(Step::Mark(Marks::default())));
    }
}
