//! How far the companion of a rule for a workload is, and the first thing that is wrong with it: what a tenant is to know.
//!
//! A pure function of what is wanted, what exists, and of whether the companion has been ready before.

use std::sync::Arc;

use crate::companion::{DeleteReason, Observed, replace_reason};
use crate::fault;
use crate::reason::Cause;
use crate::rollout::UpdateStrategy;
use crate::rule::Rule;
use crate::syntax::unlabelable;
use crate::template::Kind;

/// How far a companion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It doesn't exist yet.
    Pending,
    /// The infrastructure cluster refuses it.
    Refused,
    /// No DPU of the tenant can take it.
    NoDpu,
    /// It exists and isn't ready yet.
    Starting,
    /// It is ready.
    Ready,
    /// It ended with an error, or a container of it can't be started.
    Failed,
    /// It was ready and isn't any longer.
    Lost,
}

/// How far a companion is, and what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// How far.
    pub stage: Stage,
    /// The first thing that is wrong; `None` when it is ready.
    pub cause: Option<Cause>,
}

/// The DPU of a host, as far as a tenant may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDpu {
    /// One of the tenant's takes Pods.
    Ready,
    /// The tenant's isn't ready, or takes no new Pods.
    NotReady,
    /// One is being handed over to or from the tenant.
    HandingOver,
    /// There is none of the tenant's.
    Absent,
    /// There can be none: the host's name is no value of a label.
    Unlabelable,
    /// The host is none of the tenant's.
    NotListed,
}

/// A DPU in a host, as one tenant sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpuInHost {
    /// It is labelled as the tenant's.
    pub owned: bool,
    /// It is on its way to or from a tenant.
    pub handing_over: bool,
    /// It is ready and takes Pods.
    pub ready: bool,
}

impl DpuInHost {
    /// Whether it is the tenant's and stays so.
    pub fn is_settled(self) -> bool {
        self.owned && !self.handing_over
    }
}

impl HostDpu {
    /// Of all DPUs in the host of this name. `listed`: the tenant lists the host. `has_rivals`: another tenant does.
    pub fn of(
        host: &str,
        dpus: impl IntoIterator<Item = DpuInHost>,
        listed: bool,
        has_rivals: impl FnOnce() -> bool,
    ) -> Self {
        let (mut own, mut takes, mut moving) = (false, false, false);
        for dpu in dpus {
            own |= dpu.is_settled();
            takes |= dpu.is_settled() && dpu.ready;
            moving |= dpu.owned || listed;
        }
        match (takes, own) {
            (true, _) => Self::Ready,
            (_, true) => Self::NotReady,
            _ if moving && !has_rivals() => Self::HandingOver,
            _ if listed && unlabelable(host).is_some() => Self::Unlabelable,
            _ if listed => Self::Absent,
            _ => Self::NotListed,
        }
    }

    /// Why it can't take companions; `None` when it can.
    pub fn cause(self) -> Option<Cause> {
        match self {
            Self::Ready => None,
            Self::NotReady => Some(Cause::DpuNotReady),
            Self::HandingOver => Some(Cause::HandingOver),
            Self::Absent => Some(Cause::NoDpu),
            Self::Unlabelable => Some(Cause::HostNameUnusable),
            Self::NotListed => Some(Cause::HostNotListed),
        }
    }
}

/// What there should be.
#[derive(Debug, Clone, Copy)]
pub enum Wish<'a> {
    /// A companion of this rule, on the DPU of this host; `None` as [`crate::companion::host()`] has it.
    Companion(&'a Arc<Rule>, Option<&'a str>),
    /// The same, once the workload has a node.
    Waiting,
    /// The rule matches, and the tenant's rules match more than is kept.
    OverLimit,
    /// What exists stays: the rule can't be served.
    Kept,
    /// What exists stays: an annotation of the workload decides that isn't known.
    Undecided,
}

