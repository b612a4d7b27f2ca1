use proptest::prelude::*;
use serde_json::json;

use super::super::tests::{admitted, guest, large, slot};
use super::super::{GuestSlot, is_done, outgrown};
use super::*;

/// A guest with these metadata besides its labels, and these containers.
fn pod(labels: &Value, annotations: &Value, containers: &Value) -> Value {
    let mut pod = guest(json!({ "containers": containers }));
    json_patch::merge(&mut pod["metadata"], &json!({"labels": labels, "annotations": annotations}));
    pod
}

fn named(name: &str) -> Value {
    json!({"name": name, "image": "i"})
}

/// A container with the whole slot.
fn whole(name: &str) -> Value {
    json!({"name": name, "image": "i", "resources": {"requests": slot(), "limits": slot()}})
}

/// Names of the containers that have the whole slot.
fn holders(pod: &Value) -> Vec<&str> {
    let containers = pod["spec"]["containers"].as_array().unwrap().iter();
    let has =
        |container: &&Value| ["requests", "limits"].iter().all(|list| container["resources"][list] == slot());
    containers.filter(has).map(|container| container["name"].as_str().unwrap()).collect()
}

/// The container that gets the slot.
fn chosen(pod: &Value) -> Result<String, String> {
    let (after, _) = admitted(pod).map_err(|error| error.to_string())?;
    let [one] = holders(&after)[..] else { panic!("not one: {after}") };
    Ok(one.to_owned())
}

#[test]
fn the_container_is_found_by_what_it_has_and_by_its_name() {
    let (none, two) = (json!({}), json!([named("a"), named("b")]));
    let label = |name: &str| json!({keys::INJECTING_CONTAINER: name});
    let alias = |name: &str| json!({keys::INJECT_RESOURCE_CONTAINER: name});
    let record = |name: &str| json!({keys::INJECTED_CONTAINER: name});
    let default = |name: &str| json!({keys::DEFAULT_CONTAINER: name});
    let with_b = json!([named("a"), whole("b")]);
    for (why, labels, annotations, containers, expected) in [
        ("the first", &none, &none, &two, "a"),
        ("an empty label names none", &label(""), &default(""), &two, "a"),
        ("a label names it", &label("b"), &default("a"), &two, "b"),
        ("so does the other name of the label", &alias("b"), &none, &two, "b"),
        ("it has the slot", &none, &default("a"), &with_b, "b"),
        ("it has got the slot before, and another webhook has changed it", &none, &record("b"), &two, "b"),
        ("one that has gone since had it", &none, &record("c"), &with_b, "b"),
        ("it is the default", &none, &default("b"), &two, "b"),
        (
            "an injector's comes first",
            &none,
            &none,
            &json!([named("istio-proxy"), named("vault-agent"), named("a")]),
            "a",
        ),
        ("there is no other", &none, &none, &json!([named("envoy"), named("daprd")]), "envoy"),
        ("it is named", &label("envoy"), &none, &json!([named("a"), named("envoy")]), "envoy"),
    ] {
        assert_eq!(chosen(&pod(labels, annotations, containers)), Ok(expected.to_owned()), "{why}");
    }
}

