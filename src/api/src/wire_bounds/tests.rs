use std::collections::HashMap;

use outrigger_proto::raw;
use outrigger_proto::shape::method;
use outrigger_proto::v1::workload_stream_request::Message as Kind;
use outrigger_proto::v1::{
    ListResponse, Rule, RuleCondition, RuleData, RuleMatchExpression, RuleStatus, RuleWorkloadTerm,
    WorkloadMetadata, WorkloadState, WorkloadStreamRequest, WorkloadSync, WorkloadUpdate, workload_state,
};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use prost::Message;

use super::*;

const STREAM: &str = "/universe.workload.v1.WorkloadService/WorkloadStream";
const LIST: &str = "/universe.workload.v1.WorkloadRuleService/List";

fn request() -> &'static Shape {
    method(STREAM).unwrap().request
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé/]{0,6}"
}

fn update() -> impl Strategy<Value = WorkloadUpdate> {
    let data = hash_map(text(), text(), 0..4).prop_map(|data| workload_state::ExtraData { data });
    let extra = hash_map(text(), data, 0..3);
    (proptest::option::of(text()), text(), any::<bool>(), extra).prop_map(|(id, node_name, ready, extra)| {
        WorkloadUpdate {
            workload_metadata: id.map(|id| WorkloadMetadata {
                id,
                orchestrator: 1,
                ..WorkloadMetadata::default()
            }),
            workload_state: Some(WorkloadState { node_name, ready, extra, ..WorkloadState::default() }),
            annotation_keys: None,
        }
    })
}

fn sync(workload_updates: Vec<WorkloadUpdate>) -> WorkloadStreamRequest {
    WorkloadStreamRequest { message: Some(Kind::WorkloadSync(WorkloadSync { workload_updates })) }
}

