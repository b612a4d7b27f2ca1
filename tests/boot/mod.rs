//! Cold boots: etcd, the API servers, their controllers, cert-manager and every process of Outrigger's are killed in the same moment
//! and start again at once, several times in a row. Nothing else is done, and everything works again.

mod issuers;
mod rounds;

use issuers::{cert_manager, self_signed};
use rounds::boots;

/// How often a long test boots.
const MANY: usize = 20;

/// How often the test that always runs does.
const FEW: usize = 1;

#[tokio::test(flavor = "multi_thread")]
async fn everything_killed_at_once_comes_back_without_a_hand() {
    boots(cert_manager().await, FEW).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn twenty_cold_boots_with_certificates_of_cert_manager_double_nothing() {
    boots(cert_manager().await, MANY).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn twenty_cold_boots_with_self_signed_certificates_double_nothing() {
    boots(self_signed().await, MANY).await;
}
