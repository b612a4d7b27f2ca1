//! The `.proto` files compared with the text that NVIDIA has documented (`tests/documented`), by descriptor: everything of the
//! documented interface exists here with the same name, number, type and form. What exists here in addition is Outrigger's, and has
//! numbers from 1001 up.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use outrigger_proto::DESCRIPTORS;
use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

/// Numbers of fields from here on are Outrigger's.
const OURS: i32 = 1001;

/// The documented files, as they are printed there.
const FILES: [&str; 2] = ["universe/workload/v1/workload.proto", "universe/workload/v1/workload_rule.proto"];

/// What the wire, JSON, and generated code depend on: for each full name a description.
type Facts = BTreeMap<String, String>;

fn facts(set: &FileDescriptorSet) -> Facts {
    let mut facts = Facts::new();
    for file in set.file.iter().filter(|file| FILES.contains(&file.name())) {
        let package = file.package();
        facts.insert(file.name().to_owned(), format!("{} {package} {:?}", file.syntax(), file.dependency));
        for message in &file.message_type {
            of_message(package, message, &mut facts);
        }
        for of in &file.enum_type {
            of_enum(package, of, &mut facts);
        }
        for service in &file.service {
            for method in &service.method {
                let (client, server) = (method.client_streaming(), method.server_streaming());
                facts.insert(
                    format!("{package}.{}.{}", service.name(), method.name()),
                    format!("{} {client} -> {} {server}", method.input_type(), method.output_type()),
                );
            }
        }
    }
    facts
}

fn of_message(within: &str, message: &DescriptorProto, facts: &mut Facts) {
    let name = format!("{within}.{}", message.name());
    let map = message.options.as_ref().is_some_and(|options| options.map_entry());
    facts.insert(name.clone(), format!("message, map entry {map}"));
    for field in &message.field {
        let oneof =
            field.oneof_index.and_then(|index| message.oneof_decl.get(usize::try_from(index).unwrap()));
        facts.insert(
            format!("{name}.{}", field.name()),
            format!(
                "{} {:?} {:?} {} oneof {:?} optional {} as {}",
                field.number(),
                field.label(),
                field.r#type(),
                field.type_name(),
                oneof.map(|oneof| oneof.name()),
                field.proto3_optional(),
                field.json_name(),
            ),
        );
    }
    for nested in &message.nested_type {
        of_message(&name, nested, facts);
    }
    for of in &message.enum_type {
        of_enum(&name, of, facts);
    }
}

fn of_enum(within: &str, of: &EnumDescriptorProto, facts: &mut Facts) {
    for value in &of.value {
        facts.insert(format!("{within}.{}.{}", of.name(), value.name()), value.number().to_string());
    }
}

fn documented() -> FileDescriptorSet {
    protox::compile(FILES, [concat!(env!("CARGO_MANIFEST_DIR"), "/tests/documented")]).unwrap()
}

fn served() -> FileDescriptorSet {
    FileDescriptorSet::decode(DESCRIPTORS).unwrap()
}

/// What of the documented interface is missing in another one, or different there.
fn differences(documented: &Facts, served: &Facts) -> Vec<String> {
    let missing = documented.iter().filter(|(name, fact)| served.get(*name) != Some(fact));
    missing.map(|(name, fact)| format!("{name}: documented {fact}, is {:?}", served.get(name))).collect()
}

#[test]
fn everything_documented_is_served_with_the_same_names_numbers_and_types() {
    let documented = facts(&documented());
    // The documented services with their calls and streams are among the facts.
    assert!(documented.contains_key("universe.workload.v1.WorkloadService.WorkloadStream"));
    assert!(documented.contains_key("universe.workload.v1.WorkloadRuleService.List"));
    assert!(documented.contains_key("universe.workload.v1.WorkloadState.ExtraData.DataEntry.value"));
    assert_eq!(differences(&documented, &facts(&served())), [""; 0]);
}

#[test]
fn fields_that_are_added_to_documented_messages_have_numbers_from_1001_up() {
    let documented = facts(&documented());
    let number = |fact: &String| fact.split(' ').next().and_then(|number| number.parse().ok());
    let mut added: Vec<(String, i32)> = facts(&served())
        .iter()
        .filter(|(name, _)| !documented.contains_key(*name))
        .filter(|(name, _)| {
            name.rsplit_once('.').is_some_and(|(message, _)| documented.contains_key(message))
        })
        // Nested messages have no number.
        .filter_map(|(name, fact)| Some((name.clone(), number(fact)?)))
        .collect();
    assert!(added.iter().any(|(field, _)| field == "universe.workload.v1.RuleData.ordering"), "{added:?}");
    added.retain(|(_, number)| *number < OURS);
    assert_eq!(added, []);
}

#[test]
fn each_change_of_a_served_field_is_a_difference() {
    let documented = facts(&documented());
    let changed = |change: fn(&mut prost_types::FieldDescriptorProto)| {
        let mut set = served();
        let file = set.file.iter_mut().find(|file| file.name() == FILES[0]).unwrap();
        let message = file.message_type.iter_mut().find(|one| one.name() == "WorkloadMetadata").unwrap();
        change(message.field.iter_mut().find(|field| field.name() == "id").unwrap());
        differences(&documented, &facts(&set)).len()
    };
    assert_eq!(changed(|_| {}), 0);
    assert_eq!(changed(|field| field.set_type(prost_types::field_descriptor_proto::Type::Bytes)), 1);
    assert_eq!(changed(|field| field.set_label(prost_types::field_descriptor_proto::Label::Repeated)), 1);
    assert_eq!(changed(|field| field.number = Some(6)), 1);
    assert_eq!(changed(|field| field.name = Some("uid".to_owned())), 1);
}
