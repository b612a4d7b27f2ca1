//! OpenMetrics text, read as strictly as its specification has it: what a lenient scraper takes, another one refuses.
//!
//! `promtool check metrics` reads the older text format: it refuses valid counters (it looks for the HELP of `x_total`), and
//! takes a text without `# EOF`, a unit that isn't in the name, and buckets that don't make their count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A family of samples.
#[derive(Debug, Clone, Default)]
pub struct Family {
    /// Its name, without suffix.
    pub name: String,
    /// `counter`, `gauge`, `histogram`, `info`.
    pub kind: String,
    /// `seconds`, or empty.
    pub unit: String,
    /// In words.
    pub help: String,
    /// What was measured.
    pub samples: Vec<Sample>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, with the suffix that its family's kind asks for.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Family {
    /// The sum of the samples with this suffix and these labels.
    pub fn sum(&self, suffix: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("{}{suffix}", self.name);
        let fits = |s: &&Sample| {
            s.name == name && labels.iter().all(|(k, v)| s.labels.get(*k).is_some_and(|value| value == v))
        };
        self.samples.iter().filter(fits).map(|s| s.value).sum()
    }
}

/// Reads all of it.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it doesn't end with # EOF")?;
    let mut families: Vec<Family> = Vec::new();
    for (number, line) in body.lines().enumerate() {
        read(line, &mut families).map_err(|error| format!("line {}: {error}: {line}", number + 1))?;
    }
    let mut all = BTreeMap::new();
    for family in families {
        check(&family).map_err(|error| format!("{}: {error}", family.name))?;
        let name = family.name.clone();
        if all.insert(name.clone(), family).is_some() {
            return Err(format!("{name} is there twice, or its samples aren't together"));
        }
    }
    Ok(all)
}

fn read(line: &str, families: &mut Vec<Family>) -> Result<(), String> {
    let Some(descriptor) = line.strip_prefix("# ") else {
        let family = families.last_mut().ok_or("a sample without family")?;
        family.samples.push(sample(line)?);
        return Ok(());
    };
    let mut words = descriptor.splitn(3, ' ');
    let (what, name, text) = (words.next(), words.next(), words.next());
    let (Some(what), Some(name), Some(text)) = (what, name, text) else { return Err("no descriptor".into()) };
    if !is_name(name) {
        return Err(format!("{name} is no name"));
    }
    if families.last().is_none_or(|family| family.name != name) {
        families.push(Family { name: name.to_owned(), ..Family::default() });
    }
    let family = families.last_mut().ok_or("none")?;
    if !family.samples.is_empty() {
        return Err("a descriptor after its samples".into());
    }
    let field = match what {
        "HELP" => &mut family.help,
        "TYPE" => &mut family.kind,
        "UNIT" => &mut family.unit,
        other => return Err(format!("{other} is no descriptor")),
    };
    if !field.is_empty() {
        return Err("a descriptor twice".into());
    }
    text.clone_into(field);
    Ok(())
}

fn is_name(name: &str) -> bool {
    static NAME: LazyLock<Regex> = LazyLock::new(|| expression("^[a-zA-Z_][a-zA-Z0-9_:]*$"));
    NAME.is_match(name)
}

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("an expression")
}

/// Reads a line without timestamp and exemplar, which nobody here makes.
fn sample(line: &str) -> Result<Sample, String> {
    const LABEL: &str = r#"([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[n"\\])*)""#;
    static LABELS: LazyLock<Regex> = LazyLock::new(|| expression(LABEL));
    static LINE: LazyLock<Regex> = LazyLock::new(|| {
        let label = LABEL.replacen('(', "(?:", 1).replacen("((?:", "(?:(?:", 1);
        expression(&format!("^([a-zA-Z_][a-zA-Z0-9_:]*)(?:\\{{((?:{label}(?:,{label})*)?)\\}})? ([^ ]+)$"))
    });
    static ESCAPE: LazyLock<Regex> = LazyLock::new(|| expression(r"\\(.)"));
    let parts = LINE.captures(line).ok_or("no sample")?;
    let mut labels = BTreeMap::new();
    for label in LABELS.captures_iter(parts.get(2).map_or("", |all| all.as_str())) {
        let value = ESCAPE.replace_all(&label[2], |c: &Captures<'_>| match &c[1] {
            "n" => "\n".to_owned(),
            other => other.to_owned(),
        });
        if labels.insert(label[1].to_owned(), value.into_owned()).is_some() {
            return Err(format!("{} is there twice", &label[1]));
        }
    }
    let value = parts[3].parse().map_err(|_| format!("{:?} is no number", &parts[3]))?;
    Ok(Sample { name: parts[1].to_owned(), labels, value })
}

