//! What of objects and texts stays out of a bundle.
//!
//! An object is redacted by its structure as soon as it has been read: what stands where values of others stand. Patterns of credentials, and
//! values that were redacted before, are replaced in all texts at the end, when all of them are known.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::json::text;
use outrigger_core::keys;
use regex::{Captures, Regex};
use serde_json::Value;

use crate::document::changes_a_terminal;

/// What stands for a redacted value. It is valid in URLs, labels and YAML.
pub(super) const MARK: &str = "REDACTED";

/// What a bundle leaves out and redacts, and what it says instead. docs/support.md has the same table.
pub(super) const HANDLED: [(&str, &str); 10] = [
    ("Secrets", "never requested; what refers to them says their names"),
    (
        "`env` values",
        "redacted, with `--include-values` only those whose name says that they are credentials; `OUTRIGGER_*` of Outrigger's own Pods stay",
    ),
    (
        "`args`, `command`, free-form parameters of rules' templates, companions and claims",
        "redacted, unless `--include-values`; Outrigger's own stay",
    ),
    (
        "annotations with keys that neither Outrigger nor Kubernetes defines, and the workload in a companion's",
        "redacted, unless `--include-values`",
    ),
    (
        "`kubectl.kubernetes.io/last-applied-configuration`, `managedFields`, schemas of CRDs",
        "redacted or left out",
    ),
    (
        "bearer tokens, JWTs, private keys in PEM, users and passwords in URLs, and values after words such as `password=`",
        "redacted in every text; CA bundles stay",
    ),
    (
        "redacted values of at least 8 bytes in logs, Events, conditions and findings",
        "redacted there too, unless an object has that name",
    ),
    (
        "ConfigMaps, Pods and logs of others; Nodes' other labels, taints and statuses; tenants' workloads",
        "never kept",
    ),
    (
        "`/debug`",
        "not requested, because it answers only on its own machine; `kubectl port-forward` reads it: docs/operation.md",
    ),
    (
        "texts of more than 64 KiB, objects of more than 256 KiB, and what exceeds a limit of this command",
        "left out; the manifest says where",
    ),
];

/// Bytes of the longest text in an object that stays: CA bundles and messages are shorter.
pub(super) const TEXT: usize = 64 << 10;

/// Bytes of the shortest redacted value that is looked for elsewhere. Shorter ones are words such as `true` and `8080`.
const LEARNED: usize = 8;

/// Most of these values, so that the search has bounded memory.
const MOST_LEARNED: usize = 10_000;

/// Fields with values that only their author can tell the meaning of.
const FREE: [&str; 6] = ["volumeAttributes", "options", "parameters", "data", "binaryData", "stringData"];

/// Ends of names of credentials, in lower case and without separators.
const CREDENTIALS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "credential",
    "credentials",
    "authorization",
];

/// Domains of annotations that aren't tenants' text.
const KNOWN_DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "cert-manager.io", "helm.sh"];

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Redacts objects, and remembers what it has redacted.
pub(super) struct Redactor {
    /// Values that are confidential only perhaps stay.
    include: bool,
    /// The object at hand is Outrigger's own.
    own: bool,
    /// How many texts of the object at hand were too long.
    long: usize,
    learned: BTreeSet<String>,
    /// How many values had no room among these.
    pub(super) unlearned: usize,
}

impl Redactor {
    pub(super) fn new(include: bool) -> Self {
        Self { include, own: false, long: 0, learned: BTreeSet::new(), unlearned: 0 }
    }

    /// Redacts an object; `own`: it is part of the installation. Returns how many texts were too long to stay.
    pub(super) fn object(&mut self, object: &mut Value, own: bool) -> usize {
        (self.own, self.long) = (own, 0);
        self.walk("", object);
        self.long
    }

    fn walk(&mut self, key: &str, value: &mut Value) {
        match (key, value) {
            ("annotations", Value::Object(map)) => {
                for (key, value) in map {
                    if !self.keeps_annotation(key) {
                        self.take(value);
                    }
                }
            }
            ("env" | "httpHeaders", Value::Array(list)) => {
                list.iter_mut().for_each(|variable| self.variable(variable));
            }
            ("args" | "command", Value::Array(list)) => self.words(list),
            // Of these forms Kubernetes has nothing, so only their author knows what it is.
            ("annotations" | "env" | "httpHeaders" | "args" | "command", value) => self.take(value),
            (key, value) if FREE.contains(&key) && !self.own && !self.include => self.take(value),
            (_, Value::Object(map)) => {
                map.remove("managedFields");
                map.iter_mut().for_each(|(key, value)| self.walk(key, value));
            }
            (key, Value::Array(list)) => list.iter_mut().for_each(|value| self.walk(key, value)),
            (key, value) if value.is_string() && is_credential(key) => self.take(value),
            (_, Value::String(text)) if text.len() > TEXT => {
                self.long += 1;
                *text = format!("{MARK}: {} bytes", text.len());
            }
            _ => {}
        }
    }

    fn keeps_annotation(&self, key: &str) -> bool {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let is_below =
            |known: &str| domain.strip_suffix(known).is_some_and(|r| r.is_empty() || r.ends_with('.'));
        let is_known = keys::is_own(key) || KNOWN_DOMAINS.into_iter().any(is_below);
        key != LAST_APPLIED && !is_credential(key) && (self.include || is_known && key != keys::WORKLOAD)
    }

