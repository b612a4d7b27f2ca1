//! Which fields of the messages repeat, and which hold messages: what is needed to count a message's parts on its bytes,
//! before anything is decoded. Made from the `.proto` files, so a new field is counted as soon as it is there.

/// What a message consists of, as far as parts that can be counted are concerned.
#[derive(Debug)]
pub struct Shape {
    /// Full name, `universe.workload.v1.WorkloadSync`.
    pub name: &'static str,
    /// Fields that repeat or hold a message. All others cost what they have on the wire.
    pub fields: &'static [Field],
}

/// A field that repeats or holds a message.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name, as in the `.proto` file.
    pub name: &'static str,
    /// How often it may be there.
    pub repeats: Repeats,
    /// The message it holds.
    pub message: Option<&'static Shape>,
}

/// How often a field may be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// Once. Where the wire has it more often, the decoder merges.
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