/// Entries and items of a decoded message.
fn made(message: &WorkloadStreamRequest) -> (usize, usize) {
    let items = |update: &WorkloadUpdate| {
        let extra = update.workload_state.iter().flat_map(|state| &state.extra);
        extra.map(|(_, map)| 1 + map.data.len()).sum::<usize>()
    };
    match &message.message {
        Some(Kind::WorkloadUpdate(update)) => (0, items(update)),
        Some(Kind::WorkloadSync(sync)) => {
            (sync.workload_updates.len(), sync.workload_updates.iter().map(items).sum())
        }
        _ => (0, 0),
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_counted_exactly(updates in vec(update(), 0..5)) {
        let message = sync(updates);
        let found = measure(request(), &message.encode_to_vec()).unwrap();
        prop_assert_eq!((found.entries, found.items), made(&message));
        prop_assert_eq!(found.bytes, message.encoded_len());
    }

    #[test]
    fn rules_are_counted_exactly(rules in vec((vec(vec(text(), 0..4), 0..4), 0..5_usize), 0..5)) {
        let mut entries = rules.len();
        let rules = rules.into_iter().map(|(terms, conditions)| {
            entries += terms.len() + terms.iter().map(Vec::len).sum::<usize>() + conditions;
            let expressions = |values| vec![RuleMatchExpression { values, ..RuleMatchExpression::default() }];
            entries += terms.len();
            let workload_terms =
                terms.into_iter().map(|v| RuleWorkloadTerm { match_expressions: expressions(v) }).collect();
            let conditions = vec![RuleCondition::default(); conditions];
            Rule {
                data: Some(RuleData { workload_terms, ..RuleData::default() }),
                status: Some(RuleStatus { conditions, ..RuleStatus::default() }),
                ..Rule::default()
            }
        });
        let list = ListResponse { rules: rules.collect(), next_page_token: String::new() };
        let found = measure(method(LIST).unwrap().response, &list.encode_to_vec()).unwrap();
        prop_assert_eq!((found.entries, found.items), (entries, 0));
    }

    /// Altered bytes: if the decoder accepts them, so does the counter, and its counts are not less.
    #[test]
    fn counts_are_never_less_than_what_the_decoder_creates(
        updates in vec(update(), 1..4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        twice in any::<bool>(),
    ) {
        let mut wire = sync(updates).encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(wire.len());
            wire[at] = byte;
        }
        if twice {
            let again = wire.clone();
            wire.extend(again);
        } else {
            wire.truncate(cut.index(wire.len()) + 1);
        }
        let counted = measure(request(), &wire);
        if let Ok(decoded) = WorkloadStreamRequest::decode(&wire[..]) {
            let counted = counted.unwrap();
            let (entries, items) = made(&decoded);
            prop_assert!(counted.entries >= entries && counted.items >= items, "{counted:?} {entries} {items}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(wire in vec(any::<u8>(), 0..200)) {
        let counted = measure(request(), &wire);
        if WorkloadStreamRequest::decode(&wire[..]).is_ok() {
            prop_assert!(!matches!(counted, Err(OutOfBounds::Malformed { .. })), "{counted:?}");
        }
    }
}

#[test]
fn an_entry_of_two_bytes_is_counted() {
    let wire = [&[0x1a, 8][..], &[0x0a, 0].repeat(4)].concat();
    let bounds = Bounds { bytes: 10, entries: 4, items: 0 };
    let found = check(request(), &wire, &bounds).unwrap();
    assert_eq!(found, Measure { bytes: 10, entries: 4, items: 0 });
    assert_eq!(found.decoded_bytes(), 10 + 4 * ENTRY_BYTES);
    let parts = size_of::<raw::WorkloadMetadata>()
        + size_of::<raw::WorkloadState>()
        + size_of::<raw::AnnotationKeys>();
    let update = size_of::<raw::WorkloadUpdate>() * 2 + parts + 3 * 16;
    assert!(update <= ENTRY_BYTES, "{update}");
    assert!(size_of::<Rule>() <= ENTRY_BYTES * 2, "{}", size_of::<Rule>());
    assert!(2 * (size_of::<(String, String)>() + 1) + 32 <= ITEM_BYTES);
}

/// The decoder takes the second byte of a "64-bit" item for its length. Whoever skips eight bytes instead counts nothing.
#[test]
fn items_of_a_wrong_wire_type_are_counted() {
    let items: Vec<u8> = (b'a'..=b'd').flat_map(|c| [9, 7, 0x0a, 5, c, c, c, c, c]).collect();
    let data = [&[0x12, 36][..], &items].concat();
    let extra = [&[0x1a, 38][..], &data].concat();
    let state = [&[0x12, 40][..], &extra].concat();
    let wire = [&[0x0a, 42][..], &state].concat();
    let decoded = WorkloadStreamRequest::decode(&wire[..]).unwrap();
    assert_eq!(made(&decoded), (0, 5));
    assert_eq!(measure(request(), &wire).unwrap().items, 5);
}

#[test]
fn errors_name_the_limit_and_both_numbers() {
    let labels = HashMap::from([("a".to_owned(), String::new()), ("b".to_owned(), String::new())]);
    let extra = HashMap::from([("labels".to_owned(), workload_state::ExtraData { data: labels })]);
    let one = WorkloadUpdate {
        workload_state: Some(WorkloadState { extra, ..WorkloadState::default() }),
        ..WorkloadUpdate::default()
    };
    let wire = sync(vec![one; 2]).encode_to_vec();
    let error = |bounds| check(request(), &wire, &bounds).unwrap_err().to_string();
    let bounds = Bounds { bytes: 1000, entries: 2, items: 6 };
    assert!(check(request(), &wire, &bounds).is_ok());
    let name = "universe.workload.v1.WorkloadStreamRequest";
    assert_eq!(
        error(Bounds { entries: 1, ..bounds }),
        format!("{name}: has 2 entries of repeated fields, at most 1 are allowed")
    );
    assert_eq!(
        error(Bounds { items: 5, ..bounds }),
        format!("{name}: has 6 items of maps, at most 5 are allowed")
    );
    assert_eq!(
        error(Bounds { bytes: 3, ..bounds }),
        format!("{name}: has {} bytes, at most 3 are allowed", wire.len())
    );
}

#[test]
fn the_nesting_of_groups_is_limited() {
    let groups = |deep: usize| [vec![0x7b; deep], vec![0x7c; deep]].concat();
    assert!(measure(request(), &groups(MAX_DEPTH - 1)).is_ok());
    let error = measure(request(), &groups(MAX_DEPTH)).unwrap_err();
    assert!(matches!(error, OutOfBounds::TooDeep { .. }), "{error}");
    assert!(error.is_too_much());
    let wrong = measure(request(), &[0x7b, 0x74]).unwrap_err();
    assert!(!wrong.is_too_much(), "{wrong}");
    // A length beyond any address space.
    assert!(measure(request(), &[0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).is_err());
}

#[test]
fn every_method_has_a_shape_that_distinguishes_maps() {
    assert!(method(STREAM).is_some() && method("/nothing").is_none());
    let repeats = |shape: &'static Shape, number| {
        let field = shape.fields.iter().find(|field| field.number == number).unwrap();
        (field.name, field.repeats, field.message)
    };
    let (_, once, sync) = repeats(request(), 3);
    let (name, entries, update) = repeats(sync.unwrap(), 1);
    let (_, _, state) = repeats(update.unwrap(), 2);
    let (extra, items, _) = repeats(state.unwrap(), 3);
    assert_eq!((once, name, entries), (Repeats::Once, "workload_updates", Repeats::Entries));
    assert_eq!((extra, items), ("extra", Repeats::Items));
}
