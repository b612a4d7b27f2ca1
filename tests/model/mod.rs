//! The model of the API server is compared with the real one: the same requests lead to the same responses and the same events.
//!
//! `OUTRIGGER_MODEL_SEED` and `OUTRIGGER_MODEL_OPERATIONS` choose other random operations, and more of them.

mod edges;
mod events;
mod operations;
mod pair;

use outrigger_tests::control_plane::ControlPlane;

use crate::model::events::Watches;
use crate::model::operations::Operations;
use crate::model::pair::Pair;

/// After this many differences the two have different states, and more of them say nothing.
const ENOUGH: usize = 5;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect(variable))
}

/// Compares both on a new control plane.
async fn compare(seed: u64, operations: u64) {
    let plane = ControlPlane::start_infra().unwrap();
    plane.infra.apply_file("deploy/crds/workloadrules.workload.universe.nvidia.com.yaml").unwrap();
    let mut pair = Pair::new(&plane.infra).await;
    // Its controllers would write too.
    plane.command("stop infra/kube-controller-manager").unwrap();
    edges::check(&mut pair).await;

    let watches = Watches::open(&mut pair).await;
    let mut random = Operations::new(seed);
    for _ in 0..operations {
        random.one(&mut pair).await;
        if pair.differences.len() > ENOUGH {
            break;
        }
    }
    let shown = watches.compare(&mut pair).await;
    println!("seed {seed}: {} requests, outcomes {:?}, {shown} events", pair.requests, pair.outcomes);
    let differences = &pair.differences;
    assert!(differences.is_empty(), "OUTRIGGER_MODEL_SEED={seed}:\n{}", differences.join("\n"));
    assert!(shown > 100 && pair.outcomes.len() > 8, "too little was compared");
}

#[tokio::test(flavor = "current_thread")]
async fn the_model_answers_as_the_real_api_server_does() {
    compare(number("OUTRIGGER_MODEL_SEED", 1), number("OUTRIGGER_MODEL_OPERATIONS", 600)).await;
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "long"]
async fn the_model_answers_as_the_real_api_server_does_many_times() {
    for seed in 2..=5 {
        compare(seed, 3000).await;
    }
}