#[test]
fn names_that_name_nothing_or_two_containers_are_refused() {
    let (none, two) = (json!({}), json!([named("a"), named("b")]));
    let with_b = json!([named("a"), whole("b")]);
    let label = |name: &str| json!({keys::INJECTING_CONTAINER: name});
    let label_at = format!("metadata.labels[{}]: is", keys::INJECTING_CONTAINER);
    let alias_at = format!("metadata.labels[{}]: is", keys::INJECT_RESOURCE_CONTAINER);
    let default_at = format!("metadata.annotations[{}]: is", keys::DEFAULT_CONTAINER);
    for (labels, annotations, containers, said) in [
        (
            label("c"),
            none.clone(),
            &two,
            format!("{label_at} \"c\", and none of spec.containers has that name"),
        ),
        (
            json!({keys::INJECT_RESOURCE_CONTAINER: "c"}),
            none.clone(),
            &two,
            format!("{alias_at} \"c\", and none of"),
        ),
        (
            none.clone(),
            json!({keys::DEFAULT_CONTAINER: "c"}),
            &two,
            format!("{default_at} \"c\", and none of"),
        ),
        (
            json!({keys::INJECTING_CONTAINER: "a", keys::INJECT_RESOURCE_CONTAINER: "b"}),
            none.clone(),
            &two,
            format!("{alias_at} \"b\", but {} is \"a\"", keys::INJECTING_CONTAINER),
        ),
        (
            label("a"),
            json!({keys::INJECTED_CONTAINER: "b"}),
            &two,
            format!("{label_at} \"a\", but container \"b\" has the slot already"),
        ),
        (
            label("a"),
            none,
            &with_b,
            "spec.containers[1].resources: has the whole slot, which container \"a\"".to_owned(),
        ),
    ] {
        let found = chosen(&pod(&labels, &annotations, containers)).unwrap_err();
        assert!(found.starts_with(&said), "{found}");
    }
    let same = json!({keys::INJECTING_CONTAINER: "b", keys::INJECT_RESOURCE_CONTAINER: "b"});
    assert_eq!(chosen(&pod(&same, &json!({}), &two)), Ok("b".to_owned()));
}

