//! The level "baseline" of the Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards), as of
//! Kubernetes 1.36.

use serde_json::Value;

use super::{ValidationContext, entries, text};
use crate::field::{FieldError, FieldErrors};
use crate::json::metadata_map;
use crate::tenant::PodSecurity;
use crate::text::quoted;

/// Capabilities that may be added.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that are a container's own.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

const SELINUX_TYPES: [&str; 4] = ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The baseline, unless the platform has made the tenant privileged. The API server's own plugin enforces the same from the namespace's
/// label, and the level restricted besides; here it is checked once more because a label can be lost, and because offline commands have
/// no such plugin.
pub(super) fn check(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    if facts.policy.pod_security > PodSecurity::Privileged {
        baseline(pod, faults);
    }
}

/// Everything in a Pod that the level forbids.
pub fn baseline(pod: &Value, faults: &mut Vec<FieldError>) {
    let Some(spec) = pod.get("spec") else { return };
    host_namespaces(spec, faults);
    for (path, volume) in entries(spec, "spec", "volumes") {
        if let Some(host_path) = volume.get("hostPath").filter(|v| !v.is_null()) {
            let at = host_path.get("path").and_then(Value::as_str).unwrap_or_default();
            faults.add(
                format_args!("{path}.hostPath"),
                format_args!(
                    "is {:?}, a directory of the DPU itself; use another kind of volume",
                    quoted(at)
                ),
            );
        }
    }
    if let Some(context) = spec.get("securityContext") {
        security_context("spec.securityContext", context, faults);
        for (path, sysctl) in entries(context, "spec.securityContext", "sysctls") {
            let name = text(sysctl, "name").unwrap_or_default();
            if !SYSCTLS.contains(&name) {
                forbidden(
                    format!("{path}.name"),
                    name,
                    &format!("allowed are {}", SYSCTLS.join(", ")),
                    faults,
                );
            }
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (path, container) in entries(spec, "spec", list) {
            self::container(&path, container, faults);
        }
    }
    for (key, value) in metadata_map(pod, "annotations") {
        let profile = value.as_str().unwrap_or_default();
        if key.starts_with(APPARMOR_ANNOTATION)
            && !(profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/"))
        {
            let path = format!("metadata.annotations[{}]", quoted(key));
            forbidden(path, profile, "use runtime/default or a localhost profile", faults);
        }
    }
}

fn host_namespaces(spec: &Value, faults: &mut Vec<FieldError>) {
    for (key, what) in [
        ("hostNetwork", "the DPU's network"),
        ("hostPID", "the DPU's processes"),
        ("hostIPC", "the DPU's IPC"),
        // Absent means true; who writes it down asks for it. The cluster's own default is not a Pod's to choose.
        ("hostUsers", "the DPU's users"),
    ] {
        if spec.get(key) == Some(&Value::Bool(true)) {
            faults.add(format_args!("spec.{key}"), format_args!("is true and shares {what}; remove it"));
        }
    }
}

fn container(path: &str, container: &Value, faults: &mut Vec<FieldError>) {
    if let Some(context) = container.get("securityContext") {
        let at = format!("{path}.securityContext");
        security_context(&at, context, faults);
        if context.get("privileged") == Some(&Value::Bool(true)) {
            faults.add(format_args!("{at}.privileged"), "is true, which is root on the DPU; remove it");
        }
        if let Some(capabilities) = context.get("capabilities") {
            for (at, name) in entries(capabilities, &format!("{at}.capabilities"), "add") {
                let name = name.as_str().unwrap_or_default();
                if !CAPABILITIES.contains(&name) {
                    forbidden(at, name, &format!("allowed are {}", CAPABILITIES.join(", ")), faults);
                }
            }
        }
        if let Some(mount) = text(context, "procMount").filter(|mount| *mount != "Default") {
            forbidden(format!("{at}.procMount"), mount, "use Default", faults);
        }
    }
    for (at, port) in entries(container, path, "ports") {
        if let Some(host) = port.get("hostPort").and_then(Value::as_i64).filter(|port| *port != 0) {
            forbidden(
                format!("{at}.hostPort"),
                &host.to_string(),
                "it is a port of the DPU itself; remove it",
                faults,
            );
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        handler(&format!("{path}.{probe}"), container.get(probe), faults);
    }
    for hook in ["postStart", "preStop"] {
        handler(
            &format!("{path}.lifecycle.{hook}"),
            container.get("lifecycle").and_then(|l| l.get(hook)),
            faults,
        );
    }
}

/// A probe or hook with a host of its own makes the kubelet call any address for the Pod.
fn handler(path: &str, handler: Option<&Value>, faults: &mut Vec<FieldError>) {
    for action in ["httpGet", "tcpSocket"] {
        if let Some(host) = handler.and_then(|h| h.get(action)).and_then(|a| text(a, "host")) {
            forbidden(
                format!("{path}.{action}.host"),
                host,
                "the kubelet would call it from the DPU; remove it",
                faults,
            );
        }
    }
}

/// What a Pod's and a container's security context have in common.
fn security_context(path: &str, context: &Value, faults: &mut Vec<FieldError>) {
    if context.get("windowsOptions").and_then(|w| w.get("hostProcess")) == Some(&Value::Bool(true)) {
        forbidden(format!("{path}.windowsOptions.hostProcess"), "true", "remove it", faults);
    }
    for profile in ["seccompProfile", "appArmorProfile"] {
        if let Some(kind) =
            context.get(profile).and_then(|p| text(p, "type")).filter(|kind| *kind == "Unconfined")
        {
            forbidden(
                format!("{path}.{profile}.type"),
                kind,
                "use RuntimeDefault or a Localhost profile",
                faults,
            );
        }
    }
    if let Some(options) = context.get("seLinuxOptions") {
        if let Some(kind) = text(options, "type").filter(|kind| !SELINUX_TYPES.contains(kind)) {
            let hint = format!("allowed are {}", SELINUX_TYPES.join(", "));
            forbidden(format!("{path}.seLinuxOptions.type"), kind, &hint, faults);
        }
        for key in ["user", "role"] {
            if let Some(value) = text(options, key) {
                forbidden(format!("{path}.seLinuxOptions.{key}"), value, "remove it", faults);
            }
        }
    }
}

fn forbidden(path: String, value: &str, hint: &str, faults: &mut Vec<FieldError>) {
    faults
        .add(path, format_args!("is {:?}, which Pod Security level baseline forbids; {hint}", quoted(value)));
}