/// What the progress of a companion depends on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What there should be.
    pub wish: Wish<'a>,
    /// What there is.
    pub observed: Option<&'a Observed>,
    /// Why the last write of the companion was refused.
    pub refusal: Option<Cause>,
    /// Why the API server refuses the rule's template.
    pub template_refusal: Option<Cause>,
    /// The DPU of the host that it has to run on; `None` where any will do.
    pub dpu: Option<HostDpu>,
    /// Why the scheduler has found no Node for it, if it hasn't and that is known ([`crate::unplaced::why`]).
    pub placement: Option<Cause>,
    /// It has been ready.
    pub was_ready: bool,
}

impl Facts<'_> {
    /// How far the companion is.
    pub fn progress(&self) -> Progress {
        let ready = self.observed.is_some_and(|o| o.ready && !o.terminating);
        match self.wish {
            Wish::Waiting => wrong(Stage::Pending, Cause::WorkloadNotScheduled),
            Wish::OverLimit if !ready => wrong(Stage::Refused, Cause::LimitReached),
            Wish::OverLimit => READY,
            Wish::Kept => match self.observed {
                None => wrong(Stage::Refused, Cause::Invalid),
                Some(o) if o.terminating => self.gone(Cause::Invalid),
                Some(o) => self.exists(o, None),
            },
            Wish::Undecided => match self.observed.filter(|o| !o.terminating) {
                None => self.gone(Cause::AnnotationsNotSent),
                Some(o) => self.exists(o, None),
            },
            Wish::Companion(rule, host) => {
                let Some(o) = self.observed else {
                    return self.gone(if self.was_ready { Cause::Replacing } else { Cause::Pending });
                };
                if o.terminating && o.ready && fault("leaving-companion-is-reported-as-ready") {
                    return READY;
                }
                let replaced = replace_reason(rule, host, o);
                match replaced {
                    Some(DeleteReason::OtherRule) if o.terminating => self.gone(Cause::Replacing),
                    Some(DeleteReason::Moved) => self.gone(Cause::WorkloadMoved),
                    Some(DeleteReason::TemplateChanged) if o.terminating => self.gone(Cause::RollingOut),
                    _ if o.terminating && o.kind == Kind::Claim => self.gone(Cause::ClaimInUse),
                    _ if o.terminating => self.gone(Cause::Replacing),
                    // It serves until its turn in the rollout.
                    Some(DeleteReason::TemplateChanged | DeleteReason::OtherRule)
                        if rule.update() != UpdateStrategy::OnDelete =>
                    {
                        self.exists(o, Some(Cause::RollingOut))
                    }
                    _ => self.exists(o, None),
                }
            }
        }
    }

    /// There is no companion, or one that is on its way out.
    fn gone(&self, cause: Cause) -> Progress {
        match self.refusal.or(self.template_refusal) {
            Some(refusal) => wrong(Stage::Refused, refusal),
            None if self.was_ready => wrong(Stage::Lost, cause),
            None => wrong(Stage::Pending, cause),
        }
    }

    /// There is one. `replaced`: why it will be replaced.
    fn exists(&self, o: &Observed, replaced: Option<Cause>) -> Progress {
        let dpu = self.dpu.and_then(HostDpu::cause);
        match o.trouble {
            _ if o.ready => READY,
            _ if o.failed => wrong(Stage::Failed, Cause::Failed),
            Some(Cause::Completed) => wrong(Stage::Lost, Cause::Completed),
            Some(trouble @ (Cause::DeviceNotReady | Cause::DeviceBindingFailed | Cause::DeviceUnhealthy))
                if self.was_ready =>
            {
                wrong(Stage::Lost, trouble)
            }
            // Devices are made ready after the allocation.
            Some(Cause::DeviceNotReady) => wrong(Stage::Starting, Cause::DeviceNotReady),
            Some(trouble) => wrong(Stage::Failed, trouble),
            None => match self.refusal {
                Some(refusal) => wrong(Stage::Refused, refusal),
                None if o.unplaced => {
                    wrong(Stage::NoDpu, dpu.or(self.placement).unwrap_or(Cause::Unschedulable))
                }
                None if self.was_ready => wrong(Stage::Lost, replaced.or(dpu).unwrap_or(Cause::Lost)),
                None if replaced.is_some() => wrong(Stage::Starting, Cause::RollingOut),
                None if o.kind == Kind::Claim => wrong(Stage::Starting, Cause::ClaimNotAllocated),
                None => wrong(Stage::Starting, Cause::Starting),
            },
        }
    }
}

