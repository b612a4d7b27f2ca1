//! Reviews, answered as the server answers them, and what must hold for each answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_admission::webhooks::Endpoint;
use outrigger_admission::{Context, Decision, review};
use serde_json::Value;

use crate::choice::Choice;
use crate::reviews;
use crate::world::WORLD;
use crate::{Outcome, Patched, Report, kind_of};

/// An answer has at most so many times the bytes of its review, and so many more: the terms of a Pod are multiplied by those of
/// its namespace's offloading, and a patch is written as Base64.
const FACTOR: usize = 16;
const CONSTANT: usize = 16 << 10;

pub(crate) fn run(c: &mut Choice<'_>) -> Result<Report, String> {
    let (endpoint, review) = reviews::review(c);
    let mut body = review.to_string().into_bytes();
    if c.one_in(30) {
        c.corrupt(&mut body);
    }
    check(endpoint, &body)
        .map_err(|why| format!("{}: {why}\n{}", endpoint.path, String::from_utf8_lossy(&body)))
}

/// Answers a body and checks the answer.
pub(crate) fn check(endpoint: &'static Endpoint, body: &[u8]) -> Result<Report, String> {
    let Some(answer) = answer(endpoint, body)? else {
        return Ok(Report::new(Outcome::Undecodable, format!("{} undecodable", endpoint.path)));
    };
    let allowed = Value::Bool(true) == answer["allowed"];
    let said = answer["status"]["message"].as_str().unwrap_or_default();
    let outcome = if allowed { Outcome::Accepted } else { Outcome::Denied };
    let mut report =
        Report::new(outcome, format!("{} {} {}", endpoint.path, answer["status"]["code"], kind_of(said)));
    let Some(text) = answer["patch"].as_str() else { return Ok(report) };
    let review: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let object = review["request"]["object"].clone();
    let patched = patched(endpoint, &object, text)?;
    again(endpoint, review, &patched.patched)?;
    for operation in patched.patch.as_array().into_iter().flatten() {
        let at = operation["path"].as_str().unwrap_or_default();
        let at = at.replace(|c: char| c.is_ascii_digit(), "");
        report.signature.push_str(&format!(" {} {at}", operation["op"]));
    }
    report.patch = Some(Box::new(patched));
    Ok(report)
}

/// The response to a body, if it can be read as a review.
fn answer(endpoint: &'static Endpoint, body: &[u8]) -> Result<Option<Value>, String> {
    let Ok(mut request) = review::read(body) else { return Ok(None) };
    let uid = request.uid.clone();
    let decision = match endpoint.decide(Context::new(&WORLD.caches, &WORLD.settings), &mut request) {
        Ok(admission) => admission.decision,
        Err(stale) => Decision::deny(503, stale.to_string()),
    };
    let bytes = review::write(&uid, &decision).map_err(|e| e.to_string())?;
    let most = FACTOR * body.len() + CONSTANT;
    if bytes.len() > most {
        return Err(format!("the answer has {} bytes, more than {most}", bytes.len()));
    }
    let answer: Value = serde_json::from_slice(&bytes).map_err(|e| format!("the answer is no JSON: {e}"))?;
    let response = &answer["response"];
    let denial = response["status"]["code"].as_u64().is_some_and(|code| (400..600).contains(&code))
        && response["status"]["message"].as_str().is_some_and(|message| !message.is_empty());
    let well_formed = answer["apiVersion"] == "admission.k8s.io/v1"
        && answer["kind"] == "AdmissionReview"
        && response["uid"] == *uid
        && response["allowed"].is_boolean()
        && (response["allowed"] == true || denial)
        && (response["patch"].is_string() == (response["patchType"] == "JSONPatch"))
        && (response["patch"].is_null() || (endpoint.mutates && response["allowed"] == true));
    if well_formed { Ok(Some(response.clone())) } else { Err(format!("the answer is malformed: {answer}")) }
}

/// Applies a patch as it was answered.
fn patched(endpoint: &Endpoint, object: &Value, text: &str) -> Result<Patched, String> {
    let bytes = STANDARD.decode(text).map_err(|e| e.to_string())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let patch: json_patch::Patch =
        serde_json::from_value(value.clone()).map_err(|e| format!("no JSON Patch: {e}"))?;
    let mut after = object.clone();
    json_patch::patch(&mut after, &patch)
        .map_err(|e| format!("{}: {value} doesn't apply: {e}", endpoint.label))?;
    survives(object, &after, "")?;
    Ok(Patched { object: object.clone(), patch: value, patched: after })
}

/// The patched object needs no further change.
fn again(endpoint: &'static Endpoint, mut review: Value, patched: &Value) -> Result<(), String> {
    review["request"]["object"] = patched.clone();
    let Some(second) = answer(endpoint, review.to_string().as_bytes())? else {
        return Err("the patched object can't be read".to_owned());
    };
    if second["allowed"] != true {
        return Err(format!("the patched object is denied: {second}"));
    }
    let Some(patch) = second["patch"].as_str() else { return Ok(()) };
    let patch = STANDARD.decode(patch).unwrap_or_default();
    Err(format!("the patched object is changed again: {}\n{patched}", String::from_utf8_lossy(&patch)))
}

/// Fields that no type knows, `zz`, are where they were. Terms may be multiplied, and gates taken off, so that places in these
/// lists change.
fn survives(before: &Value, after: &Value, path: &str) -> Result<(), String> {
    let Value::Object(before) = before else { return Ok(()) };
    for (key, value) in before {
        if key == "zz" && after.get(key) != Some(value) {
            return Err(format!("{path}/zz is {:?}, not {value}", after.get(key)));
        }
        survives(value, &after[key], &format!("{path}/{key}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_property_that_does_not_hold_is_reported() {
        let [before, after] = [json!({"spec": {"zz": 1, "a": 2}}), json!({"spec": {"a": 2}})];
        assert!(survives(&before, &after, "").unwrap_err().starts_with("/spec/zz is None"));
        survives(&after, &before, "").unwrap();
    }
}
