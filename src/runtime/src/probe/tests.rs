use rcgen::{CustomExtension, KeyPair};

use super::*;
use crate::testing::{Authority, ca_params};

const LIFE: (i64, i64) = (-600, 600);

impl Authority {
    fn ca(&self) -> Vec<u8> {
        self.pem().into_bytes()
    }

    fn chain(&self, from: i64, to: i64) -> Vec<u8> {
        self.leaf((from, to)).0.into_bytes()
    }
}

#[test]
fn servers_and_clients() {
    let (own, other) = (Authority::of("own", LIFE), Authority::of("other", LIFE));
    let good = own.chain(-60, 600);
    let ended = own.chain(-600, -60);
    let foreign = other.chain(-60, 600);
    let both = [own.ca(), other.ca()].concat();
    for who in [Who::Agent, Who::ApiServer] {
        for (chain, ca, name, expected) in [
            (&good, &own.ca(), "webhook.svc", "Trusted"),
            (&foreign, &both, "webhook.svc", "Trusted"),
            (&ended, &own.ca(), "webhook.svc", "Untimely(\"it has ended\")"),
            (&foreign, &own.ca(), "webhook.svc", "none of the CAs"),
            (&good, &own.ca(), "manager.svc", "manager.svc"),
        ] {
            let shown = server(who, chain, ca, name).unwrap();
            let result = format!("{:?}", shown.verdict);
            assert!(result.contains(expected), "{name}: {result}");
        }
        let result = server(who, b"", &own.ca(), "webhook.svc");
        assert!(result.is_err());
    }
    for (chain, expected) in [(&good, "Trusted"), (&ended, "it has ended"), (&foreign, "none of the CAs")] {
        let result = format!("{:?}", client(chain, &own.ca()).unwrap().verdict);
        assert!(result.contains(expected), "{result}");
    }
    assert!(server(Who::Agent, &good, b"", "webhook.svc").is_err());
    let half = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(certificates(half).is_err());
}

#[test]
fn chains_with_certificates_that_are_not_valid_now() {
    let (own, ended, later) =
        (Authority::of("own", LIFE), Authority::of("ended", (-600, -60)), Authority::of("later", (60, 600)));
    let between = own.beneath("between", (-600, -60));
    let chain = [between.chain(-60, 600), between.ca()].concat();
    let both = [own.ca(), ended.ca()].concat();
    let why = "certificate 2 of its chain has ended";
    assert_eq!(client(&chain, &own.ca()).unwrap().verdict, Verdict::Untimely(why.to_owned()));
    for (chain, ca, agent, api_server) in [
        (chain, own.ca(), Verdict::Untimely(why.to_owned()), Verdict::Untimely(why.to_owned())),
        // Only Go looks at the dates of what is trusted.
        (ended.chain(-60, 600), ended.ca(), Verdict::Trusted, Verdict::CaUntimely),
        (ended.chain(-60, 600), both.clone(), Verdict::Trusted, Verdict::CaUntimely),
        (later.chain(-60, 600), later.ca(), Verdict::Trusted, Verdict::CaUntimely),
        (own.chain(-60, 600), both, Verdict::Trusted, Verdict::Trusted),
    ] {
        let of = |who| server(who, &chain, &ca, "webhook.svc").unwrap().verdict;
        assert_eq!((of(Who::Agent), of(Who::ApiServer)), (agent, api_server));
    }
}

#[test]
fn a_certificate_in_the_bundle_is_trusted_itself() {
    let verdict = |of: &Authority, name| server(Who::ApiServer, &of.ca(), &of.ca(), name).unwrap().verdict;
    let own = Authority::of("own", LIFE);
    assert_eq!(verdict(&own, "webhook.svc"), Verdict::Trusted);
    let result = format!("{:?}", verdict(&own, "manager.svc"));
    assert!(result.contains("manager.svc"), "{result}");
    let ended = Authority::of("own", (-600, -60));
    assert_eq!(verdict(&ended, "webhook.svc"), Verdict::Untimely("it has ended".to_owned()));
    let other = Authority::of("other", LIFE);
    let result = server(Who::ApiServer, &other.ca(), &own.ca(), "webhook.svc").unwrap().verdict;
    assert!(matches!(result, Verdict::Untrusted(_)), "{result:?}");
}

#[test]
fn cas_that_cannot_be_used_are_ignored_by_api_servers() {
    let own = Authority::of("own", LIFE);
    let mut strange = ca_params("strange", (-60, 600));
    // An extension for the second time.
    let twice = CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff]);
    strange.custom_extensions.push(twice);
    let strange = strange.self_signed(&KeyPair::generate().unwrap()).unwrap().pem().into_bytes();
    let both = [strange.clone(), own.ca()].concat();
    assert_eq!((unusable(&both).unwrap(), unusable(&own.ca()).unwrap()), (1, 0));
    let leaf = own.chain(-60, 600);
    assert_eq!(server(Who::ApiServer, &leaf, &both, "webhook.svc").unwrap().verdict, Verdict::Trusted);
    assert!(server(Who::Agent, &leaf, &both, "webhook.svc").is_err());
    let alone = server(Who::ApiServer, &leaf, &strange, "webhook.svc").unwrap().verdict;
    assert!(matches!(alone, Verdict::Untrusted(_)), "{alone:?}");
}

#[tokio::test]
async fn the_presented_certificate_is_returned_also_if_it_is_untrusted() {
    let (own, other) = (Authority::of("own", LIFE), Authority::of("other", LIFE));
    let (chain, key) = own.pair();
    let config = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            certificates(chain.as_bytes()).unwrap(),
            rustls_pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    for (ca, trusted) in [(own.ca(), true), (other.ca(), false)] {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let asked = handshake(Who::Agent, near, &ca, "webhook.svc");
        let (shown, _) = tokio::join!(asked, acceptor.accept(far));
        let shown = shown.unwrap();
        assert_eq!(shown.verdict == Verdict::Trusted, trusted, "{:?}", shown.verdict);
        assert_eq!(shown.certificate, certificates(chain.as_bytes()).unwrap()[0]);
    }
    let (near, far) = tokio::io::duplex(1024);
    drop(far);
    assert!(handshake(Who::Agent, near, &own.ca(), "webhook.svc").await.is_err());
}
