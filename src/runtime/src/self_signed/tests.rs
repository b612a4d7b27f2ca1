use std::collections::BTreeSet;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;

/// A day in the year 2026.
const BEGIN: i64 = 1_780_000_000;

const SVC: &str = "outrigger-webhook.outrigger-system.svc";

fn wanted() -> Wanted {
    Wanted {
        name: "outrigger-webhook".to_owned(),
        names: vec![SVC.to_owned(), "127.0.0.1".to_owned()],
        life: 900,
        ca_life: 9000,
        overlap: 70,
        inherit: false,
    }
}

/// The same, where CAs of others are to be trusted on.
fn inheriting() -> Wanted {
    Wanted { inherit: true, ..wanted() }
}

/// Takes every step that can be taken at this time, as a replica does; each through the Secret.
fn settle(state: &mut Option<State>, wanted: &Wanted, carried: bool, now: i64) -> (Vec<Step>, i64) {
    let mut steps = Vec::new();
    loop {
        let step = plan(state.as_ref(), wanted, carried, now);
        match take(step, state.as_ref(), wanted, &[], now).unwrap() {
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

/// What another replica reads.
fn reread(state: &State) -> State {
    let data = state.write().into_iter();
    let data = data.filter_map(|(key, value)| Some((key.to_owned(), value?.into_bytes()))).collect();
    let read = State::read(&data).unwrap().unwrap();
    assert_eq!(&read, state);
    read
}

/// Whether who trusts these CAs takes this certificate for this name at this time.
fn verifies(trust: &str, leaf: &str, name: &str, now: i64) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(trust.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
    verifier.verify_server_cert(&leaf, &[], &ServerName::try_from(name).unwrap(), &[], now).is_ok()
}

#[test]
fn the_first_replica_makes_a_ca_and_a_certificate() {
    let mut state = None;
    let (steps, until) = settle(&mut state, &wanted(), false, BEGIN);
    assert_eq!(steps, [Step::Begin]);
    let state = state.unwrap();
    for name in [SVC, "127.0.0.1"] {
        assert!(verifies(&state.trust(), &state.leaf.certificate.pem, name, BEGIN), "{name}");
    }
    assert!(!verifies(&state.trust(), &state.leaf.certificate.pem, "other.example", BEGIN));
    assert_eq!(until, state.leaf.certificate.validity.renewal());
    // The clock of who verifies may be behind.
    assert!(verifies(&state.trust(), &state.leaf.certificate.pem, SVC, BEGIN - 30));
    assert!(!format!("{state:?}").contains("PRIVATE KEY"));
}

/// Three lives of CAs, looked at in small steps, by replicas that serve what they read late and by an API server that reads
/// the bundle late: at no time does it see a certificate that it doesn't trust.
#[test]
fn at_every_moment_what_is_served_is_trusted() {
    let wanted = wanted();
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN);
    // What was there at each step. Who is late by less than the overlap sees the one before.
    let lag = wanted.overlap - 20;
    let mut history: Vec<(i64, String, String)> = Vec::new();
    let mut signers = BTreeSet::new();
    let mut now = BEGIN;
    while now < BEGIN + 3 * wanted.ca_life {
        settle(&mut state, &wanted, true, now);
        let s = state.as_ref().unwrap();
        signers.insert(s.signer.certificate.subject.clone());
        history.push((now, s.trust(), s.leaf.certificate.pem.clone()));
        let late = history.iter().rev().find(|(at, ..)| *at <= now - lag).unwrap_or(&history[0]);
        let current = history.last().unwrap();
        for (trust, leaf) in [(&current.1, &current.2), (&current.1, &late.2), (&late.1, &current.2)] {
            assert!(verifies(trust, leaf, SVC, now), "{}", now - BEGIN);
        }
        assert!(s.former.len() <= 2, "what has ended is forgotten");
        history.drain(..history.len().saturating_sub(20));
        now += 20;
    }
    assert!(signers.len() > 3, "{} CAs", signers.len());
}

#[test]
fn a_ca_signs_only_after_every_bundle_has_carried_it_for_the_overlap() {
    let wanted = wanted();
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN);
    let first = state.as_ref().unwrap().signer.clone();
    let due = first.certificate.validity.renewal();
    settle(&mut state, &wanted, false, due - 1);
    assert!(state.as_ref().unwrap().next.is_none());
    let (steps, _) = settle(&mut state, &wanted, false, due);
    assert_eq!(steps, [Step::Announce]);
    // However long it takes to publish it.
    settle(&mut state, &wanted, false, due + 1000);
    assert_eq!(state.as_ref().unwrap().signer, first);
    let published = due + 1000;
    let (steps, until) = settle(&mut state, &wanted, true, published);
    assert_eq!((steps, until), (vec![Step::Trusted], published + wanted.overlap));
    let (steps, _) = settle(&mut state, &wanted, true, until - 1);
    assert_eq!(steps, []);
    // Somebody has taken it out of a bundle again.
    let (steps, again) = settle(&mut state, &wanted, false, until);
    assert_eq!((steps, again), (vec![], until + 1));
    let published = state.as_ref().unwrap().trust();
    let (steps, _) = settle(&mut state, &wanted, true, until);
    assert_eq!(steps, [Step::Promote]);
    assert_eq!(state.as_ref().unwrap().trust(), published, "nothing to be published for that");
    let state = state.unwrap();
    assert_eq!(state.former, [first.certificate], "trusted on");
    assert!(state.write().values().flatten().all(|text| !text.contains(&first.key)), "its key is gone");
}

#[test]
fn what_has_ended_is_made_anew() {
    let wanted = wanted();
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN);
    let old = state.clone().unwrap();
    // Nothing ran for a while.
    let (steps, _) = settle(&mut state, &wanted, true, BEGIN + wanted.life + 1);
    assert_eq!(steps, [Step::Renew]);
    let (steps, _) = settle(&mut state, &wanted, true, BEGIN + wanted.ca_life + 1);
    assert_eq!(steps, [Step::Begin]);
    assert_ne!(state.unwrap().signer, old.signer);
}

