//! Texts of users that would be markup, or would turn the page around.

use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule, rule_for};
use serde_json::{Value, json};

use crate::console::stage::Console;

/// Text that runs a script if any part of it becomes markup.
const TEXT: &str = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\"><svg onload=\"window.ran = 3\">&lt;";

/// Marks that turn the order of letters around.
const TURNED: &str = "\u{202e}dne\u{2066}";

/// Whether anything of the text is an element, or has run.
async fn is_inert(console: &Console, at: &str) {
    let browser = &console.browser;
    let found = browser
        .run("return [window.ran === undefined, document.querySelectorAll('script:not([src]), img, svg').length]")
        .await;
    assert_eq!(found, json!([true, 0]), "{at}: {}", browser.text().await);
    let text = browser.text().await;
    assert!(!text.contains(['\u{202e}', '\u{2066}']), "{at}: {text}");
    assert_eq!(browser.complaints().await, [""; 0], "{at}: nothing was left to the Content Security Policy");
}

#[tokio::test]
async fn texts_of_users_are_shown_as_they_are_and_run_nothing() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "hostile", &[("host-a", 1)]).await;
    let text = format!("{TEXT}{TURNED}");
    // A value that a rule wants, an annotation and an Event of the workload, and a message at the companion's Pod.
    let mut wants = rule_for("app", "web");
    wants["workloadTerms"][0]["matchExpressions"][0]["values"] = json!([text]);
    t.rule("wants", wants).await;
    t.rule("firewall", rule_for("app", "web")).await;
    let pod = t.start("shop", "host-a", json!({"app": "web"})).await;
    t.change("shop", json!({"metadata": {"annotations": {"example.com/note": text}}})).await;
    let involved = json!({"apiVersion": "v1", "kind": "Pod", "name": "shop", "namespace": t.source, "uid": pod.metadata.uid});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "hostile", "namespace": t.source},
        "involvedObject": involved, "reason": "Outrigger", "message": text, "type": "Warning",
        "reportingComponent": "outrigger.dev/agent", "source": {"component": "outrigger"}});
    o.plane.tenant.apply(&[event]).unwrap();
    let companion = t.companion().await.metadata.name.unwrap();
    let waits = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": text, "message": text}],
        "containerStatuses": [{"name": "c", "image": "companion", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "Hostile", "message": text}}}]}});
    let more = ["-n", &t.namespace, "--subresource=status", "--type=strategic"];
    o.plane.infra.patch(&format!("pod/{companion}"), &more, &waits).unwrap();

    let console = Console::of(o).await;
    let browser = &console.browser;
    let encoded = form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let shown = |path: &str| {
        let path = path.to_owned();
        let console = &console;
        async move {
            console.shows(&path, &[TEXT]).await;
            is_inert(console, &path).await;
        }
    };
    shown(&format!("/chain?tenant=hostile&workload={}/shop", t.source)).await;
    // Whatever is in a URL.
    for view in ["/missing", "/companions", "/hosts", "/tenants", "/rules", "/chain"] {
        let path = format!("{view}?text={encoded}&tenant={encoded}&cause={encoded}");
        console.open(&path).await;
        let value = browser.run("return document.querySelector('input[name=text]').value").await;
        assert!(value.as_str().unwrap().starts_with(TEXT), "{path}: {value}");
        let found = browser
            .run("return [window.ran === undefined, document.querySelectorAll('script:not([src]), img, svg').length]")
            .await;
        assert_eq!(found, json!([true, 0]), "{path}");
    }
    // Whatever is typed.
    let mut typed = rule(&t.namespace, "typed", rule_for("app", "web"));
    typed["metadata"]["name"] = Value::String(text.clone());
    typed["spec"]["template"]["metadata"]["annotations"] = json!({"note": text});
    console.open("/what-if?tenant=hostile").await;
    browser
        .run_with("document.querySelector('textarea').value = arguments[0]", &[json!(typed.to_string())])
        .await;
    browser.run("document.querySelector('main button').click()").await;
    browser.shows(&["What would happen", TEXT]).await;
    is_inert(&console, "/what-if").await;
}
