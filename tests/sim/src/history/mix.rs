//! What happens in a history, and how often. A history with a little of everything has too little of what a rare fault needs at the same
//! time: half of the histories leave some things out, and have more of others ("swarm testing", Groce and others, 2012).

use outrigger_runtime::environment::Random;

use crate::world::Scope;

/// What users do, and what breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    CreatePod,
    DeletePod,
    FinishPod,
    RelabelPod,
    ApplyRule,
    ApplyPlatformRule,
    DeleteRule,
    DeletePlatformRule,
    Freeze,
    MoveHost,
    Part,
    Trouble,
    KillManager,
    KillWebhook,
    KillAgent,
    TerminateManager,
    CutWatches,
    Lag,
    Compact,
    RestartApiServer,
    Snapshot,
    Restore,
    Pause,
    ChangeOffloading,
    ChangePlainPod,
    ChangeGuests,
    RemoveDpu,
    ReplaceMachine,
    DeleteTenant,
}

use Happening::*;

impl Happening {
    /// Whether something breaks by it: `Some(true)` if requests get lost, or watches stand still.
    pub(super) fn disturbs(self) -> Option<bool> {
        match self {
            Freeze | Part | Trouble | CutWatches | Lag | Compact | RestartApiServer | Restore => Some(true),
            KillManager | KillWebhook | KillAgent | TerminateManager | RemoveDpu | MoveHost
            | DeleteTenant => Some(false),
            _ => None,
        }
    }
}

/// How often each happens, in 118 events.
const OFTEN: [(Happening, u64); 29] = [
    (CreatePod, 28),
    (DeletePod, 14),
    (FinishPod, 3),
    (RelabelPod, 4),
    (ApplyRule, 10),
    (ApplyPlatformRule, 2),
    (DeleteRule, 3),
    (DeletePlatformRule, 1),
    (Freeze, 4),
    (MoveHost, 1),
    (Part, 5),
    (Trouble, 5),
    (KillManager, 5),
    (KillWebhook, 2),
    (KillAgent, 3),
    (TerminateManager, 2),
    (CutWatches, 2),
    (Lag, 3),
    (Compact, 2),
    (RestartApiServer, 1),
    (Snapshot, 1),
    (Restore, 1),
    (Pause, 1),
    (ChangeOffloading, 2),
    (ChangePlainPod, 3),
    (ChangeGuests, 4),
    (RemoveDpu, 2),
    (ReplaceMachine, 2),
    (DeleteTenant, 2),
];

/// By what the numbers of half of the histories are multiplied. Workloads and rules always exist: without them nothing else shows.
const FACTORS: [u64; 5] = [0, 1, 1, 4, 12];

/// How often each thing happens in one history.
pub(super) struct Mix(Vec<(Happening, u64)>);

impl Mix {
    /// The mix of a history, by chance. No agent is killed while it may write where peers are of the release before: no version of a rule
    /// (`etag`) goes with a write there, so a late one may undo what the next agent has written.
    pub(super) fn new(random: &Random, scope: &Scope) -> Self {
        let mut mix = OFTEN.to_vec();
        if random.seed().is_multiple_of(2) {
            for (happening, often) in &mut mix {
                let factor =
                    FACTORS[usize::try_from(random.seed() % FACTORS.len() as u64).unwrap_or_default()];
                let least = u64::from(matches!(happening, CreatePod | ApplyRule));
                *often *= factor.max(least);
            }
        }
        if scope.older.is_some() {
            mix.retain(|(happening, _)| *happening != KillAgent);
        }
        Self(mix)
    }

    /// What happens next, by chance.
    pub(super) fn next(&self, random: &Random) -> Happening {
        let all: u64 = self.0.iter().map(|(_, often)| often).sum();
        let mut at = random.seed() % all.max(1);
        for (happening, often) in &self.0 {
            match at.checked_sub(*often) {
                Some(left) => at = left,
                None => return *happening,
            }
        }
        CreatePod
    }
}
