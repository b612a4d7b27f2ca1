//! Which Machine has a group and its nodes, when two Machines ask for the same in one moment.
//!
//! What a Machine asks for is written down as a [`Claim`] before it is admitted, in one object of the cluster that is written
//! only in the version it was read in; so the second of two that are asked about at once, by whatever replicas, sees the
//! first. A claim counts until the own watch shows its result, and no longer than a grant of a slot, for the same
//! reasons: see [`crate::slots`].

use crate::map::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::slots::{self, MAX_BYTES};

/// Name of the object that holds the claims.
pub const LEDGER_NAME: &str = "machine-claims";

/// What a Machine asks for that it has not had before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The Machine's name.
    pub machine: String,
    /// Its uid.
    #[serde(default)]
    pub uid: String,
    /// Its `metadata.generation`.
    #[serde(default)]
    pub generation: i64,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Names of nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When it was admitted: seconds since 1970.
    pub at: u64,
}

/// A Machine as a watch shows it.
#[derive(Debug, Clone, Copy)]
pub struct MachineView<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.generation`.
    pub generation: i64,
    /// Its group.
    pub group: Option<&'a str>,
    /// Names of its nodes.
    pub nodes: &'a [String],
}

/// Why a claim can't be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// This Machine has the group.
    Group(String),
    /// Of this node, by its index among the claim's, this Machine of this group has it.
    Node(usize, String, String),
    /// There are more claims at once than one object can hold.
    Crowded,
}

/// Claims of Machines that not every watch shows yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupClaims {
    claims: Vec<Claim>,
}

impl GroupClaims {
    /// From JSON; an empty text is none.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        slots::read(text).map(|claims| Self { claims })
    }

    /// As JSON.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&self.claims)
    }

    /// The claims.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Writes a claim down. `seen`: all Machines that the watch shows. `ended`: uids of those whose end it has shown lately.
    /// `is_over`: whether a claim's time is, see [`crate::slots::Sightings`]. Claims that no longer count are dropped.
    pub fn add(
        &mut self,
        claim: Claim,
        seen: &[MachineView<'_>],
        ended: &HashSet<String>,
        is_over: impl Fn(&Claim) -> bool,
    ) -> Result<(), Conflict> {
        self.claims.retain(|other| !is_over(other) && !ended.contains(&other.uid));
        let pending = self.claims.iter().filter(|other| !other.is_shown(seen)).map(Claim::view);
        let others: Vec<MachineView<'_>> =
            seen.iter().copied().chain(pending).filter(|other| other.name != claim.machine).collect();
        conflict(&claim, &others)?;
        self.claims.push(claim);
        if self.write().map_or(usize::MAX, |text| text.len()) > MAX_BYTES {
            self.claims.pop();
            return Err(Conflict::Crowded);
        }
        Ok(())
    }
}

/// Looks for a Machine that has what a claim is about.
///
/// # Errors
/// The group first, then the first node.
pub fn conflict(claim: &Claim, others: &[MachineView<'_>]) -> Result<(), Conflict> {
    if let Some(group) = &claim.group
        && let Some(other) = others.iter().find(|other| other.group == Some(group))
    {
        return Err(Conflict::Group(other.name.to_owned()));
    }
    let mut wanted: HashMap<&str, usize> = HashMap::default();
    for (i, node) in claim.nodes.iter().enumerate() {
        wanted.entry(node).or_insert(i);
    }
    let taken = others.iter().flat_map(|other| {
        let wanted = &wanted;
        other.nodes.iter().filter_map(move |node| Some((*wanted.get(node.as_str())?, other)))
    });
    match taken.min_by_key(|(i, _)| *i) {
        None => Ok(()),
        Some((i, other)) => {
            Err(Conflict::Node(i, other.name.to_owned(), other.group.unwrap_or_default().to_owned()))
        }
    }
}

impl Claim {
    /// What tells it from all others.
    pub fn id(&self) -> String {
        format!("{}/{}/{}/{}", self.machine, self.uid, self.generation, self.at)
    }

    /// The Machine as it is with what it asks for.
    pub fn view(&self) -> MachineView<'_> {
        MachineView {
            name: &self.machine,
            uid: &self.uid,
            generation: self.generation,
            group: self.group.as_deref(),
            nodes: &self.nodes,
        }
    }

    /// Whether the watch shows its result: the Machine as claimed, or as it has become since.
    fn is_shown(&self, seen: &[MachineView<'_>]) -> bool {
        seen.iter().filter(|machine| machine.name == self.machine && machine.uid == self.uid).any(|machine| {
            let nodes: HashSet<&String> = machine.nodes.iter().collect();
            machine.generation > self.generation
                || (self.group.as_deref().is_none_or(|group| machine.group == Some(group))
                    && self.nodes.iter().all(|node| nodes.contains(node)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::GRANT_SECONDS;

    fn claim(machine: &str, group: Option<&str>, nodes: &[&str], at: u64) -> Claim {
        Claim {
            machine: machine.to_owned(),
            uid: format!("uid-{machine}"),
            generation: 1,
            group: group.map(str::to_owned),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            at,
        }
    }

    /// By a replica that has seen each claim from its beginning.
    fn add(
        claims: &mut GroupClaims,
        claim: Claim,
        seen: &[MachineView<'_>],
        ended: &HashSet<String>,
    ) -> Result<(), Conflict> {
        let now = claim.at;
        claims.add(claim, seen, ended, |other| now >= other.at + GRANT_SECONDS)
    }

    fn none() -> HashSet<String> {
        HashSet::default()
    }

    #[test]
    fn the_second_of_two_at_once_sees_the_first() {
        let mut claims = GroupClaims::default();
        add(&mut claims, claim("a", Some("g"), &["n1", "n2"], 100), &[], &none()).unwrap();
        assert_eq!(claims.claims(), [claim("a", Some("g"), &["n1", "n2"], 100)]);
        let written = GroupClaims::read(&claims.write().unwrap()).unwrap();
        assert_eq!(written, claims);
        for (second, conflict) in [
            (claim("b", Some("g"), &[], 100), Conflict::Group("a".into())),
            (claim("b", Some("h"), &["x", "n2", "n1"], 100), Conflict::Node(1, "a".into(), "g".into())),
            (claim("b", None, &["n1"], 99 + GRANT_SECONDS), Conflict::Node(0, "a".into(), "g".into())),
        ] {
            assert_eq!(add(&mut claims.clone(), second, &[], &none()), Err(conflict));
        }
        // The same one again, another one, and later.
        assert_eq!(add(&mut claims.clone(), claim("a", Some("g"), &["n1"], 101), &[], &none()), Ok(()));
        assert_eq!(add(&mut claims.clone(), claim("b", Some("h"), &["n3"], 100), &[], &none()), Ok(()));
        assert_eq!(
            add(&mut claims.clone(), claim("b", Some("g"), &["n1"], 100 + GRANT_SECONDS), &[], &none()),
            Ok(())
        );
        // It has gone since.
        let ended = HashSet::from_iter(["uid-a".to_owned()]);
        assert_eq!(add(&mut claims, claim("b", Some("g"), &["n1"], 101), &[], &ended), Ok(()));
    }

    #[test]
    fn what_the_watch_shows_counts_instead_of_the_claim() {
        let mut claims = GroupClaims::default();
        add(&mut claims, claim("a", Some("g"), &["n1"], 100), &[], &none()).unwrap();
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (n1, n2) = (nodes(&["n1"]), nodes(&["n2"]));
        let seen =
            |generation, group, nodes| MachineView { name: "a", uid: "uid-a", generation, group, nodes };
        let ask = |seen: MachineView<'_>, nodes: &[&str]| {
            add(&mut claims.clone(), claim("b", Some("h"), nodes, 101), &[seen], &none())
        };
        let by_a = || Err(Conflict::Node(0, "a".into(), "g".into()));
        assert_eq!(ask(seen(1, Some("g"), &n1), &["n1"]), by_a());
        // It has given the node back; or it is shown as it was before.
        assert_eq!(ask(seen(2, Some("g"), &n2), &["n1"]), Ok(()));
        assert_eq!(ask(seen(1, Some("g"), &n2), &["n1"]), by_a());
        assert_eq!(ask(MachineView { uid: "another", ..seen(2, Some("g"), &n2) }, &["n1"]), by_a());
        assert_eq!(ask(seen(2, Some("g"), &n2), &["n2"]), by_a());
        // It is shown as it was before it asked for its group, with the nodes that it has kept.
        let second = claim("b", Some("g"), &[], 101);
        for group in [None, Some("former")] {
            let got = add(&mut claims.clone(), second.clone(), &[seen(1, group, &n1)], &none());
            assert_eq!(got, Err(Conflict::Group("a".into())));
        }
    }

    #[test]
    fn an_object_holds_only_so_much() {
        let mut claims = GroupClaims::default();
        let name = "n".repeat(250);
        let many: Vec<String> = (0..3000).map(|i| format!("{name}{i}")).collect();
        let big = |machine: &str| Claim { nodes: many.clone(), ..claim(machine, None, &[], 0) };
        assert_eq!(add(&mut claims, big("a"), &[], &none()), Ok(()));
        let other =
            Claim { nodes: many.iter().map(|n| format!("{n}b")).collect(), ..claim("b", None, &[], 0) };
        assert_eq!(add(&mut claims, other, &[], &none()), Err(Conflict::Crowded));
        assert_eq!(add(&mut claims, claim("c", Some("g"), &["x"], 0), &[], &none()), Ok(()));
        // It may be full to the last byte.
        let of = |length: usize| claim("a", None, &[&"n".repeat(length)], 0);
        let empty = GroupClaims { claims: vec![of(0)] }.write().unwrap().len();
        for (size, expected) in [(MAX_BYTES, Ok(())), (MAX_BYTES + 1, Err(Conflict::Crowded))] {
            let mut claims = GroupClaims::default();
            assert_eq!(add(&mut claims, of(size - empty), &[], &none()), expected);
        }
    }

    #[test]
    fn each_claim_of_each_machine_has_its_own_id() {
        let first = || claim("a", None, &[], 0);
        let all = [
            first(),
            claim("b", None, &[], 0),
            claim("a", None, &[], 1),
            Claim { uid: "another".into(), ..first() },
            Claim { generation: 2, ..first() },
        ];
        let ids: HashSet<String> = all.iter().map(Claim::id).collect();
        assert_eq!(ids.len(), all.len());
    }
}
