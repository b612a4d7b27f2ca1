//! What may not change in the gRPC interface: an agent of the version before, or after, speaks with this manager, and
//! programs of others with both.
//!
//! `buf breaking` compares. What it can't know is compared here: which messages are NVIDIA's, where new fields take
//! Outrigger's numbers, and that older peers don't see a new kind of message in a stream.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet, MethodDescriptorProto};

use crate::upgrades::tools::buf;

/// Numbers from here on are Outrigger's in messages of NVIDIA's.
const OURS: i32 = 1001;

/// The package whose messages are NVIDIA's, but for those that only fields of Outrigger's lead to.
const THEIRS: &str = ".universe.workload.v1.";

/// Everything by its full name, which begins with a dot.
#[derive(Default)]
struct Interface<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    methods: BTreeMap<String, &'a MethodDescriptorProto>,
}

impl<'a> Interface<'a> {
    fn new(set: &'a FileDescriptorSet) -> Self {
        let mut this = Self::default();
        for file in &set.file {
            let package = format!(".{}", file.package());
            for of in &file.message_type {
                this.message(&package, of);
            }
            for service in &file.service {
                for of in &service.method {
                    this.methods.insert(format!("{package}.{}.{}", service.name(), of.name()), of);
                }
            }
        }
        this
    }

    fn message(&mut self, within: &str, of: &'a DescriptorProto) {
        let name = format!("{within}.{}", of.name());
        for nested in &of.nested_type {
            self.message(&name, nested);
        }
        self.messages.insert(name, of);
    }

    /// The messages that NVIDIA has defined.
    fn theirs(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&str> =
            self.methods.values().flat_map(|method| [method.input_type(), method.output_type()]).collect();
        while let Some(name) = next.pop() {
            let Some(message) = self.messages.get(name).filter(|_| name.starts_with(THEIRS)) else {
                continue;
            };
            if found.insert(name) {
                let fields = message.field.iter().filter(|field| field.number() < OURS);
                next.extend(fields.map(FieldDescriptorProto::type_name));
            }
        }
        found
    }

    /// The messages that streams consist of.
    fn streamed(&self) -> BTreeSet<&str> {
        let streams = self.methods.values().flat_map(|method| {
            let input = method.client_streaming().then(|| method.input_type());
            let output = method.server_streaming().then(|| method.output_type());
            input.into_iter().chain(output)
        });
        streams.collect()
    }
}

/// What the new interface takes away from those who speak the old one. Empty when nothing.
pub(crate) fn breaks(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let mut breaks = buf(old, new);
    let (before, after) = (Interface::new(old), Interface::new(new));
    let (theirs, streamed) = (before.theirs(), before.streamed());
    for (name, old) in &before.messages {
        let fields = after.messages.get(name).into_iter().flat_map(|new| &new.field);
        for field in fields.filter(|field| !old.field.iter().any(|one| one.number() == field.number())) {
            let at = format!("{name}: field {} ({})", field.number(), field.name());
            if theirs.contains(name.as_str()) && field.number() < OURS {
                breaks
                    .push(format!("{at} is new in a message of NVIDIA's: it takes a number from {OURS} on"));
            }
            if streamed.contains(name.as_str()) && field.oneof_index.is_some() && !field.proto3_optional() {
                breaks
                    .push(format!("{at} is a new kind of message in a stream: who is older sees none in it"));
            }
        }
    }
    breaks
}

#[cfg(test)]
mod tests {
    use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

    use super::*;

    /// Files that are in memory.
    struct Memory(String);

    impl FileResolver for Memory {
        fn open_file(&self, name: &str) -> Result<File, protox::Error> {
            if name == "a.proto" {
                File::from_source(name, &self.0)
            } else {
                Err(protox::Error::file_not_found(name))
            }
        }
    }

    const OLD: &str = r#"
        syntax = "proto3";
        package universe.workload.v1;
        service Harbour {
            rpc Enter(stream Ship) returns (Berth) {}
            rpc Leave(Berth) returns (Berth) {}
        }
        message Ship {
            oneof kind { Berth berth = 1; string buoy = 2; }
        }
        message Berth {
            reserved 5 to 7;
            reserved "depth";
            int32 number = 1;
            repeated string ropes = 2;
            optional string name = 3;
            Flag flag = 4;
            Ours ours = 1001;
            enum Flag { FLAG_UNSPECIFIED = 0; FLAG_RED = 1; }
        }
        message Ours { string a = 1; }
    "#;

