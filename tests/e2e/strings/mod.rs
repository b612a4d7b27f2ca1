//! Texts that become keys and values of labels, selectors, tolerations, names, ports or quantities: each field of each kind, and each
//! setting, gets the edge cases of the API server. What Outrigger takes, the API server takes in the object that is made of it; what
//! Outrigger refuses, the API server refuses too, and Outrigger names the field. All of it are dry runs.

mod rows;
mod templates;
mod values;

use futures::StreamExt;
use http::Method;
use kube::Client;
use outrigger_tests::eventually;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{namespace, takes_pods};
use outrigger_tests::user::ask;
use serde_json::Value;

/// A namespace without tenant, in which an object is validated by itself.
const NAMESPACE: &str = "strings";

/// An object, and the list to which it is sent.
type Object = (&'static str, Value);

/// What validates the text of a field where it enters.
enum Entry {
    /// The API server with Outrigger's definitions and webhooks, to which this object is sent. A refusal has these words.
    Object(Box<dyn Fn(&Value) -> Object + Send + Sync>, &'static str),
    /// A function, which reads a setting or a message.
    Function(fn(&str) -> bool),
}

/// One field.
struct Row {
    /// Kind and field.
    field: String,
    /// Its edge cases.
    values: Vec<Value>,
    entry: Entry,
    /// What is made of it.
    made: Box<dyn Fn(&Value) -> Object + Send + Sync>,
    /// Values that only Outrigger refuses, each for a reason that the documentation has.
    stricter: Vec<Value>,
    /// Values that Outrigger takes with a warning, and of which the API server takes nothing.
    warned: Vec<Value>,
    /// Whatever the text is, something is made of it that the API server takes.
    translated: bool,
}

/// What an API server says to a dry run.
async fn answer(client: &Client, (list, object): &Object) -> Result<(), String> {
    let path = format!("{list}?dryRun=All");
    ask(client, Method::POST, &path, "application/json", object).await.map(drop)
}

/// What is wrong with one value of a row; whether both take it.
async fn compare(client: &Client, row: &Row, value: &Value) -> Result<bool, String> {
    let theirs = answer(client, &(row.made)(value)).await;
    let ours = match &row.entry {
        Entry::Function(takes) => match takes(value.as_str().unwrap_or_default()) {
            true => Ok(()),
            false => Err("is refused".to_owned()),
        },
        Entry::Object(object, path) => match answer(client, &object(value)).await {
            Err(said) if !said.contains(path) => return Err(format!("doesn't name {path}: {said:.300}")),
            ours => ours,
        },
    };
    let expected = match theirs.is_ok() {
        true => !row.stricter.contains(value),
        false => row.warned.contains(value),
    };
    match ours.is_ok() == expected {
        true => Ok(ours.is_ok() && theirs.is_ok()),
        false => Err(format!("Outrigger: {ours:.300?}; of what is made: {theirs:.300?}")),
    }
}

#[tokio::test]
async fn what_is_taken_where_it_enters_the_api_server_takes_where_it_ends() {
    let o = Outrigger::shared().await;
    let client = &o.plane.infra.client().await;
    o.plane.infra.apply(&[namespace(NAMESPACE)]).unwrap();
    takes_pods(client, NAMESPACE).await;
    let rows = rows::all();
    // The webhook's caches know the namespace by then.
    let first = rows.iter().find(|row| row.field.contains("clusterSelector")).unwrap();
    let plain = Value::from("a");
    eventually("the namespace is known", || compare(client, first, &plain)).await;
    let all: Vec<(&Row, &Value)> =
        rows.iter().flat_map(|row| row.values.iter().map(move |v| (row, v))).collect();
    let compared: Vec<_> = futures::stream::iter(&all)
        .map(async |(row, value)| (row.field.as_str(), *value, compare(client, row, value).await))
        .buffer_unordered(8)
        .collect()
        .await;
    let wrong: Vec<String> = compared
        .iter()
        .filter_map(|(field, value, found)| Some(format!("{field} = {value:.80}: {}", found.as_ref().err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    for row in &rows {
        let taken =
            |is: bool| compared.iter().any(|(field, _, found)| *field == row.field && *found == Ok(is));
        assert!(taken(true) && (taken(false) || row.translated), "{}: of one kind only", row.field);
    }
    assert!(rows.len() > 60 && all.len() > 600, "{} {}", rows.len(), all.len());
}
