//! The clusters that commands read.

use kube::Client;
use outrigger_runtime::cluster::ClusterArgs;

use super::view::ViewArgs;
use crate::files::InputError;

/// The clusters that are read.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) cluster: Client,
    /// The tenant's cluster and its name in messages, where it is another one and named.
    pub(super) tenant: Option<(Client, String)>,
}

impl Clients {
    /// The cluster of this client alone.
    pub(crate) fn of(cluster: Client) -> Self {
        Self { cluster, tenant: None }
    }

    /// Those that the arguments name.
    pub(crate) async fn new(args: &ViewArgs) -> Result<Self, InputError> {
        let cluster = client(&args.cluster, "--kubeconfig").await?;
        let named = args.tenant_kubeconfig.is_some() || args.tenant_context.is_some();
        let of =
            ClusterArgs { kubeconfig: args.tenant_kubeconfig.clone(), context: args.tenant_context.clone() };
        let tenant = if named {
            Some((client(&of, "--tenant-kubeconfig").await?, tenants_cluster(&of)))
        } else {
            None
        };
        Ok(Self { cluster, tenant })
    }
}

/// The tenant's cluster as messages name it: two clusters are read, and it has to be seen which one is away.
fn tenants_cluster(named: &ClusterArgs) -> String {
    let file = named.kubeconfig.as_ref().map(|file| file.display().to_string());
    match (named.context.as_deref(), file) {
        (Some(context), Some(file)) => format!("the tenant's cluster (context {context} of {file})"),
        (Some(context), None) => format!("the tenant's cluster (context {context})"),
        (None, Some(file)) => format!("the tenant's cluster ({file})"),
        (None, None) => "the tenant's cluster".to_owned(),
    }
}

/// A client, or why there is none; `flag` is to blame.
pub(crate) async fn client(cluster: &ClusterArgs, flag: &str) -> Result<Client, InputError> {
    cluster.client().await.map_err(|error| InputError::new(flag, format_args!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenants_cluster_is_named_as_it_was_given() {
        let of = |kubeconfig: Option<&str>, context: Option<&str>| {
            let kubeconfig = kubeconfig.map(Into::into);
            tenants_cluster(&ClusterArgs { kubeconfig, context: context.map(str::to_owned) })
        };
        assert_eq!(of(Some("t.yaml"), None), "the tenant's cluster (t.yaml)");
        assert_eq!(of(None, Some("blue")), "the tenant's cluster (context blue)");
        assert_eq!(of(Some("t.yaml"), Some("blue")), "the tenant's cluster (context blue of t.yaml)");
    }
}