const READY: Progress = Progress { stage: Stage::Ready, cause: None };

fn wrong(stage: Stage, cause: Cause) -> Progress {
    Progress { stage, cause: Some(cause) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::companion::tests::of_rule;
    use crate::rule::tests::{compiled, named};
    use crate::rule::{DpuSelectionPolicy, RuleSpec};

    /// A companion that isn't ready, of a rule that can't be served: nothing says that it will be replaced.
    fn facts(observed: Option<&Observed>) -> Facts<'_> {
        Facts {
            wish: Wish::Kept,
            observed,
            refusal: None,
            template_refusal: None,
            dpu: Some(HostDpu::Ready),
            placement: None,
            was_ready: false,
        }
    }

    #[test]
    fn a_companion_that_exists_is_reported_by_its_first_trouble() {
        use Cause::{Completed, CrashLoop, DpuNotReady, NoDpu, QuotaExceeded, Unschedulable};
        let plain = Observed::default();
        let of = |o: &Observed, f: fn(&mut Facts<'_>)| {
            let mut facts = facts(Some(o));
            f(&mut facts);
            let Progress { stage, cause } = facts.progress();
            (stage, cause)
        };
        let unplaced = Observed { unplaced: true, ..plain.clone() };
        let ready = Observed { ready: true, trouble: Some(CrashLoop), ..plain.clone() };
        for (observed, change, expected) in [
            (&plain, (|_| {}) as fn(&mut Facts<'_>), (Stage::Starting, Some(Cause::Starting))),
            (&ready, |_| {}, (Stage::Ready, None)),
            (&ready, |f| f.wish = Wish::OverLimit, (Stage::Ready, None)),
            (&plain, |f| f.wish = Wish::OverLimit, (Stage::Refused, Some(Cause::LimitReached))),
            (&plain, |f| f.wish = Wish::Waiting, (Stage::Pending, Some(Cause::WorkloadNotScheduled))),
            (&unplaced, |_| {}, (Stage::NoDpu, Some(Unschedulable))),
            (&unplaced, |f| f.dpu = Some(HostDpu::Absent), (Stage::NoDpu, Some(NoDpu))),
            (&unplaced, |f| f.dpu = None, (Stage::NoDpu, Some(Unschedulable))),
            (&unplaced, |f| f.placement = Some(Cause::PortTaken), (Stage::NoDpu, Some(Cause::PortTaken))),
            (&plain, |f| f.placement = Some(Cause::PortTaken), (Stage::Starting, Some(Cause::Starting))),
            (&plain, |f| f.was_ready = true, (Stage::Lost, Some(Cause::Lost))),
            (
                &plain,
                |f| (f.was_ready, f.dpu) = (true, Some(HostDpu::NotReady)),
                (Stage::Lost, Some(DpuNotReady)),
            ),
            (&plain, |f| f.refusal = Some(QuotaExceeded), (Stage::Refused, Some(QuotaExceeded))),
            (&plain, |f| f.template_refusal = Some(QuotaExceeded), (Stage::Starting, Some(Cause::Starting))),
        ] {
            assert_eq!(of(observed, change), expected);
        }
        let of = |o: Observed| {
            let Progress { stage, cause } = facts(Some(&o)).progress();
            (stage, cause)
        };
        assert_eq!(
            of(Observed { trouble: Some(CrashLoop), ..plain.clone() }),
            (Stage::Failed, Some(CrashLoop))
        );
        assert_eq!(
            of(Observed { trouble: Some(Completed), ..plain.clone() }),
            (Stage::Lost, Some(Completed))
        );
        assert_eq!(of(Observed { failed: true, ..plain.clone() }), (Stage::Failed, Some(Cause::Failed)));
        let claim = Observed { kind: Kind::Claim, ..plain };
        assert_eq!(of(claim.clone()), (Stage::Starting, Some(Cause::ClaimNotAllocated)));
        let unready = Observed { trouble: Some(Cause::DeviceNotReady), ..claim };
        let facts = |was_ready| Facts { was_ready, ..facts(Some(&unready)) }.progress();
        assert_eq!(facts(false), wrong(Stage::Starting, Cause::DeviceNotReady));
        assert_eq!(facts(true), wrong(Stage::Lost, Cause::DeviceNotReady));
        let failed = Observed { trouble: Some(Cause::DeviceBindingFailed), ..unready.clone() };
        let facts = |was_ready| Facts { was_ready, ..self::facts(Some(&failed)) }.progress();
        assert_eq!(facts(false), wrong(Stage::Failed, Cause::DeviceBindingFailed));
        assert_eq!(facts(true), wrong(Stage::Lost, Cause::DeviceBindingFailed));
    }

    #[test]
    fn a_host_has_a_dpu_of_the_tenant_that_stays_with_it() {
        use HostDpu::{Absent, HandingOver, NotListed, NotReady, Ready};
        let dpu = |owned, handing_over, ready| DpuInHost { owned, handing_over, ready };
        let (ready, unready) = (dpu(true, false, true), dpu(true, false, false));
        let (moving, anothers) = (dpu(true, true, true), dpu(false, false, true));
        for (dpus, listed, has_rivals, expected) in [
            (&[ready][..], true, false, Ready),
            (&[ready], false, true, Ready),
            (&[ready, ready], true, false, Ready),
            (&[ready, unready, moving, anothers], true, false, Ready),
            (&[unready], true, false, NotReady),
            (&[unready, unready, moving, anothers], true, true, NotReady),
            (&[moving], false, false, HandingOver),
            (&[moving, moving], false, false, HandingOver),
            (&[anothers], true, false, HandingOver),
            (&[anothers], true, true, Absent),
            (&[moving], true, true, Absent),
            (&[], true, false, Absent),
            (&[anothers], false, false, NotListed),
            (&[moving], false, true, NotListed),
            (&[], false, false, NotListed),
        ] {
            let of = |host: &str| HostDpu::of(host, dpus.iter().copied(), listed, || has_rivals);
            let found = of("h");
            assert_eq!(found, expected, "{dpus:?} {listed} {has_rivals}");
            assert_eq!(found.cause().is_none(), found == Ready);
            // No DPU can be in a host of such a name.
            let long = of(&"h".repeat(64));
            assert_eq!(long, if expected == Absent { HostDpu::Unlabelable } else { expected });
        }
    }

    fn rule(policy: DpuSelectionPolicy) -> Arc<Rule> {
        compiled(RuleSpec { policy, ..named("r") })
    }

    #[test]
    fn one_that_is_replaced_was_ready_or_is_still_to_come() {
        let rule = rule(DpuSelectionPolicy::SameNode);
        let current = Observed { host: Some("h".into()), ready: true, ..of_rule(&rule) };
        let of = |observed: Option<&Observed>, was_ready: bool| {
            let wish = Wish::Companion(&rule, Some("h"));
            let Progress { stage, cause } = Facts { wish, was_ready, ..facts(observed) }.progress();
            (stage, cause)
        };
        assert_eq!(of(Some(&current), false), (Stage::Ready, None));
        assert_eq!(of(None, false), (Stage::Pending, Some(Cause::Pending)));
        assert_eq!(of(None, true), (Stage::Lost, Some(Cause::Replacing)));
        let moved = Observed { host: Some("former".into()), ..current.clone() };
        assert_eq!(of(Some(&moved), true), (Stage::Lost, Some(Cause::WorkloadMoved)), "ready elsewhere");
        let former = Observed { rule_uid: "former".into(), ..current.clone() };
        assert_eq!(of(Some(&former), true), (Stage::Ready, None), "until its turn comes");
        let going = Observed { terminating: true, ..former };
        assert_eq!(of(Some(&going), true), (Stage::Lost, Some(Cause::Replacing)));
        let earlier = Observed { template_hash: "other".into(), ..current.clone() };
        assert_eq!(of(Some(&earlier), true), (Stage::Ready, None), "until its turn comes");
        let going = Observed { terminating: true, ..earlier };
        assert_eq!(of(Some(&going), true), (Stage::Lost, Some(Cause::RollingOut)));
        let going = Observed { terminating: true, ..current.clone() };
        assert_eq!(of(Some(&going), false), (Stage::Pending, Some(Cause::Replacing)));
        let claim = Observed { kind: Kind::Claim, ..current };
        assert_eq!(of(Some(&claim), false), (Stage::Ready, None));
        let going = Observed { terminating: true, ..claim };
        assert_eq!(of(Some(&going), false), (Stage::Pending, Some(Cause::ClaimInUse)), "a Pod has it still");
    }

    #[test]
    fn one_of_an_earlier_template_is_to_be_replaced_unless_others_have_to_delete_it() {
        for (update, starting, lost) in [
            (UpdateStrategy::default(), Cause::RollingOut, Cause::RollingOut),
            (UpdateStrategy::OnDelete, Cause::Starting, Cause::Lost),
        ] {
            let rule = compiled(RuleSpec { update, ..named("r") });
            let earlier =
                Observed { template_hash: "earlier".into(), host: Some("h".into()), ..of_rule(&rule) };
            let wish = Wish::Companion(&rule, Some("h"));
            let of = |was_ready| Facts { wish, was_ready, ..facts(Some(&earlier)) }.progress();
            assert_eq!(of(false), wrong(Stage::Starting, starting));
            assert_eq!(of(true), wrong(Stage::Lost, lost));
        }
    }

    proptest! {
        #[test]
        fn only_a_companion_that_is_ready_has_no_cause_and_every_cause_may_be_reported(
            exists: bool, ready: bool, terminating: bool, failed: bool, unplaced: bool, was_ready: bool,
            refused: bool, wish in 0..5usize, dpu in 0..6usize, trouble in 0..4usize,
        ) {
            let troubles = [None, Some(Cause::CrashLoop), Some(Cause::Completed), Some(Cause::ImageUnavailable)];
            let o = Observed { ready, terminating, failed, unplaced, trouble: troubles[trouble], ..Observed::default() };
            let dpus = [HostDpu::Ready, HostDpu::NotReady, HostDpu::HandingOver, HostDpu::Absent, HostDpu::NotListed];
            let rule = rule(DpuSelectionPolicy::Any);
            let wishes =
                [Wish::Companion(&rule, None), Wish::Waiting, Wish::OverLimit, Wish::Kept, Wish::Undecided];
            let facts = Facts {
                wish: wishes[wish],
                refusal: refused.then_some(Cause::Refused),
                dpu: dpus.get(dpu).copied(),
                was_ready,
                ..facts(exists.then_some(&o))
            };
            let Progress { stage, cause } = facts.progress();
            prop_assert_eq!(stage == Stage::Ready, cause.is_none());
            prop_assert!(cause.is_none_or(Cause::is_reported));
            prop_assert!(stage != Stage::Ready || exists && ready && !terminating);
        }
    }
}
