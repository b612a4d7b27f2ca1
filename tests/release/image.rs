//! The image: what is in the archive, and that nothing else is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
    let dir = directory();
    let archive = write(dir.path(), "image.tar");
    run("tar", &["-C", dir.path().to_str().unwrap(), "-xf", archive.to_str().unwrap()]);
    let read = |path: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(dir.path().join(path)).unwrap()).unwrap()
    };
    let blob = |descriptor: &Value| {
        format!("blobs/sha256/{}", descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap())
    };
    let index = read("index.json");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest = read(&blob(&index["manifests"][0]));
    let config = read(&blob(&manifest["config"]));
    let layer = dir.path().join(blob(&manifest["layers"][0]));
    Image { dir, layer, manifest, config }
});

fn write(dir: &Path, name: &str) -> PathBuf {
    let archive = dir.join(name);
    let args = [&**PROGRAM, architecture(), archive.to_str().unwrap()];
    let mut command = script("image.sh", &args);
    assert!(command.status().unwrap().success());
    archive
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
    let first = write(dir.path(), "first.tar");
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
    let docker: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("manifest.json")).unwrap()).unwrap();
    let path =
        |descriptor: &Value| descriptor["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
    let expected = json!([{"Config": path(&IMAGE.manifest["config"]), "RepoTags": [format!("outrigger:{VERSION}")],
        "Layers": [path(&IMAGE.manifest["layers"][0])]}]);
    assert_eq!(docker, expected);
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
