//! JSON of every shape.

use proptest::prelude::*;
use serde_json::Value;

/// Nulls, booleans, numbers and texts in lists and objects, up to `depth` within each other.
pub fn json(
    text: impl Strategy<Value = String> + 'static,
    key: impl Strategy<Value = String> + Clone + 'static,
    depth: u32,
) -> impl Strategy<Value = Value> + Clone {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(depth, 60, 5, move |inner| {
        let members = prop::collection::btree_map(key.clone(), inner.clone(), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
