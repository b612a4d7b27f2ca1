//! What service accounts may do, held against the roles that are shipped.
//!
//! Roles only ever add rights (`rbac.authorization.k8s.io/v1`), so a set of roles and bindings says all: who lacks something
//! and who has more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use super::{EACH, list, subject, text};
use crate::check::findings::{Finding, RIGHT_MISSING, RIGHT_UNNEEDED, Subject};

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Account {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl Account {
    /// The user that the API server takes it for.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// The groups that the API server takes it into.
    pub(crate) fn groups(&self) -> [String; 3] {
        let own = format!("system:serviceaccounts:{}", self.namespace);
        ["system:serviceaccounts".to_owned(), own, "system:authenticated".to_owned()]
    }

    /// What findings are about.
    pub(crate) fn subject(&self) -> Subject {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Subject { kind: "ServiceAccount".to_owned(), namespace, name }
    }

    /// Whether a binding names it, or all service accounts of its namespace. Groups that others are in too are the
    /// cluster's own business, and so are its own roles (`system:`) that it gives to all of a namespace, as OpenShift does.
    fn is_in(&self, binding: &Value) -> bool {
        let own_role = text(binding, "/roleRef/name").starts_with("system:");
        list(binding, "/subjects").iter().any(|who| match text(who, "/kind") {
            "ServiceAccount" => text(who, "/name") == self.name && text(who, "/namespace") == self.namespace,
            "User" => text(who, "/name") == self.user(),
            "Group" => !own_role && text(who, "/name") == self.groups()[1],
            _ => false,
        })
    }
}

/// One thing that somebody may do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    /// Where; empty is everywhere.
    pub(crate) namespace: String,
    /// API group; empty for the core group.
    pub(crate) group: String,
    /// Resource, with its subresource after a slash.
    pub(crate) resource: String,
    /// The only object; empty is any.
    pub(crate) name: String,
    /// What is done to it.
    pub(crate) verb: String,
}

impl Right {
    /// Resource and subresource; the latter is empty where there is none.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.resource.split_once('/').unwrap_or((&self.resource, ""))
    }

    /// Whether who has this one has the other too.
    fn covers(&self, other: &Self) -> bool {
        let resource = match (self.resource.as_str(), other.parts()) {
            ("*", _) => true,
            (all, (_, sub)) if all.starts_with("*/") => !sub.is_empty() && all[2..] == *sub,
            (own, _) => own == other.resource,
        };
        resource
            && (self.namespace.is_empty() || self.namespace == other.namespace)
            && (self.group == "*" || self.group == other.group)
            && (self.name.is_empty() || self.name == other.name)
            && (self.verb == "*" || self.verb == other.verb)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, Place(self))
    }
}

/// What a right is about, without the verb.
struct Place<'a>(&'a Right);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Right { namespace, group, resource, name, .. } = self.0;
        f.write_str(resource)?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !name.is_empty() {
            write!(f, "/{name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in {namespace}") }
    }
}