#[test]
fn the_record_is_written_with_the_resources_only() {
    let record = |pod: &Value| {
        let (after, _) = admitted(pod).unwrap();
        after["metadata"]["annotations"].get(keys::INJECTED_CONTAINER).cloned()
    };
    let none = json!({});
    assert_eq!(record(&pod(&none, &json!({"x": "y"}), &json!([named("a")]))), Some(json!("a")));
    let as_it_should_be = admitted(&pod(&none, &none, &json!([named("a")]))).unwrap().0;
    let mut without = as_it_should_be;
    without["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(admitted(&without).unwrap().0, without, "nothing is to be done");
}

/// What another webhook does to a guest between two calls.
#[derive(Debug, Clone)]
enum Change {
    /// It inserts a container with some resources.
    Insert(usize, String, Value),
    /// It removes one that doesn't have the slot.
    Remove(usize),
    /// It renames one that doesn't have the slot.
    Rename(usize, String),
    /// It moves containers.
    Rotate(usize),
    /// It sets resources of any container: a recommender does so to all of them.
    Resize(usize, Value),
    /// It says which container is kubectl's default, as Istio does where nobody has.
    Default(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..6_usize;
    let name = prop::sample::select(vec!["istio-proxy", "mesh-proxy", "linkerd-proxy", "x", "y", "z"])
        .prop_map(str::to_owned);
    let amounts = prop::sample::select(vec![
        json!({}),
        json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
        json!({"requests": {"cpu": "2", "memory": "24Gi"}, "limits": {"cpu": "2", "memory": "24Gi"}}),
        json!({"limits": {"nvidia.com/gpu": "2"}}),
    ]);
    prop_oneof![
        (at.clone(), name.clone(), amounts.clone())
            .prop_map(|(i, name, amounts)| Change::Insert(i, name, amounts)),
        at.clone().prop_map(Change::Remove),
        (at.clone(), name).prop_map(|(i, name)| Change::Rename(i, name)),
        at.clone().prop_map(Change::Rotate),
        (at.clone(), amounts).prop_map(|(i, amounts)| Change::Resize(i, amounts)),
        at.prop_map(Change::Default),
    ]
}

impl Change {
    /// Does it to a Pod in which `holder` has the slot.
    fn apply(&self, pod: &mut Value, holder: &str) {
        let mut containers = pod["spec"]["containers"].as_array().unwrap().clone();
        let count = containers.len();
        let is_free = |name: &str| containers.iter().all(|container| container["name"] != name);
        match self {
            Self::Insert(i, name, amounts) if is_free(name) => {
                containers.insert(i % (count + 1), json!({"name": name, "image": "i", "resources": amounts}));
            }
            Self::Remove(i) if containers[i % count]["name"] != holder => drop(containers.remove(i % count)),
            Self::Rename(i, name) if is_free(name) && containers[i % count]["name"] != holder => {
                containers[i % count]["name"] = json!(name);
            }
            Self::Rotate(i) => containers.rotate_left(i % count),
            Self::Resize(i, amounts) => containers[i % count]["resources"] = amounts.clone(),
            Self::Default(i) if pod["metadata"]["annotations"].get(keys::DEFAULT_CONTAINER).is_none() => {
                pod["metadata"]["annotations"][keys::DEFAULT_CONTAINER] =
                    containers[i % count]["name"].clone();
            }
            _ => {}
        }
        pod["spec"]["containers"] = json!(containers);
    }
}

/// A guest as its creator may write it.
fn written() -> impl Strategy<Value = Value> {
    let names = prop::sample::subsequence(vec!["a", "b", "c", "istio-proxy"], 1..=4).prop_shuffle();
    (names, 0..5_usize, any::<prop::sample::Index>()).prop_map(|(names, how, which)| {
        let name = *which.get(&names);
        let containers: Vec<Value> =
            names.iter().map(|one| if how == 4 && *one == name { whole(one) } else { named(one) }).collect();
        let (mut labels, mut annotations) = (json!({}), json!({}));
        match how {
            1 => labels[keys::INJECTING_CONTAINER] = json!(name),
            2 => labels[keys::INJECT_RESOURCE_CONTAINER] = json!(name),
            3 => annotations[keys::DEFAULT_CONTAINER] = json!(name),
            _ => {}
        }
        pod(&labels, &annotations, &json!(containers))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever another webhook does between our calls, the container that has got the slot keeps it, and no other gets it.
    #[test]
    fn the_slot_is_given_once_whatever_others_do_between_two_calls(
        written in written(),
        rounds in prop::collection::vec(prop::collection::vec(change(), 0..4), 1..4),
    ) {
        let large = large();
        let (mut now, _) = admitted(&written).unwrap();
        let holder = holders(&now)[0].to_owned();
        prop_assert_eq!(holders(&now), [&*holder]);
        let by_its_creator = now["metadata"]["annotations"].get(keys::INJECTED_CONTAINER).is_none();
        for round in rounds {
            for change in round {
                // Of a container that its creator gave the slot there is no record, and it has to keep what it has.
                let is_holders = |change: &Change| match change {
                    Change::Resize(i, _) => {
                        let containers = now["spec"]["containers"].as_array().unwrap();
                        containers[i % containers.len()]["name"] == *holder
                    }
                    _ => false,
                };
                if !(by_its_creator && is_holders(&change)) {
                    change.apply(&mut now, &holder);
                }
            }
            let (after, _) = admitted(&now).unwrap();
            prop_assert_eq!(holders(&after), [&*holder], "{} became {}", now, after);
            let done = is_done(&after, GuestSlot { group: "g", type_: &large });
            prop_assert!(done);
            now = after;
        }
    }

    /// Before an update the containers may have been moved, too.
    #[test]
    fn a_resize_is_validated_alike_in_any_order(
        written in written(),
        changes in prop::collection::vec(change(), 0..4),
        (old_turn, new_turn) in (0..6_usize, 0..6_usize),
    ) {
        let large = large();
        let (old, _) = admitted(&written).unwrap();
        let mut new = old.clone();
        for change in changes.iter().filter(|change| matches!(change, Change::Resize(..))) {
            change.apply(&mut new, "");
        }
        let said = |new: &Value, old: &Value| {
            let error = outgrown(new, old, Some(&large))?;
            Some(error.message)
        };
        let (mut moved_new, mut moved_old) = (new.clone(), old.clone());
        Change::Rotate(new_turn).apply(&mut moved_new, "");
        Change::Rotate(old_turn).apply(&mut moved_old, "");
        prop_assert_eq!(said(&new, &old).is_some(), said(&moved_new, &moved_old).is_some());
    }
}
