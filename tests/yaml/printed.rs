//! What Outrigger prints as YAML is read back by kubectl, by a reader of YAML 1.2, and here.

use std::path::PathBuf;
use std::process::Command;

use outrigger_cases::yaml::PIECES;
use outrigger_core::yaml;
use outrigger_tests::outrigger::binary;
use outrigger_tests::root;
use outrigger_tests::shipped::output;
use serde_json::{Map, Value, json};
use walkdir::WalkDir;

use super::judge::{canonical, judge, own};
use super::random::Random;

/// Texts that some reader takes for something else.
pub(crate) const AMBIGUOUS: &str = "on|On|ON|off|Off|OFF|yes|Yes|YES|no|No|NO|y|Y|n|N|true|True|TRUE|false|False|FALSE|~|null|Null|NULL||0|-0|7|+5|-5|0644|0o644|0O17|0x1F|0X1f|\
    0b101|0B1|-0b1|0b-101|1_000|0x_F|1:30|12:30:45|-1:30|1:30.5|1.5|1.|.5|-.5|+.5|.5_0|1e3|1E3|1e+3|1e999|.1e999|0x1FFFFFFFFFFFFFFFFF|9223372036854775808|\
    18446744073709551616|.inf|.Inf|.INF|-.inf|+.INF|.nan|.NaN|.NAN|2026-01-01|2026-1-1|2026-01-01T00:00:00Z|2026-01-01 00:00:00|=|<<|---|...|-|?|:|- a|? a|: a|a: b|\
    a:|a #b|#a|&a|*a|!a|!!int 7|>|\\||@a|`a|%a|{a|[a|]|}|,|'a'|\"a\"| a|a |\ta|a\t";

fn text(random: &mut Random) -> String {
    (0..random.below(6)).map(|_| random.one_of(PIECES)).collect()
}

fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth < 4 { 5 } else { 2 }) {
        0 | 1 => text(random).into(),
        2 => (0..random.below(4)).map(|_| value(random, depth + 1)).collect(),
        3 => (0..random.below(4))
            .map(|_| (text(random), value(random, depth + 1)))
            .collect::<Map<_, _>>()
            .into(),
        _ => {
            let list = json!([null, true, false, 0, -7, 1.5, 1e21, 1e-7, i64::MIN, i64::MAX, 1e300]);
            list[random.below(11)].clone()
        }
    }
}

fn values() -> Vec<Value> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let single = AMBIGUOUS.split('|').map(|text| json!({"a": text, "b": [text], "c": {text: {text: text}}}));
    let lines = AMBIGUOUS
        .split('|')
        .map(|text| json!([format!("{text}\n{text}"), format!("{text}\n"), format!("\n{text}")]));
    let by_chance = (0..5_000).map(|_| json!({"a": value(&mut random, 0)}));
    single.chain(lines).chain(by_chance).collect()
}

#[test]
fn printed_values_are_read_back() {
    let values = values();
    let texts: Vec<String> = values.iter().map(yaml::to_string).collect();
    for ((value, text), reading) in values.iter().zip(&texts).zip(judge(&texts)) {
        let value = vec![canonical(value)];
        assert_eq!(reading.documents().as_ref(), Some(&value), "kubectl: {text:?}");
        assert_eq!(own(text.as_bytes()).as_ref(), Ok(&value), "here: {text:?}");
        let other: Value = serde_yaml::from_str(text).unwrap();
        assert_eq!(canonical(&other), value[0], "YAML 1.2: {text:?}");
    }
}

/// The printer that doesn't know YAML 1.1 is found.
#[test]
fn a_printer_for_yaml_1_2_prints_other_values() {
    let values = values();
    let texts: Vec<String> = values.iter().map(|value| serde_yaml::to_string(value).unwrap()).collect();
    let readings = judge(&texts).into_iter().map(|reading| reading.documents());
    let wrong = values.iter().zip(readings).filter(|(value, read)| *read != Some(vec![canonical(value)]));
    assert!(wrong.count() > 50);
}

/// All files of YAML in directories; templates of charts are none.
fn files(directories: &[&str]) -> Vec<PathBuf> {
    let all = directories.iter().flat_map(|directory| WalkDir::new(root().join(directory)));
    let paths = all.map(|entry| entry.unwrap().into_path());
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    paths.filter(|path| is_yaml(path) && !path.iter().any(|part| part == "templates")).collect()
}

#[test]
fn shipped_files_are_read_by_kubectl_as_here() {
    let found = files(&["deploy", "webhooks", "docs"]);
    let texts: Vec<Vec<u8>> = found.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for ((file, text), reading) in found.iter().zip(&texts).zip(judge(&texts)) {
        assert_eq!(Ok(own(text).unwrap()), reading.documents().ok_or("refused"), "{}", file.display());
    }
    assert!(found.len() > 40, "{found:?}");
}

#[test]
fn definitions_are_read_back() {
    let mut command = Command::new(binary().unwrap());
    command.arg("crd");
    let readings = judge(&[output(command).unwrap()]);
    let expected: Vec<Value> =
        outrigger_api::crds().iter().map(|crd| canonical(&serde_json::to_value(crd).unwrap())).collect();
    assert_eq!(readings[0].documents(), Some(expected));
}
