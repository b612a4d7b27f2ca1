//! Which fields of the messages repeat, and which hold messages: they are used to count a message's parts on its bytes,
//! before it is decoded. Generated from the `.proto` files, so that every new field is counted.

/// The fields of a message that can be counted.
#[derive(Debug)]
pub struct Shape {
    /// Full name, `universe.workload.v1.WorkloadSync`.
    pub name: &'static str,
    /// Fields that repeat or hold a message. All others take as much memory as bytes on the wire.
    pub fields: &'static [Field],
}

/// A field that repeats or holds a message.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name, as in the `.proto` file.
    pub name: &'static str,
    /// How often it may occur.
    pub repeats: Repeats,
    /// The message it holds.
    pub message: Option<&'static Shape>,
}

/// How often a field may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// Once. If the wire has it more often, the decoder merges.
    Once,
    /// Any number of times: a `repeated` field.
    Entries,
    /// Any number of times: a `map`.
    Items,
}

/// A call.
#[derive(Debug)]
pub struct Method {
    /// The path of its HTTP/2 requests, `/universe.workload.v1.WorkloadService/WorkloadStream`.
    pub path: &'static str,
    /// The message that the client sends.
    pub request: &'static Shape,
    /// The message that the server answers with.
    pub response: &'static Shape,
}

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

/// The call with this path.
pub fn method(path: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.path == path)
}