/// What a service account gets by a set of roles and bindings, with the binding that gives it.
fn granted<'a>(objects: &'a [Value], account: &Account) -> Vec<(&'a Value, Right)> {
    let mut all = Vec::new();
    for binding in objects.iter().filter(|o| matches!(text(o, "/kind"), "RoleBinding" | "ClusterRoleBinding"))
    {
        if !account.is_in(binding) {
            continue;
        }
        let (kind, name) = (text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
        let own = text(binding, "/metadata/namespace");
        let namespace = if kind == "Role" { own } else { "" };
        let is_role = |o: &&Value| {
            text(o, "/kind") == kind
                && text(o, "/metadata/name") == name
                && text(o, "/metadata/namespace") == namespace
        };
        if let Some(role) = objects.iter().find(is_role) {
            all.extend(rights(role, own).into_iter().map(|right| (binding, right)));
        }
    }
    all
}

/// Every single right of a role, bound in a namespace; an empty one is everywhere.
fn rights(role: &Value, namespace: &str) -> Vec<Right> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        rule.get(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut all = Vec::new();
    for rule in list(role, "/rules") {
        let mut names = texts(rule, "resourceNames");
        if names.is_empty() {
            names.push(String::new());
        }
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for name in &names {
                    all.extend(texts(rule, "verbs").into_iter().map(|verb| Right {
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

/// What a service account needs: everything that the shipped roles and bindings give it.
pub(crate) fn needed(shipped: &[Value], account: &Account) -> BTreeSet<Right> {
    granted(shipped, account).into_iter().map(|(_, right)| right).collect()
}

/// Which of these rights the roles and bindings of a cluster don't give.
pub(crate) fn lacking<'a>(
    objects: &[Value],
    account: &Account,
    needed: &'a BTreeSet<Right>,
) -> Vec<&'a Right> {
    let has = granted(objects, account);
    needed.iter().filter(|right| !has.iter().any(|(_, own)| own.covers(right))).collect()
}

/// Tells of rights that are missing, those about one thing together.
pub(crate) fn missing<'a>(account: &Account, lacking: impl IntoIterator<Item = &'a Right>) -> Vec<Finding> {
    together(lacking)
        .into_iter()
        .map(|told| Finding::new(&RIGHT_MISSING, &account.subject(), "", format!("may not {told}")))
        .collect()
}

/// A ClusterRole that a part binds itself, in tenants' namespaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Except<'a> {
    /// Its name.
    pub(crate) role: &'a str,
    /// The tenants' namespaces. `None`: they can't be read, and any may be one.
    pub(crate) namespaces: Option<&'a BTreeSet<String>>,
}

impl Except<'_> {
    fn is(&self, binding: &Value) -> bool {
        let namespace = text(binding, "/metadata/namespace");
        text(binding, "/kind") == "RoleBinding"
            && text(binding, "/roleRef/kind") == "ClusterRole"
            && text(binding, "/roleRef/name") == self.role
            && self.namespaces.is_none_or(|all| all.contains(namespace))
    }
}

/// What the roles and bindings of a cluster give a service account beyond what is shipped.
pub(crate) fn unneeded(
    objects: &[Value],
    account: &Account,
    allowed: &BTreeSet<Right>,
    except: Option<&Except<'_>>,
) -> Vec<Finding> {
    let mut more: BTreeMap<Subject, (String, Vec<Right>)> = BTreeMap::new();
    for (binding, right) in granted(objects, account) {
        let role = text(binding, "/roleRef/name");
        if except.is_some_and(|except| except.is(binding)) || allowed.iter().any(|own| own.covers(&right)) {
            continue;
        }
        let by = format!("{} {role}", text(binding, "/roleRef/kind"));
        more.entry(subject(binding)).or_insert((by, Vec::new())).1.push(right);
    }
    more.into_iter()
        .map(|(binding, (role, rights))| {
            let told = together(&rights);
            let first: Vec<&str> = told.iter().take(3).map(String::as_str).collect();
            let rest = told.len().saturating_sub(first.len());
            let rest = if rest == 0 { String::new() } else { format!(", and {rest} more") };
            let message = format!(
                "{role} lets {} {}{rest}, which it doesn't need",
                account.subject(),
                first.join("; ")
            );
            Finding::new(&RIGHT_UNNEEDED, &binding, "roleRef", message)
        })
        .collect()
}

/// Holds a role that somebody binds later against the one that is shipped.
pub(crate) fn role(wanted: &Value, found: &Value) -> Vec<Finding> {
    let has = rights(found, "");
    let needed = rights(wanted, "");
    let lacking = needed.iter().filter(|right| !has.iter().any(|own| own.covers(right)));
    let at = |message: String, check| Finding::new(check, &subject(found), "rules", message);
    let mut findings: Vec<Finding> = together(lacking)
        .into_iter()
        .map(|told| at(format!("doesn't allow to {told}"), &RIGHT_MISSING))
        .collect();
    let more = has.iter().filter(|right| !needed.iter().any(|own| own.covers(right)));
    findings.extend(
        together(more).into_iter().take(EACH).map(|told| at(format!("allows to {told}"), &RIGHT_UNNEEDED)),
    );
    findings
}

/// Rights in words, the verbs of one thing together.
fn together<'a>(rights: impl IntoIterator<Item = &'a Right>) -> Vec<String> {
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for right in rights {
        let list = verbs.entry(Place(right).to_string()).or_default();
        if !list.contains(&right.verb.as_str()) {
            list.push(&right.verb);
        }
    }
    verbs.into_iter().map(|(place, verbs)| format!("{} {place}", verbs.join(", "))).collect()
}
