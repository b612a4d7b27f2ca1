//! The claim on a tenant's stream under which a companion was made.

use std::fmt;

/// A claim of a manager on a tenant's stream. It is written `UID/NUMBER`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamClaim {
    /// `metadata.uid` of the Tenant that counts the claims.
    pub tenant_uid: String,
    /// The number; later claims have higher ones.
    pub number: u64,
}

impl StreamClaim {
    /// Whether it was made after another claim on the stream of the same Tenant. Claims on two Tenants can't be compared.
    pub fn is_after(&self, other: &Self) -> bool {
        self.tenant_uid == other.tenant_uid && self.number > other.number
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn read(text: &str) -> Option<Self> {
        let (tenant_uid, number) = text.split_once('/')?;
        Some(Self { tenant_uid: tenant_uid.to_owned(), number: number.parse().ok()? })
    }
}

impl fmt::Display for StreamClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant_uid, self.number)
    }
}
