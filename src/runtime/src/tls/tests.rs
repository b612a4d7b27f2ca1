use std::os::unix::fs::symlink;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A self-signed certificate and its key, PEM.
fn pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (cert.pem(), key.serialize_pem())
}

/// What the kubelet does with a mounted Secret: a new directory, then a swap of the `..data` link to it. The files
/// themselves are links that never change.
fn publish(mount: &Path, generation: &str, (cert, key): &(String, String)) {
    let dir = mount.join(format!("..{generation}"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("tls.crt"), cert).unwrap();
    std::fs::write(dir.join("tls.key"), key).unwrap();
    symlink(format!("..{generation}"), mount.join("..data_tmp")).unwrap();
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _ = symlink(format!("..data/{file}"), mount.join(file));
    }
}

fn load(mount: &Path) -> anyhow::Result<ServerTls> {
    ServerTls::load(mount.join("tls.crt"), mount.join("tls.key"), None)
}

#[test]
fn a_swapped_secret_is_used_and_a_broken_one_is_not() {
    let mount = tempfile::tempdir().unwrap();
    publish(mount.path(), "1", &pair("one"));
    let tls = load(mount.path()).unwrap();
    let first = tls.config();
    assert!(!tls.refresh(), "nothing has changed");

    publish(mount.path(), "2", &pair("two"));
    assert!(tls.refresh());
    let second = tls.config();
    assert!(!Arc::ptr_eq(&first, &second));

    let (cert, _) = pair("three");
    let (_, foreign) = pair("four");
    for (generation, broken) in [
        ("3", ("no certificate".to_owned(), foreign.clone())),
        ("4", (cert.clone(), foreign)),
        ("5", (cert, String::new())),
    ] {
        publish(mount.path(), generation, &broken);
        assert!(!tls.refresh());
        assert!(Arc::ptr_eq(&second, &tls.config()), "the last good one stays");
    }
    assert_eq!(tls.failures.get(), 3);
    tls.refresh();
    assert_eq!(tls.failures.get(), 3, "the same failure counts once");
    std::fs::remove_file(mount.path().join("..data")).unwrap();
    assert!(!tls.refresh());
    publish(mount.path(), "6", &pair("six"));
    assert!(tls.refresh());
}

#[test]
fn what_can_not_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = format!("{:#}", load(dir.path()).unwrap_err());
    assert!(error.contains("tls.crt can't be read"), "{error}");
    let (cert, _) = pair("a");
    let (_, key) = pair("b");
    publish(dir.path(), "1", &(cert, key));
    let error = format!("{:#}", load(dir.path()).unwrap_err());
    assert!(error.contains("tls.key can't be used"), "{error}");
    let half = ServerTlsArgs { tls_cert_file: Some("x".into()), ..ServerTlsArgs::default() };
    assert!(half.load().unwrap_err().to_string().contains("needed together"));
    assert!(ServerTlsArgs::default().load().unwrap().is_none());
}

#[test]
fn the_end_of_a_certificate_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), "1", &pair("a"));
    let tls = load(dir.path()).unwrap();
    let mut registry = crate::admin::registry();
    tls.register(&mut registry);
    assert!(tls.not_after.get() > 0);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("outrigger_tls_certificate_not_after_seconds"), "{text}");
}
