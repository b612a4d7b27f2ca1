//! The settings of admission as flags: the same for the server and for the offline commands.

use clap::Args;
use outrigger_admission::Settings;
use outrigger_core::admin::{AdminNamespaces, namespace};
use outrigger_core::host::HostLabels;
use outrigger_core::keys;
use outrigger_core::tenant::Enforcement;

/// Settings of admission.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admission")]
pub struct AdmissionArgs {
    /// Users trusted to create companions (the manager's service account). May be given several times, or separated by commas.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGER_USER",
        default_value = "system:serviceaccount:outrigger-system:outrigger-manager",
        value_delimiter = ',',
        value_name = "USER"
    )]
    pub manager_user: Vec<String>,

    /// Users that may bind Pods in tenants' namespaces (the scheduler). May be given several times, or separated by commas.
    #[arg(
        long,
        env = "OUTRIGGER_SCHEDULER_USER",
        default_value = "system:kube-scheduler",
        value_delimiter = ',',
        value_name = "USER"
    )]
    pub scheduler_user: Vec<String>,

    /// Scheduler that Pods in tenants' namespaces may name. May be given several times, or separated by commas.
    #[arg(
        long,
        env = "OUTRIGGER_SCHEDULER_NAME",
        default_value = "default-scheduler",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub scheduler_name: Vec<String>,

    /// Labels on DPU Nodes that name the host the DPU sits in, separated by commas. The first that a Node has counts.
    #[arg(long = "host-label", env = "OUTRIGGER_HOST_LABEL", default_value_t, value_name = "KEYS")]
    pub host_labels: HostLabels,

    /// RuntimeClass whose Pods stay unchanged in offloaded namespaces. Empty: none.
    #[arg(long, env = "OUTRIGGER_EXEMPT_RUNTIME_CLASS", default_value = "liqo", value_name = "NAME")]
    pub exempt_runtime_class: String,

    /// Namespace of AdminWorkloadRules. Rules in other namespaces are not served.
    #[arg(long, env = "OUTRIGGER_ADMIN_RULES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_rules_namespace: String,

    /// Namespace of the companions of AdminWorkloadRules, of all tenants.
    #[arg(long, env = "OUTRIGGER_ADMIN_RESOURCES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_resources_namespace: String,

    /// Namespace of the reservations of Machines, and of the ledgers of their slots.
    #[arg(long, env = "OUTRIGGER_CORE_NAMESPACE", default_value = keys::CORE_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub core_namespace: String,

    /// Level of enforcement of Tenants whose spec.enforcement names none: Observe, Warn or Enforce. It has to be the same for webhook and
    /// manager.
    #[arg(long, env = "OUTRIGGER_ENFORCEMENT", default_value_t, value_name = "LEVEL")]
    pub enforcement: Enforcement,
}

impl AdmissionArgs {
    /// The namespaces of admin rules and their companions.
    pub fn admin_namespaces(&self) -> AdminNamespaces {
        AdminNamespaces::new(&self.admin_rules_namespace, &self.admin_resources_namespace)
    }
}

impl From<AdmissionArgs> for Settings {
    fn from(args: AdmissionArgs) -> Self {
        Self {
            admin: args.admin_namespaces(),
            managers: args.manager_user,
            binders: args.scheduler_user,
            schedulers: args.scheduler_name,
            host_labels: args.host_labels,
            exempt_runtime_class: args.exempt_runtime_class,
            core_namespace: args.core_namespace,
            enforcement: args.enforcement,
        }
    }
}
