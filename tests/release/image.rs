//! The image: what is in the archive, and that nothing else is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_tests::root;
use serde_json::{Value, json};

use crate::release::{PROGRAM, VERSION, architecture, directory, run, script};

/// An image, unpacked as an OCI layout, and its layer.
pub(crate) struct Image {
    dir: tempfile::TempDir,
    pub(crate) layer: PathBuf,
    manifest: Value,
    config: Value,
}

/// The one that tests only read.
pub(crate) static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let dir = unpacked(&[&PROGRAM, architecture()]);
    let index = read(dir.path(), "index.json");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest = read(dir.path(), &blob(&index["manifests"][0]));
    let config = read(dir.path(), &blob(&manifest["config"]));
    let layer = dir.path().join(blob(&manifest["layers"][0]));
    Image { dir, layer, manifest, config }
});

/// Writes the image of these programs, each before its architecture.
fn write(dir: &Path, name: &str, programs: &[&str]) -> PathBuf {
    let archive = dir.join(name);
    let mut command = script("image.sh", &[programs, &[archive.to_str().unwrap()]].concat());
    assert!(command.status().unwrap().success());
    archive
}

/// The same, unpacked.
fn unpacked(programs: &[&str]) -> tempfile::TempDir {
    let dir = directory();
    let archive = write(dir.path(), "image.tar", programs);
    run("tar", &["-C", dir.path().to_str().unwrap(), "-xf", archive.to_str().unwrap()]);
    dir
}

fn read(dir: &Path, path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join(path)).unwrap()).unwrap()
}

/// Where the blob of a descriptor is.
fn blob(descriptor: &Value) -> String {
    descriptor["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/")
}

#[test]
fn the_image_has_these_files_and_no_others() {
    let listed = run("tar", &["--numeric-owner", "-tvzf", IMAGE.layer.to_str().unwrap()]);
    let files: Vec<(&str, &str, &str)> = listed
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0], words[1], words[5])
        })
        .collect();
    let expected = [
        ("-rw-r--r--", "0/0", "LICENSE"),
        ("drwxr-xr-x", "0/0", "etc/"),
        ("-rw-r--r--", "0/0", "etc/nsswitch.conf"),
        ("drwxr-xr-x", "0/0", "etc/ssl/"),
        ("drwxr-xr-x", "0/0", "etc/ssl/certs/"),
        ("-rw-r--r--", "0/0", "etc/ssl/certs/ca-certificates.crt"),
        ("-rwxr-xr-x", "0/0", "outrigger"),
    ];
    assert_eq!(files, expected);
}

#[test]
fn two_images_of_a_program_are_byte_for_byte_the_same() {
    let dir = directory();
    let first = write(dir.path(), "first.tar", &[&PROGRAM, architecture()]);
    // As of someone else's, with other permissions and times.
    let copy = dir.path().join("outrigger");
    std::fs::copy(&**PROGRAM, &copy).unwrap();
    let second = dir.path().join("second.tar");
    let again = |epoch: Option<&str>| {
        let command = format!(
            "umask 077; {} exec deploy/image.sh {} {} {}",
            epoch.map_or_else(String::new, |epoch| format!("SOURCE_DATE_EPOCH={epoch}")),
            copy.display(),
            architecture(),
            second.display()
        );
        run("bash", &["-c", &format!("cd {} && {command}", root().display())]);
        std::fs::read(&second).unwrap()
    };
    let first = std::fs::read(first).unwrap();
    assert!(first == again(None), "another file of the same program makes another image");
    assert!(first != again(Some("1")), "the commit's time has no effect");
}

