//! What may not change in the gRPC interface: an agent of the version before, or after, speaks with this manager, and
//! programs of others with both.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
};

/// Numbers from here on are ours in messages of NVIDIA's.
const OURS: i32 = 1001;

/// The package whose messages are NVIDIA's, but for those that only numbers of ours lead to.
const THEIRS: &str = ".universe.workload.v1.";

/// Everything by its full name, which begins with a dot.
#[derive(Default)]
struct Interface<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
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
            for of in &file.enum_type {
                this.enums.insert(format!("{package}.{}", of.name()), of);
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
        for nested in &of.enum_type {
            self.enums.insert(format!("{name}.{}", nested.name()), nested);
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

/// What the new interface takes away from those who speak the old one: where, and what. Empty when nothing.
pub(crate) fn breaks(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let mut breaks = Vec::new();
    let (before, after) = (Interface::new(old), Interface::new(new));
    for (name, old) in &before.methods {
        let Some(new) = after.methods.get(name) else {
            breaks.push(format!("{name}: is gone"));
            continue;
        };
        let is = |of: &MethodDescriptorProto| {
            let stream = |is: bool| if is { "stream " } else { "" };
            let (input, output) = (stream(of.client_streaming()), stream(of.server_streaming()));
            format!("({input}{}) returns ({output}{})", of.input_type(), of.output_type())
        };
        same(name, "", &is(old), &is(new), &mut breaks);
    }
    for (name, old) in &before.enums {
        match after.enums.get(name) {
            Some(new) => values(name, old, new, &mut breaks),
            None => breaks.push(format!("{name}: is gone")),
        }
    }
    let (theirs, streamed) = (before.theirs(), before.streamed());
    for (name, old) in &before.messages {
        let Some(new) = after.messages.get(name) else {
            breaks.push(format!("{name}: is gone"));
            continue;
        };
        for field in &old.field {
            match new.field.iter().find(|other| other.number() == field.number()) {
                Some(other) => same(
                    name,
                    &format!("field {}", field.number()),
                    &describe(old, field),
                    &describe(new, other),
                    &mut breaks,
                ),
                None => given_up(name, field, new, &mut breaks),
            }
        }
        for field in new.field.iter().filter(|field| !old.field.iter().any(|o| o.number() == field.number()))
        {
            let at = format!("{name}: field {} ({})", field.number(), field.name());
            if reserved(old, field.number()) {
                breaks.push(format!("{at} takes a number that was given up"));
            }
            if theirs.contains(name.as_str()) && field.number() < OURS {
                breaks
                    .push(format!("{at} is new in a message of NVIDIA's: it takes a number from {OURS} on"));
            }
            if streamed.contains(name.as_str()) && field.oneof_index.is_some() && !field.proto3_optional() {
                breaks
                    .push(format!("{at} is a new kind of message in a stream: who is older sees none in it"));
            }
        }
        for gone in old.reserved_name.iter().filter(|gone| !new.reserved_name.contains(gone)) {
            breaks.push(format!("{name}: the name {gone} is not reserved any more"));
        }
        for range in &old.reserved_range {
            if (range.start()..range.end()).any(|number| !reserved(new, number)) {
                breaks.push(format!(
                    "{name}: {} to {} are not reserved any more",
                    range.start(),
                    range.end() - 1
                ));
            }
        }
    }
    breaks
}

fn values(name: &str, old: &EnumDescriptorProto, new: &EnumDescriptorProto, breaks: &mut Vec<String>) {
    for value in &old.value {
        match new.value.iter().find(|other| other.number() == value.number()) {
            Some(other) => {
                same(name, &format!("value {}", value.number()), value.name(), other.name(), breaks);
            }
            None => breaks.push(format!("{name}: {} = {} is gone", value.name(), value.number())),
        }
    }
}

/// A field that isn't there any more: nobody may ever take its number or its name again.
fn given_up(name: &str, field: &FieldDescriptorProto, new: &DescriptorProto, breaks: &mut Vec<String>) {
    let by_name = new.reserved_name.iter().any(|reserved| reserved == field.name());
    if !reserved(new, field.number()) || !by_name {
        breaks.push(format!(
            "{name}: field {} ({}) is gone, and number and name are not reserved",
            field.number(),
            field.name()
        ));
    }
}

fn reserved(message: &DescriptorProto, number: i32) -> bool {
    message.reserved_range.iter().any(|range| (range.start()..range.end()).contains(&number))
}

/// All of a field that others see: on the wire, as JSON, and in what is generated for them.
fn describe(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let oneof = field.oneof_index.filter(|_| !field.proto3_optional());
    let oneof = oneof.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    let kind = match field.type_name() {
        "" => field.r#type().as_str_name(),
        named => named,
    };
    let label = field.label().as_str_name().trim_start_matches("LABEL_").to_lowercase();
    let mut text = format!("{label} {kind} {}", field.name());
    if field.proto3_optional() {
        text.push_str(", may be absent");
    }
    if let Some(packed) = field.options.as_ref().and_then(|options| options.packed) {
        text += &format!(", packed = {packed}");
    }
    if let Some(oneof) = oneof {
        text += &format!(", one of {}", oneof.name());
    }
    if field.json_name() != camel(field.name()) && !field.json_name().is_empty() {
        text += &format!(", as JSON {}", field.json_name());
    }
    text
}

/// The name that a field has as JSON when nothing else is said.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

fn same(name: &str, what: &str, old: &str, new: &str, breaks: &mut Vec<String>) {
    if old != new {
        let what = if what.is_empty() { String::new() } else { format!(" {what}") };
        breaks.push(format!("{name}:{what} was {old:?} and is {new:?}"));
    }
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
    fn what_others_rely_on_is_found_and_named() {
        const BERTH: &str = ".universe.workload.v1.Berth";
        for (from, to, expected) in [
            ("rpc Leave(Berth) returns (Berth) {}", "", ".universe.workload.v1.Harbour.Leave: is gone".to_owned()),
            (
                "(stream Ship)",
                "(Ship)",
                ".universe.workload.v1.Harbour.Enter: was \"(stream .universe.workload.v1.Ship) returns (.universe.workload.v1.Berth)\" \
                 and is \"(.universe.workload.v1.Ship) returns (.universe.workload.v1.Berth)\""
                    .to_owned(),
            ),
            (
                "int32 number = 1;",
                "int64 number = 1;",
                format!("{BERTH}: field 1 was \"optional TYPE_INT32 number\" and is \"optional TYPE_INT64 number\""),
            ),
            (
                "int32 number = 1;",
                "int32 no = 1;",
                format!("{BERTH}: field 1 was \"optional TYPE_INT32 number\" and is \"optional TYPE_INT32 no\""),
            ),
            (
                "repeated string ropes",
                "string ropes",
                format!("{BERTH}: field 2 was \"repeated TYPE_STRING ropes\" and is \"optional TYPE_STRING ropes\""),
            ),
            (
                "optional string name = 3;",
                "string name = 3;",
                format!(
                    "{BERTH}: field 3 was \"optional TYPE_STRING name, may be absent\" and is \"optional TYPE_STRING name\""
                ),
            ),
            (
                "int32 number = 1;",
                "int32 number = 1 [json_name = \"no\"];",
                format!(
                    "{BERTH}: field 1 was \"optional TYPE_INT32 number\" and is \"optional TYPE_INT32 number, as JSON no\""
                ),
            ),
            (
                "int32 number = 1;",
                "",
                format!("{BERTH}: field 1 (number) is gone, and number and name are not reserved"),
            ),
            (
                "int32 number = 1;",
                "reserved 1;",
                format!("{BERTH}: field 1 (number) is gone, and number and name are not reserved"),
            ),
            (
                "int32 number = 1;",
                "int32 number = 1; int32 side = 8;",
                format!("{BERTH}: field 8 (side) is new in a message of NVIDIA's: it takes a number from 1001 on"),
            ),
            ("reserved 5 to 7;", "reserved 5, 6;", format!("{BERTH}: 5 to 7 are not reserved any more")),
            (
                "reserved \"depth\";",
                "",
                format!("{BERTH}: the name depth is not reserved any more"),
            ),
            ("FLAG_RED = 1;", "", format!("{BERTH}.Flag: FLAG_RED = 1 is gone")),
            ("FLAG_RED", "FLAG_BLUE", format!("{BERTH}.Flag: value 1 was \"FLAG_RED\" and is \"FLAG_BLUE\"")),
            (
                "string buoy = 2; }",
                "} string buoy = 2;",
                ".universe.workload.v1.Ship: field 2 was \"optional TYPE_STRING buoy, one of kind\" and is \"optional \
                 TYPE_STRING buoy\""
                    .to_owned(),
            ),
            (
                "string buoy = 2; }",
                "string buoy = 2; string pier = 1001; }",
                ".universe.workload.v1.Ship: field 1001 (pier) is a new kind of message in a stream: who is older sees none \
                 in it"
                    .to_owned(),
            ),
        ] {
            assert_eq!(found(from, to), [expected], "{from} -> {to}");
        }
        let numbers = found("reserved 5 to 7;", "int32 again = 6;");
        assert!(numbers[0].ends_with("field 6 (again) takes a number that was given up"), "{numbers:?}");
        let whole = breaks(&compile(OLD), &compile(&OLD.replace("Ours", "Mine")));
        let expected = [
            format!(
                "{BERTH}: field 1001 was \"optional .universe.workload.v1.Ours ours\" and is \"optional \
                 .universe.workload.v1.Mine ours\""
            ),
            ".universe.workload.v1.Ours: is gone".to_owned(),
        ];
        assert_eq!(whole, expected);
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
