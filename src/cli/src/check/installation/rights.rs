//! The rights that service accounts need, by the roles that are shipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use outrigger_core::json::{list, text};
use serde_json::Value;

use crate::check::findings::{Finding, RIGHT_MISSING, Subject};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Account {
    /// The user that the API server takes it for.
    pub(super) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// The groups that the API server puts it into.
    pub(super) fn groups(&self) -> [String; 3] {
        let own = format!("system:serviceaccounts:{}", self.namespace);
        ["system:serviceaccounts".to_owned(), own, "system:authenticated".to_owned()]
    }

    /// What findings are about.
    pub(super) fn subject(&self) -> Subject {
        Subject::new("ServiceAccount", &self.namespace, &self.name)
    }

    fn is_in(&self, binding: &Value) -> bool {
        list(binding, "/subjects").iter().any(|subject| {
            text(subject, "/kind") == "ServiceAccount"
                && text(subject, "/name") == self.name
                && text(subject, "/namespace") == self.namespace
        })
    }
}

/// A single right: one verb on one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Right {
    /// The namespace; empty for all of them.
    pub(super) namespace: String,
    /// API group; empty for the core group.
    pub(super) group: String,
    /// Resource, with its subresource after a slash.
    pub(super) resource: String,
    /// The only object; empty for any.
    pub(super) name: String,
    pub(super) verb: String,
}

impl Right {
    /// Resource and subresource; the latter is empty where there is none.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.resource.split_once('/').unwrap_or((&self.resource, ""))
    }

    /// What the right is about, without the verb.
    fn object(&self) -> String {
        let Self { namespace, group, resource, name, .. } = self;
        let part = |prefix: &str, text: &str| {
            if text.is_empty() { String::new() } else { format!("{prefix}{text}") }
        };
        format!("{resource}{}{}{}", part(".", group), part("/", name), part(" in ", namespace))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.object())
    }
}

/// What roles and bindings give to a service account.
pub(super) fn needed(shipped: &[Value], account: &Account) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    for binding in shipped.iter().filter(|object| account.is_in(object)) {
        let own = text(binding, "/metadata/namespace");
        let kind = text(binding, "/roleRef/kind");
        let namespace = if kind == "Role" { own } else { "" };
        let is_role = |object: &&Value| {
            text(object, "/kind") == kind
                && text(object, "/metadata/name") == text(binding, "/roleRef/name")
                && text(object, "/metadata/namespace") == namespace
        };
        all.extend(shipped.iter().find(is_role).into_iter().flat_map(|role| rights(role, own)));
    }
    all
}

/// Every single right of a role, bound in a namespace; an empty one is everywhere.
pub(super) fn rights(role: &Value, namespace: &str) -> Vec<Right> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        list(rule, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut all = Vec::new();
    for rule in list(role, "/rules") {
        let mut names = texts(rule, "/resourceNames");
        if names.is_empty() {
            names.push(String::new());
        }
        for group in texts(rule, "/apiGroups") {
            for resource in texts(rule, "/resources") {
                for name in &names {
                    all.extend(texts(rule, "/verbs").into_iter().map(|verb| Right {
                        namespace: namespace.to_owned(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                        verb,
                    }));
                }
            }
        }
    }
    all
}

/// Reports the rights that are missing, one finding an object with all its verbs.
pub(super) fn missing<'a>(account: &Account, lacking: impl IntoIterator<Item = &'a Right>) -> Vec<Finding> {
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for right in lacking {
        verbs.entry(right.object()).or_default().push(&right.verb);
    }
    let message = |(object, verbs): (String, Vec<&str>)| format!("may not {} {object}", verbs.join(", "));
    let finding = |message: String| Finding::new(&RIGHT_MISSING, &account.subject(), "", message);
    verbs.into_iter().map(message).map(finding).collect()
}
