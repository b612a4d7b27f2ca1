//! What one neighbour, or a stranger on the network, may do to all others: nothing. Each test is an attack on the real processes,
//! while another tenant's calls go on; the test fails when one of these does, and when a process takes more memory than a
//! part of what its shipped Pod may have.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod grpc;
mod port;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kube::api::{Api, PostParams};
use outrigger_tests::cost::{memory_limit, peak, process};
use outrigger_tests::tenant::Tenant;
use serde_json::json;

/// A tenant whose Pods are admitted one after the other, until this is asked how that went.
struct Neighbour {
    end: Arc<AtomicBool>,
    admitted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Result<(), String>>,
}

impl Neighbour {
    fn of(tenant: &Tenant) -> Self {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = tenant.pods();
        let (end, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (until, count) = (end.clone(), admitted.clone());
        let task = tokio::spawn(async move {
            let params = PostParams { dry_run: true, ..PostParams::default() };
            while !until.load(Ordering::Relaxed) {
                let pod = json!({"metadata": {"generateName": "neighbour-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
                let pod = serde_json::from_value(pod).map_err(|e| e.to_string())?;
                pods.create(&params, &pod).await.map_err(|e| e.to_string())?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self { end, admitted, task }
    }

    /// How many Pods have been admitted so far.
    fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Waits until so many more have been admitted, or one has been refused.
    async fn goes_on(&self, more: usize) {
        let wanted = self.admitted() + more;
        outrigger_tests::eventually("the neighbour's Pods are admitted", || async {
            if self.admitted() >= wanted || self.task.is_finished() {
                Ok(())
            } else {
                Err(self.admitted().to_string())
            }
        })
        .await;
    }

    /// None of its calls has failed, and there were some.
    async fn undisturbed(self) {
        self.end.store(true, Ordering::Relaxed);
        self.task.await.unwrap().expect("no call of the neighbour fails");
        assert!(self.admitted.load(Ordering::Relaxed) > 0);
    }
}

/// The process of a part that has this argument has never had more than 60 % of what its Pod may have.
fn is_modest(part: &str, argument: &str) {
    let (peak, limit) = (peak(process(argument)), memory_limit(part));
    assert!(peak * 10 < limit * 6, "{part} has had {} MiB of {} MiB", peak >> 20, limit >> 20);
}
