//! How much of the manager gRPC may take: every constant, and how they fit together.
//!
//! The shipped manager has 1 GiB. What calls take of it is bounded by three sums, and no single caller can fill any of them:
//!
//! | | one tenant | all tenants |
//! |---|---|---|
//! | messages being read: [`BUFFERED_BYTES_PER_TENANT`], [`BUFFERED_BYTES`] | 32 MiB | 64 MiB |
//! | messages being decoded and taken in: [`DECODED_BYTES_PER_TENANT`], [`DECODED_BYTES`] | 128 MiB | 192 MiB |
//! | bytes that HTTP/2 holds unread: [`CONNECTIONS_PER_IDENTITY`] and [`CONNECTIONS`] times [`CONNECTION_WINDOW`] | 8 MiB | 128 MiB |
//!
//! Messages of at most [`SMALL_BYTES`] in memory take no part in the sums: they are those of the calls that are open, of
//! which one identity may have [`CALLS_PER_IDENTITY`], 2 MiB in all. What stays after a message has been taken in is the
//! tenant's workloads, which `Tenant.spec.limits` bounds.

use std::time::Duration;

use outrigger_api::wire_bounds::Bounds;

/// A message of the workload stream: one workload that has changed, or all of a tenant in one `WorkloadSync`. A workload of an
/// ordinary Pod has about 1 KiB, so this is enough for some 30,000 of them. Larger tenants need an agent that syncs in chunks.
pub const STREAM_MESSAGE: Bounds = Bounds { bytes: 32 << 20, entries: 50_000, items: 400_000 };

/// A message about a rule: the API server takes 1.5 MiB at most, and says better why than the manager could.
pub const RULE_MESSAGE: Bounds = Bounds { bytes: 4 << 20, entries: 20_000, items: 1_000 };

/// Most bytes that a message has in memory, decoded, without taking part in the budgets.
pub const SMALL_BYTES: usize = 16 << 10;

/// Bytes of messages that one tenant's callers are sending and that aren't complete yet: one of the largest.
pub const BUFFERED_BYTES_PER_TENANT: usize = STREAM_MESSAGE.bytes;

/// The same over all tenants.
pub const BUFFERED_BYTES: usize = 2 * BUFFERED_BYTES_PER_TENANT;

/// Bytes of one tenant's messages that are being decoded and taken in, as [`Measure::decoded_bytes`] estimates them: one of the
/// largest.
///
/// [`Measure::decoded_bytes`]: outrigger_api::wire_bounds::Measure::decoded_bytes
pub const DECODED_BYTES_PER_TENANT: usize = 128 << 20;

/// The same over all tenants. While one tenant has all that it may have, this leaves 64 MiB: a chunk of a
/// sync takes some 4 MiB.
pub const DECODED_BYTES: usize = DECODED_BYTES_PER_TENANT + (64 << 20);

/// Slowest pace of a message, in bytes a second, beyond [`MESSAGE_GRACE`]. A message that comes slower is refused: what it would
/// fill is held for it meanwhile.
pub const MESSAGE_PACE: usize = 128 << 10;

/// Time that every message has to be complete, whatever its size.
pub const MESSAGE_GRACE: Duration = Duration::from_secs(30);

/// Messages of at least this many bytes are counted and decoded beside the threads that serve everybody.
pub const LARGE_BYTES: usize = 64 << 10;

/// Connections at once, of all callers.
pub const CONNECTIONS: usize = 1024;

/// Connections at once of one identity, which is the names in a client certificate.
pub const CONNECTIONS_PER_IDENTITY: usize = 64;

/// Calls that one identity may have open at once, streams included.
pub const CALLS_PER_IDENTITY: usize = 128;

/// Bytes of one HTTP/2 stream that may be under way unread.
pub const STREAM_WINDOW: u32 = 128 << 10;

/// Bytes of one HTTP/2 connection that may be under way unread.
pub const CONNECTION_WINDOW: u32 = 128 << 10;

/// Largest answer of a List without pages, in bytes.
pub const LIST_BYTES: usize = 16 << 20;

/// Most rules of a page, towards clients and the API server: each may have half a mebibyte.
pub const LIST_PAGE: u32 = 16;

/// How long a call for a rule waits for its turn before it is refused.
pub const RULE_CALL_PATIENCE: Duration = Duration::from_secs(10);

/// Seconds of `ruleCallsPerSecond` and `ruleBytesPerSecond` that may come at once after a pause.
pub const RULE_BURST_SECONDS: u32 = 10;

/// Messages that a call for companions may send in a second. A slower reader receives fewer: of each workload the last state.
pub const WATCH_MESSAGES_PER_SECOND: u64 = 5_000;

/// Time in which changes of one workload become one message.
pub const WATCH_SETTLE: Duration = Duration::from_millis(50);

/// How long a call for companions waits for the tenant's workloads, which come on another stream.
pub const WATCH_PATIENCE: Duration = Duration::from_secs(30);

/// How long a call for companions waits for its reader to take a message.
pub const WATCH_STALL: Duration = Duration::from_secs(60);

/// Most companions in a message about one workload. Beyond it those are left out that are ready.
pub const WATCH_COMPANIONS: usize = 2_000;

/// How many of them have a text.
pub const WATCH_TEXTS: usize = 256;

/// Longest text about a companion, in bytes.
pub const WATCH_TEXT_BYTES: usize = 512;

/// Reads a size of messages of a stream, which has to be within what the budget of a tenant is made for. Fails when it is no
/// number, or too much.
pub(crate) fn message_bytes(text: &str) -> Result<usize, String> {
    let most = STREAM_MESSAGE.bytes;
    match text.parse() {
        Ok(bytes) if bytes <= most => Ok(bytes),
        Ok(bytes) => Err(format!("is {bytes}, at most {most} are allowed")),
        Err(e) => Err(format!("is no number of bytes: {e}")),
    }
}
