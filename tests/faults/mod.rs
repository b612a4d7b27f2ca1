//! What our processes do when calls fail, hang, come late or are lost: with proxies between them and the API servers, and
//! between agents and managers. Each test has a process or a tenant of its own; what disturbs others runs one at a time.

mod absence;
mod caches;
mod calls;
mod claims;
mod network;
mod proxy;
mod stage;
mod stopped;
mod unknown;
mod watches;
