//! The reviews that are asked, and what has to become of their Pods.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::{InWords, holds, reviews};
use serde_json::{Value, json};

use crate::peers::Server;

/// What is measured.
pub(crate) struct Case {
    /// How its rows are called.
    pub(crate) what: String,
    /// Where the peer is asked.
    pub(crate) path: &'static str,
    /// What both are asked under load.
    pub(crate) review: Review,
    /// Others of the kind, which are asked once: who does the work for one Pod only doesn't do the work.
    pub(crate) others: Vec<Review>,
}

/// A review, and what has to become of its Pod.
pub(crate) struct Review {
    pub(crate) body: Bytes,
    /// The required terms.
    terms: BTreeSet<Term>,
    /// The fields of a toleration that it has to have.
    toleration: Value,
}

/// The expressions of a term. Neither their order nor a repetition has a meaning.
type Term = BTreeSet<String>;

impl Case {
    /// Whether a server does with all of its Pods what it has to.
    pub(crate) async fn check(&self, o: &Outrigger, server: &Server, path: &str) -> Result<(), String> {
        for review in std::iter::once(&self.review).chain(&self.others) {
            review.check(o, server, path).await?;
        }
        Ok(())
    }
}

impl Review {
    /// A Pod with so many terms in the namespace that is offloaded with so many.
    pub(crate) fn offloading(selector: usize, own: usize) -> Self {
        let mut imposed = reviews::terms("region", selector);
        let local = json!({"key": keys::NODE_TYPE, "operator": "NotIn", "values": [keys::VIRTUAL_NODE]});
        imposed.push(json!({"matchExpressions": [local]}));
        let own_terms = reviews::terms("zone", own);
        let product = own_terms.iter().flat_map(|own| imposed.iter().map(|i| &term(own) | &term(i)));
        Self {
            body: reviews::offloaded(selector, own),
            terms: product.collect(),
            toleration: json!({"key": keys::NOT_ALLOWED, "operator": "Exists", "effect": "NoExecute"}),
        }
    }

    /// The Pod made by hand in the namespace of the tenant `blue`.
    pub(crate) fn isolation() -> Self {
        let (_, body) = reviews::bodies().remove(0);
        let required = json!({"key": keys::NODE_TENANT, "operator": "In", "values": ["blue"]});
        Self {
            body,
            terms: BTreeSet::from([term(&json!({"matchExpressions": [required]}))]),
            toleration: json!({"key": keys::TENANT, "operator": "Equal", "value": "blue", "effect": "NoSchedule"}),
        }
    }

    /// The same Pod with so many terms of its own.
    pub(crate) fn isolation_of(own: usize) -> Self {
        let Self { body, terms, toleration } = Self::isolation();
        let mut review: Value = serde_json::from_slice(&body).expect("a review");
        let own = reviews::terms("zone", own);
        let with_each = |required: &Term| own.iter().map(|own| required | &term(own)).collect::<Vec<_>>();
        let terms = terms.iter().flat_map(with_each).collect();
        review["request"]["object"]["spec"]["affinity"] = json!({"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}});
        Self { body: Bytes::from(review.to_string()), terms, toleration }
    }

    async fn check(&self, o: &Outrigger, server: &Server, path: &str) -> Result<(), String> {
        let request = http::Request::post(path);
        let (status, answer) = o.post(server.port, None, request, self.body.clone()).await?;
        let pod = admitted(&self.body, &answer).map_err(|why| format!("{status}: {why}: {answer}"))?;
        let required =
            &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms: Vec<Term> =
            required["nodeSelectorTerms"].as_array().into_iter().flatten().map(term).collect();
        holds(terms.len() == self.terms.len(), format!("{} terms, not {}", terms.len(), self.terms.len()))?;
        let seen = format!("other terms: {required}");
        holds(terms.into_iter().collect::<BTreeSet<_>>() == self.terms, seen)?;
        let tolerations = pod["spec"]["tolerations"].as_array().ok_or("no tolerations")?;
        let wanted = self.toleration.as_object().expect("fields");
        let has_all = |t: &&Value| wanted.iter().all(|(field, value)| t[field] == *value);
        holds(tolerations.iter().filter(has_all).count() == 1, format!("{tolerations:?}"))
    }
}

/// A namespace that is offloaded with a selector of so many terms.
pub(crate) fn offloaded(selector: usize) -> [Value; 2] {
    let metadata =
        json!({"name": reviews::offloaded_namespace(selector), "labels": {keys::OFFLOADED: "true"}});
    [json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}), reviews::offloading(selector)]
}

/// The Pod of a review with the patch of the answer.
fn admitted(review: &[u8], answer: &str) -> Result<Value, String> {
    let mut review: Value = serde_json::from_slice(review).in_words()?;
    let answer: Value = serde_json::from_str(answer).in_words()?;
    let response = &answer["response"];
    holds(response["allowed"] == true && response["uid"] == review["request"]["uid"], "not allowed")?;
    let patch = STANDARD.decode(response["patch"].as_str().ok_or("no patch")?).in_words()?;
    let patch: json_patch::Patch = serde_json::from_slice(&patch).in_words()?;
    json_patch::patch(&mut review["request"]["object"], &patch).in_words()?;
    Ok(review["request"]["object"].take())
}

fn term(term: &Value) -> Term {
    let expression = |e: &Value| json!([e["key"], e["operator"], e["values"]]).to_string();
    term["matchExpressions"].as_array().into_iter().flatten().map(expression).collect()
}
