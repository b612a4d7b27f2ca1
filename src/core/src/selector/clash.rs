//! Contradictions: why no node at all can match.
//!
//! This looks at what the expressions say about one label each, and never cries wolf: where it finds something, no node
//! can match, whatever nodes there are. It is advice, so it is given up where it would take long: see [`MAX_SAID`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::product::entries;
use super::terms;
use crate::steps::step;

/// Most expressions and values, together, that are looked at for contradictions. A Pod that says more gets no warning: people
/// write tens of them.
pub const MAX_SAID: usize = 4096;

/// What a selector says about one label, or about one field of the node.
struct Says<'a> {
    field: bool,
    key: &'a str,
    operator: &'a str,
    values: BTreeSet<&'a str>,
}

impl<'a> Says<'a> {
    fn read(expression: &'a Value, field: bool) -> Option<Self> {
        let values = entries(expression, "values");
        Some(Self {
            field,
            key: expression.get("key")?.as_str()?,
            operator: expression.get("operator")?.as_str()?,
            values: values.iter().filter_map(Value::as_str).collect(),
        })
    }

    /// What it is about.
    fn subject(&self) -> (bool, &'a str) {
        (self.field, self.key)
    }

    /// Whether these two alone, about one subject, can't both hold.
    fn excludes(&self, other: &Self) -> bool {
        step();
        match (self.operator, other.operator) {
            ("In", "In") => self.values.is_disjoint(&other.values),
            ("In", "NotIn") => self.values.is_subset(&other.values),
            ("NotIn", "In") => other.values.is_subset(&self.values),
            ("DoesNotExist", "In" | "Exists" | "Gt" | "Lt")
            | ("In" | "Exists" | "Gt" | "Lt", "DoesNotExist") => true,
            ("In", "Gt" | "Lt") => !self.values.iter().any(|value| other.admits(value)),
            ("Gt" | "Lt", "In") => other.excludes(self),
            // Between the bounds there has to be an integer.
            ("Gt", "Lt") => match (self.bound(), other.bound()) {
                (Some(low), Some(high)) => low.saturating_add(1) >= high,
                _ => false,
            },
            ("Lt", "Gt") => other.excludes(self),
            _ => false,
        }
    }

    /// The only value of Gt and Lt.
    fn bound(&self) -> Option<i64> {
        self.values.first().and_then(|value| value.parse().ok())
    }

    /// Whether a label's value passes Gt or Lt.
    fn admits(&self, value: &str) -> bool {
        step();
        // A bound that is no integer drops its term before anything is compared.
        let Some(bound) = self.bound() else { return true };
        value
            .parse::<i64>()
            .is_ok_and(|value| if self.operator == "Gt" { value > bound } else { value < bound })
    }

    /// Whether the scheduler drops the whole term for it, and the API server takes it: a bound that is no integer.
    fn is_dropped(&self) -> bool {
        matches!(self.operator, "Gt" | "Lt") && !self.values.is_empty() && self.bound().is_none()
    }

    fn describe(&self) -> String {
        let values: Vec<&str> = self.values.iter().copied().collect();
        let name = if self.field { "field " } else { "" };
        match self.operator {
            "Exists" | "DoesNotExist" => format!("{name}{} {}", self.key, self.operator),
            _ => format!("{name}{} {} [{}]", self.key, self.operator, values.join(", ")),
        }
    }
}

/// A label's value, those that are integers in their order, after all others.
type Ordered<'a> = (Option<i64>, &'a str);

/// All that is said about one subject, and what is left of it. Each value is put in once and taken out once.
#[derive(Default)]
struct Group<'s, 'a> {
    said: Vec<&'s Says<'a>>,
    /// What all `In` leave; `None` before the first.
    possible: Option<BTreeSet<Ordered<'a>>>,
    excluded: BTreeSet<&'a str>,
    needed: bool,
    forbidden: bool,
    /// The tightest bounds, and their places in `said`.
    low: Option<(i64, usize)>,
    high: Option<(i64, usize)>,
}

impl<'s, 'a> Group<'s, 'a> {
    /// Takes one more in. Whether anything can still meet all of them.
    fn add(&mut self, says: &'s Says<'a>) -> bool {
        step();
        let place = self.said.len();
        self.said.push(says);
        self.needed |= matches!(says.operator, "In" | "Exists" | "Gt" | "Lt");
        match says.operator {
            // The API server refuses one without values.
            "In" if !says.values.is_empty() => self.narrow(says),
            "NotIn" => self.exclude(says),
            "DoesNotExist" => self.forbidden = true,
            "Gt" => {
                if let Some(bound) = says.bound().filter(|bound| self.low.is_none_or(|(low, _)| *bound > low))
                {
                    self.low = Some((bound, place));
                }
            }
            "Lt" => {
                if let Some(bound) =
                    says.bound().filter(|bound| self.high.is_none_or(|(high, _)| *bound < high))
                {
                    self.high = Some((bound, place));
                }
            }
            _ => {}
        }
        self.within_bounds();
        let between = match (self.low, self.high) {
            (Some((low, _)), Some((high, _))) => low.saturating_add(1) < high,
            _ => true,
        };
        between
            && !(self.needed && self.forbidden)
            && self.possible.as_ref().is_none_or(|left| !left.is_empty())
    }