#[test]
fn every_blob_is_what_its_digest_says() {
    let dir = IMAGE.dir.path();
    let blobs: BTreeSet<String> = std::fs::read_dir(dir.join("blobs/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(blobs.len(), 3, "manifest, configuration and one layer: {blobs:?}");
    for blob in &blobs {
        let path = dir.join("blobs/sha256").join(blob);
        assert!(run("sha256sum", &[path.to_str().unwrap()]).starts_with(blob.as_str()), "{blob}");
    }
    for descriptor in [&IMAGE.manifest["config"], &IMAGE.manifest["layers"][0]] {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let size = std::fs::metadata(dir.join("blobs/sha256").join(digest)).unwrap().len();
        assert_eq!(descriptor["size"], size);
    }
    let unpacked = format!("gzip -dc {} | sha256sum | cut -d' ' -f1", IMAGE.layer.display());
    let diff_id = format!("sha256:{}", run("bash", &["-c", &unpacked]).trim());
    assert_eq!(IMAGE.config["rootfs"], json!({"type": "layers", "diff_ids": [diff_id]}));
    // Docker before 25 finds the same by its own file.
    assert_eq!(read(dir, "manifest.json"), json!([docker(&IMAGE.manifest, VERSION)]));
}

/// What Docker before 25 reads of an image with this tag.
fn docker(manifest: &Value, tag: &str) -> Value {
    json!({"Config": blob(&manifest["config"]), "RepoTags": [format!("outrigger:{tag}")],
        "Layers": [blob(&manifest["layers"][0])]})
}

/// A program for the processors that ELF calls by this number, which does nothing.
fn for_machine(machine: u8) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(64, 0);
    for (at, value) in [(16, 2), (18, machine), (20, 1), (52, 64)] {
        header[at] = value;
    }
    header
}

#[test]
fn an_archive_for_two_architectures_has_an_image_of_each_under_one_name() {
    let programs = directory();
    let all = [("amd64", for_machine(62)), ("arm64", for_machine(183))];
    let paths = all.each_ref().map(|(architecture, program)| {
        let path = programs.path().join(architecture);
        std::fs::write(&path, program).unwrap();
        path
    });
    let [amd64, arm64] = paths.each_ref().map(|path| path.to_str().unwrap());
    let dir = unpacked(&[amd64, "amd64", arm64, "arm64"]);
    let dir = dir.path();
    let outer = read(dir, "index.json")["manifests"].take();
    let names: Vec<&Value> = outer.as_array().unwrap().iter().map(|image| &image["annotations"]).collect();
    assert_eq!(names, [&json!({"org.opencontainers.image.ref.name": VERSION})]);
    let index = read(dir, &blob(&outer[0]));
    assert_eq!(index["mediaType"], outer[0]["mediaType"]);
    let mut for_docker = Vec::new();
    for ((architecture, program), image) in all.iter().zip(index["manifests"].as_array().unwrap()) {
        assert_eq!(image["platform"], json!({"architecture": architecture, "os": "linux"}));
        let manifest = read(dir, &blob(image));
        assert_eq!(read(dir, &blob(&manifest["config"]))["architecture"], *architecture);
        let layer = dir.join(blob(&manifest["layers"][0]));
        let inside =
            Command::new("tar").args(["-xzOf", layer.to_str().unwrap(), "outrigger"]).output().unwrap();
        assert_eq!(inside.stdout, *program, "{architecture}");
        for_docker.push(docker(&manifest, &format!("{VERSION}-{architecture}")));
    }
    assert_eq!(read(dir, "manifest.json"), json!(for_docker));
}

/// What follows an instruction of the last stage of the Dockerfile, with continued lines joined.
fn instructions(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("deploy/Dockerfile")).unwrap().replace("\\\n", " ");
    let (_, last) = text.split_once("FROM scratch\n").unwrap();
    let all = last.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    all.map(|rest| rest.trim().to_owned()).collect()
}

#[test]
fn the_dockerfile_makes_the_same() {
    let config = &IMAGE.config["config"];
    assert_eq!(instructions("USER"), [config["User"].as_str().unwrap()]);
    assert_eq!(instructions("ENTRYPOINT"), [config["Entrypoint"].to_string()]);
    let ports: BTreeSet<String> = instructions("EXPOSE")
        .iter()
        .flat_map(|line| line.split(' '))
        .map(|port| format!("{port}/tcp"))
        .collect();
    let ours: BTreeSet<String> = config["ExposedPorts"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(ports, ours);
    let labels = &instructions("LABEL")[0];
    for (name, value) in config["Labels"].as_object().unwrap() {
        let value = value.as_str().unwrap().replace(VERSION, "${VERSION}");
        assert!(labels.contains(&format!("{name}=\"{value}\"")), "{name}: {labels}");
    }
    assert_eq!(labels.matches("org.opencontainers").count(), config["Labels"].as_object().unwrap().len());
    let copied: BTreeSet<String> =
        instructions("COPY").iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    let listed = run("tar", &["-tzf", IMAGE.layer.to_str().unwrap()]);
    let files: BTreeSet<String> =
        listed.lines().filter(|name| !name.ends_with('/')).map(|name| format!("/{name}")).collect();
    assert_eq!(copied, files);
}

#[test]
fn programs_that_could_not_start_in_it_are_refused() {
    let dir = directory();
    let this = std::env::current_exe().unwrap();
    let archive = dir.path().join("image.tar");
    let other = if architecture() == "amd64" { "arm64" } else { "amd64" };
    for (program, architecture, reason) in [
        (this.to_str().unwrap(), architecture(), "is not static: deploy/program.sh builds one that is"),
        (PROGRAM.as_str(), other, "not for "),
    ] {
        let refused =
            script("image.sh", &[program, architecture, archive.to_str().unwrap()]).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && !archive.exists() && error.contains(reason), "{error}");
    }
}
