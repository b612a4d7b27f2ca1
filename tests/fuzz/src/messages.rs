//! Messages of the gRPC interface, well formed and changed on the wire, received as the manager receives them.

use outrigger_api::wire_bounds::{self, Bounds};
use outrigger_api::{AdminWorkloadRule, WorkloadRule, admin_rule_wire, rule_wire, workload_wire};
use outrigger_core::workload::Workload;
use outrigger_proto::shape::{Shape, method};
use outrigger_proto::{admin, raw, v1};
use prost::Message;

use crate::choice::Choice;
use crate::{Outcome, Report, kind_of, objects};

const BOUNDS: Bounds = Bounds { bytes: 1 << 20, entries: 2000, items: 2000 };

const STREAM: &str = "/universe.workload.v1.WorkloadService/WorkloadChunkedStream";
const RULE: &str = "/universe.workload.v1.WorkloadRuleService/Create";
const ADMIN: &str = "/universe.admin.workload.v1.AdminWorkloadRuleService/Create";

pub(crate) fn run(c: &mut Choice<'_>) -> Result<Report, String> {
    let name = c.of(&[STREAM, STREAM, RULE, ADMIN]);
    let mut wire = match name {
        STREAM => stream(c).encode_to_vec(),
        RULE => {
            let rule: Option<WorkloadRule> = serde_json::from_value(rule(c, "WorkloadRule")).ok();
            v1::CreateRequest { rule: rule.as_ref().map(rule_wire::message) }.encode_to_vec()
        }
        _ => {
            let rule: Option<AdminWorkloadRule> = serde_json::from_value(rule(c, "AdminWorkloadRule")).ok();
            admin::CreateRequest { rule: rule.as_ref().map(admin_rule_wire::message) }.encode_to_vec()
        }
    };
    if c.one_in(2) {
        c.corrupt(&mut wire);
    }
    let shape = method(name).ok_or("there is no such method")?.request;
    let received = match name {
        STREAM => received(shape, &wire),
        RULE => received_rule(shape, &wire),
        _ => received_admin_rule(shape, &wire),
    };
    received.map_err(|why| format!("{name}: {why}\n{wire:02x?}"))
}

fn rule(c: &mut Choice<'_>, kind: &str) -> serde_json::Value {
    let mut rule = objects::rule_object(c, kind);
    if c.one_in(4) {
        c.scramble(&mut rule);
    }
    rule
}

