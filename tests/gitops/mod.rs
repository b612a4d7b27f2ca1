//! Flux and Argo CD with Outrigger's kinds: what their health checks say of each documented state, and of real objects.

mod components;
mod judge;
mod live;
mod states;