fn check(family: &Family) -> Result<(), String> {
    let Family { name, kind, unit, samples, .. } = family;
    if !unit.is_empty() && !name.ends_with(&format!("_{unit}")) {
        return Err(format!("its unit {unit} isn't in its name"));
    }
    let suffixes: &[&str] = match kind.as_str() {
        "counter" => &["_total"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_count", "_sum"],
        "info" => &["_info"],
        other => return Err(format!("{other:?} is no type")),
    };
    let mut series = BTreeSet::new();
    for sample in samples {
        let suffix =
            sample.name.strip_prefix(name.as_str()).ok_or(format!("{} is of another", sample.name))?;
        if !suffixes.contains(&suffix) {
            return Err(format!("{}: a {kind} has no such sample", sample.name));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(format!("{sample:?} is there twice"));
        }
        let counts = kind == "counter" || matches!(suffix, "_bucket" | "_count" | "_sum");
        if counts && (sample.value.is_nan() || sample.value < 0.0) {
            return Err(format!("{sample:?} counts less than nothing"));
        }
        if kind == "info" && (sample.value - 1.0).abs() > f64::EPSILON {
            return Err(format!("{sample:?} isn't 1"));
        }
    }
    if kind == "histogram" { buckets(family) } else { Ok(()) }
}

/// Buckets hold all that those before them hold, and the last holds everything.
fn buckets(family: &Family) -> Result<(), String> {
    let mut all: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in family.samples.iter().filter(|s| s.name.ends_with("_bucket")) {
        let mut labels = sample.labels.clone();
        let le = labels.remove("le").ok_or("a bucket without le")?;
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| format!("le={le}"))? };
        all.entry(labels).or_default().push((le, sample.value));
    }
    for (labels, buckets) in all {
        let rises = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let pairs: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let count = family.sum("_count", &pairs);
        let last = buckets.last().copied().unwrap_or_default();
        if !rises || last.0.is_finite() || (last.1 - count).abs() > f64::EPSILON {
            return Err(format!("its buckets {buckets:?} don't make {count}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
        a_seconds_sum{x=\"1\"} 0.5\na_seconds_count{x=\"1\"} 2\na_seconds_bucket{le=\"1.0\",x=\"1\"} 1\n\
        a_seconds_bucket{le=\"+Inf\",x=\"1\"} 2\n# HELP b B.\n# TYPE b counter\nb_total{l=\"a\\\"\\n\"} 7\n# EOF\n";

    #[test]
    fn what_is_right_is_read_and_what_is_wrong_is_refused() {
        let families = parse(GOOD).unwrap();
        assert!((families["a_seconds"].sum("_count", &[("x", "1")]) - 2.0).abs() < 1e-9);
        assert_eq!(families["b"].samples[0].labels["l"], "a\"\n");
        for (from, to) in [
            ("# EOF\n", ""),
            ("le=\"+Inf\",x=\"1\"} 2", "le=\"+Inf\",x=\"1\"} 3"),
            ("le=\"1.0\",x=\"1\"} 1", "le=\"1.0\",x=\"1\"} 3"),
            ("le=\"+Inf\"", "le=\"2.0\""),
            ("b_total{", "b{"),
            ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
            ("# TYPE b counter", "# TYPE b sum"),
            ("# HELP b B.", "# HELP a_seconds B."),
            ("} 7", "} -7"),
            ("} 7", "} seven"),
            ("} 7\n", "} 7\nb_total{l=\"a\\\"\\n\"} 7\n"),
            ("l=\"a", "l=\"a\\x"),
            ("{x=\"1\"} 0.5", "{x=\"1\",x=\"1\"} 0.5"),
        ] {
            assert!(GOOD.contains(from) && parse(&GOOD.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