/// Servers with certificates of somebody else's CA are replaced one after the other by those that sign for themselves.
#[test]
fn what_is_trusted_already_is_trusted_until_it_ends_where_that_is_wanted() {
    let other = Wanted { name: "somebody".to_owned(), ca_life: 20_000, ..wanted() };
    let theirs = take(Step::Begin, None, &other, &[], BEGIN - 100).unwrap().unwrap();
    let ended = take(Step::Begin, None, &other, &[], BEGIN - 30_000).unwrap().unwrap();
    let own = take(Step::Begin, None, &wanted(), &[], BEGIN - 50).unwrap().unwrap();
    let bundle = [&own, &ended, &theirs].map(State::trust).concat() + "-----BEGIN CERTIFICATE-----\nAAAA\n";
    let found = Certificate::found(&bundle);
    assert_eq!(found.len(), 3);
    let alone = take(Step::Begin, None, &wanted(), &found, BEGIN).unwrap().unwrap();
    assert_eq!(alone.trust(), alone.signer.certificate.pem, "nobody has asked for more");
    let begun = take(Step::Begin, None, &inheriting(), &found, BEGIN).unwrap().unwrap();
    let trust = begun.trust();
    assert!(
        verifies(&trust, &theirs.leaf.certificate.pem, SVC, BEGIN),
        "replicas that are still to be replaced"
    );
    assert!(verifies(&trust, &begun.leaf.certificate.pem, SVC, BEGIN));
    assert!(
        !verifies(&trust, &own.leaf.certificate.pem, SVC, BEGIN),
        "who empties the Secret wants that CA gone"
    );
    assert_eq!(begun.inherited.as_ref().unwrap().cas, std::slice::from_ref(&theirs.signer.certificate));
    assert!(begun.former.is_empty());

    let mut state = Some(reread(&begun));
    let end = theirs.signer.certificate.validity.not_after;
    let mut now = BEGIN;
    while now < end {
        settle(&mut state, &wanted(), true, now);
        assert!(state.as_ref().unwrap().trust().contains(&theirs.signer.certificate.pem), "{}", now - BEGIN);
        now += 500;
    }
    settle(&mut state, &wanted(), true, end + 1);
    assert!(!state.unwrap().trust().contains(&theirs.signer.certificate.pem));
}

/// Thirty days are enough to replace servers; a CA of somebody else may live for a hundred years.
#[test]
fn nobody_is_inherited_for_long() {
    let day = 24 * 3600;
    let other = Wanted { name: "somebody".to_owned(), ca_life: 36_500 * day, ..wanted() };
    let long = Wanted { life: 90 * day, ca_life: 1825 * day, overlap: 7 * day, ..inheriting() };
    let theirs = take(Step::Begin, None, &other, &[], BEGIN).unwrap().unwrap();
    let found = Certificate::found(&theirs.trust());
    let begun = take(Step::Begin, None, &long, &found, BEGIN).unwrap().unwrap();
    let mut state = Some(reread(&begun));
    let pem = &theirs.signer.certificate.pem;
    let (steps, until) = settle(&mut state, &long, true, BEGIN + 30 * day);
    assert_eq!((steps, until), (vec![], BEGIN + 30 * day + 1));
    assert!(state.as_ref().unwrap().trust().contains(pem));
    assert_eq!(settle(&mut state, &long, true, until).0, [Step::Forget]);
    assert!(!state.as_ref().unwrap().trust().contains(pem));
    assert_eq!(state.unwrap().inherited, None);
    // Somebody takes it out before: it is not put back.
    let mut data: std::collections::BTreeMap<String, Vec<u8>> = begun
        .write()
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.into_bytes())))
        .collect();
    data.insert("ca.crt".to_owned(), begun.signer.certificate.pem.clone().into_bytes());
    assert_eq!(State::read(&data).unwrap().unwrap().trust(), begun.signer.certificate.pem);
}