    fn compile(text: &str) -> FileDescriptorSet {
        let mut resolver = ChainFileResolver::new();
        resolver.add(Memory(text.to_owned()));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.open_file("a.proto").unwrap_or_else(|e| panic!("{e:?}"));
        compiler.file_descriptor_set()
    }

    fn found(from: &str, to: &str) -> Vec<String> {
        assert!(OLD.contains(from), "{from}");
        breaks(&compile(OLD), &compile(&OLD.replace(from, to)))
    }

    #[test]
    fn what_others_rely_on_is_found() {
        for (from, to, expected) in [
            ("rpc Leave(Berth) returns (Berth) {}", "", "RPC \"Leave\" on service \"Harbour\" was deleted"),
            ("rpc Leave", "rpc Go", "RPC \"Leave\" on service \"Harbour\" was deleted"),
            ("(stream Ship)", "(Ship)", "\"Harbour\" changed from client streaming to client unary"),
            ("rpc Leave(Berth)", "rpc Leave(Ours)", "changed request type"),
            ("service Harbour", "service Port", "service \"Harbour\" was deleted"),
            (
                "package universe.workload.v1",
                "package universe.workload.v2",
                "package \"universe.workload.v1\" was deleted",
            ),
            ("int32 number = 1;", "int64 number = 1;", "changed type from \"int32\" to \"int64\""),
            ("int32 number = 1;", "int32 no = 1;", "changed name from \"number\" to \"no\""),
            ("int32 number = 1;", "int32 number = 9;", "deleted without reserving the number \"1\""),
            ("Flag flag = 4;", "int32 flag = 4;", "changed type from \"enum\" to \"int32\""),
            ("repeated string ropes", "string ropes", "changed cardinality from \"repeated\""),
            (
                "optional string name = 3;",
                "string name = 3;",
                "changed cardinality from \"optional with explicit",
            ),
            ("int32 number = 1;", "int32 number = 1 [json_name = \"no\"];", "changed option \"json_name\""),
            ("int32 number = 1;", "", "deleted without reserving the number \"1\""),
            ("int32 number = 1;", "reserved 1;", "deleted without reserving the name \"number\""),
            ("int32 number = 1;", "int32 number = 1; int32 side = 8;", "takes a number from 1001 on"),
            ("reserved 5 to 7;", "reserved 5, 6;", "is missing values: [7] were removed"),
            ("reserved 5 to 7;", "int32 again = 6;", "is missing values: [5,7] were removed"),
            ("reserved \"depth\";", "", "reserved name \"depth\" on message \"Berth\" was deleted"),
            ("FLAG_RED = 1;", "", "enum value \"1\" on enum \"Flag\" was deleted"),
            ("FLAG_RED", "FLAG_BLUE", "changed name from \"FLAG_RED\" to \"FLAG_BLUE\""),
            ("string buoy = 2; }", "} string buoy = 2;", "moved from inside to outside a oneof"),
            (
                "string buoy = 2; }",
                "string buoy = 2; string pier = 1001; }",
                "is a new kind of message in a stream",
            ),
            ("Ours", "Mine", "message \"Ours\" was deleted"),
        ] {
            let found = found(from, to);
            assert!(found.iter().any(|one| one.contains(expected)), "{from} -> {to}: {found:?}");
        }
    }

    #[test]
    fn what_is_added_is_let_through() {
        for (from, to) in [
            ("int32 number = 1;", "int32 number = 1; int32 side = 1002;"),
            ("int32 number = 1;", "reserved 1; reserved \"number\";"),
            ("string a = 1;", "string a = 1; string b = 2;"),
            ("FLAG_RED = 1;", "FLAG_RED = 1; FLAG_BLUE = 2;"),
            ("rpc Leave", "rpc Anchor(Berth) returns (Berth) {} rpc Leave"),
            ("message Ours", "message Another { string a = 1; } message Ours"),
            ("reserved 5 to 7;", "reserved 5 to 9;"),
        ] {
            assert_eq!(found(from, to), [""; 0], "{from} -> {to}");
        }
    }
}
