//! Contradictions: why no node at all can match.
//!
//! This looks at what the expressions say about one label each, and never cries wolf: where it finds something, no node
//! can match, whatever nodes there are. It is advice, so it is given up where it would take long: see [`MAX_SAID`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

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
        let values = expression.get("values").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
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
        // A bound that is no integer is the API server's to refuse.
        let Some(bound) = self.bound() else { return true };
        value
            .parse::<i64>()
            .is_ok_and(|value| if self.operator == "Gt" { value > bound } else { value < bound })
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
            Some(left) if left.len() <= says.values.len() => left.retain(|(_, value)| {
                step();
                says.values.contains(value)
            }),
            Some(left) => {
                *left = says.values.iter().map(ordered).filter(|value| left.contains(value)).collect();
            }
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
        let expressions = term.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        expressions.iter().filter_map(move |expression| Says::read(expression, field))
    })
}

/// How many expressions and values a term has.
fn size(term: &Value) -> usize {
    let list = |of: &Value, name: &str| of.get(name).and_then(Value::as_array).map_or(0, Vec::len);
    let of = |name: &str| {
        let all = term.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        all.iter().map(|expression| 1 + list(expression, "values")).sum::<usize>()
    };
    1 + of("matchExpressions") + of("matchFields")
}

/// All that a Pod's nodeSelector says.
fn node_selector(pod: &Value) -> impl Iterator<Item = Says<'_>> {
    let map = pod.get("spec").and_then(|spec| spec.get("nodeSelector")).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| {
        Some(Says { field: false, key, operator: "In", values: BTreeSet::from([value.as_str()?]) })
    })
}

/// The terms of a Pod's required node affinity.
fn terms(pod: &Value) -> &[Value] {
    pod.pointer(
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
    )
    .and_then(Value::as_array)
    .map_or(&[][..], Vec::as_slice)
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
    if pods > MAX_SAID || impose > MAX_SAID || pairs > 16 * MAX_SAID {
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
    // Who contradicts itself has no one else to blame.
    let sound = |all: &Vec<Vec<Says<'_>>>| -> Vec<usize> {
        (0..all.len()).filter(|i| all.get(*i).is_some_and(|said| within(said).is_none())).collect()
    };
    let sound_theirs = sound(&theirs);
    let mut first = None;
    for own in sound(&own).into_iter().filter_map(|i| own.get(i)) {
        for theirs in sound_theirs.iter().filter_map(|i| theirs.get(*i)) {
            let found = against(own, theirs)?;
            first.get_or_insert(found);
        }
    }
    first
}