#[test]
fn what_is_taken_over_is_bounded_and_never_crowds_out_our_own() {
    let found: Vec<Certificate> = (0..20)
        .map(|i| {
            // From the future, so that they come first.
            let other = Wanted { name: format!("other-{i}"), ..wanted() };
            take(Step::Begin, None, &other, &[], BEGIN + 5000).unwrap().unwrap().signer.certificate
        })
        .collect();
    let twice = [found.clone(), found].concat();
    let begun = take(Step::Begin, None, &inheriting(), &twice, BEGIN).unwrap().unwrap();
    assert_eq!(begun.inherited.as_ref().unwrap().cas.len(), 3);
    assert!(verifies(&begun.trust(), &begun.leaf.certificate.pem, SVC, BEGIN));
    reread(&begun);
}

#[test]
fn a_certificate_from_the_future_is_replaced_and_a_ca_from_there_is_told_of() {
    let wanted = wanted();
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN);
    assert_eq!(trouble(state.as_ref().unwrap(), BEGIN), None);
    // A replica whose clock was far ahead has renewed it.
    let ahead = BEGIN + 600;
    let (steps, _) = settle(&mut state, &wanted, true, ahead);
    assert_eq!(steps, [Step::Renew]);
    let (steps, _) = settle(&mut state, &wanted, true, BEGIN + 1);
    assert_eq!(steps, [Step::Renew]);
    let s = state.as_ref().unwrap();
    assert!(verifies(&s.trust(), &s.leaf.certificate.pem, SVC, BEGIN + 1));
    assert_eq!(settle(&mut state, &wanted, true, BEGIN + 2).0, [], "once");

    // It has made the CA too.
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN + 5000);
    settle(&mut state, &wanted, true, BEGIN);
    assert_eq!(settle(&mut state, &wanted, true, BEGIN).0, [], "no replica with a slow clock replaces a CA");
    let told = trouble(state.as_ref().unwrap(), BEGIN).unwrap();
    assert!(told.contains("is not valid before 2026-05-28T"), "{told}");
}

#[test]
fn a_ca_that_ended_before_the_next_could_be_published_goes_when_it_can() {
    let wanted = wanted();
    let mut state = None;
    settle(&mut state, &wanted, true, BEGIN);
    let due = state.as_ref().unwrap().signer.certificate.validity.renewal();
    settle(&mut state, &wanted, false, due);
    let next = state.as_ref().unwrap().next.clone().unwrap().ca;
    let (steps, _) = settle(&mut state, &wanted, true, BEGIN + wanted.ca_life + 1);
    assert_eq!(steps, [Step::Promote, Step::Forget]);
    assert_eq!(state.unwrap().signer, next);
}

#[test]
fn replicas_that_want_other_names_agree_on_all() {
    let first = wanted();
    let second = Wanted { names: vec![SVC.to_owned(), "gw.example".to_owned()], ..wanted() };
    let mut state = None;
    settle(&mut state, &first, true, BEGIN);
    let (steps, _) = settle(&mut state, &second, true, BEGIN);
    assert_eq!(steps, [Step::Rename]);
    for wanted in [&first, &second] {
        assert_eq!(settle(&mut state, wanted, true, BEGIN).0, [], "nobody takes a name away from another");
    }
    let leaf = state.as_ref().unwrap().leaf.certificate.clone();
    assert_eq!(leaf.names, [SVC, "gw.example", "127.0.0.1"]);
    settle(&mut state, &second, true, leaf.validity.renewal());
    assert_eq!(
        state.unwrap().leaf.certificate.names,
        second.names,
        "what nobody wants goes when it is renewed"
    );
}

#[test]
fn a_secret_that_cannot_be_used_is_left_alone() {
    let mut state = None;
    settle(&mut state, &wanted(), true, BEGIN);
    let other = take(Step::Begin, None, &wanted(), &[], BEGIN).unwrap().unwrap();
    let good: BTreeMap<String, Vec<u8>> = state
        .unwrap()
        .write()
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.into_bytes())))
        .collect();
    assert_eq!(State::read(&BTreeMap::new()).unwrap(), None);
    for (key, value, expected) in [
        ("tls.crt", None, "tls.crt and tls.key are needed together"),
        ("signer.key", Some("x".to_owned()), "signer.key: it is no private key"),
        ("signer.key", Some(other.signer.key), "signer.key: it is another certificate's key"),
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
fn settings_that_can_not_be_meant_are_refused() {
    let second = Duration::from_secs(1);
    let args = SelfSignedArgs::default();
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
    let component = Component { service: "s", secret: "s", places: &[] };
    let elsewhere =
        SelfSignedArgs { self_signed_namespace: "companions".to_owned(), ..SelfSignedArgs::default() };
    assert_eq!(
        elsewhere.wanted(&component).names,
        ["s.companions.svc", "s.companions.svc.cluster.local", "s.companions", "s"]
    );
    assert_eq!(names.wanted(&component).names[4..], ["::1", "a.example"]);
}
