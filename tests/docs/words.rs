//! Commands that aren't run: whether there is such a program, subcommand, flag, target and file.

use std::path::Path;

use crate::docs::environment::Place;

/// What is wrong with the commands of a script.
pub(crate) fn check_script(place: &Place, script: &str) -> Vec<String> {
    let syntax = place.command("bash").args(["-n", "-c", script]).output().unwrap();
    if !syntax.status.success() {
        return vec![String::from_utf8_lossy(&syntax.stderr).into_owned()];
    }
    simple(script).iter().filter_map(|words| check(place, words).err()).collect()
}

/// The simple commands of a script: their words, without assignments and redirections. Good enough for what documentation
/// has: operators stand between spaces.
pub(crate) fn simple(script: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let mut command: Vec<String> = Vec::new();
        let mut redirected = false;
        for word in shlex::split(line).unwrap_or_default() {
            if ["|", "||", "&", "&&", ";"].contains(&word.as_str()) {
                all.push(std::mem::take(&mut command));
            } else if let Some(to) = redirection(&word) {
                redirected = to.is_empty();
            } else if std::mem::take(&mut redirected) || (command.is_empty() && word.contains('=')) {
                // A file, or a variable.
            } else {
                command.push(word);
            }
        }
        all.push(command);
    }
    all.retain(|command| !command.is_empty());
    all
}

/// What a redirection leads to, where the word says so: `2>&1`, `>file`, `>`.
fn redirection(word: &str) -> Option<&str> {
    let to = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(['>', '<'])?;
    Some(to.trim_start_matches(['>', '<', '&']))
}

/// Whether a program would understand its arguments, as far as that can be determined without running them.
pub(crate) fn check(place: &Place, words: &[String]) -> Result<(), String> {
    let said = words.join(" ");
    let Some((program, args)) = words.split_first() else { return Ok(()) };
    match program.as_str() {
        "kubectl" | "helm" | "outrigger" | "grpcurl" | "promtool" => understands(place, program, args)?,
        "make" => {
            let makefile = std::fs::read_to_string(place.tree.join("Makefile")).unwrap();
            for target in args.iter().filter(|arg| !arg.contains('=') && !arg.starts_with('-')) {
                let found = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
                found.then_some(()).ok_or_else(|| format!("{said}: there is no target {target}"))?;
            }
        }
        "cargo" => {
            let named = |flag: &str, after: &str| *flag == *after;
            for pair in args
                .windows(2)
                .filter(|pair| ["--bin", "--test", "--bench", "-p"].iter().any(|f| named(f, &pair[0])))
            {
                let name = format!("name = \"{}\"", pair[1]);
                let manifests = ["tests/Cargo.toml", "src/cli/Cargo.toml", "src/core/Cargo.toml"];
                let found = manifests
                    .iter()
                    .any(|file| std::fs::read_to_string(place.tree.join(file)).unwrap().contains(&name));
                found.then_some(()).ok_or_else(|| format!("{said}: there is no {}", pair[1]))?;
            }
        }
        _ => {}
    }
    for word in args {
        let path = word.rsplit('=').next().unwrap_or_default();
        let is_ours =
            path.contains('/') && place.tree.join(path.split('/').next().unwrap_or_default()).is_dir();
        if is_ours && Path::new(path).extension().is_some() && !place.tree.join(path).exists() {
            return Err(format!("{said}: there is no file {path}"));
        }
    }
    Ok(())
}

/// Asks for help with these arguments: a program says first if it doesn't know one of them.
fn understands(place: &Place, program: &str, args: &[String]) -> Result<(), String> {
    let own = args.iter().take_while(|arg| *arg != "--");
    let mut command = place.command(program);
    let output = command.args(own).arg("--help").output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

#[test]
fn commands_are_taken_apart() {
    let script =
        "A=1 kubectl get 'a b' | grep x &\nmake a \\\n  B=1 && docker push c # d\nhelm x > f 2>&1\n\n";
    let expected: [&[&str]; 5] = [
        &["kubectl", "get", "a b"],
        &["grep", "x"],
        &["make", "a", "B=1"],
        &["docker", "push", "c"],
        &["helm", "x"],
    ];
    assert_eq!(simple(script), expected);
}

#[test]
fn mistakes_are_found() {
    let place = Place::without_cluster("mistakes");
    for right in [
        "kubectl logs -n x POD --previous",
        "outrigger check -o json",
        "make docker-image IMAGE=x",
        "cargo test -p outrigger-tests --test suites e2e::escape",
        "helm install x deploy/helm/outrigger -f deploy/helm/values/tenant.yaml",
        "kubectl port-forward deploy/outrigger-manager 8080 &",
    ] {
        assert_eq!(check_script(&place, right), Vec::<String>::new());
    }
    for wrong in [
        "kubectl logs --bogus",
        "kubectl bogus x",
        "outrigger check --bogus",
        "outrigger bogus",
        "make bogus",
        "cargo test --test bogus",
        "helm install --bogus x",
        "kubectl apply -f deploy/bogus.yaml",
        "kubectl get 'x",
        "if true; then",
    ] {
        assert_ne!(check_script(&place, wrong), Vec::<String>::new(), "{wrong}");
    }
}