/// What of two lists, neither of which contradicts itself, can't hold together: of each side one.
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
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(terms: Value, selector: Value) -> Value {
        json!({"spec": {"nodeSelector": selector, "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
    }

    fn term(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn contradictions_name_both_sides() {
        let found = |terms: Value, selector: Value| contradiction(&pod(terms, selector));
        let a_in = |v: &[&str]| term("a", "In", v);
        assert_eq!(found(json!([a_in(&["1"])]), json!({"a": "1"})), None);
        assert_eq!(
            found(json!([a_in(&["2", "3"])]), json!({"a": "1"})).as_deref(),
            Some("a In [1] and a In [2, 3]")
        );
        assert_eq!(found(json!([a_in(&["2"]), a_in(&["1"])]), json!({"a": "1"})), None, "one term is left");
        assert!(found(json!([{}]), json!({})).is_some());
        let not = json!([{"matchExpressions": [
            {"key": "a", "operator": "NotIn", "values": ["1", "2"]}, {"key": "a", "operator": "In", "values": ["1"]}]}]);
        assert!(found(not, json!({})).is_some());
        assert_eq!(contradiction(&json!({"spec": {}})), None);
    }

    #[test]
    fn integers_and_fields_contradict_too() {
        let both = |a: Value, b: Value| {
            let lists = |name: &str| -> Vec<Value> {
                [&a, &b].iter().flat_map(|t| t[name].as_array().cloned().unwrap_or_default()).collect()
            };
            let term =
                json!({"matchExpressions": lists("matchExpressions"), "matchFields": lists("matchFields")});
            contradiction(&pod(json!([term]), json!({})))
        };
        let field = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        for (a, b, contradicts) in [
            (term("a", "In", &["1", "x"]), term("a", "Gt", &["1"]), true),
            (term("a", "Gt", &["1"]), term("a", "In", &["2"]), false),
            (term("a", "Gt", &["1"]), term("a", "Lt", &["2"]), true),
            (term("a", "Lt", &["3"]), term("a", "Gt", &["1"]), false),
            (term("a", "Lt", &["x"]), term("a", "Gt", &["1"]), false),
            (term("a", "NotIn", &["1"]), term("a", "DoesNotExist", &[]), false),
            (field("n"), field("m"), true),
            (field("n"), field("n"), false),
            (field("n"), term("metadata.name", "In", &["m"]), false),
        ] {
            assert_eq!(both(a.clone(), b.clone()).is_some(), contradicts, "{a} {b}");
        }
    }

    #[test]
    fn an_opposition_tells_whose_words_are_whose() {
        let us = || vec![term("region", "In", &["us"]), term("type", "NotIn", &["virtual"])];
        let virtual_eu = || {
            json!({"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]},
                {"key": "type", "operator": "In", "values": ["virtual"]}]})
        };
        assert_eq!(
            opposition(&pod(json!([virtual_eu()]), json!({})), &us()),
            Some(("region In [eu]".to_owned(), "region In [us]".to_owned()))
        );
        assert_eq!(opposition(&pod(json!([virtual_eu(), term("x", "Exists", &[])]), json!({})), &us()), None);
        let (own, theirs) =
            opposition(&pod(json!(null), json!({"region": "eu", "type": "virtual"})), &us()).unwrap();
        assert_eq!((own.as_str(), theirs.as_str()), ("region In [eu]", "region In [us]"));
        // What contradicts itself is nobody else's fault.
        assert_eq!(opposition(&pod(json!([term("a", "In", &["1"])]), json!({"a": "2"})), &us()), None);
        assert_eq!(opposition(&json!({"spec": {}}), &us()), None);
    }

    #[test]
    fn several_together_can_leave_nothing_too() {
        let all =
            |expressions: Value| contradiction(&pod(json!([{"matchExpressions": expressions}]), json!({})));
        let e = |operator: &str, values: &[&str]| json!({"key": "a", "operator": operator, "values": values});
        for together in [
            json!([e("In", &["1", "2"]), e("In", &["2", "3"]), e("In", &["1", "3"])]),
            json!([e("In", &["1", "9"]), e("Gt", &["3"]), e("Lt", &["7"])]),
            json!([e("NotIn", &["1"]), e("NotIn", &["2"]), e("In", &["1", "2"])]),
            json!([e("Gt", &["0"]), e("NotIn", &["x"]), e("In", &["x", "y"])]),
        ] {
            let said = all(together.clone()).unwrap_or_default();
            assert!(said.contains(" and a "), "{together}: {said}");
        }
        assert!(
            all(json!([e("In", &["1", "2"]), e("In", &["2", "3"]), e("In", &["1", "3"])]))
                .is_some_and(|said| said.ends_with("with the others on it"))
        );
        assert_eq!(all(json!([e("In", &["1", "5", "9"]), e("Gt", &["3"]), e("Lt", &["7"])])), None);
        assert_eq!(all(json!([e("Gt", &["1"]), e("Gt", &["5"]), e("In", &["6"])])), None);
    }

    #[test]
    fn who_says_too_much_gets_no_warning() {
        let many = |count: usize| {
            let mut all = vec![json!({"key": "a", "operator": "Exists"}); count];
            all.push(json!({"key": "a", "operator": "DoesNotExist"}));
            pod(json!([{"matchExpressions": all}]), json!({}))
        };
        assert!(contradiction(&many(MAX_SAID - 2)).is_some());
        assert_eq!(contradiction(&many(MAX_SAID)), None);
        let selector: serde_json::Map<String, Value> =
            (0..100).map(|i| (format!("k{i}"), json!("v"))).collect();
        let terms = json!(vec![term("k0", "In", &["w"]); 30]);
        assert_eq!(contradiction(&pod(terms, json!(selector))), None, "each term has the nodeSelector too");
        assert!(opposition(&many(10), &[term("a", "DoesNotExist", &[])]).is_none(), "it contradicts itself");
        let own = pod(json!(vec![term("a", "In", &["1"]); 300]), json!({}));
        assert!(opposition(&own, &vec![term("a", "In", &["2"]); 30]).is_some());
        assert!(opposition(&own, &vec![term("a", "In", &["2"]); 300]).is_none());
    }

    #[test]
    fn its_steps_grow_with_what_is_said_and_no_faster() {
        let of = |expression: &dyn Fn(usize) -> Value, count: usize| -> Value {
            let all: Vec<Value> = (0..count).map(expression).collect();
            json!({"matchExpressions": all})
        };
        let e =
            |operator: &str, values: &[String]| json!({"key": "a", "operator": operator, "values": values});
        type Expression<'a> = (&'a str, &'a dyn Fn(usize) -> Value);
        let kinds: [Expression<'_>; 4] = [
            ("one said again and again", &|_| e("Exists", &[])),
            ("each excludes another value", &|i| e("NotIn", &[format!("v{i}")])),
            ("ever tighter bounds", &|i| e("Gt", &[i.to_string()])),
            ("bounds against values", &|i| {
                if i % 2 == 0 { e("In", &["1".into(), "90000".into()]) } else { e("Gt", &[i.to_string()]) }
            }),
        ];
        for (what, expression) in kinds {
            // The cap is looked at before; here it is about what lies below it.
            crate::steps::assert_nearly_linear(
                |size| of(expression, size),
                |term| {
                    let all: Vec<Says<'_>> = says(term).collect();
                    assert!(within(&all).is_none(), "{what}");
                },
            );
        }
        let values = |from: usize, count: usize| -> Vec<String> {
            (from..from + count).map(|i| format!("v{i}")).collect()
        };
        crate::steps::assert_nearly_linear(
            |size| json!({"matchExpressions": [e("In", &values(0, size)), e("In", &values(size - 1, size)), e("In", &values(size, size))]}),
            |term| assert!(within(&says(term).collect::<Vec<_>>()).is_some()),
        );
    }
}