    /// A variable of the environment, or a header.
    fn variable(&mut self, variable: &mut Value) {
        let name = text(variable, "/name").to_owned();
        let is_setting = self.own && name.starts_with("OUTRIGGER_");
        let stays = !is_credential(&name) && (self.include || is_setting);
        let Value::Object(fields) = variable else { return self.take(variable) };
        for (key, value) in fields {
            match key.as_str() {
                "name" if value.is_string() => {}
                "value" if stays => {}
                "valueFrom" => self.walk(key, value),
                _ => self.take(value),
            }
        }
    }

    /// The words of a command line.
    fn words(&mut self, words: &mut [Value]) {
        let mut is_value = false;
        for word in words {
            let flag = text(word, "").to_owned();
            let name = flag.split_once('=').map_or(flag.as_str(), |(name, _)| name);
            let is_open = self.own || self.include;
            if is_value || !is_open || !word.is_string() || name.len() < flag.len() && is_credential(name) {
                self.take(word);
                // A flag without its value is no secret, and says what the installation does.
                if self.own && name.len() < flag.len() && name.starts_with('-') {
                    *word = format!("{name}={MARK}").into();
                }
            }
            is_value = flag.starts_with('-') && name.len() == flag.len() && is_credential(name);
        }
    }

    /// Redacts every text of a value.
    fn take(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => {
                let of_flag = text.split_once('=').filter(|(flag, _)| flag.starts_with('-'));
                for secret in [text.as_str()].into_iter().chain(of_flag.map(|(_, value)| value)) {
                    if secret.len() < LEARNED || self.learned.contains(secret) {
                        continue;
                    }
                    if self.learned.len() < MOST_LEARNED {
                        self.learned.insert(secret.to_owned());
                    } else {
                        self.unlearned += 1;
                    }
                }
                MARK.clone_into(text);
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.take(value)),
            Value::Object(map) => map.values_mut().for_each(|value| self.take(value)),
            Value::Number(_) => *value = MARK.into(),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// What redacts texts, when all objects are known. `names` are no secrets, whatever else has the same text.
    ///
    /// # Errors
    /// A pattern is wrong.
    pub(super) fn finish(mut self, names: &BTreeSet<String>) -> anyhow::Result<Texts> {
        self.learned.retain(|value| !names.contains(value));
        let learned = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&self.learned)?;
        let compile = |(pattern, by): &(&str, &'static str)| Regex::new(pattern).map(|regex| (regex, *by));
        let patterns: Result<_, regex::Error> = PATTERNS.iter().map(compile).collect();
        Ok(Texts {
            learned,
            marks: vec![MARK; self.learned.len()],
            patterns: patterns?,
            encoded: Regex::new(ENCODED)?,
        })
    }
}

/// Whether a name, of a field, a variable or a flag, says that its value is a credential.
fn is_credential(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    CREDENTIALS.iter().any(|end| plain.ends_with(end))
}

/// Credentials that are known by their form, and what stands for each.
const PATTERNS: [(&str, &str); 7] = [
    (r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)", MARK),
    // The beginning has been cut off.
    (r"(?s)\A.*-----END [A-Z0-9 ]*PRIVATE KEY-----", MARK),
    (r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?", MARK),
    (r"(?i)\b(bearer|basic)\s+(?:[^\s\x22']{16,}|[^\s\x22']*[0-9][^\s\x22']*)", "$1 REDACTED"),
    (r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#\x22'<>\\]*@", "${1}REDACTED@"),
    (
        r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|nvapi-[A-Za-z0-9_-]{20,})",
        MARK,
    ),
    (
        r#"(?i)((?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|credentials?|authorization)(?:\\*["'])?\s*[:=]\s*)(?:\\+"[^"]*"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&"'}]+)"#,
        "${1}REDACTED",
    ),
];

/// PEM in base64, as CA bundles are, and perhaps more than that.
const ENCODED: &str = "LS0tLS1CRUdJTi[A-Za-z0-9+/]*=*";

/// Redacts texts.
pub(super) struct Texts {
    learned: AhoCorasick,
    marks: Vec<&'static str>,
    patterns: Vec<(Regex, &'static str)>,
    encoded: Regex,
}

impl Texts {
    /// A text without credentials and without characters that change a terminal. `free`: it may repeat values of objects.
    pub(super) fn text(&self, text: &str, free: bool) -> String {
        let mut text = if free { self.learned.replace_all(text, &self.marks) } else { text.to_owned() };
        for (pattern, by) in &self.patterns {
            text = pattern.replace_all(&text, *by).into_owned();
        }
        let public = |found: &Captures<'_>| {
            let decoded = STANDARD.decode(&found[0]).unwrap_or_default();
            let is_public = !decoded.is_empty() && !decoded.windows(11).any(|part| part == b"PRIVATE KEY");
            if is_public { found[0].to_owned() } else { MARK.to_owned() }
        };
        text = self.encoded.replace_all(&text, public).into_owned();
        let is_bad = |c: char| changes_a_terminal(c) && c != '\n' && c != '\t';
        if text.contains(is_bad) {
            let one = |c: char| if is_bad(c) { c.escape_default().to_string() } else { c.to_string() };
            text = text.chars().map(one).collect();
        }
        text
    }

    /// The same for all texts of a value. Messages, wherever they are, may repeat values.
    pub(super) fn value(&self, value: Value, free: bool) -> Value {
        match value {
            Value::String(text) => self.text(&text, free).into(),
            Value::Array(list) => list.into_iter().map(|value| self.value(value, free)).collect(),
            Value::Object(map) => {
                let field = |(key, value): (String, Value)| {
                    let free = free || matches!(key.as_str(), "message" | "note" | "notes");
                    (self.text(&key, false), self.value(value, free))
                };
                Value::Object(map.into_iter().map(field).collect())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
