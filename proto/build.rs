//! Compiles the .proto files with protox, a protobuf compiler in Rust, so that no `protoc` has to be installed.
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const FILES: &[&str] = &[
    "universe/workload/v1/workload.proto",
    "universe/workload/v1/workload_rule.proto",
    "universe/admin/workload/v1/admin_workload_rule.proto",
    "outrigger/companion/v1/companion.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=universe");
    println!("cargo::rerun-if-changed=outrigger");
    let descriptors = protox::compile(FILES, ["."])?;
    // Written beside the code, for reflection.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("universe.bin"), prost::Message::encode_to_vec(&descriptors))?;
    std::fs::write(out.join("shapes.rs"), shapes(&descriptors)?)?;
    raw(&descriptors, &out.join("raw"))?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

/// The messages of workloads once more, for whoever receives them: texts are slices of what was received, and maps are lists of
/// entries, as they are on the wire.
fn raw(descriptors: &FileDescriptorSet, out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    fn plain(message: &mut DescriptorProto) {
        message.options = None;
        for field in message.field.iter_mut().filter(|field| field.r#type() == Type::String) {
            field.set_type(Type::Bytes);
        }
        message.nested_type.iter_mut().for_each(plain);
    }
    let of_workloads = descriptors.file.iter().filter(|file| file.name() == FILES[0]).cloned();
    let mut set = FileDescriptorSet { file: of_workloads.collect() };
    for file in &mut set.file {
        file.service.clear();
        // It has comments on parts that are no longer there.
        file.source_code_info = None;
        file.message_type.iter_mut().for_each(plain);
    }
    std::fs::create_dir_all(out)?;
    let mut config = tonic_prost_build::configure().bytes(".").out_dir(out);
    // Lists of updates grow by doubling: their parts are allocated only where there are some.
    for part in ["workload_metadata", "workload_state", "annotation_keys"] {
        config = config.boxed(format!(".universe.workload.v1.WorkloadUpdate.{part}"));
    }
    config.compile_fds(set)?;
    Ok(())
}

/// The static tables of `shape.rs`: one `Shape` for each message, one `Method` for each call.
fn shapes(set: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let mut messages = BTreeMap::new();
    for file in &set.file {
        for message in &file.message_type {
            collect(&format!(".{}", file.package()), message, &mut messages);
        }
    }
    let number: BTreeMap<&str, usize> =
        messages.keys().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
    let shape = |name: &str| number.get(name).map(|n| format!("&S{n}")).ok_or(format!("{name} is unknown"));
    let mut text = String::new();
    for (name, message) in &messages {
        let mut fields = String::new();
        for field in &message.field {
            let repeats = repeats(field, &messages)?;
            let nested = match field.r#type() {
                Type::Message => format!("Some({})", shape(field.type_name())?),
                _ => "None".to_owned(),
            };
            if repeats != "Once" || nested != "None" {
                let (name, number) = (field.name(), field.number());
                write!(
                    fields,
                    "Field {{ number: {number}, name: {name:?}, repeats: Repeats::{repeats}, message: {nested} }}, "
                )?;
            }
        }
        let (id, name) = (&number[name.as_str()], name.trim_start_matches('.'));
        writeln!(text, "static S{id}: Shape = Shape {{ name: {name:?}, fields: &[{fields}] }};")?;
    }
    writeln!(
        text,
        "/// Every call, in the order of the `.proto` files.\npub static METHODS: &[Method] = &["
    )?;
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let (request, response) = (shape(method.input_type())?, shape(method.output_type())?);
                writeln!(text, "Method {{ path: {path:?}, request: {request}, response: {response} }},")?;
            }
        }
    }
    writeln!(text, "];")?;
    Ok(text)
}

fn collect<'a>(
    within: &str,
    message: &'a DescriptorProto,
    messages: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    let name = format!("{within}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, messages);
    }
    messages.insert(name, message);
}

fn repeats(
    field: &FieldDescriptorProto,
    messages: &BTreeMap<String, &DescriptorProto>,
) -> Result<&'static str, String> {
    if field.label() != Label::Repeated {
        return Ok("Once");
    }
    match field.r#type() {
        Type::Message => {
            let map = |message: &&DescriptorProto| message.options.as_ref().is_some_and(|o| o.map_entry());
            Ok(if messages.get(field.type_name()).is_some_and(map) { "Items" } else { "Entries" })
        }
        Type::String | Type::Bytes => Ok("Entries"),
        // Numbers may be packed, and a packed field would have to be decoded to count its entries.
        other => Err(format!("{}: repeated {other:?} can't be counted on the wire yet", field.name())),
    }
}
