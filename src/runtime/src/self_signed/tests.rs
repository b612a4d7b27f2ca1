use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;
use crate::fake_api::FakeApi;
use crate::ready::Readiness;
use crate::testing::settings;

/// A day in the year 2026.
const BEGIN: i64 = 1_780_000_000;

const SVC: &str = "outrigger-webhook.outrigger-system.svc";

fn spec() -> CertificateSpec {
    CertificateSpec {
        name: "outrigger-webhook".to_owned(),
        names: vec![SVC.to_owned(), "127.0.0.1".to_owned()],
        life: 900,
        ca_life: 9000,
        overlap: 70,
        inherit: false,
    }
}

/// The same, with CAs of others inherited.
fn inheriting() -> CertificateSpec {
    CertificateSpec { inherit: true, ..spec() }
}

/// Applies all steps that are due at this time, each through the Secret, as a replica does.
fn settle(state: &mut Option<State>, spec: &CertificateSpec, published: bool, now: i64) -> (Vec<Step>, i64) {
    let mut steps = Vec::new();
    loop {
        let step = plan(state.as_ref(), spec, published, now);
        match apply(step, state.as_ref(), spec, &[], now).unwrap() {
            Some(next) => *state = Some(reread(&next)),
            None => match step {
                Step::Wait(until) => return (steps, until),
                step => panic!("{step:?} changes nothing"),
            },
        }
        steps.push(step);
        assert!(steps.len() < 10, "{steps:?}");
    }
}

/// The state after the steps that are due at the beginning, where the bundle is published at once.
fn begun(spec: &CertificateSpec) -> Option<State> {
    let mut state = None;
    settle(&mut state, spec, true, BEGIN);
    state
}

/// The state of a replica that finds these certificates in the targets, and no CA of its own.
fn created(spec: &CertificateSpec, found: &[Certificate], now: i64) -> State {
    apply(Step::CreateCa, None, spec, found, now).unwrap().unwrap()
}

/// The data of the Secret.
fn data(state: &State) -> BTreeMap<String, Vec<u8>> {
    let data = state.write().into_iter();
    data.filter_map(|(key, value)| Some((key.to_owned(), value?.into_bytes()))).collect()
}

/// The state as another replica reads it.
fn reread(state: &State) -> State {
    let read = State::read(&data(state)).unwrap().unwrap();
    assert_eq!(&read, state);
    read
}

/// Whether a client with this CA bundle accepts this certificate for this name at this time.
fn verifies(bundle: &str, leaf: &str, name: &str, now: i64) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let provider = crate::tls::provider();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
    verifier.verify_server_cert(&leaf, &[], &ServerName::try_from(name).unwrap(), &[], now).is_ok()
}

#[test]
fn the_first_replica_creates_a_ca_and_a_certificate() {
    let mut state = None;
    let (steps, until) = settle(&mut state, &spec(), false, BEGIN);
    assert_eq!(steps, [Step::CreateCa]);
    let state = state.unwrap();
    for name in [SVC, "127.0.0.1"] {
        assert!(verifies(&state.ca_bundle(), &state.leaf.certificate.pem, name, BEGIN), "{name}");
    }
    assert!(!verifies(&state.ca_bundle(), &state.leaf.certificate.pem, "other.example", BEGIN));
    assert_eq!(until, state.leaf.certificate.validity.renewal());
    // The clock of a client may be behind.
    assert!(verifies(&state.ca_bundle(), &state.leaf.certificate.pem, SVC, BEGIN - 30));
    assert!(!format!("{state:?}").contains("PRIVATE KEY"));
}

