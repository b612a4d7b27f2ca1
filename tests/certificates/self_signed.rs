//! `--tls self-signed`: three replicas, one Secret.

use outrigger_runtime::tls::ClientTls;
use outrigger_tests::outrigger::{SYSTEM, get, ports};
use outrigger_tests::{eventually, root};
use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

use crate::load;
use crate::{alone, configurations, count, remove_configurations, secret, start_webhook};

/// Somebody else's entry in our configuration, which asks about nothing.
fn foreign() -> Value {
    json!({"name": "other.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"]}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_a_ca_renew_it_and_no_admission_fails() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let manifests = root().join("certs/self-signed").display().to_string();
    infra.kubectl(&["apply", "-k", &manifests]).unwrap();
    let all: [u16; 6] = ports().unwrap();
    let (serving, admin) = all.split_at(3);
    let mut configured = configurations(serving[0]);
    for configuration in &mut configured {
        // Without cert-manager.
        configuration["metadata"]["annotations"] = json!({});
    }
    infra.apply(&configured).unwrap();
    let add = json!([{"op": "add", "path": "/webhooks/-", "value": foreign()}]).to_string();
    let validating = ["validatingwebhookconfiguration", "outrigger"];
    infra.kubectl(&["patch", validating[0], validating[1], "--type=json", "-p", &add]).unwrap();

    let more: Vec<String> = [
        "--tls=self-signed",
        "--self-signed-lifetime=60s",
        "--self-signed-ca-lifetime=180s",
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
        match crate::bundles(o).await.as_slice() {
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
    let remove = json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]).to_string();
    infra.kubectl(&["patch", validating[0], validating[1], "--type=json", "-p", &remove]).unwrap();
    eventually("the bundle is put back", || async {
        let path = "{.webhooks[1].clientConfig.caBundle}";
        let bundle = infra.kubectl(&["get", validating[0], validating[1], "-o", &format!("jsonpath={path}")]);
        if bundle.unwrap().is_empty() { Err("none".to_owned()) } else { Ok(()) }
    })
    .await;
    infra.kubectl(&["apply", "-k", &manifests]).unwrap();
    assert!(
        secret(o, "outrigger-webhook-self-signed", "signer.key").is_some(),
        "applying again takes nothing away"
    );

    // At 120 s the next CA is announced, and signs when all bundles have carried it for 5 s.
    let signer = secret(o, "outrigger-webhook-self-signed", "signer.crt").unwrap();
    eventually("the next CA is announced", || async {
        match secret(o, "outrigger-webhook-self-signed", "next.crt") {
            Some(_) => Ok(()),
            None => Err("not yet".to_owned()),
        }
    })
    .await;
    assert_eq!(
        secret(o, "outrigger-webhook-self-signed", "signer.crt").unwrap(),
        signer,
        "it doesn't sign yet"
    );
    let next = secret(o, "outrigger-webhook-self-signed", "next.crt");
    eventually("the next CA signs", || async {
        let now = secret(o, "outrigger-webhook-self-signed", "signer.crt");
        if now == next { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert!(secret(o, "outrigger-webhook-self-signed", "next.key").is_none());
    let leaf = secret(o, "outrigger-webhook-self-signed", "tls.crt").unwrap();
    eventually("each replica shows its certificate", || async {
        for port in serving {
            let bundle = secret(o, "outrigger-webhook-self-signed", "ca.crt").unwrap();
            if shown(o.plane.dir.join("own-ca.crt"), &bundle, *port, crate::WEBHOOK).await? != leaf {
                return Err(format!("not on port {port}"));
            }
        }
        Ok(())
    })
    .await;
    println!("{}", load.end().await);
    let text = infra.kubectl(&["get", validating[0], validating[1], "-o", "json"]).unwrap();
    let configuration: Value = serde_json::from_str(&text).unwrap();
    let other = configuration["webhooks"].as_array().unwrap().last().unwrap();
    assert_eq!((&other["name"], &other["clientConfig"]), (&foreign()["name"], &foreign()["clientConfig"]));
    for (i, admin) in admin.iter().enumerate() {
        let (_, body) = get(*admin, "/readyz?verbose").await.unwrap();
        assert!(body.contains("[+] serving certificate") && !body.contains("[!]"), "{body}");
        o.plane.command(&format!("term webhook-own-{i}")).unwrap();
    }
    remove_configurations(o);
}

/// The certificate that a server shows to who trusts these CAs, PEM.
async fn shown(file: std::path::PathBuf, ca: &str, port: u16, name: &str) -> Result<String, String> {
    use base64::Engine;
    std::fs::write(&file, ca).unwrap();
    let config = ClientTls { ca: file, identity: None }.config(&[b"h2", b"http/1.1"]).unwrap();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| e.to_string())?;
    let name = name.to_owned().try_into().unwrap();
    let stream = TlsConnector::from(std::sync::Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|e| e.to_string())?;
    let der = &stream.get_ref().1.peer_certificates().unwrap()[0];
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    Ok(format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n")))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_publishes_its_ca_and_tells_what_it_lacks() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let kubeconfig = o.plane.dir.join("own-manager.kubeconfig");
    infra.service_account(SYSTEM, "outrigger-manager", &kubeconfig).unwrap();
    infra
        .kubectl(&["delete", "--ignore-not-found", "-n", SYSTEM, "secret", "outrigger-manager-self-signed"])
        .unwrap();
    let [port, admin] = ports().unwrap();
    let args = [
        "manager".to_owned(),
        format!("--bind-address=tcp://127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        "--tls=self-signed".to_owned(),
        "--self-signed-name=gw.example".to_owned(),
        format!("--tls-client-ca-file={}", o.authority.file().display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        "--shutdown-delay=0s".to_owned(),
    ];
    o.run("own-manager", &args).unwrap();
    eventually("it says what it lacks", || async {
        let (status, body) = get(admin, "/readyz?verbose").await?;
        let told = body.contains("[-] serving certificate") && body.contains("apply certs/self-signed first");
        // Without the roles it isn't even allowed to see that the Secret is missing.
        let told =
            told || body.contains("[!] self-signed certificates: Secret outrigger-system/outrigger-manager");
        if status == 503 && told { Ok(()) } else { Err(body) }
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
        ("outrigger-manager", "get", "secrets/outrigger-manager-self-signed", "yes"),
        ("outrigger-manager", "patch", "configmaps/outrigger-ca", "yes"),
        ("outrigger-manager", "get", "secrets/outrigger-webhook-self-signed", "no"),
        ("outrigger-webhook", "get", "secrets/outrigger-manager-self-signed", "no"),
        ("outrigger-manager", "create", "secrets", "no"),
        ("outrigger-webhook", "create", "secrets", "no"),
        ("outrigger-webhook", "list", "secrets", "no"),
        ("outrigger-webhook", "patch", "validatingwebhookconfigurations/outrigger", "yes"),
        ("outrigger-webhook", "patch", "validatingwebhookconfigurations/other", "no"),
        ("outrigger-manager", "patch", "validatingwebhookconfigurations/outrigger", "no"),
    ] {
        let user = format!("--as=system:serviceaccount:{SYSTEM}:{account}");
        // "no" is exit code 1 of kubectl's.
        let said = infra.kubectl(&["auth", "can-i", verb, what, "-n", SYSTEM, &user]);
        assert_eq!(said.is_ok_and(|said| said.contains("yes")), may == "yes", "{account} {verb} {what}");
    }
    o.plane.command("term own-manager").unwrap();
}
