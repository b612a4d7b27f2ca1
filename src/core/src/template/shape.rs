//! What the API server reads as absent in Pods and ResourceClaims, and the values that it puts where nothing is: the types of
//! `k8s.io/api/core/v1` and `resource/v1`, and their defaults in `pkg/apis/*/v1/defaults.go` of Kubernetes.
//!
//! Only what is the same in all releases is here, and what doesn't depend on features and admission plugins of a cluster: those
//! aren't known. So the tolerations of `DefaultTolerationSeconds` and the `resizePolicy` of containers are not defaults. A field
//! that isn't listed keeps its value, except for null.

/// The fields of an object, several names to a row.
pub(super) struct Shape {
    /// Names, separated by spaces, and what their values are.
    pub(super) rows: &'static [(&'static str, Field)],
    /// What it is, where some of its fields depend on others.
    pub(super) joint: Option<Joint>,
}

/// Objects of which a field's meaning depends on other fields.
pub(super) enum Joint {
    PodSpec,
    Container,
    Volume,
    Request,
}

/// What the value of a field is.
pub(super) enum Field {
    /// A text: empty is absent.
    Text,
    /// A number: 0 is absent.
    Number,
    /// A truth value: false is absent.
    Flag,
    /// A list of scalars, or a map of texts: empty is absent.
    Few,
    /// A text that the API server writes where there is none.
    Default(&'static str),
    /// A number that the API server writes where there is none.
    DefaultNumber(i64),
    /// A truth value that the API server writes where there is none.
    DefaultFlag(bool),
    /// An amount: 0 is absent.
    Amount,
    /// An amount where 0 isn't the same as absent.
    SomeAmount,
    /// Amounts by names, rounded up to thousandths; empty is absent.
    Resources,
    /// Amounts by names, as they are; empty is absent.
    Amounts,
    /// An object: empty is absent.
    Part(&'static Shape),
    /// An object that may be empty and is then not absent.
    Whole(&'static Shape),
    /// A list of objects: empty is absent.
    Each(&'static Shape),
}

use Field::{
    Amount, Amounts, Default, DefaultFlag, DefaultNumber, Each, Few, Flag, Number, Part, Resources,
    SomeAmount, Text, Whole,
};

const fn shape(rows: &'static [(&'static str, Field)]) -> Shape {
    Shape { rows, joint: None }
}

/// All that a companion gets of its template's metadata is labels and annotations.
pub(super) const POD: Shape = shape(&[("metadata", Part(&METADATA)), ("spec", Whole(&POD_SPEC))]);

pub(super) const CLAIM: Shape = shape(&[("metadata", Part(&METADATA)), ("spec", Whole(&CLAIM_SPEC))]);

const METADATA: Shape = shape(&[("labels annotations", Few)]);

const POD_SPEC: Shape = Shape {
    rows: &[
        ("nodeName hostname subdomain priorityClassName", Text),
        ("serviceAccountName serviceAccount schedulerName restartPolicy dnsPolicy", Text),
        ("hostNetwork hostPID hostIPC", Flag),
        ("nodeSelector", Few),
        ("restartPolicy", Default("Always")),
        ("dnsPolicy", Default("ClusterFirst")),
        ("schedulerName", Default("default-scheduler")),
        ("terminationGracePeriodSeconds", DefaultNumber(30)),
        ("enableServiceLinks", DefaultFlag(true)),
        ("resources", Whole(&RESOURCES)),
        ("securityContext", Part(&POD_SECURITY)),
        ("affinity", Whole(&AFFINITY)),
        ("dnsConfig", Whole(&DNS_CONFIG)),
        ("os", Whole(&NAMED)),
        ("containers initContainers", Each(&CONTAINER)),
        ("volumes", Each(&VOLUME)),
        ("imagePullSecrets schedulingGates resourceClaims", Each(&NAMED)),
        ("readinessGates", Each(&shape(&[("conditionType", Text)]))),
        ("tolerations", Each(&TOLERATION)),
        ("hostAliases", Each(&shape(&[("ip", Text), ("hostnames", Few)]))),
        ("topologySpreadConstraints", Each(&SPREAD)),
    ],
    joint: Some(Joint::PodSpec),
};

const NAMED: Shape = shape(&[("name", Text)]);

const TOLERATION: Shape = shape(&[("key operator value effect", Text)]);

const SPREAD: Shape = shape(&[
    ("topologyKey whenUnsatisfiable", Text),
    ("maxSkew", Number),
    ("matchLabelKeys", Few),
    ("labelSelector", Whole(&SELECTOR)),
]);

const SELECTOR: Shape = shape(&[("matchLabels", Few), ("matchExpressions", Each(&REQUIREMENT))]);

const REQUIREMENT: Shape = shape(&[("key operator", Text), ("values", Few)]);

const DNS_CONFIG: Shape = shape(&[("nameservers searches", Few), ("options", Each(&NAMED))]);

const RESOURCES: Shape =
    shape(&[("limits requests", Resources), ("claims", Each(&shape(&[("name request", Text)])))]);

const SE_LINUX: Shape = shape(&[("user role type level", Text)]);

const PROFILE: Shape = shape(&[("type", Text)]);

const POD_SECURITY: Shape = shape(&[
    ("supplementalGroups", Few),
    ("sysctls", Each(&shape(&[("name value", Text)]))),
    ("seLinuxOptions", Whole(&SE_LINUX)),
    ("seccompProfile appArmorProfile", Whole(&PROFILE)),
]);

const AFFINITY: Shape =
    shape(&[("nodeAffinity", Whole(&NODE_AFFINITY)), ("podAffinity podAntiAffinity", Whole(&POD_AFFINITY))]);

const NODE_AFFINITY: Shape = shape(&[
    ("requiredDuringSchedulingIgnoredDuringExecution", Whole(&NODE_SELECTOR)),
    (
        "preferredDuringSchedulingIgnoredDuringExecution",
        Each(&shape(&[("weight", Number), ("preference", Part(&NODE_TERM))])),
    ),
]);

const NODE_SELECTOR: Shape = shape(&[("nodeSelectorTerms", Each(&NODE_TERM))]);

const NODE_TERM: Shape = shape(&[("matchExpressions matchFields", Each(&REQUIREMENT))]);

const POD_AFFINITY: Shape = shape(&[
    ("requiredDuringSchedulingIgnoredDuringExecution", Each(&POD_TERM)),
    (
        "preferredDuringSchedulingIgnoredDuringExecution",
        Each(&shape(&[("weight", Number), ("podAffinityTerm", Part(&POD_TERM))])),
    ),
]);

const POD_TERM: Shape = shape(&[
    ("topologyKey", Text),
    ("namespaces matchLabelKeys mismatchLabelKeys", Few),
    ("labelSelector namespaceSelector", Whole(&SELECTOR)),
]);

const CONTAINER: Shape = Shape {
    rows: &[
        ("name image workingDir terminationMessagePath terminationMessagePolicy imagePullPolicy", Text),
        ("stdin stdinOnce tty", Flag),
        ("command args", Few),
        ("terminationMessagePath", Default("/dev/termination-log")),
        ("terminationMessagePolicy", Default("File")),
        ("ports", Each(&PORT)),
        ("env", Each(&ENV)),
        ("envFrom", Each(&shape(&[("prefix", Text), ("configMapRef secretRef", Whole(&NAMED))]))),
        ("resources", Part(&RESOURCES)),
        ("resizePolicy", Each(&shape(&[("resourceName restartPolicy", Text)]))),
        ("volumeMounts", Each(&shape(&[("name mountPath subPath subPathExpr", Text), ("readOnly", Flag)]))),
        ("volumeDevices", Each(&shape(&[("name devicePath", Text)]))),
        ("livenessProbe readinessProbe startupProbe", Whole(&PROBE)),
        ("lifecycle", Whole(&shape(&[("postStart preStop", Whole(&HANDLER))]))),
        ("securityContext", Whole(&SECURITY)),
    ],
    joint: Some(Joint::Container),
};

const PORT: Shape = shape(&[
    ("name hostIP protocol", Text),
    ("hostPort containerPort", Number),
    ("protocol", Default("TCP")),
]);

const ENV: Shape = shape(&[("name value", Text), ("valueFrom", Whole(&ENV_SOURCE))]);

const ENV_SOURCE: Shape = shape(&[
    ("fieldRef", Whole(&FIELD_REF)),
    ("resourceFieldRef", Whole(&RESOURCE_REF)),
    ("configMapKeyRef secretKeyRef", Whole(&shape(&[("name key", Text)]))),
]);

const FIELD_REF: Shape = shape(&[("apiVersion fieldPath", Text), ("apiVersion", Default("v1"))]);

const RESOURCE_REF: Shape = shape(&[("containerName resource", Text), ("divisor", Amount)]);

const PROBE: Shape = shape(&[
    ("initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold", Number),
    ("timeoutSeconds successThreshold", DefaultNumber(1)),
    ("periodSeconds", DefaultNumber(10)),
    ("failureThreshold", DefaultNumber(3)),
    ("exec", Whole(&EXEC)),
    ("httpGet", Whole(&HTTP_GET)),
    ("tcpSocket", Whole(&TCP_SOCKET)),
    ("grpc", Whole(&shape(&[("port", Number), ("service", Default(""))]))),
]);

const HANDLER: Shape = shape(&[
    ("exec", Whole(&EXEC)),
    ("httpGet", Whole(&HTTP_GET)),
    ("tcpSocket", Whole(&TCP_SOCKET)),
    ("sleep", Whole(&shape(&[("seconds", Number)]))),
]);

const EXEC: Shape = shape(&[("command", Few)]);

const HTTP_GET: Shape = shape(&[
    ("path host scheme", Text),
    ("path", Default("/")),
    ("scheme", Default("HTTP")),
    ("httpHeaders", Each(&shape(&[("name value", Text)]))),
]);

const TCP_SOCKET: Shape = shape(&[("host", Text)]);

const SECURITY: Shape = shape(&[
    ("capabilities", Whole(&shape(&[("add drop", Few)]))),
    ("seLinuxOptions", Whole(&SE_LINUX)),
    ("seccompProfile appArmorProfile", Whole(&PROFILE)),
]);

/// The kinds of volumes that a companion may plausibly have. Others keep what they say.
const VOLUME: Shape = Shape {
    rows: &[
        ("name", Text),
        ("hostPath", Whole(&shape(&[("path", Text), ("type", Default(""))]))),
        ("emptyDir", Whole(&shape(&[("medium", Text), ("sizeLimit", SomeAmount)]))),
        (
            "secret",
            Whole(&shape(&[
                ("secretName", Text),
                ("items", Each(&ITEM)),
                ("defaultMode", DefaultNumber(MODE)),
            ])),
        ),
        (
            "configMap",
            Whole(&shape(&[("name", Text), ("items", Each(&ITEM)), ("defaultMode", DefaultNumber(MODE))])),
        ),
        (
            "downwardAPI",
            Whole(&shape(&[("items", Each(&DOWNWARD_ITEM)), ("defaultMode", DefaultNumber(MODE))])),
        ),
        ("projected", Whole(&shape(&[("sources", Each(&PROJECTION)), ("defaultMode", DefaultNumber(MODE))]))),
        ("nfs", Whole(&shape(&[("server path", Text), ("readOnly", Flag)]))),
        ("persistentVolumeClaim", Whole(&shape(&[("claimName", Text), ("readOnly", Flag)]))),
        ("iscsi", Whole(&ISCSI)),
        (
            "csi",
            Whole(&shape(&[
                ("driver", Text),
                ("volumeAttributes", Few),
                ("nodePublishSecretRef", Whole(&NAMED)),
            ])),
        ),
        ("ephemeral", Whole(&shape(&[("volumeClaimTemplate", Whole(&VOLUME_CLAIM))]))),
    ],
    joint: Some(Joint::Volume),
};

/// 0644.
const MODE: i64 = 420;

const ITEM: Shape = shape(&[("key path", Text)]);

const DOWNWARD_ITEM: Shape =
    shape(&[("path", Text), ("fieldRef", Whole(&FIELD_REF)), ("resourceFieldRef", Whole(&RESOURCE_REF))]);

const PROJECTION: Shape = shape(&[
    ("secret configMap", Whole(&shape(&[("name", Text), ("items", Each(&ITEM))]))),
    ("downwardAPI", Whole(&shape(&[("items", Each(&DOWNWARD_ITEM))]))),
    (
        "serviceAccountToken",
        Whole(&shape(&[("audience path", Text), ("expirationSeconds", DefaultNumber(3600))])),
    ),
]);

const ISCSI: Shape = shape(&[
    ("targetPortal iqn iscsiInterface fsType", Text),
    ("lun", Number),
    ("readOnly chapAuthDiscovery chapAuthSession", Flag),
    ("iscsiInterface", Default("default")),
    ("portals", Few),
    ("secretRef", Whole(&NAMED)),
]);

const VOLUME_CLAIM: Shape =
    shape(&[("metadata", Part(&shape(&[("labels annotations", Few)]))), ("spec", Part(&VOLUME_CLAIM_SPEC))]);

const VOLUME_CLAIM_SPEC: Shape = shape(&[
    ("volumeName", Text),
    ("accessModes", Few),
    ("volumeMode", Default("Filesystem")),
    ("selector", Whole(&SELECTOR)),
    ("resources", Part(&shape(&[("limits requests", Resources)]))),
]);

const CLAIM_SPEC: Shape = shape(&[("devices", Part(&DEVICES))]);

const DEVICES: Shape = shape(&[
    (
        "requests",
        Each(&shape(&[("name", Text), ("exactly", Whole(&REQUEST)), ("firstAvailable", Each(&REQUEST))])),
    ),
    ("constraints", Each(&shape(&[("requests", Few)]))),
    ("config", Each(&shape(&[("requests", Few)]))),
]);

const REQUEST: Shape = Shape {
    rows: &[
        ("name deviceClassName allocationMode", Text),
        ("count", Number),
        ("allocationMode", Default("ExactCount")),
        ("selectors", Each(&shape(&[("cel", Whole(&shape(&[("expression", Text)])))]))),
        ("tolerations", Each(&TOLERATION)),
        ("capacity", Whole(&shape(&[("requests", Amounts)]))),
    ],
    joint: Some(Joint::Request),
};