/// Three lifetimes of CAs in small steps, with replicas and an API server that read the Secret and the bundle late.
#[test]
fn at_every_moment_what_is_served_is_trusted() {
    let spec = spec();
    let mut state = begun(&spec);
    // The states at earlier steps: a client that is late by less than the overlap has an earlier bundle.
    let lag = spec.overlap - 20;
    let mut history: Vec<(i64, String, String)> = Vec::new();
    let mut signers = BTreeSet::new();
    let mut now = BEGIN;
    while now < BEGIN + 3 * spec.ca_life {
        settle(&mut state, &spec, true, now);
        let s = state.as_ref().unwrap();
        signers.insert(s.signer.certificate.subject.clone());
        history.push((now, s.ca_bundle(), s.leaf.certificate.pem.clone()));
        let late = history.iter().rev().find(|(at, ..)| *at <= now - lag).unwrap_or(&history[0]);
        let current = history.last().unwrap();
        for (trust, leaf) in [(&current.1, &current.2), (&current.1, &late.2), (&late.1, &current.2)] {
            assert!(verifies(trust, leaf, SVC, now), "{}", now - BEGIN);
        }
        assert!(s.former.len() <= 2, "expired CAs are removed");
        history.drain(..history.len().saturating_sub(20));
        now += 20;
    }
    assert!(signers.len() > 3, "{} CAs", signers.len());
}

#[test]
fn a_ca_signs_only_after_every_bundle_has_carried_it_for_the_overlap() {
    let spec = spec();
    let mut state = begun(&spec);
    let first = state.as_ref().unwrap().signer.clone();
    let due = first.certificate.validity.renewal();
    settle(&mut state, &spec, false, due - 1);
    assert!(state.as_ref().unwrap().next.is_none());
    let (steps, _) = settle(&mut state, &spec, false, due);
    assert_eq!(steps, [Step::CreateNextCa]);
    // It doesn't matter how long publishing takes.
    settle(&mut state, &spec, false, due + 1000);
    assert_eq!(state.as_ref().unwrap().signer, first);
    let published = due + 1000;
    let (steps, until) = settle(&mut state, &spec, true, published);
    assert_eq!((steps, until), (vec![Step::MarkPublished], published + spec.overlap));
    let (steps, _) = settle(&mut state, &spec, true, until - 1);
    assert_eq!(steps, []);
    // It was removed from a bundle.
    let (steps, retries) = settle(&mut state, &spec, false, until);
    assert_eq!((steps, retries), (vec![], until + 1));
    let published = state.as_ref().unwrap().ca_bundle();
    let (steps, _) = settle(&mut state, &spec, true, until);
    assert_eq!(steps, [Step::PromoteCa]);
    assert_eq!(state.as_ref().unwrap().ca_bundle(), published, "promoting changes nothing in the bundle");
    let state = state.unwrap();
    assert_eq!(state.former, [first.certificate], "it stays trusted");
    assert!(state.write().values().flatten().all(|text| !text.contains(&first.key)), "its key is deleted");
}

#[test]
fn expired_certificates_are_replaced() {
    let spec = spec();
    let mut state = begun(&spec);
    let old = state.clone().unwrap();
    // No replica ran for a while.
    let (steps, _) = settle(&mut state, &spec, true, BEGIN + spec.life + 1);
    assert_eq!(steps, [Step::RenewLeaf]);
    let (steps, _) = settle(&mut state, &spec, true, BEGIN + spec.ca_life + 1);
    assert_eq!(steps, [Step::CreateCa]);
    assert_ne!(state.unwrap().signer, old.signer);
}

