//! The table of causes, in the order in which the manager looks for them.

use super::{Audience, Subject};

/// Defines [`Cause`]: the word, what something is wrong with, who may hear of it, the meaning, and what the tenant and the platform can do.
macro_rules! causes {
    ($($name:ident = $word:literal, $subject:ident, $audience:ident, $meaning:literal, $tenant:literal, $platform:literal;)*) => {
        /// Why there is no companion that is ready, or no DPU for one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {
            $(#[doc = concat!($meaning, ".")] $name,)*
        }

        impl Cause {
            /// All of them. Of two that apply, the first is named.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its word on the wire, in conditions, Events and metrics, in CamelCase.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What something is wrong with.
            pub const fn subject(self) -> Subject {
                match self {
                    $(Self::$name => Subject::$subject,)*
                }
            }

            /// Who may hear of it.
            pub const fn audience(self) -> Audience {
                match self {
                    $(Self::$name => Audience::$audience,)*
                }
            }

            /// What it means, without a full stop.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }

            /// What the tenant can do.
            pub const fn tenant_remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $tenant,)*
                }
            }

            /// What administrators of the infrastructure cluster can do.
            pub const fn platform_remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $platform,)*
                }
            }
        }
    };
}

causes! {
    WorkloadNotScheduled = "WorkloadNotScheduled", Workload, Tenant,
        "The workload has no node yet, on whose DPU its companion will run, or it has scheduling gates",
        "look at why the workload isn't scheduled", "nothing";
    AnnotationsNotSent = "AnnotationsNotSent", Workload, Tenant,
        "An annotation decides whether the workload has a companion, and the agent doesn't send it",
        "admit it by the agent's --allow-annotation", "look at the rule's conditions, and ask the tenant";
    NoMatch = "NoMatch", Workload, Platform,
        "No known workload matches the rule",
        "compare workloadTerms with the workloads by `outrigger explain`", "nothing";
    Invalid = "Invalid", Rule, Tenant,
        "The spec of the rule or Tenant is invalid, so companions stay as they are",
        "correct the fields that the condition Accepted names", "correct a Tenant or a rule of the platform";
    LimitReached = "LimitReached", Rule, Tenant,
        "A limit of the Tenant is reached: its workloads are larger, or its rules match more of them, than is served",
        "use fewer or shorter labels and annotations, narrow workloadTerms, or have the limit raised", "raise spec.limits of the Tenant";
    RollingOut = "RollingOut", Rule, Tenant,
        "The companion is being replaced, because the rule has changed",
        "wait: maxUnavailable of the rule limits how many are replaced at once", "nothing";
    ResizeInfeasible = "ResizeInfeasible", Companion, Platform,
        "The DPU can never give the companion the amounts of cpu and memory that the rule asks for now, so it is replaced",
        "ask for less in the template", "look at the condition PodResizePending of the companion";
    ResizeDeferred = "ResizeDeferred", Companion, Platform,
        "The DPU has no room now for the amounts of cpu and memory that the rule asks for, so the companion keeps what it has",
        "wait, ask for less in the template, or delete other companions on the DPU", "look at the condition PodResizePending of the companion";
    Resizing = "Resizing", Companion, Platform,
        "The companion is being given the amounts of cpu and memory that the rule asks for now",
        "wait", "look at the condition PodResizeInProgress of the companion if it takes long";
    Updating = "Updating", Companion, Platform,
        "The companion has been changed in place to what the rule asks for now, and the DPU has not carried that out yet",
        "wait", "look at the kubelet of the companion's DPU if it takes long";
    RuleNotServed = "RuleNotServed", Rule, Agent,
        "The Pod waits for the rule's companion, and the manager doesn't say that there will be one",
        "look at the conditions of the rule", "look at the conditions of the rule";
    PodUnknown = "PodUnknown", Workload, Agent,
        "The agent knows no Pod with this claim on the host that asks for it",
        "wait; if it lasts, check that the agent sends the Pods of the namespace", "nothing";
    NoTenant = "NoTenant", Rule, Platform,
        "An admin rule selects no Tenant",
        "nothing", "correct spec.tenantSelector";
    Untried = "Untried", Rule, Platform,
        "The API server has not said yet whether it takes the template",
        "wait", "check that the API server and the webhook can be reached";
    NoStatus = "NoStatus", Tenant, Platform,
        "Nobody has reported the object's status yet",
        "wait, or ask the platform", "check that a manager runs, and look at its log";
    NoStream = "NoStream", Tenant, Platform,
        "The tenant's agent has not connected yet",
        "start the agent, and look at its log", "check that agents reach the manager";
    StreamLost = "StreamLost", Tenant, Platform,
        "The tenant's agent is not connected, so companions stay as they are",
        "look at the agent's log", "check that agents reach the manager";
    Syncing = "Syncing", Tenant, Platform,
        "The tenant's agent is connected and has not yet listed all workloads",
        "wait", "nothing";
    IdentityConflict = "IdentityConflict", Tenant, Platform,
        "Two Tenants list one identity, which is therefore neither's",
        "nothing", "remove it from one of them";
    NotOurs = "NotOurs", Tenant, Platform,
        "The tenant's namespace exists and isn't the tenant's",
        "nothing", "label the namespace, or name another one in spec.namespace";
    SecondNamespace = "SecondNamespace", Tenant, Platform,
        "Another namespace than the tenant's has the tenant's label, and DPUs with Pods of it aren't handed over",
        "nothing", "delete the tenant's Pods there, then remove the label outrigger.dev/tenant";
    Preparing = "Preparing", Tenant, Platform,
        "The quota of the tenant's namespace isn't counted yet",
        "wait", "nothing";
    Terminating = "Terminating", Tenant, Platform,
        "The Tenant or its namespace is being deleted",
        "nothing", "wait until what it names is gone";
    NamespaceMissing = "NamespaceMissing", Tenant, Tenant,
        "The namespace of companions in the infrastructure cluster doesn't exist, or is being deleted",
        "ask the platform", "look at the condition NamespaceReady of the Tenant";
    QuotaExceeded = "QuotaExceeded", Companion, Tenant,
        "A quota of the companions' namespace is used up",
        "delete companions that aren't needed, or have the quota raised", "raise spec.limits.companions of the Tenant, or the other quota";
    PodSecurity = "PodSecurity", Companion, Tenant,
        "The companion violates the Pod Security Standard of the tenant's namespace",
        "correct the template, or have the standard changed", "change spec.podSecurity of the Tenant";
    AnnotationsTooLarge = "AnnotationsTooLarge", Companion, Tenant,
        "The annotations of the companion would be larger than Kubernetes allows",
        "inject single fields instead of the whole workload, or fewer of them", "nothing";
    ObjectExists = "ObjectExists", Companion, Tenant,
        "An object with the companion's name exists that is no companion of the rule",
        "delete that object", "delete that object";
    NotAdmitted = "NotAdmitted", Companion, Tenant,
        "The admission webhook did not see the companion, so it is neither placed nor isolated",
        "ask the platform", "register the MutatingWebhookConfiguration";
    Refused = "Refused", Companion, Tenant,
        "The infrastructure cluster refuses the companion",
        "look at the conditions of the rule, and correct the template", "look at the rule's conditions and Events";
    WorkloadMoved = "WorkloadMoved", Companion, Tenant,
        "The workload runs on another node now, and its companion is replaced",
        "wait", "nothing";
    Lingering = "Lingering", Companion, Platform,
        "The workload has ended, and its companion stays for the lingerSeconds of its rule, with its resources",
        "wait, lower lingerSeconds of the rule, or delete the companion", "wait, lower lingerSeconds of the rule, or delete the companion";
    Replacing = "Replacing", Companion, Tenant,
        "The former companion is being deleted, and the next one is created after it",
        "wait", "look at why the Pod isn't gone: its finalizers, its Node";
    Pending = "Pending", Companion, Tenant,
        "The companion doesn't exist yet",
        "wait", "look at the log and the metrics of the manager";
    DevicesNotServed = "DevicesNotServed", Claim, Tenant,
        "The infrastructure cluster doesn't serve resource.k8s.io/v1, which devices need",
        "use no devices", "upgrade to Kubernetes 1.34 or later";
    ClaimInUse = "ClaimInUse", Claim, Tenant,
        "The former claim is being deleted and waits for the Pods that use it",
        "delete those Pods", "delete those Pods";
    DeviceBindingFailed = "DeviceBindingFailed", Claim, Tenant,
        "The driver of a device says that the device can't be used",
        "wait until the scheduler has chosen another device, or delete the workload", "look at the log of the driver, and at the conditions of the claim's devices";
    DeviceNotReady = "DeviceNotReady", Claim, Tenant,
        "The driver of a device doesn't say yet that it is ready, or says that it isn't",
        "wait, or delete the workload so that it gets another device", "look at the log of the driver";
    DeviceUnhealthy = "DeviceUnhealthy", Claim, Tenant,
        "The kubelet of the DPU says that a device of the companion is unhealthy",
        "wait, or delete the companion if it may get another device", "look at the device and the log of its driver; a DeviceTaintRule keeps others from it";
    ClaimNotAllocated = "ClaimNotAllocated", Claim, Tenant,
        "The claim has no device yet",
        "start a Pod that uses the claim: devices are allocated when it is scheduled", "look at the devices that are published";
    HostConflict = "HostConflict", Dpu, Platform,
        "Two Tenants list one host",
        "nothing", "remove it from one of them";
    HostNotListed = "HostNotListed", Dpu, Tenant,
        "The host is none of the tenant's",
        "have the host added", "add the host to spec.hosts of the Tenant, and its node to spec.hostNames if that has another name";
    HandingOver = "HandingOver", Dpu, Tenant,
        "The host's DPU is being handed over between tenants",
        "wait", "look at the condition HostsReady of the Tenant";
    HostNameUnusable = "HostNameUnusable", Dpu, Tenant,
        "No DPU can be labelled with the name of the workload's node, because a label's value has at most 63 characters",
        "give the node a shorter name, or use dpuSelectionPolicy Any", "take the host out of spec.hosts of the Tenant";
    NoDpu = "NoDPU", Dpu, Tenant,
        "No DPU of the tenant is in the workload's host",
        "move the workload to another host, or ask the platform for a DPU", "label a Node with the host, and add the host to the Tenant";
    DpuNotReady = "DPUNotReady", Dpu, Tenant,
        "The host's DPU is not ready or takes no new Pods",
        "move the workload to another host, or wait", "look at the DPU's Node: its condition Ready, its taints, whether it is cordoned";
    NoMatchingDpu = "NoMatchingDPU", Dpu, Tenant,
        "No DPU that the companion may run on has the labels that the template asks for",
        "correct nodeSelector or node affinity of the template", "label the Nodes of DPUs";
    DpuTainted = "DPUTainted", Dpu, Tenant,
        "A taint of the DPU keeps the companion away",
        "tolerate it in the template, if the platform means it for that", "remove the taint";
    PortTaken = "PortTaken", Companion, Tenant,
        "Another Pod on the DPU has a host port of the companion",
        "use another host port, or none", "nothing";
    VolumeUnavailable = "VolumeUnavailable", Companion, Tenant,
        "A volume of the companion doesn't exist, isn't bound, or can't be used on the DPU",
        "check the PersistentVolumeClaims that the template names", "look at the scheduler's message on the companion";
    DeviceUnavailable = "DeviceUnavailable", Claim, Tenant,
        "No DPU has devices for a claim of the companion: others have them, they have taints, too little capacity of them is left, or they don't fit",
        "ask `outrigger explain` which it is; ask for other or fewer devices, or delete what has them", "look at the devices that are published, by `outrigger claims`, and at DeviceTaintRules";
    PodsApart = "PodsApart", Companion, Tenant,
        "Pod affinity, anti-affinity or spread constraints keep the companion from each DPU",
        "correct them in the template, or those of the Pods on the DPU", "nothing";
    Unschedulable = "Unschedulable", Companion, Tenant,
        "No DPU that the companion may run on has room for it",
        "ask for less in the template, or delete other companions on the DPU", "look at the scheduler's message on the companion";
    ImageUnavailable = "ImageUnavailable", Companion, Tenant,
        "An image of the companion can't be pulled",
        "correct the image in the template, or its pull secret", "check that DPUs reach the registry";
    ContainerRefused = "ContainerRefused", Companion, Tenant,
        "The DPU can't create a container of the companion",
        "check what the template refers to: ConfigMaps, Secrets, commands", "look at the companion's Events";
    CrashLoop = "CrashLoop", Companion, Tenant,
        "A container of the companion ends again and again",
        "look at the program of the template", "look at the companion's log";
    Failed = "Failed", Companion, Tenant,
        "The companion ended with an error, or was evicted; it is replaced after a pause",
        "look at the program of the template", "look at the companion's status";
    Completed = "Completed", Companion, Tenant,
        "The companion ended without an error, and is not started again",
        "use a program that doesn't end, or restartPolicy Always", "nothing";
    Lost = "Lost", Companion, Tenant,
        "The companion was ready and isn't any longer",
        "wait: it may become ready again", "look at the companion and its DPU";
    Starting = "Starting", Companion, Tenant,
        "The companion exists and isn't ready yet",
        "wait", "look at the companion's Events if it takes long";
    Unknown = "Unknown", Companion, Tenant,
        "The cause isn't known, or is named in a word of a later version",
        "upgrade the agent", "read the message beside it; upgrade the program that shows it, if it is older than what says it";
    NoRoom = "NoRoom", Guest, Platform,
        "Slots of a Machine find no place on the nodes of its group",
        "nothing", "lower available of the machine type, or add nodes";
    Failure = "Failure", Guest, Platform,
        "A Machine or its pool is not as it should be",
        "nothing", "look at its condition Ready, which names the problems";
    GuestNotReady = "GuestNotReady", Guest, Platform,
        "A guest of the Machine has a node and isn't ready",
        "look at the containers and Events of its Pod", "look at the containers and Events of its Pod";
    OffloadingInvalid = "OffloadingInvalid", Offloading, Platform,
        "The NamespaceOffloading is invalid, so Pods of its namespace are refused",
        "correct the fields that are named", "correct the fields that are named";
    NoClusterSelected = "NoClusterSelected", Offloading, Platform,
        "No virtual node is selected, so Pods that have to run on one stay Pending",
        "compare spec.clusterSelector with the labels of the virtual nodes",
        "label the virtual nodes, or look at why there are none";
    NotOffloaded = "NotOffloaded", Offloading, Platform,
        "The namespace doesn't have the label that makes admission offload its Pods",
        "wait: the controller of NamespaceOffloadings writes the label",
        "look at the log of that controller";
    ManagerUnreachable = "ManagerUnreachable", Link, Agent,
        "The infrastructure cluster's manager hasn't said yet how the companion is",
        "look at the agent's log, which says whether the manager can be reached", "check that agents reach the manager";
    AgentUnreachable = "AgentUnreachable", Link, Agent,
        "The host's plugin can't ask the agent how the companion is, so the Pod doesn't start",
        "look at the logs of the plugin on the host and of the agent", "nothing";
    ManagerTooOld = "ManagerTooOld", Link, Agent,
        "The infrastructure cluster's manager is too old to say how companions are",
        "have it upgraded, or delete the ordering from the rule and recreate the Pod", "upgrade the manager";
}
