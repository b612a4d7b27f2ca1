//! The files that `make release` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_tests::control_plane::tool;
use outrigger_tests::root;
use outrigger_tests::shipped::{kustomize, objects};
use serde_json::{Value, json};

use crate::release::image::IMAGE;
use crate::release::{PROGRAM, VERSION, architecture, directory, run, script, target};

/// A signed release, its public key, and what the script printed.
struct Release {
    dir: tempfile::TempDir,
    printed: String,
}

const URL: &str = "https://files.example/v1";
const BUILDER: &str = "https://builds.example/machine";
const SOURCE: &str = "https://git.example/outrigger";

/// The one that tests only read.
static RELEASE: LazyLock<Release> = LazyLock::new(|| {
    let dir = directory();
    let key = dir.path().join("outrigger.key");
    let key = key.to_str().unwrap();
    // As the page of releases says it.
    run("openssl", &["genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:secret", "-out", key]);
    let public = dir.path().join("outrigger.pub");
    let to_public =
        ["pkey", "-in", key, "-passin", "pass:secret", "-pubout", "-out", public.to_str().unwrap()];
    run("openssl", &to_public);
    let artifacts = dir.path().join("artifacts");
    let output = script("release.sh", &["dev", artifacts.to_str().unwrap(), architecture()])
        .envs([
            ("PROGRAM", &**PROGRAM),
            ("SIGNING_KEY", key),
            ("SIGNING_PASSPHRASE", "secret"),
            ("RELEASE_URL", URL),
            ("BUILDER_ID", BUILDER),
            ("SOURCE_URL", SOURCE),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Release { printed: String::from_utf8(output.stdout).unwrap(), dir }
});

impl Release {
    fn dir(&self) -> PathBuf {
        self.dir.path().join("artifacts")
    }

    /// A file, by what follows `outrigger-<version>` in its name.
    fn file(&self, rest: &str) -> PathBuf {
        self.dir().join(format!("outrigger-{VERSION}{rest}"))
    }

    fn text(&self, rest: &str) -> String {
        std::fs::read_to_string(self.file(rest)).unwrap()
    }
}

/// Extracts an archive into a new directory.
fn extracted(archive: &Path) -> tempfile::TempDir {
    let dir = directory();
    run("tar", &["-C", dir.path().to_str().unwrap(), "-xzf", archive.to_str().unwrap()]);
    dir
}

/// Every file below a directory, with its content.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(dir).into_iter().map(|entry| entry.unwrap().into_path());
    let files = entries.filter(|path| path.is_file());
    files.map(|path| (path.strip_prefix(dir).unwrap().to_owned(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn a_release_has_these_files_and_lists_them() {
    let architecture = architecture();
    let mut expected: BTreeSet<String> = ["SHA256SUMS", "SHA256SUMS.sig"].map(str::to_owned).into();
    for rest in [
        "-all-in-one.yaml".to_owned(),
        "-crds.yaml".to_owned(),
        format!("-image-linux-{architecture}.cdx.json"),
        format!("-image-linux-{architecture}.tar"),
        "-infrastructure.yaml".to_owned(),
        format!("-krew-linux-{architecture}.yaml"),
        format!("-linux-{architecture}.cdx.json"),
        format!("-linux-{architecture}.intoto.jsonl"),
        format!("-linux-{architecture}.tar.gz"),
        "-notes.md".to_owned(),
        "-tenant.yaml".to_owned(),
        "-webhook-only.yaml".to_owned(),
        ".tgz".to_owned(),
    ] {
        expected.insert(format!("outrigger-{VERSION}{rest}"));
    }
    let names: BTreeSet<String> = std::fs::read_dir(RELEASE.dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, expected);
    let listed: BTreeSet<&str> =
        RELEASE.printed.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(listed, names.iter().map(String::as_str).collect());
}

/// What a script in the directory of a release with the public key says, as whoever verifies it types it.
fn verified(dir: &Path, commands: &str) -> bool {
    std::fs::copy(RELEASE.dir.path().join("outrigger.pub"), dir.join("outrigger.pub")).unwrap();
    Command::new("bash").args(["-ec", commands]).current_dir(dir).output().unwrap().status.success()
}

/// The commands of the page, in its first block that begins like this.
fn documented(beginning: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/releases.md")).unwrap();
    let (_, after) = page.split_once(&format!("```sh\n{beginning}")).unwrap();
    format!("{beginning}{}", after.split_once("```").unwrap().0)
}

/// A directory with the files of the release.
fn copy() -> tempfile::TempDir {
    let dir = directory();
    for (name, content) in contents(&RELEASE.dir()) {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

#[test]
fn the_documented_commands_verify_it_and_notice_every_change() {
    let commands = documented("openssl pkeyutl");
    let dir = copy();
    assert!(verified(dir.path(), &commands), "{commands}");
    // Another file under the same name, and another list of checksums that fits it.
    let notes = dir.path().join(format!("outrigger-{VERSION}-notes.md"));
    std::fs::write(&notes, "changed").unwrap();
    assert!(!verified(dir.path(), &commands), "a changed file");
    run("bash", &["-c", &format!("cd {} && sha256sum outrigger-* >SHA256SUMS", dir.path().display())]);
    assert!(!verified(dir.path(), &commands), "changed checksums");
}

#[test]
fn the_documented_commands_verify_its_provenance_and_notice_every_change() {
    let commands = documented("jq -r .payload");
    let dir = copy();
    assert!(verified(dir.path(), &commands), "{commands}");
    let statement = std::fs::read(dir.path().join("statement.json")).unwrap();
    let statement: Value = serde_json::from_slice(&statement).unwrap();
    let subjects = statement["subject"].as_array().unwrap().iter().map(|subject| {
        format!("{}  {}\n", subject["digest"]["sha256"].as_str().unwrap(), subject["name"].as_str().unwrap())
    });
    let sums = std::fs::read_to_string(RELEASE.dir().join("SHA256SUMS")).unwrap();
    assert_eq!(subjects.collect::<String>(), sums);
    let types = ["_type", "predicateType"].map(|field| &statement[field]);
    assert_eq!(types, ["https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"]);
    let build = &statement["predicate"]["buildDefinition"];
    let parameters = json!({"source": SOURCE, "profile": "dev", "architecture": architecture(), "features": "",
        "program": "given"});
    assert_eq!(build["externalParameters"], parameters);
    let mut source = json!({"uri": format!("git+{SOURCE}")});
    // Whoever changes the work tree runs this test too.
    if run("git", &["-C", root().to_str().unwrap(), "status", "--porcelain"]).is_empty() {
        let commit = run("git", &["-C", root().to_str().unwrap(), "rev-parse", "HEAD"]);
        source["digest"] = json!({"gitCommit": commit.trim()});
    }
    assert_eq!(build["resolvedDependencies"], json!([source]));
    assert_eq!(statement["predicate"]["runDetails"], json!({"builder": {"id": BUILDER}}));

    std::fs::write(dir.path().join(format!("outrigger-{VERSION}-notes.md")), "changed").unwrap();
    assert!(!verified(dir.path(), &commands), "a changed file");
    // Another statement under the signature of the first.
    let dir = copy();
    let envelope = dir.path().join(format!("outrigger-{VERSION}-linux-{}.intoto.jsonl", architecture()));
    let change = format!(
        "jq -c '.payload |= (@base64d | sub(\"given\"; \"built\") | @base64)' {0} >changed && mv changed {0}",
        envelope.display()
    );
    assert!(verified(dir.path(), &change));
    assert!(!verified(dir.path(), &commands), "a changed statement");
}

#[test]
fn a_builder_without_a_uri_is_refused() {
    let key = RELEASE.dir.path().join("outrigger.key");
    for (builder, source, words) in [
        ("a machine", SOURCE, "BUILDER_ID: is 'a machine'; use a URI"),
        (BUILDER, "https://git.example/\"", "SOURCE_URL: is 'https://git.example/\"'; use a URI"),
    ] {
        let output = script("provenance.sh", &[RELEASE.dir().to_str().unwrap(), "dev", architecture()])
            .env("SIGNING_KEY", &key)
            .envs([("BUILDER_ID", builder), ("SOURCE_URL", source)])
            .output()
            .unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn the_archive_has_the_program_its_completions_and_its_manual() {
    let name = format!("outrigger-{VERSION}-linux-{}", architecture());
    let dir = extracted(&RELEASE.dir().join(format!("{name}.tar.gz")));
    let all = contents(&dir.path().join(&name));
    let manual = directory();
    run(&PROGRAM, &["manual", "--output-dir", manual.path().to_str().unwrap()]);
    let mut expected: BTreeMap<PathBuf, Vec<u8>> = contents(manual.path())
        .into_iter()
        .map(|(name, content)| (Path::new("man/man1").join(name), content))
        .collect();
    assert!(expected.len() > 12, "{:?}", expected.keys());
    for (file, shell) in [("outrigger.bash", "bash"), ("_outrigger", "zsh"), ("outrigger.fish", "fish")] {
        let script = run(&PROGRAM, &["completion", shell]).into_bytes();
        expected.insert(Path::new("completions").join(file), script);
    }
    expected.insert("LICENSE".into(), std::fs::read(root().join("LICENSE")).unwrap());
    expected.insert("outrigger".into(), std::fs::read(&**PROGRAM).unwrap());
    assert_eq!(all.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, content) in &all {
        assert!(*content == expected[path], "{}", path.display());
    }
}

#[test]
fn the_plugin_is_in_the_archive_that_its_manifest_names() {
    let manifest = RELEASE.text(&format!("-krew-linux-{}.yaml", architecture()));
    let manifest = objects(&manifest).unwrap().remove(0);
    assert_eq!(manifest["metadata"], json!({"name": "outrigger"}), "kubectl-outrigger");
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platform = &manifest["spec"]["platforms"][0];
    let uri = platform["uri"].as_str().unwrap();
    let archive = RELEASE.dir().join(uri.strip_prefix(&format!("{URL}/")).unwrap());
    let sum = run("sha256sum", &[archive.to_str().unwrap()]);
    assert_eq!(platform["sha256"], sum.split(' ').next().unwrap());
    let listed = run("tar", &["-tzf", archive.to_str().unwrap()]);
    for file in platform["files"].as_array().unwrap() {
        assert!(listed.lines().any(|line| file["from"] == line), "{file}");
    }
    let expected = json!({"matchLabels": {"os": "linux", "arch": architecture()}});
    assert_eq!((&platform["selector"], &platform["bin"]), (&expected, &json!("outrigger")));
}

#[test]
fn the_chart_is_what_helm_packages() {
    let packed = directory();
    let helm = tool("helm").unwrap();
    let chart = root().join("deploy/helm/outrigger");
    let to = packed.path().to_str().unwrap();
    run(helm.to_str().unwrap(), &["package", chart.to_str().unwrap(), "--destination", to]);
    let theirs = extracted(&packed.path().join(format!("outrigger-{VERSION}.tgz")));
    let ours = extracted(&RELEASE.file(".tgz"));
    let (mut ours, mut theirs) = (contents(ours.path()), contents(theirs.path()));
    // Helm writes this one again, without comments.
    let name = Path::new("outrigger/Chart.yaml");
    let read = |content: Option<Vec<u8>>| objects(&String::from_utf8(content.unwrap()).unwrap()).unwrap();
    assert_eq!(read(ours.remove(name)), read(theirs.remove(name)));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (path, content) in &ours {
        assert!(*content == theirs[path], "{}", path.display());
    }
}

#[test]
fn manifests_are_the_overlays() {
    for overlay in ["infrastructure", "tenant", "all-in-one", "webhook-only"] {
        let ours = objects(&RELEASE.text(&format!("-{overlay}.yaml"))).unwrap();
        assert_eq!(ours, kustomize(&format!("deploy/overlays/{overlay}")).unwrap(), "{overlay}");
    }
    let definitions = objects(&RELEASE.text("-crds.yaml")).unwrap();
    assert_eq!(definitions, kustomize("deploy/crds").unwrap());
    assert!(definitions.iter().all(|object| object["kind"] == "CustomResourceDefinition"));
}

#[test]
fn the_bill_has_every_crate_of_the_program() {
    let bill = RELEASE.text(&format!("-linux-{}.cdx.json", architecture()));
    assert!(!bill.contains(root().to_str().unwrap()) && !bill.contains("/tmp/"), "a path of the build");
    let bill: Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let component = |value: &Value| {
        format!("{} v{}", value["name"].as_str().unwrap(), value["version"].as_str().unwrap())
    };
    let ours: BTreeSet<String> = bill["components"].as_array().unwrap().iter().map(component).collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["tree", "--locked", "--package", "outrigger-cli", "--target", &target()]);
    cargo.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let tree = outrigger_tests::shipped::output(cargo).unwrap();
    let two = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let mut linked: BTreeSet<String> = tree.lines().filter(|line| !line.is_empty()).map(two).collect();
    assert!(linked.remove(&component(&bill["metadata"]["component"])), "{}", bill["metadata"]);
    assert!(linked.len() > 200, "{}", linked.len());
    let missing: Vec<&String> = linked.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_bill_of_the_image_has_its_files_and_what_its_program_has() {
    let bill = |of: &str| -> Value {
        serde_json::from_str(&RELEASE.text(&format!("{of}-linux-{}.cdx.json", architecture()))).unwrap()
    };
    let [image, program] =
        [bill("-image"), bill("")].map(|bill| bill["components"].as_array().unwrap().clone());
    let hashes = |file: &Value| {
        (file["name"].as_str().unwrap().to_owned(), file["hashes"][0]["content"].as_str().unwrap().to_owned())
    };
    let is_file = |component: &&Value| component["type"] == "file";
    let listed: BTreeMap<String, String> = image.iter().filter(is_file).map(hashes).collect();
    let dir = directory();
    run("tar", &["-C", dir.path().to_str().unwrap(), "-xzf", IMAGE.layer.to_str().unwrap()]);
    let hash = |path: &PathBuf| {
        let sum = run("sha256sum", &[dir.path().join(path).to_str().unwrap()]);
        (format!("/{}", path.display()), sum.split(' ').next().unwrap().to_owned())
    };
    let packed: BTreeMap<String, String> = contents(dir.path()).keys().map(hash).collect();
    assert_eq!(listed, packed);
    assert!(program.iter().all(|component| image.contains(component)));
    assert_eq!(bill("-image")["metadata"]["component"]["type"], "container");
    let binary = &bill("")["metadata"]["component"];
    assert!(image.contains(binary), "{binary}");
    let packages: Vec<&str> = image.iter().filter_map(|one| one["purl"].as_str()).collect();
    for package in ["ca-certificates", "libc6-dev"] {
        let is_of = |purl: &&&str| {
            purl.starts_with("pkg:deb/") && purl.contains(&format!("/{package}")) && purl.contains("&distro=")
        };
        assert_eq!(packages.iter().filter(is_of).count(), 1, "{package}: {packages:?}");
    }
    let depends = bill("-image")["dependencies"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(depends["dependsOn"].as_array().unwrap().len(), packed.len() + 3, "{depends}");
}

#[test]
fn notes_are_this_versions_part_of_the_changelog() {
    let notes = RELEASE.text("-notes.md");
    let text = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let rest = notes.strip_prefix(&format!("# Outrigger {VERSION}\n")).unwrap();
    assert!(text.contains(&format!("## {VERSION}\n{rest}")) && rest.trim().len() > 100, "{notes}");
    assert!(!notes.contains("\n## "), "another version's");
}

#[test]
fn without_a_key_nothing_is_signed_and_the_files_are_the_same() {
    let dir = directory();
    let artifacts = dir.path().join("artifacts");
    let output = script("release.sh", &["dev", artifacts.to_str().unwrap(), architecture()])
        .envs([("PROGRAM", &**PROGRAM), ("RELEASE_URL", URL)])
        .output()
        .unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("not signed: SIGNING_KEY isn't set"));
    let provenance = format!("outrigger-{VERSION}-linux-{}.intoto.jsonl", architecture());
    let (again, mut first) = (contents(&artifacts), contents(&RELEASE.dir()));
    assert!(first.remove(Path::new("SHA256SUMS.sig")).is_some());
    assert!(first.remove(Path::new(&provenance)).is_some());
    assert_eq!(again.keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
    for (path, content) in &again {
        assert!(*content == first[path], "{}", path.display());
    }
}