/// Servers with certificates of another CA are replaced one after the other.
#[test]
fn inherited_cas_are_trusted_until_they_expire() {
    let other = CertificateSpec { name: "others".to_owned(), ca_life: 20_000, ..spec() };
    let theirs = created(&other, &[], BEGIN - 100);
    let ended = created(&other, &[], BEGIN - 30_000);
    let own = created(&spec(), &[], BEGIN - 50);
    let bundle =
        [&own, &ended, &theirs].map(State::ca_bundle).concat() + "-----BEGIN CERTIFICATE-----\nAAAA\n";
    let found = Certificate::found(&bundle);
    assert_eq!(found.len(), 3);
    let alone = created(&spec(), &found, BEGIN);
    assert_eq!(alone.ca_bundle(), alone.signer.certificate.pem, "inheriting is off by default");
    let begun = created(&inheriting(), &found, BEGIN);
    let trust = begun.ca_bundle();
    assert!(
        verifies(&trust, &theirs.leaf.certificate.pem, SVC, BEGIN),
        "replicas that haven't been replaced yet"
    );
    assert!(verifies(&trust, &begun.leaf.certificate.pem, SVC, BEGIN));
    assert!(
        !verifies(&trust, &own.leaf.certificate.pem, SVC, BEGIN),
        "a CA is removed by emptying the Secret"
    );
    assert_eq!(begun.inherited.as_ref().unwrap().cas, std::slice::from_ref(&theirs.signer.certificate));
    assert!(begun.former.is_empty());

    let mut state = Some(reread(&begun));
    let end = theirs.signer.certificate.validity.not_after;
    let mut now = BEGIN;
    while now < end {
        settle(&mut state, &spec(), true, now);
        assert!(
            state.as_ref().unwrap().ca_bundle().contains(&theirs.signer.certificate.pem),
            "{}",
            now - BEGIN
        );
        now += 500;
    }
    settle(&mut state, &spec(), true, end + 1);
    assert!(!state.unwrap().ca_bundle().contains(&theirs.signer.certificate.pem));
}

/// A CA of others may be valid for a hundred years.
#[test]
fn inherited_cas_are_removed_after_thirty_days() {
    let day = 24 * 3600;
    let other = CertificateSpec { name: "others".to_owned(), ca_life: 36_500 * day, ..spec() };
    let long = CertificateSpec { life: 90 * day, ca_life: 1825 * day, overlap: 7 * day, ..inheriting() };
    let theirs = created(&other, &[], BEGIN);
    let found = Certificate::found(&theirs.ca_bundle());
    let begun = created(&long, &found, BEGIN);
    let mut state = Some(reread(&begun));
    let pem = &theirs.signer.certificate.pem;
    let (steps, until) = settle(&mut state, &long, true, BEGIN + 30 * day);
    assert_eq!((steps, until), (vec![], BEGIN + 30 * day + 1));
    assert!(state.as_ref().unwrap().ca_bundle().contains(pem));
    assert_eq!(settle(&mut state, &long, true, until).0, [Step::RemoveExpired]);
    assert!(!state.as_ref().unwrap().ca_bundle().contains(pem));
    assert_eq!(state.unwrap().inherited, None);
    // It is removed earlier, and isn't added again.
    let mut data = data(&begun);
    data.insert("ca.crt".to_owned(), begun.signer.certificate.pem.clone().into_bytes());
    assert_eq!(State::read(&data).unwrap().unwrap().ca_bundle(), begun.signer.certificate.pem);
}

#[test]
fn the_number_of_inherited_cas_is_bounded() {
    let found: Vec<Certificate> = (0..20)
        .map(|i| {
            // They start in the future, so they are sorted first.
            let other = CertificateSpec { name: format!("other-{i}"), ..spec() };
            created(&other, &[], BEGIN + 5000).signer.certificate
        })
        .collect();
    let twice = [found.clone(), found].concat();
    let begun = created(&inheriting(), &twice, BEGIN);
    assert_eq!(begun.inherited.as_ref().unwrap().cas.len(), 3);
    assert!(verifies(&begun.ca_bundle(), &begun.leaf.certificate.pem, SVC, BEGIN));
    reread(&begun);
}

#[test]
fn a_certificate_from_the_future_is_replaced_and_a_ca_reported() {
    let spec = spec();
    let mut state = begun(&spec);
    assert_eq!(clock_warning(state.as_ref().unwrap(), BEGIN), None);
    // A replica whose clock is far ahead renews it.
    let ahead = BEGIN + 600;
    let (steps, _) = settle(&mut state, &spec, true, ahead);
    assert_eq!(steps, [Step::RenewLeaf]);
    let (steps, _) = settle(&mut state, &spec, true, BEGIN + 1);
    assert_eq!(steps, [Step::RenewLeaf]);
    let s = state.as_ref().unwrap();
    assert!(verifies(&s.ca_bundle(), &s.leaf.certificate.pem, SVC, BEGIN + 1));
    assert_eq!(settle(&mut state, &spec, true, BEGIN + 2).0, [], "once");

    // It creates the CA too.
    let mut state = None;
    settle(&mut state, &spec, true, BEGIN + 5000);
    settle(&mut state, &spec, true, BEGIN);
    assert_eq!(settle(&mut state, &spec, true, BEGIN).0, [], "a replica with a slow clock replaces no CA");
    let warning = clock_warning(state.as_ref().unwrap(), BEGIN).unwrap();
    assert!(warning.contains("is not valid before 2026-05-28T"), "{warning}");
}