    fn narrow(&mut self, says: &Says<'a>) {
        let ordered = |value: &&'a str| {
            step();
            (value.parse().ok(), *value)
        };
        match &mut self.possible {
            // What is kept is no more than what is said here, and each value is taken out once.
            Some(left) => left.retain(|(_, value)| {
                step();
                says.values.contains(value)
            }),
            None => {
                let new = says.values.iter().filter(|value| !self.excluded.contains(*value)).map(ordered);
                self.possible = Some(new.collect());
            }
        }
    }

    fn exclude(&mut self, says: &Says<'a>) {
        for value in &says.values {
            step();
            match &mut self.possible {
                Some(left) => {
                    left.remove(&(value.parse().ok(), *value));
                }
                None => {
                    self.excluded.insert(value);
                }
            }
        }
    }

    /// Takes out what no bound admits. What is no integer passes none.
    fn within_bounds(&mut self) {
        let Some(left) = &mut self.possible else { return };
        let (low, high) = (self.low.map(|(low, _)| low), self.high.map(|(high, _)| high));
        if low.is_none() && high.is_none() {
            return;
        }
        while left
            .first()
            .is_some_and(|(value, _)| value.is_none() || low.is_some_and(|low| *value <= Some(low)))
        {
            step();
            left.pop_first();
        }
        while left.last().is_some_and(|(value, _)| high.is_some_and(|high| *value >= Some(high))) {
            step();
            left.pop_last();
        }
    }

    /// One that can't hold beside the last, or where only several together can't, the one before it. Of the bounds only the
    /// tightest are asked: what they admit, the others do.
    fn partner(&self) -> Option<(&'s Says<'a>, &'s Says<'a>, bool)> {
        let (last, earlier) = self.said.split_last()?;
        let tightest =
            |place: usize| [self.low, self.high].iter().flatten().any(|(_, tightest)| *tightest == place);
        let asked = earlier.iter().enumerate();
        let mut asked =
            asked.filter(|(place, says)| !matches!(says.operator, "Gt" | "Lt") || tightest(*place));
        match asked.find(|(_, says)| last.excludes(says)) {
            Some((_, says)) => Some((says, last, true)),
            None => earlier.last().map(|says| (*says, *last, false)),
        }
    }
}

/// All that a term says.
fn says(term: &Value) -> impl Iterator<Item = Says<'_>> {
    [("matchExpressions", false), ("matchFields", true)].into_iter().flat_map(move |(list, field)| {
        entries(term, list).iter().filter_map(move |expression| Says::read(expression, field))
    })
}

/// How many expressions and values a term has.
fn size(term: &Value) -> usize {
    let size = |expression| 1 + entries(expression, "values").len();
    let of = |list: &str| entries(term, list).iter().map(size).sum::<usize>();
    1 + of("matchExpressions") + of("matchFields")
}

/// All that a Pod's nodeSelector says.
fn node_selector(pod: &Value) -> impl Iterator<Item = Says<'_>> {
    let map = pod.get("spec").and_then(|spec| spec.get("nodeSelector")).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| {
        Some(Says { field: false, key, operator: "In", values: BTreeSet::from([value.as_str()?]) })
    })
}

/// How much a Pod says, its nodeSelector in each term.
fn said(pod: &Value) -> usize {
    let selector = pod.get("spec").and_then(|spec| spec.get("nodeSelector")).and_then(Value::as_object);
    let selector = selector.map_or(0, |map| 2 * map.len());
    let terms = terms(pod);
    terms.iter().map(size).sum::<usize>().saturating_add(selector.saturating_mul(terms.len().max(1)))
}

/// The first that can't hold beside those before it: one of these, itself, and whether these two suffice.
fn within<'s, 'a>(all: &'s [Says<'a>]) -> Option<(&'s Says<'a>, &'s Says<'a>, bool)> {
    let mut groups: BTreeMap<(bool, &str), Group<'s, 'a>> = BTreeMap::new();
    all.iter().find_map(|says| {
        let group = groups.entry(says.subject()).or_default();
        if group.add(says) { None } else { group.partner() }
    })
}

