use std::io::Read;

use flate2::read::GzDecoder;
use outrigger_core::keys;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn finish(drafts: Drafts, redactor: Redactor) -> (Manifest, Vec<Packed>) {
    drafts.finish(redactor, false, "2026-01-01T00:00:00Z".to_owned()).unwrap()
}

fn named(name: &str, size: usize) -> Value {
    json!({"metadata": {"name": name, "uid": name}, "x": "x".repeat(size)})
}

#[test]
fn files_have_limits_and_the_manifest_says_what_is_cut() {
    let mut drafts = Drafts::default();
    let many = (0..200).map(|i| named(&format!("{i}"), 60 << 10)).collect();
    drafts.add("objects/a.yaml", Content::Objects(many), Vec::new());
    drafts.add("objects/a.yaml", Content::Objects(vec![named("0", 1)]), vec!["why".to_owned()]);
    for i in 0..9 {
        drafts.add(format!("{i}.log"), Content::Text("x".repeat(FILE)), Vec::new());
    }
    drafts.add("long.json", Content::Report(json!("x".repeat(FILE))), Vec::new());
    drafts.lacks("nodes", "forbidden: password=hunter2");
    let (manifest, files) = finish(drafts, Redactor::new(false));
    let manifest = serde_json::to_value(manifest).unwrap();
    let total: usize = files.iter().skip(2).map(|(_, bytes)| bytes.len()).sum();
    assert!(files.iter().all(|(_, bytes)| bytes.len() <= FILE) && total <= TOTAL, "{total}");
    assert_eq!(manifest["complete"], false);
    assert_eq!(manifest["files"][0]["objects"], 200, "an object is in a file once");
    let cut = manifest["files"][0]["cut"].as_array().unwrap();
    assert!(
        cut[0] == "why" && cut[1].as_str().unwrap().ends_with("objects, because a file has at most 8 MiB"),
        "{cut:?}"
    );
    let missing: Vec<&str> =
        manifest["missing"].as_array().unwrap().iter().map(|row| text(row, "/what")).collect();
    assert_eq!(missing, ["nodes", "7.log", "8.log", "long.json"]);
    assert_eq!(manifest["missing"][0]["why"], "forbidden: password=REDACTED");
    assert_eq!(manifest["missing"][1]["why"], "all files together would have more than 64 MiB");
    assert_eq!(manifest["missing"][3]["why"], "it would have more than 8 MiB");
    let listed: Vec<(&str, u64)> = manifest["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (text(row, "/path"), row["bytes"].as_u64().unwrap()))
        .collect();
    let packed: Vec<(&str, u64)> =
        files.iter().skip(2).map(|(path, bytes)| (path.as_str(), bytes.len() as u64)).collect();
    assert_eq!(listed, packed);
}

#[test]
fn archives_and_directories_have_the_same_files_and_nothing_is_overwritten() {
    let mut drafts = Drafts::default();
    drafts.add("pods/n/p/c.log", Content::Text("line\n".to_owned()), Vec::new());
    let (manifest, files) = finish(drafts, Redactor::new(false));
    assert!(manifest.complete);
    let dir = tempfile::tempdir().unwrap();
    let (archive, directory) = (dir.path().join("b.tar.gz"), dir.path().join("b"));
    for output in [&archive, &directory] {
        write(output, &files, 7).unwrap();
        assert_eq!(write(output, &files, 7).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
    let mut unpacked = tar::Archive::new(GzDecoder::new(File::open(archive).unwrap()));
    let mut found = Vec::new();
    for entry in unpacked.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        assert_eq!((entry.header().mode().unwrap(), entry.header().mtime().unwrap()), (0o600, 7));
        assert_eq!(std::fs::read(directory.join(&path)).unwrap(), bytes, "{path}");
        found.push((path, bytes));
    }
    assert_eq!(found, files);
    let order: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(order, ["README.md", "manifest.json", "pods/n/p/c.log"]);
}

#[test]
fn names_are_safe_in_paths() {
    for (name, expected) in
        [("web-0.a", "web-0.a"), ("../x", "_.._x"), ("-rf", "_-rf"), ("", "_"), ("a/b\u{1b}ä", "a_b__")]
    {
        assert_eq!(segment(name), expected);
    }
}

/// A place of a secret: an object of a tenant or of the installation, or a text; `word` has no special characters.
fn planted(place: usize, secret: &str, word: &str) -> Value {
    let key = format!("-----BEGIN RSA PRIVATE KEY-----\n{word}\n-----END RSA PRIVATE KEY-----");
    match place {
        0 => json!({"env": [{"name": "A", "value": secret}]}),
        1 => json!({"command": ["sh", "-c", secret], "status": {"message": secret}}),
        2 => json!({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": secret}}),
        3 => json!({"annotations": {"example.org/note": secret, keys::WORKLOAD: secret}}),
        4 => {
            json!({"httpHeaders": [{"name": "Authorization", "value": secret}], "volumeAttributes": {"k": [secret]}})
        }
        5 => json!({"dbPassword": secret, "x": {"client-secret": secret}}),
        6 => json!({"note": format!("called with Authorization: Bearer {word}9")}),
        7 => json!({"url": format!("https://u:{word}@host/")}),
        8 => json!({"ca": key}),
        9 => json!({"message": format!("{{\"token\": {}}}", json!(secret))}),
        10 => json!({"message": format!("--api-key={word} eyJhbGciOi.{word}.{word}")}),
        _ => json!({"args": ["--access-token", secret, format!("--password={secret}")]}),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_planted_secret_is_in_any_file(
        places in prop::collection::vec((0usize..12, prop::collection::vec("[a-z]{1,6}|env|args|spec", 0..4)), 1..6),
        marker in "zq[a-z0-9]{12}",
        (before, after) in ("[ -~äß\n]{0,10}", "[ -~äß\n]{0,10}"),
    ) {
        let secret = format!("{before}{marker}{after}");
        let (mut redactor, mut drafts) = (Redactor::new(false), Drafts::default());
        for (i, (place, path)) in places.iter().enumerate() {
            let mut object = planted(*place, &secret, &marker);
            for key in path {
                object = json!({key: [object]});
            }
            redactor.object(&mut object, false);
            drafts.add(format!("objects/{i}.yaml"), Content::Objects(vec![object]), Vec::new());
        }
        if places.iter().any(|(place, _)| matches!(place, 0..6)) {
            // Whatever has been redacted in an object is redacted where somebody repeats it.
            drafts.add("a.log", Content::Text(format!("invalid value: {secret}")), Vec::new());
            drafts.add("a.json", Content::Report(json!({"findings": [&secret]})), Vec::new());
            drafts.lacks("a", &secret);
        }
        let (_, files) = finish(drafts, redactor);
        for (path, bytes) in &files {
            let shown = String::from_utf8_lossy(bytes);
            prop_assert!(!shown.contains(&marker), "{path}: {shown}");
        }
    }
}
