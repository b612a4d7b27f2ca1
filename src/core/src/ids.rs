//! Identifiers as types, so that a name of one thing is never taken for the name of another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::keys;
use crate::syntax::{is_dns_label, is_dns_subdomain, is_label_name};
use crate::text::quoted;

/// Why a text is no identifier of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdError(String);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(value: String) -> Result<Self, IdError> {
                Self::new(&value)
            }
        }
    };
}

pub(crate) use id;

id! {
    /// Name of a tenant: a DNS label of at most 56 characters, so that `tenant-<id>` names a namespace.
    TenantId
}
id! {
    /// Unique id of a workload within its tenant: for Kubernetes the Pod's uid. 1 to 253 printable ASCII characters.
    WorkloadId
}

/// The owner of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// A tenant's own, for its own workloads.
    Tenant,
    /// The platform's, for the workloads of all tenants that it selects.
    Admin,
}

/// Name of a rule: a DNS subdomain (RFC 1123), as of any custom resource, and its owner. A tenant's rule and an admin
/// rule of the same name are two.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleName {
    scope: Scope,
    name: Arc<str>,
}

/// The name alone, as the API has it.
impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            Scope::Tenant => fmt::Debug::fmt(&self.name, f),
            Scope::Admin => write!(f, "admin:{:?}", self.name),
        }
    }
}

impl TenantId {
    /// Longest id, in bytes: 63 of a namespace's name less the prefix `tenant-`.
    pub const MAX: usize = 56;

    /// Checks and takes a tenant's id.
    pub fn new(value: &str) -> Result<Self, IdError> {
        const WHAT: &str = "tenant id";
        bounded(WHAT, value, Self::MAX)?;
        if !is_dns_label(value) {
            return Err(malformed(
                WHAT,
                value,
                "lower-case letters, digits and '-', beginning and ending with a letter or digit",
            ));
        }
        Ok(Self(value.into()))
    }

    /// The tenant that a namespace's labels name; `None` for an unowned namespace, also where the label is no id.
    pub fn of_namespace(labels: &BTreeMap<String, String>) -> Option<Self> {
        labels.get(keys::TENANT).and_then(|id| Self::new(id).ok())
    }
}

impl WorkloadId {
    /// Longest id, in bytes.
    pub const MAX: usize = 253;

    /// Checks and takes a workload's id.
    pub fn new(value: &str) -> Result<Self, IdError> {
        const WHAT: &str = "workload id";
        bounded(WHAT, value, Self::MAX)?;
        if !value.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(malformed(WHAT, value, "printable ASCII characters without spaces"));
        }
        Ok(Self(value.into()))
    }

    /// The id's own text, which whoever keeps it may share.
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }

    /// The id as a label value: itself where that is a legal one (a Pod's uid always is), else `h-` and 32 hex digits of
    /// its SHA-256.
    pub fn label_value(&self) -> String {
        label_value(&self.0, is_label_name(&self.0))
    }
}

impl RuleName {
    /// Longest name, in bytes (RFC 1123 subdomain).
    pub const MAX: usize = 253;

    /// Checks and takes the name of a tenant's rule.
    pub fn new(value: &str) -> Result<Self, IdError> {
        const WHAT: &str = "rule name";
        bounded(WHAT, value, Self::MAX)?;
        if !is_dns_subdomain(value) {
            return Err(malformed(WHAT, value, "a DNS subdomain: lower-case letters, digits, '-' and '.'"));
        }
        Ok(Self { scope: Scope::Tenant, name: value.into() })
    }

    /// Checks and takes the name of an admin rule.
    pub fn admin(value: &str) -> Result<Self, IdError> {
        Self::new(value).map(Self::into_admin)
    }

    /// The name alone, as the API has it.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The same name as an admin rule's.
    #[must_use]
    pub fn into_admin(self) -> Self {
        Self { scope: Scope::Admin, ..self }
    }

    /// Its owner.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Whether it is the platform's.
    pub fn is_admin(&self) -> bool {
        self.scope == Scope::Admin
    }

    /// The name as a label value: itself where it is short enough, else `h-` and 32 hex digits of its SHA-256.
    pub fn label_value(&self) -> String {
        label_value(&self.name, self.name.len() <= 63)
    }
}

fn label_value(text: &str, is_one: bool) -> String {
    if is_one { text.to_owned() } else { format!("h-{}", hex(&Sha256::digest(text), 32)) }
}

/// The first `digits` hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8], digits: usize) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .take(digits)
        .map(char::from)
        .collect()
}

/// Checks the length of a text in bytes. `what` is the kind of identifier.
pub(crate) fn bounded(what: &str, value: &str, max: usize) -> Result<(), IdError> {
    match value.len() {
        0 => Err(IdError(format!("{what} is empty"))),
        len if len > max => Err(IdError(format!("{what} has {len} bytes, at most {max} are allowed"))),
        _ => Ok(()),
    }
}

/// That a text holds what its kind doesn't allow; `rule` says what would be allowed.
pub(crate) fn malformed(what: &str, value: &str, rule: &str) -> IdError {
    IdError(format!("{what} {:?} is malformed: {rule}", quoted(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_ids() {
        for good in ["a", "tenant1", "a-b", &"x".repeat(56)] {
            assert!(TenantId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", "ä", &"x".repeat(57)] {
            assert!(TenantId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_admin_rule_is_not_the_tenants_of_that_name() {
        let (own, admin) = (RuleName::new("r").unwrap(), RuleName::admin("r").unwrap());
        assert_ne!(own, admin);
        assert_eq!((own.as_str(), own.label_value()), (admin.as_str(), admin.label_value()));
        assert_eq!((own.to_string(), admin.to_string()), ("r".to_owned(), "r".to_owned()));
        assert_eq!(format!("{own:?} {admin:?}"), "\"r\" admin:\"r\"");
        assert!(admin.is_admin() && !own.is_admin());
        assert!(RuleName::admin("admin:r").is_err());
    }

    #[test]
    fn label_values_are_legal_and_distinct() {
        let uid = WorkloadId::new("aac076f4-a565-4ed0-aac2-3da5698f5a78").unwrap();
        assert_eq!(uid.label_value(), uid.as_str());
        for odd in ["-x", "a/b", "a:b", "x_", &"y".repeat(64)] {
            let value = WorkloadId::new(odd).unwrap().label_value();
            assert!(value.starts_with("h-") && value.len() == 34, "{value}");
        }
        assert_ne!(
            WorkloadId::new("a/b").unwrap().label_value(),
            WorkloadId::new("a/c").unwrap().label_value()
        );
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(WorkloadId::new("").unwrap_err().to_string(), "workload id is empty");
        assert!(TenantId::new("A b").unwrap_err().to_string().contains("\"A b\" is malformed"));
        assert!(serde_json::from_str::<TenantId>("\"NO\"").is_err());
    }

    #[test]
    fn a_namespace_belongs_to_the_tenant_that_its_label_names() {
        let of =
            |key: &str, value: &str| TenantId::of_namespace(&[(key.to_owned(), value.to_owned())].into());
        assert_eq!(of(keys::TENANT, "blue"), TenantId::new("blue").ok());
        assert_eq!(of(keys::TENANT, "no tenant"), None);
        assert_eq!(of("other", "blue"), None);
    }
}
