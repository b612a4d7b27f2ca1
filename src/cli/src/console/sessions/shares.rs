//! Whose session ends when there is no place for all: groups of users have equal shares.
//!
//! Whoever may create service accounts in a namespace has as many user names as it likes. So shares are those of groups: what one group
//! takes is never a reason to refuse another one that has less.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_core::map::HashMap;

use super::Session;

/// The group of a user. Names that begin with `system:` are given by Kubernetes, and their last part is chosen by whoever creates the account:
/// all service accounts of a namespace are one group, and so are all bootstrap tokens. Any other user is a group of its own.
pub(super) fn group(user: &str) -> &str {
    match user.rsplit_once(':') {
        Some((group, _)) if user.starts_with("system:") => group,
        _ => user,
    }
}

/// The session that ends next, and its group: of the group with the most, the session with the most, and of several the one that was idle
/// longest. `size`: what a session takes. Of several groups with as much it is the one of the `newcomer`, else the one with the session that was
/// idle longest. `None`: there are no sessions.
pub(super) fn gives_way(
    all: &HashMap<[u8; 32], Arc<Session>>,
    newcomer: &str,
    size: impl Fn(&Session) -> usize,
) -> Option<(String, [u8; 32])> {
    let mut groups = BTreeMap::new();
    for (cookie, session) in all {
        let size = size(session);
        let (sum, of_group) = groups.entry(session.group()).or_insert((0_usize, Vec::new()));
        *sum += size;
        of_group.push((size, Reverse(session.used()), *cookie));
    }
    let largest = groups.into_iter().max_by_key(|(group, (sum, own))| {
        (*sum, *group == newcomer, own.iter().map(|(_, used, _)| *used).max())
    });
    let (group, (_, own)) = largest?;
    let (.., cookie) = own.into_iter().max()?;
    Some((group.to_owned(), cookie))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_accounts_of_a_namespace_are_one_group() {
        for (user, expected) in [
            ("system:serviceaccount:shop:a", "system:serviceaccount:shop"),
            ("system:serviceaccount:shop:b", "system:serviceaccount:shop"),
            ("system:serviceaccount:shop-2:a", "system:serviceaccount:shop-2"),
            ("system:bootstrap:07401b", "system:bootstrap"),
            ("system:node:host-a", "system:node"),
            ("system:admin", "system"),
            ("jane", "jane"),
            ("oidc:jane", "oidc:jane"),
            ("", ""),
        ] {
            assert_eq!(group(user), expected);
        }
    }
}
