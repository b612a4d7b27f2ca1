//! The program for FIPS: its version says so, it serves the main job, and it negotiates approved cryptography only.

use std::sync::Arc;

use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::shipped::output;
use outrigger_tests::tenant::Tenant;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::release::{directory, run, script, target};

/// Connects to the webhook with the suites whose names contain this word, and returns the one that was negotiated.
async fn negotiated(o: &Outrigger, word: &str) -> anyhow::Result<String> {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(o.authority.pem().as_bytes()) {
        roots.add(ca?)?;
    }
    let all = ring::default_provider();
    let suites = all.cipher_suites.iter().filter(|suite| format!("{:?}", suite.suite()).contains(word));
    let provider = CryptoProvider { cipher_suites: suites.copied().collect(), ..all.clone() };
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", o.webhook_port)).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let suite = stream.get_ref().1.negotiated_cipher_suite();
    Ok(suite.map(|suite| format!("{:?}", suite.suite())).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_program_for_fips_does_the_main_job_with_approved_cryptography_only() {
    let dir = directory();
    let mut command = script("program.sh", &["dev", &target()]);
    command.env("FEATURES", "fips").env("CARGO_TARGET_DIR", dir.path());
    let program = output(command).unwrap();
    let version = run(program.trim(), &["--version"]);
    assert!(version.contains(", FIPS)"), "{version}");

    let mut outrigger = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    outrigger.binary = program.trim().into();
    let o = outrigger.started().await.unwrap().of_one_test();
    let tenant = Tenant::with_rule_only(*o, "blue").await;
    tenant.start_agent(&[]);
    tenant.web("w").await;
    tenant.companion().await;

    for word in ["TLS13_AES", "TLS_ECDHE_ECDSA_WITH_AES"] {
        let suite = negotiated(*o, word).await.unwrap();
        assert!(suite.starts_with(word), "{word}: {suite}");
    }
    // The build for ring accepts these.
    for word in ["TLS13_CHACHA20", "ECDSA_WITH_CHACHA20"] {
        let refused = negotiated(*o, word).await.unwrap_err();
        assert!(refused.to_string().contains("HandshakeFailure"), "{word}: {refused}");
    }
}
