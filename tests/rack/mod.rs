//! Outrigger on real Nodes, by its shipped manifests: kubelets start its containers and those of workloads and companions, mount Secrets,
//! ask probes, and Services lead from one cluster to the other. What needs many Nodes runs on kwok, in `tests/e2e`.

mod combinations;
mod devices;
mod isolation;
mod main_job;
mod one_cluster;
mod operation;
mod order;
mod placement;
mod pressure;
mod reached;
mod resize;
mod rights;
mod rollout;
mod scan;
mod shared;
mod traffic;
mod undisturbed;

use outrigger_tests::rack::workloads;