/// Why no node at all can match a Pod's nodeSelector and required node affinity: both sides of the first contradiction,
/// when every term has one. `None` when some node could match, or the Pod says more than [`MAX_SAID`].
pub fn contradiction(pod: &Value) -> Option<String> {
    if said(pod) > MAX_SAID {
        return None;
    }
    let mut first = None;
    for term in terms(pod) {
        let own: Vec<Says<'_>> = says(term).collect();
        let found = if own.is_empty() {
            "a node selector term without expressions, which matches no node".to_owned()
        } else if let Some(dropped) = own.iter().find(|says| says.is_dropped()) {
            format!("{}, no integer: the scheduler drops the term", dropped.describe())
        } else {
            let all: Vec<Says<'_>> = node_selector(pod).chain(own).collect();
            let (a, b, suffice) = within(&all)?;
            let others = if suffice { "" } else { " with the others on it" };
            format!("{} and {}{others}", a.describe(), b.describe())
        };
        first.get_or_insert(found);
    }
    first
}

/// Why no node at all can match both a Pod and one of the terms that are imposed on it: what the Pod says, and what is
/// imposed. `None` when some node could match, when the Pod or what is imposed contradicts itself, and when they say more than
/// [`MAX_SAID`], each term of the Pod with all that is imposed.
pub fn opposition(pod: &Value, imposed: &[Value]) -> Option<(String, String)> {
    let (pods, impose): (usize, usize) = (said(pod), imposed.iter().map(size).sum());
    let pairs =
        pods.saturating_mul(imposed.len()).saturating_add(impose.saturating_mul(terms(pod).len().max(1)));
    // Most Pods and most that is imposed say few things; what is compared is one with each of the other side.
    if pods > MAX_SAID || impose > MAX_SAID || pairs > 8 * MAX_SAID {
        return None;
    }
    let own: Vec<Vec<Says<'_>>> = match terms(pod) {
        [] => vec![node_selector(pod).collect()],
        terms => terms
            .iter()
            .map(|term| says(term).collect::<Vec<_>>())
            .filter(|said| !said.is_empty())
            .map(|said| node_selector(pod).chain(said).collect())
            .collect(),
    };
    let theirs: Vec<Vec<Says<'_>>> = imposed.iter().map(|term| says(term).collect()).collect();
    let sound = |all: &[Vec<Says<'_>>]| -> Vec<bool> {
        let is_sound = |said: &Vec<Says<'_>>| within(said).is_none() && !said.iter().any(Says::is_dropped);
        all.iter().map(is_sound).collect()
    };
    let (own_sound, theirs_sound) = (sound(&own), sound(&theirs));
    let (mut first, mut left) = (None, 8 * MAX_SAID);
    for (own, own_sound) in own.iter().zip(own_sound) {
        for (theirs, theirs_sound) in theirs.iter().zip(&theirs_sound) {
            if own_sound && *theirs_sound {
                let found = against(own, theirs)?;
                first.get_or_insert(found);
            } else if first.is_none() {
                // It matches nothing by itself, and may say why: what is imposed may be in it already.
                first = pair(own, theirs, &mut left);
            }
        }
    }
    first
}

/// The first two of two lists that exclude each other, as far as so many expressions and values reach.
fn pair(own: &[Says<'_>], theirs: &[Says<'_>], left: &mut usize) -> Option<(String, String)> {
    for a in own {
        for b in theirs.iter().filter(|b| b.subject() == a.subject()) {
            *left = left.checked_sub(1 + a.values.len() + b.values.len())?;
            if a.excludes(b) {
                return Some((a.describe(), b.describe()));
            }
        }
    }
    None
}

/// Two requirements that can't hold together, one of each list, where neither list contradicts itself.
fn against(own: &[Says<'_>], theirs: &[Says<'_>]) -> Option<(String, String)> {
    let subjects: BTreeSet<_> = theirs.iter().map(Says::subject).collect();
    let mut groups: BTreeMap<_, Group<'_, '_>> = BTreeMap::new();
    for says in own.iter().filter(|says| subjects.contains(&says.subject())) {
        groups.entry(says.subject()).or_default().add(says);
    }
    theirs.iter().find_map(|says| {
        let group = groups.get_mut(&says.subject())?;
        if group.add(says) {
            return None;
        }
        // The last is theirs; of ours one that it excludes, or where it takes several, the first.
        let ours = own.iter().filter(|own| own.subject() == says.subject());
        let (a, _, _) = group.partner()?;
        let a = ours.clone().find(|own| std::ptr::eq(*own, a)).or_else(|| ours.clone().next())?;
        Some((a.describe(), says.describe()))
    })
}

#[cfg(test)]
mod tests;