/// One round of a replica at this time that finds this state in the Secret, while the API server's clock says `theirs`, if it says
/// anything. Returns how often the Secret was written, and the warning.
async fn round(state: Option<&State>, ours: i64, theirs: Option<i64>) -> (usize, Option<String>) {
    let (api, at) = (FakeApi::default(), |seconds| Timestamp::from_second(seconds).unwrap());
    let data = state.map(data).unwrap_or_default().into_iter();
    let data: BTreeMap<_, _> = data.map(|(key, value)| (key, k8s_openapi::ByteString(value))).collect();
    let secret = json!({"metadata": {"name": "s", "namespace": "n", "resourceVersion": "1"}, "data": data});
    for method in ["GET", "PATCH"] {
        api.answers(method, "/api/v1/namespaces/n/secrets/s", 200, secret.clone());
    }
    if let Some(theirs) = theirs {
        api.date(&DateTimePrinter::new().timestamp_to_rfc9110_string(&at(theirs)).unwrap());
    }
    let (client, readiness) = (api.client(), Readiness::default());
    let replica = CertificateController {
        client,
        environment: Environment::simulated(1, at(ours)),
        spec: spec(),
        namespace: "n".to_owned(),
        config_maps: "n".to_owned(),
        component: Component { service: "s", secret: "s", bundle_targets: &[] },
        tls: Arc::new(ServerTls::given(None).unwrap()),
        changed: Arc::default(),
        warning: readiness.warning("self-signed certificates"),
    };
    let warning = match replica.round(&mut None, &mut []).await.unwrap() {
        RoundResult::Retry => None,
        RoundResult::Wait(_, warning) => warning,
    };
    (api.calls("PATCH").len(), warning)
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_clock_is_far_off_writes_no_certificate() {
    let off = 61 * 24 * 3600;
    let state = begun(&spec());
    for (ours, text) in [(BEGIN + off, "1464 h ahead of"), (BEGIN - off, "1464 h behind")] {
        for state in [state.as_ref(), None] {
            let (writes, warning) = round(state, ours, Some(BEGIN)).await;
            assert_eq!(writes, 0, "{text}");
            let warning = warning.unwrap();
            assert!(warning.starts_with(&format!("this replica's clock is {text}")), "{warning}");
        }
        // As far as anybody knows it is right.
        for theirs in [None, Some(ours)] {
            assert_eq!(round(state.as_ref(), ours, theirs).await, (1, None), "{text}");
        }
    }
    // It may be wrong where nothing is due.
    assert_eq!(round(state.as_ref(), BEGIN, Some(BEGIN + off)).await, (0, None));
    // The other replicas replace what a replica whose clock was ahead has written.
    let mut ahead = state.clone();
    settle(&mut ahead, &spec(), true, BEGIN + 600);
    assert_eq!(round(ahead.as_ref(), BEGIN, Some(BEGIN)).await, (1, None));
}

#[test]
fn an_expired_ca_is_replaced_once_the_next_is_published() {
    let spec = spec();
    let mut state = begun(&spec);
    let due = state.as_ref().unwrap().signer.certificate.validity.renewal();
    settle(&mut state, &spec, false, due);
    let next = state.as_ref().unwrap().next.clone().unwrap().ca;
    let (steps, _) = settle(&mut state, &spec, true, BEGIN + spec.ca_life + 1);
    assert_eq!(steps, [Step::PromoteCa, Step::RemoveExpired]);
    assert_eq!(state.unwrap().signer, next);
}

#[test]
fn replicas_with_different_names_agree_on_all() {
    let first = spec();
    let second = CertificateSpec { names: vec![SVC.to_owned(), "gw.example".to_owned()], ..spec() };
    let mut state = begun(&first);
    let (steps, _) = settle(&mut state, &second, true, BEGIN);
    assert_eq!(steps, [Step::AddNames]);
    for spec in [&first, &second] {
        assert_eq!(settle(&mut state, spec, true, BEGIN).0, [], "no replica removes names of another");
    }
    let leaf = state.as_ref().unwrap().leaf.certificate.clone();
    assert_eq!(leaf.names, [SVC, "gw.example", "127.0.0.1"]);
    settle(&mut state, &second, true, leaf.validity.renewal());
    assert_eq!(
        state.unwrap().leaf.certificate.names,
        second.names,
        "unused names are removed at the renewal"
    );
}

#[test]
fn an_invalid_secret_is_not_changed() {
    let state = begun(&spec()).unwrap();
    let other = created(&spec(), &[], BEGIN);
    let good = data(&state);
    assert_eq!(State::read(&BTreeMap::new()).unwrap(), None);
    for (key, value, expected) in [
        ("tls.crt", None, "tls.crt and tls.key are needed together"),
        ("signer.key", Some("x".to_owned()), "signer.key: not a private key"),
        ("signer.key", Some(other.signer.key), "signer.key: the key of another certificate"),
        ("signer.crt", Some(String::new()), "signer.crt: there is no certificate in it"),
        (
            "ca.crt",
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----".to_owned()),
            "ca.crt: the cert",
        ),
        ("next-trusted-since", Some("soon".to_owned()), "next-trusted-since: \"soon\""),
    ] {
        let mut data = good.clone();
        data.remove(key);
        data.extend(value.map(|value| (key.to_owned(), value.into_bytes())));
        let error = format!("{:#}", State::read(&data).unwrap_err());
        assert!(error.starts_with(expected), "{error}");
    }
    let strange = BTreeMap::from([("hello".to_owned(), b"world".to_vec())]);
    assert_eq!(State::read(&strange).unwrap_err().to_string(), "tls.crt is missing");
}

#[test]
fn invalid_settings_are_refused() {
    let second = Duration::from_secs(1);
    let args: SelfSignedArgs = settings();
    args.check().unwrap();
    for (args, expected) in [
        (
            SelfSignedArgs { self_signed_lifetime: second, ..args.clone() },
            "--self-signed-lifetime is 1s; use 5s",
        ),
        (
            SelfSignedArgs { self_signed_ca_lifetime: 100 * second, ..args.clone() },
            "--self-signed-ca-lifetime",
        ),
        (
            SelfSignedArgs { self_signed_ca_lifetime: Duration::MAX, ..args.clone() },
            "--self-signed-ca-lifetime",
        ),
        (SelfSignedArgs { self_signed_overlap: Duration::MAX, ..args.clone() }, "--self-signed-overlap"),
        (
            SelfSignedArgs { self_signed_name: vec!["a b".to_owned()], ..args.clone() },
            "--self-signed-name is \"a b\"",
        ),
        (SelfSignedArgs { self_signed_name: vec!["a".to_owned(); 51], ..args.clone() }, "--self-signed-name"),
    ] {
        let error = args.check().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let names =
        SelfSignedArgs { self_signed_name: vec!["0:0::1".to_owned(), "a.example".to_owned()], ..args };
    names.check().unwrap();
    let component = Component { service: "s", secret: "s", bundle_targets: &[] };
    let elsewhere = SelfSignedArgs { self_signed_namespace: "companions".to_owned(), ..settings() };
    assert_eq!(
        elsewhere.spec(&component).names,
        ["s.companions.svc", "s.companions.svc.cluster.local", "s.companions", "s"]
    );
    assert_eq!(names.spec(&component).names[4..], ["::1", "a.example"]);
}
