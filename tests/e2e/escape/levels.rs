//! What a tenant's level of enforcement lets through, and what it doesn't.

use http::Method;
use outrigger_cases::merged;
use outrigger_tests::{condition_of, eventually, holds};
use serde_json::{Value, json};

use super::beyond::publish_devices;
use super::stage::*;

/// Sends a request, and returns the warnings of its answer, or the code of the refusal.
async fn warnings(user: &User, method: Method, path: &str, body: &Value) -> Result<String, String> {
    let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", content);
    let request = request.body(kube::client::Body::from(body.to_string().into_bytes())).unwrap();
    let answer = user.0.send(request).await.map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(answer.status().to_string());
    }
    let all = answer.headers().get_all("warning").iter();
    Ok(all.map(|warning| warning.to_str().unwrap().to_owned()).collect::<Vec<_>>().join("\n"))
}

fn level(name: &str) -> Value {
    json!({"spec": {"enforcement": name}})
}

/// Waits until the manager has written the level, and returns reason and message of the condition.
async fn shown(s: &Stage, level: &str) -> (String, String) {
    eventually(&format!("the Tenant says {level}"), || async {
        let tenant = s.admin.get(&format!("{TENANTS}/{}", s.id)).await?;
        let (status, enforced) = (&tenant["status"], condition_of(&tenant, "Enforced"));
        let is_true = enforced["status"] == "True";
        holds(status["enforcement"] == level && is_true == (level == "Enforce"), status.to_string())?;
        let text = |key: &str| enforced[key].as_str().unwrap_or_default().to_owned();
        Ok::<_, String>((text("reason"), text("message")))
    })
    .await
}

#[tokio::test]
async fn a_level_lets_through_what_concerns_the_tenants_own_pods_alone_and_names_them_when_it_is_raised() {
    let s = Stage::new("levels").await;
    s.prepare().await;
    publish_devices(&s).await;
    let (tenant, pods) = (format!("{TENANTS}/{}", s.id), s.pods());
    let spec = &claim("c", &json!({}))["spec"];
    let template = json!({"metadata": {"name": "device"}, "spec": {"spec": spec}});
    s.mallory.post(&s.group("resource.k8s.io/v1", "resourceclaimtemplates"), &template).await.unwrap();
    let uses = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "device"}]}});
    s.mallory.post(&pods, &merged(&good("web"), &uses)).await.unwrap();
    assert_eq!(s.placed("web").await, s.own);
    let web = s.admin.get(&s.pod("web")).await.unwrap();
    let made = &web["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
    let taker = |name: &str| {
        merged(&good(name), &json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": made}]}}))
    };
    let is_refused = || async {
        let answer = s.mallory.post(&dry(&pods), &taker("third")).await;
        let said = answer.err().unwrap_or_default();
        holds(said.contains("which was made for Pod \"web\" alone"), said)
    };
    assert_eq!(shown(&s, "Enforce").await.0, "Enforce");
    eventually("it is refused at the level Enforce", is_refused).await;

    // Only who administers Tenants writes the level.
    let answer = s.mallory.patch(&tenant, &level("Observe")).await;
    assert!(answer.as_ref().is_err_and(|said| said.starts_with("403")), "{answer:?}");
    let answer = warnings(&s.admin, Method::PATCH, &tenant, &level("Observe")).await.unwrap();
    assert!(answer.contains("spec.enforcement: is Observe"), "{answer}");
    let said = eventually("it is admitted at the level Observe", || async {
        warnings(&s.mallory, Method::POST, &pods, &taker("second")).await
    })
    .await;
    assert!(said.contains("would be refused at the level Enforce: spec.resourceClaims[0]"), "{said}");
    assert_eq!(s.placed("second").await, s.own, "its placement isn't the level's");
    let (reason, message) = shown(&s, "Observe").await;
    assert!(reason == "Observe" && message.contains("below Enforce since"), "{reason} {message}");
    for (change, words) in [
        (json!({"spec": {"nodeName": s.their}}), "spec.nodeName"),
        (json!({"spec": {"serviceAccountName": "builder"}}), "spec.serviceAccountName"),
        (json!({"spec": {"tolerations": [{"operator": "Exists"}]}}), "spec.tolerations[0]"),
    ] {
        let answer = s.mallory.post(&dry(&pods), &merged(&taker("third"), &change)).await;
        assert!(answer.as_ref().is_err_and(|said| said.contains(words)), "{words}: {answer:?}");
    }

    // The answer names what runs, as soon as the webhook has seen that it runs; so does the condition.
    let raises = || async {
        let said = warnings(&s.admin, Method::PATCH, &dry(&tenant), &level("Enforce")).await?;
        holds(said.contains("a running Pod would be refused if created now: second"), said)
    };
    eventually("the answer names the Pod", raises).await;
    s.admin.patch(&tenant, &level("Warn")).await.unwrap();
    let (reason, message) = shown(&s, "Warn").await;
    assert!(reason == "Warn" && message.ends_with("would be refused if created now: second"), "{message}");
    let said = warnings(&s.admin, Method::PATCH, &tenant, &level("Enforce")).await.unwrap();
    assert!(said.contains(": second"), "{said}");
    eventually("it is refused again", is_refused).await;
    assert_eq!(shown(&s, "Enforce").await.0, "Enforce");
    let second = s.admin.get(&s.pod("second")).await.unwrap();
    assert_eq!(second["metadata"]["deletionTimestamp"], Value::Null, "what runs stays");

    // An exception is of the Pods that it names, and only who administers Tenants writes one.
    let exception = |check: &str| {
        json!({"spec": {"exceptions": [{"name": "shared", "requestedBy": "test", "checks": [check], "pods": ["thir*"],
            "until": "2999-01-01T00:00:00Z"}]}})
    };
    let answer = s.mallory.patch(&tenant, &exception("ClaimsOfOtherPods")).await;
    assert!(answer.as_ref().is_err_and(|said| said.starts_with("403")), "{answer:?}");
    let answer = s.admin.patch(&tenant, &exception("NodeAffinity")).await;
    assert!(answer.as_ref().is_err_and(|said| said.contains("supported values")), "{answer:?}");
    s.admin.patch(&tenant, &exception("ClaimsOfOtherPods")).await.unwrap();
    let said = eventually("it is excepted", || async {
        warnings(&s.mallory, Method::POST, &dry(&pods), &taker("third")).await
    })
    .await;
    assert!(
        said.contains("is admitted by the exception shared until 2999-01-01T00:00:00Z: spec.resource"),
        "{said}"
    );
    let answer = s.mallory.post(&dry(&pods), &taker("fourth")).await;
    assert!(answer.is_err(), "{answer:?}");
}
