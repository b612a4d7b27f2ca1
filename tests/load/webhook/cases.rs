//! The requests that are measured.

use axum::body::Bytes;
use outrigger_admission::webhooks::endpoint;
use outrigger_admission::{Context, Decision, review};
use outrigger_tests::reviews::{SIZES, bodies, guest, offloaded};
use serde_json::Value;

use crate::webhook::{TIMES, decider};

/// One kind of request as an API server sends it.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    /// How often its stages are run. What they make is kept until the clock has stopped.
    pub(crate) times: u32,
}

/// Mutation of a Pod by hand and of a companion, and validation of what that makes of them.
pub(crate) fn cases() -> Vec<Case> {
    let (caches, settings) = decider();
    let mut cases = Vec::new();
    for (what, validated, body) in
        bodies().into_iter().zip(["validate by hand", "validate companion"]).map(|((a, b), c)| (a, c, b))
    {
        let mut request = review::read(&body).unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let decision = endpoint("/mutate/pods")
            .unwrap()
            .decide(Context::new(&caches, &settings), &mut request)
            .unwrap()
            .decision;
        let Decision::Allow { patch, .. } = decision else { panic!("{decision:?}") };
        json_patch::patch(&mut review["request"]["object"], &patch).unwrap();
        let admitted = Bytes::from(review.to_string());
        cases.push(Case { what, path: "/mutate/pods", body, times: TIMES });
        cases.push(Case { what: validated, path: "/validate/pods", body: admitted, times: TIMES });
    }
    cases.extend(SIZES.into_iter().map(|(what, selector, own)| {
        let times = TIMES / u32::try_from(selector * own).unwrap();
        Case { what, path: "/mutate/pods", body: offloaded(selector, own), times }
    }));
    cases.push(Case { what: "guest", path: "/mutate/pods", body: guest(), times: TIMES });
    cases
}
