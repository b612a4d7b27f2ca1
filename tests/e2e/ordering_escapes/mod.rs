//! Ways in which a Pod in the tenant's cluster could start, be bound or become Ready without its companion.
//!
//! Single requests are the rows of the group `orderings` in `tests/cases/requests.yaml`, each with a control case. Ways that take several
//! steps are tests of their own. kwok starts Pods without asking any plugin, so whether a Pod starts is decided by what the agent answers
//! to the plugin of its host, and by the allocation of its claim: a kubelet starts no Pod whose claim isn't allocated to it.

mod devices;
mod labels;
mod requests;
mod stage;
mod steps;