/// An update as a list of entries: the order of a map differs from process to process, and a seed always makes the same bytes.
fn update(c: &mut Choice<'_>) -> raw::WorkloadUpdate {
    let wire = unordered(c).encode_to_vec();
    let mut update = raw::WorkloadUpdate::decode(wire.as_slice()).unwrap();
    if let Some(state) = &mut update.workload_state {
        state.extra.sort_by(|a, b| a.key.cmp(&b.key));
        for map in state.extra.iter_mut().filter_map(|entry| entry.value.as_mut()) {
            map.data.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
    update
}

fn unordered(c: &mut Choice<'_>) -> v1::WorkloadUpdate {
    let mut update = workload_wire::update(&objects::workload(c));
    if c.one_in(4)
        && let Some(metadata) = &mut update.workload_metadata
    {
        metadata.orchestrator = c.of(&[0, 1, 2, -1, i32::MAX]);
        metadata.resource_type = c.of(&["v1/Pod", "v1/VM", ""]).to_owned();
        metadata.id = c.text();
    }
    if c.one_in(6) {
        let map =
            v1::workload_state::ExtraData { data: c.list(9, |c| (c.text(), c.text())).into_iter().collect() };
        update.workload_state.get_or_insert_default().extra.insert(c.text(), map);
    }
    if c.one_in(6) {
        let keys =
            |c: &mut Choice<'_>| c.list(4, |c| c.of(&["a", "example.com/*", "*", "a*", ""]).to_owned());
        update.annotation_keys = Some(v1::AnnotationKeys { sent: keys(c), withheld: keys(c) });
    }
    update
}

fn stream(c: &mut Choice<'_>) -> raw::WorkloadChunkedStreamRequest {
    use raw::workload_chunked_stream_request::Message;
    let message = match c.below(8) {
        1 => Message::WorkloadDelete(raw::WorkloadDelete {
            workload_metadata: update(c).workload_metadata.map(|metadata| *metadata),
        }),
        2 => Message::WorkloadSync(raw::WorkloadSync { workload_updates: c.list(6, update) }),
        3 => Message::WorkloadSyncChunk(raw::WorkloadSyncChunk { workload_updates: c.list(6, update) }),
        4 => Message::WorkloadSyncBegin(raw::WorkloadSyncBegin { workloads: c.any() }),
        5 => Message::WorkloadSyncEnd(raw::WorkloadSyncEnd {}),
        _ => Message::WorkloadUpdate(update(c)),
    };
    raw::WorkloadChunkedStreamRequest { message: Some(message) }
}

/// Decodes what the bounds let through.
fn decoded<M: Message + Default>(shape: &'static Shape, wire: &[u8]) -> Result<M, Report> {
    let refused =
        |why: String| Report::new(Outcome::Undecodable, format!("{} {}", shape.name, kind_of(&why)));
    wire_bounds::check(shape, wire, &BOUNDS).map_err(|e| refused(e.to_string()))?;
    M::decode(wire).map_err(|e| refused(e.to_string()))
}

fn received(shape: &'static Shape, wire: &[u8]) -> Result<Report, String> {
    use raw::workload_chunked_stream_request::Message;
    let message: raw::WorkloadChunkedStreamRequest = match decoded(shape, wire) {
        Ok(message) => message,
        Err(report) => return Ok(report),
    };
    let updates = match message.message {
        None => return Ok(Report::new(Outcome::Denied, "no message")),
        Some(Message::WorkloadUpdate(update)) => vec![update],
        Some(Message::WorkloadSync(sync)) => sync.workload_updates,
        Some(Message::WorkloadSyncChunk(chunk)) => chunk.workload_updates,
        Some(Message::WorkloadDelete(delete)) => {
            let id = workload_wire::workload_id(delete.workload_metadata.as_ref());
            let outcome = if id.is_ok() { Outcome::Accepted } else { Outcome::Denied };
            return Ok(Report::new(outcome, "delete"));
        }
        Some(Message::WorkloadSyncBegin(_) | Message::WorkloadSyncEnd(_)) => {
            return Ok(Report::new(Outcome::Accepted, "sync"));
        }
    };
    let mut report = Report::new(Outcome::Accepted, "workloads");
    for update in &updates {
        match workload_wire::workload(update) {
            Ok(workload) => same(&workload)?,
            Err(error) => report = Report::new(Outcome::Denied, kind_of(&error.to_string())),
        }
    }
    Ok(report)
}

/// A workload is the same after it was sent on, and after it was written as JSON.
fn same(workload: &Workload) -> Result<(), String> {
    let wire = workload_wire::update(workload).encode_to_vec();
    let update = raw::WorkloadUpdate::decode(wire.as_slice()).map_err(|e| e.to_string())?;
    let sent = workload_wire::workload(&update).map_err(|e| format!("sent on: {e}"))?;
    let json = workload.to_json();
    let read = Workload::try_from(&json).map_err(|e| format!("as JSON: {e}"))?;
    if sent == *workload && read == *workload {
        Ok(())
    } else {
        Err(format!("{workload:?} has become {sent:?} and {read:?}"))
    }
}

fn received_rule(shape: &'static Shape, wire: &[u8]) -> Result<Report, String> {
    let request: v1::CreateRequest = match decoded(shape, wire) {
        Ok(request) => request,
        Err(report) => return Ok(report),
    };
    let Some(message) = request.rule else { return Ok(Report::new(Outcome::Denied, "no rule")) };
    let rule = match WorkloadRule::try_from(&message) {
        Ok(rule) => rule,
        Err(errors) => return Ok(Report::new(Outcome::Denied, kind_of(&format!("{errors:?}")))),
    };
    let again = WorkloadRule::try_from(&rule_wire::message(&rule)).map_err(|e| format!("sent on: {e:?}"))?;
    if again.spec != rule.spec {
        return Err(format!("{:?} has become {:?}", rule.spec, again.spec));
    }
    Ok(compiled(rule.compile().err()))
}

fn received_admin_rule(shape: &'static Shape, wire: &[u8]) -> Result<Report, String> {
    let request: admin::CreateRequest = match decoded(shape, wire) {
        Ok(request) => request,
        Err(report) => return Ok(report),
    };
    let Some(message) = request.rule else { return Ok(Report::new(Outcome::Denied, "no admin rule")) };
    let rule = match AdminWorkloadRule::try_from(&message) {
        Ok(rule) => rule,
        Err(errors) => return Ok(Report::new(Outcome::Denied, kind_of(&format!("{errors:?}")))),
    };
    Ok(compiled(rule.compile().err()))
}

fn compiled(errors: Option<Vec<outrigger_core::field::FieldError>>) -> Report {
    match errors.as_deref() {
        None => Report::new(Outcome::Accepted, "rule"),
        Some(errors) => Report::new(
            Outcome::Denied,
            kind_of(&errors.first().map(ToString::to_string).unwrap_or_default()),
        ),
    }
}
