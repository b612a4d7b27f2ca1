//! What a caller may do, which the API server says.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;

use super::remembered::Remembered;
use super::{Caller, Denied, MAX_ANSWERS, REMEMBERED, REVIEWS, WAIT, reviewed};
use crate::environment::Clock;
use crate::ready::Warning;

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right<'a> {
    /// The verb of the API.
    pub verb: &'a str,
    /// The API group; empty: the core group.
    pub group: &'a str,
    /// The resource.
    pub resource: &'a str,
    /// In this namespace; `None`: in every one.
    pub namespace: Option<&'a str>,
    /// What the caller has named, from which the namespace follows. It isn't part of the review. Answers are remembered for each name
    /// apart: otherwise the time of an answer would tell that two names have the same namespace.
    pub named: &'a str,
}

impl Right<'_> {
    /// A digest of the question whether this caller has it. Zero bytes are in none of the texts.
    fn digest(&self, caller: &Caller) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(caller.digest());
        let namespace = self.namespace.unwrap_or_default();
        for text in [self.verb, self.group, self.resource, namespace, self.named] {
            digest.update(text);
            digest.update([0]);
        }
        digest.finalize().into()
    }

    fn review(&self, caller: &Caller) -> SubjectAccessReview {
        let user = caller.user.clone();
        let attributes = ResourceAttributes {
            verb: Some(self.verb.to_owned()),
            group: Some(self.group.to_owned()),
            resource: Some(self.resource.to_owned()),
            namespace: self.namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        SubjectAccessReview { spec, ..SubjectAccessReview::default() }
    }
}

/// Tells what callers may do.
pub struct Rights {
    client: Client,
    clock: Clock,
    answers: Mutex<Remembered<bool>>,
    reviews: Semaphore,
    /// Set while rights can't be reviewed.
    failing: Warning,
}

impl Rights {
    /// Asks the API server of this client. `failing` is set while rights can't be reviewed.
    pub fn new(client: Client, clock: Clock, failing: Warning) -> Self {
        let answers = Mutex::new(Remembered::new(MAX_ANSWERS));
        Self { client, clock, answers, reviews: Semaphore::new(REVIEWS), failing }
    }

    /// Whether a caller has a right.
    ///
    /// # Errors
    /// If the API server could not say.
    pub async fn has(&self, caller: &Caller, right: Right<'_>) -> Result<bool, Denied> {
        let key = right.digest(caller);
        let known = || self.answers.lock().get(&key, self.clock.now());
        if let Some(answer) = known() {
            return Ok(answer);
        }
        let permit = timeout(WAIT, self.reviews.acquire()).await;
        let _permit = permit.map_err(|_| Denied::Busy)?;
        // Another request may have been first.
        if let Some(answer) = known() {
            return Ok(answer);
        }
        let began = self.clock.now();
        let failed = |error: String| {
            warn!(error, "failed to review rights of callers, who are refused meanwhile");
        };
        let answer = reviewed(self.review(caller, right), &self.failing, failed).await?;
        self.answers.lock().insert(key, answer, began + REMEMBERED, self.clock.now());
        Ok(answer)
    }

    async fn review(&self, caller: &Caller, right: Right<'_>) -> Result<bool, String> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answered = reviews.create(&PostParams::default(), &right.review(caller)).await;
        let status = answered.map_err(|error| error.to_string())?.status;
        Ok(status.ok_or("there is no status")?.allowed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RIGHT: Right<'static> =
        Right { verb: "list", group: "g", resource: "r", namespace: Some("n"), named: "t" };

    fn jane() -> Caller {
        let user = json!({"username": "jane", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        Caller::new(serde_json::from_value(user).unwrap())
    }

    #[test]
    fn a_review_has_all_that_is_known_of_the_user() {
        let review = serde_json::to_value(RIGHT.review(&jane())).unwrap();
        let expected = json!({"user": "jane", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]},
            "resourceAttributes": {"verb": "list", "group": "g", "resource": "r", "namespace": "n"}});
        assert_eq!(review["spec"], expected);
        let everywhere = Right { namespace: None, ..RIGHT }.review(&jane());
        assert_eq!(everywhere.spec.resource_attributes.unwrap().namespace, None);
    }

    #[test]
    fn other_rights_and_other_users_are_other_questions() {
        let jane = jane();
        let own = RIGHT.digest(&jane);
        for other in [
            Right { verb: "get", ..RIGHT },
            Right { group: "h", ..RIGHT },
            Right { resource: "s", ..RIGHT },
            Right { namespace: None, ..RIGHT },
            Right { named: "u", ..RIGHT },
            Right { verb: "listg", group: "", ..RIGHT },
        ] {
            assert_ne!(other.digest(&jane), own, "{other:?}");
        }
        assert_ne!(RIGHT.digest(&Caller::new(Default::default())), own);
    }
}
