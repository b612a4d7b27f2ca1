//! `--tls self-signed`: three replicas, one Secret.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::dial_by_name;
use outrigger_tests::outrigger::{SYSTEM, get, ports};
use outrigger_tests::{InWords, eventually, holds, root};
use serde_json::{Value, json};

use crate::certificates::cert_manager::{commands, run};
use crate::certificates::load;
use crate::certificates::{
    alone, configurations, count, remove_configurations, secret, secrets, start_webhook,
};

/// Somebody else's entry in our configuration, which asks about nothing.
fn foreign() -> Value {
    json!({"name": "other.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"]}]})
}

/// The shipped configurations, without cert-manager.
fn configure(port: u16) -> Vec<Value> {
    let mut configured = configurations(port);
    for configuration in &mut configured {
        configuration["metadata"]["annotations"] = json!({});
    }
    configured
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_a_ca_renew_it_and_no_admission_fails() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let manifests = root().join("certs/self-signed").display().to_string();
    infra.kubectl(&["apply", "-k", &manifests]).unwrap();
    let all: [u16; 6] = ports().unwrap();
    let (serving, admin) = all.split_at(3);
    infra.apply(&configure(serving[0])).unwrap();
    let add = json!([{"op": "add", "path": "/webhooks/-", "value": foreign()}]);
    let validating = "validatingwebhookconfiguration/outrigger";
    infra.patch(validating, &[], &add).unwrap();

    let more: Vec<String> = [
        "--tls=self-signed",
        "--self-signed-lifetime=40s",
        "--self-signed-ca-lifetime=120s",
        "--self-signed-overlap=5s",
    ]
    .map(str::to_owned)
    .to_vec();
    for (i, (port, admin)) in serving.iter().zip(admin).enumerate() {
        start_webhook(o, &format!("webhook-own-{i}"), *port, *admin, &more);
    }
    for admin in admin {
        o.ready_at("webhook", *admin).await;
    }
    // The foreign entry has none: it is the empty one among two.
    let trusted = eventually("the CA is published", || async {
        match crate::certificates::bundles(infra).unwrap().as_slice() {
            [none, one] if none.is_empty() && count(one) == 1 => Ok(one.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(
        secret(o, "outrigger-webhook-self-signed", "ca.crt").unwrap(),
        trusted,
        "one CA, of all replicas"
    );

    let load = load::begin(o, serving).await;
    // What somebody does to it is mended. (Nothing is asked about claims here.)
    let remove = json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]);
    infra.patch(validating, &[], &remove).unwrap();
    eventually("the bundle is put back", || async {
        let configuration = infra.get(&[validating]).in_words()?;
        holds(configuration["webhooks"][1]["clientConfig"]["caBundle"].is_string(), "none")
    })
    .await;
    infra.kubectl(&["apply", "-k", &manifests]).unwrap();
    assert!(
        secret(o, "outrigger-webhook-self-signed", "signer.key").is_some(),
        "applying again takes nothing away"
    );

    // At 80 s the next CA is announced, and signs when all bundles have carried it for 5 s.
    let signer = secret(o, "outrigger-webhook-self-signed", "signer.crt").unwrap();
    let next = eventually("the next CA is announced", || async {
        let [next, signs] = secrets(o, "outrigger-webhook-self-signed", ["next.crt", "signer.crt"]);
        let next = next.ok_or("not yet")?;
        assert_eq!(signs.unwrap(), signer, "it doesn't sign yet");
        Ok::<_, String>(Some(next))
    })
    .await;
    eventually("the next CA signs", || async {
        let now = secret(o, "outrigger-webhook-self-signed", "signer.crt");
        holds(now == next, format!("{now:?}"))
    })
    .await;
    assert!(secret(o, "outrigger-webhook-self-signed", "next.key").is_none());
    let leaf = secret(o, "outrigger-webhook-self-signed", "tls.crt").unwrap();
    eventually("each replica shows its certificate", || async {
        for port in serving {
            let bundle = secret(o, "outrigger-webhook-self-signed", "ca.crt").unwrap();
            if shown(o.plane.dir.join("own-ca.crt"), &bundle, *port, crate::certificates::WEBHOOK).await?
                != leaf
            {
                return Err(format!("not on port {port}"));
            }
        }
        Ok(())
    })
    .await;
    println!("{}", load.end().await);
    let configuration = infra.get(&[validating]).unwrap();
    let other = configuration["webhooks"].as_array().unwrap().last().unwrap();
    assert_eq!((&other["name"], &other["clientConfig"]), (&foreign()["name"], &foreign()["clientConfig"]));
    for (i, admin) in admin.iter().enumerate() {
        let (_, body) = get(*admin, "/readyz?verbose").await.unwrap();
        assert!(body.contains("[+] serving certificate") && !body.contains("[!]"), "{body}");
        o.plane.command(&format!("term webhook-own-{i}")).unwrap();
    }
    remove_configurations(o);
}

/// From certificates in files to those of our own, replica by replica, while requests come; and the result for a client that
/// writes the bundles as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_changed_while_it_runs() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let secret_name = "outrigger-webhook-self-signed";
    infra.kubectl(&["delete", "--ignore-not-found", "-n", SYSTEM, "secret", secret_name]).unwrap();
    infra.kubectl(&["apply", "-k", &root().join("certs/self-signed").display().to_string()]).unwrap();
    let [old, old_admin, new, new_admin] = ports().unwrap();
    let former = o.authority.pem();
    let mut configured = configure(old);
    for webhook in configured.iter_mut().flat_map(|c| c["webhooks"].as_array_mut().unwrap()) {
        webhook["clientConfig"]["caBundle"] = json!(STANDARD.encode(&former));
    }
    infra.apply(&configured).unwrap();
    let pair = o.authority.issue("webhook-files", &[crate::certificates::WEBHOOK]).unwrap();
    start_webhook(o, "webhook-files", old, old_admin, &pair.serving_flags());
    o.ready_at("webhook", old_admin).await;

    let load = load::begin(o, &[old]).await;
    let own = ["--tls=self-signed", "--self-signed-inherit"].map(str::to_owned);
    start_webhook(o, "webhook-own", new, new_admin, &own);
    o.ready_at("webhook", new_admin).await;
    let both =
        crate::certificates::injected(o, "both CAs are in the bundles", |bundle| count(bundle) == 2).await;
    assert_eq!(secret(o, secret_name, "ca.crt").unwrap(), both);
    // The Service leads to the new one now. (Who applies the configurations says nothing of the bundle.)
    for mut configuration in configure(new) {
        let webhooks = configuration["webhooks"].as_array_mut().unwrap();
        let changes: Vec<Value> = (0..webhooks.len())
            .map(|i| json!({"op": "replace", "path": format!("/webhooks/{i}/clientConfig/service/port"), "value": new}))
            .collect();
        let kind = configuration["kind"].as_str().unwrap().to_lowercase();
        infra.patch(&format!("{kind}/outrigger"), &[], &json!(changes)).unwrap();
    }
    let file = o.plane.dir.join("changed-ca.crt");
    let leaf = secret(o, secret_name, "tls.crt").unwrap();
    assert_eq!(shown(file, &both, new, crate::certificates::WEBHOOK).await.unwrap(), leaf);
    load.end().await;
    o.plane.command("term webhook-files").unwrap();

    // cert-manager's cainjector adds its own CA to whatever it finds, each time.
    infra.kubectl(&["apply", "-k", &root().join("certs").display().to_string()]).unwrap();
    let ready = ["--for=condition=Ready", "--timeout=120s", "certificate/outrigger-webhook"];
    infra.kubectl(&[&["wait", "-n", SYSTEM][..], &ready].concat()).unwrap();
    let annotate = |change: &str| {
        let kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration";
        infra.kubectl(&["annotate", "--overwrite", kinds, "outrigger", change]).unwrap();
    };
    annotate("cert-manager.io/inject-ca-from=outrigger-system/outrigger-webhook");
    eventually("it says who overrules whom", || async {
        let (_, body) = get(new_admin, "/readyz?verbose").await?;
        let warning = "[!] self-signed certificates: others overwrite the CA bundle in";
        holds(body.contains(warning), body)
    })
    .await;
    annotate("cert-manager.io/inject-ca-from-");
    crate::certificates::injected(o, "the bundles are its own again", |bundle| bundle == both).await;

    // The way back to cert-manager, by the commands of the documentation.
    if secret(o, "outrigger-manager-self-signed", "ca.crt").is_none() {
        // No manager has started here; one would have filled it.
        let filled = infra.get(&["secret", secret_name, "-n", SYSTEM]).unwrap();
        let fill = json!({"data": filled["data"]});
        infra.patch("secret/outrigger-manager-self-signed", &["-n", SYSTEM], &fill).unwrap();
    }
    run(o, commands("certificates.md", "Switching between cert-manager and self-signed").last().unwrap());
    let theirs = secret(o, "outrigger-webhook-tls", "ca.crt").unwrap();
    let all =
        crate::certificates::injected(o, "cert-manager's CA is trusted too", |bundle| count(bundle) == 3)
            .await;
    assert!(all.contains(theirs.trim()), "{theirs} isn't in {all}");
    let of_manager = secret(o, "outrigger-manager-self-signed", "ca.crt").unwrap();
    assert!(of_manager.contains(secret(o, "outrigger-manager-tls", "ca.crt").unwrap().trim()));
    o.plane.command("term webhook-own").unwrap();
    remove_configurations(o);
    // Others begin with empty ones.
    infra.kubectl(&["delete", "-n", SYSTEM, "secret", secret_name, "outrigger-manager-self-signed"]).unwrap();
    infra.kubectl(&["delete", "-k", &root().join("certs").display().to_string()]).unwrap();
}

/// The certificate that a server shows to who trusts these CAs, PEM.
async fn shown(file: std::path::PathBuf, ca: &str, port: u16, name: &str) -> Result<String, String> {
    std::fs::write(&file, ca).unwrap();
    let tls = ClientTls { ca: file, identity: None };
    let stream = dial_by_name(&tls, port, name, &[b"h2", b"http/1.1"]).await.in_words()?;
    let der = &stream.get_ref().1.peer_certificates().unwrap()[0];
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    Ok(format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n")))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_publishes_its_ca_and_reports_what_it_lacks() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let own = "outrigger-manager-self-signed";
    infra.kubectl(&["delete", "--ignore-not-found", "-n", SYSTEM, "secret", own]).unwrap();
    let [port, admin] = ports().unwrap();
    let args = [
        format!("--bind-address=tcp://127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        "--tls=self-signed".to_owned(),
        "--self-signed-name=gw.example".to_owned(),
        format!("--tls-client-ca-file={}", o.authority.file().display()),
    ];
    o.run_bare("own-manager", "manager", &args).unwrap();
    eventually("it says what it lacks", || async {
        let (status, body) = get(admin, "/readyz?verbose").await?;
        let reported =
            body.contains("[-] serving certificate") && body.contains("apply certs/self-signed first");
        // Without the roles it isn't even allowed to see that the Secret is missing.
        let reported = reported
            || body.contains("[!] self-signed certificates: Secret outrigger-system/outrigger-manager");
        holds(status == 503 && reported, body)
    })
    .await;
    infra.kubectl(&["apply", "-k", &root().join("certs/self-signed").display().to_string()]).unwrap();
    o.ready_at("manager", admin).await;
    let ca = eventually("the CA is published", || async {
        let path = "jsonpath={.data.ca\\.crt}";
        let ca = infra.kubectl(&["get", "configmap", "outrigger-ca", "-n", SYSTEM, "-o", path]).unwrap();
        if count(&ca) == 1 { Ok(ca) } else { Err(ca) }
    })
    .await;
    let file = o.plane.dir.join("own-manager-ca.crt");
    for name in ["outrigger-manager.outrigger-system.svc", "gw.example"] {
        let shown = shown(file.clone(), &ca, port, name).await.unwrap();
        assert_eq!(shown, secret(o, "outrigger-manager-self-signed", "tls.crt").unwrap());
    }
    // What they may, and what they may not.
    for (account, verb, what, may) in [
        ("outrigger-manager", "get", "secrets/outrigger-manager-self-signed", true),
        ("outrigger-manager", "patch", "configmaps/outrigger-ca", true),
        ("outrigger-manager", "get", "secrets/outrigger-webhook-self-signed", false),
        ("outrigger-webhook", "get", "secrets/outrigger-manager-self-signed", false),
        ("outrigger-manager", "create", "secrets", false),
        ("outrigger-webhook", "create", "secrets", false),
        ("outrigger-webhook", "list", "secrets", false),
        ("outrigger-webhook", "patch", "validatingwebhookconfigurations/outrigger", true),
        ("outrigger-webhook", "patch", "validatingwebhookconfigurations/other", false),
        ("outrigger-manager", "patch", "validatingwebhookconfigurations/outrigger", false),
    ] {
        let said = infra.can((SYSTEM, account), &[verb, what, "-n", SYSTEM]).unwrap();
        assert_eq!(said, may, "{account} {verb} {what}");
    }
    o.plane.command("term own-manager").unwrap();
}
