//! The routes, as YAML: what is tried, and what has to be said about it.

/// What a Pod can hold to get to other Nodes than its tenant's, or past the scheduler.
///
/// `webhook` is what the webhook says by itself: path, value, reason. `answer` is what the API server says to the user
/// where another asks before the webhook does, `podSecurity` the same of its own plugin. `rule` is what a rule is told
/// that isn't served with such a template; without it the template's companion is refused, in the words of the answer.
pub(super) const PLACEMENT: &str = r#"
- name: another tenant's Node
  bad: {spec: {nodeName: $THEIR}}
  twin: {spec: {nodeSelector: {kubernetes.io/hostname: $THEIR}}}
  webhook: 'spec.nodeName: is "$THEIR", which bypasses the scheduler'
  answer: 'spec.nodeName: is $THEIR; leave it out'
  rule: 'spec.template.spec.nodeName: would bypass the scheduler'
- name: the own Node
  bad: {spec: {nodeName: $OWN}}
  twin: {spec: {nodeSelector: {kubernetes.io/hostname: $OWN}}}
  webhook: 'spec.nodeName: is "$OWN", which bypasses the scheduler'
  answer: 'spec.nodeName: is $OWN; leave it out'
  rule: 'spec.template.spec.nodeName: would bypass the scheduler'
- name: another scheduler
  bad: {spec: {schedulerName: mine}}
  twin: {spec: {schedulerName: default-scheduler}}
  webhook: 'spec.schedulerName: is "mine"; use one of default-scheduler'
- name: all taints
  bad: {spec: {tolerations: [{operator: Exists}]}}
  twin: {spec: {tolerations: [{operator: Exists, key: mine}]}}
  webhook: 'spec.tolerations[0]: has no key and so tolerates every taint'
  answer: 'spec.tolerations[0]: has no key, so it tolerates every taint'
- name: all taints that evict
  bad: {spec: {tolerations: [{key: a}, {operator: Exists, effect: NoExecute}]}}
  twin: {spec: {tolerations: [{key: a}, {operator: Exists, effect: NoExecute, key: mine}]}}
  webhook: 'spec.tolerations[1]: has no key and so tolerates every taint'
  answer: 'spec.tolerations[1]: has no key, so it tolerates every taint'
- name: another tenant's taint
  bad: {spec: {tolerations: [{key: outrigger.dev/tenant, value: $OTHER}]}}
  twin: {spec: {tolerations: [{key: outrigger.dev/tenant, value: $TENANT}]}}
  webhook: 'spec.tolerations[0]: is outrigger.dev/tenant Equal "$OTHER"; of the taints under outrigger.dev only'
  answer: 'spec.tolerations[0]: tolerates outrigger.dev/tenant Equal $OTHER; of the keys under outrigger.dev, only'
- name: every tenant's taint
  bad: {spec: {tolerations: [{key: outrigger.dev/tenant, operator: Exists}]}}
  twin: {spec: {tolerations: [{key: outrigger.dev.example.com/tenant, operator: Exists}]}}
  webhook: 'spec.tolerations[0]: is outrigger.dev/tenant Exists ""; of the taints'
  answer: 'spec.tolerations[0]: tolerates outrigger.dev/tenant Exists ; of the keys'
- name: the taint of a DPU that changes hands
  bad: {spec: {tolerations: [{key: outrigger.dev/handover, operator: Exists}]}}
  twin: {spec: {tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists}]}}
  webhook: 'spec.tolerations[0]: is outrigger.dev/handover Exists ""; of the taints'
  answer: 'spec.tolerations[0]: tolerates outrigger.dev/handover Exists ; of the keys'
- name: that taint with the own name
  bad: {spec: {tolerations: [{key: outrigger.dev/handover, value: $TENANT}]}}
  twin: {spec: {tolerations: [{key: handover, value: $TENANT}]}}
  webhook: 'spec.tolerations[0]: is outrigger.dev/handover Equal "$TENANT"; of the taints'
  answer: 'spec.tolerations[0]: tolerates outrigger.dev/handover Equal $TENANT; of the keys'
- name: a taint of a subdomain
  bad: {spec: {tolerations: [{key: x.outrigger.dev/y, operator: Exists}]}}
  twin: {spec: {tolerations: [{key: x-outrigger.dev/y, operator: Exists}]}}
  webhook: 'spec.tolerations[0]: is x.outrigger.dev/y Exists ""; of the taints'
  answer: 'spec.tolerations[0]: tolerates x.outrigger.dev/y Exists ; of the keys'
- name: Pods of another namespace
  bad: {spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h, namespaces: [$NAMESPACE, tenant-$OTHER]}]}}}}
  twin: {spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h, namespaces: [$NAMESPACE]}]}}}}
  webhook: 'spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[1]: is "tenant-$OTHER"'
  answer: 'spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces: has tenant-$OTHER'
- name: Pods of all namespaces
  bad: {spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h, namespaceSelector: {}}]}}}}
  twin: {spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h}]}}}}
  webhook: 'spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector: reaches other'
  answer: 'spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector: is set'
- name: nobody of all namespaces beside it
  bad: {spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h, namespaceSelector: {}}]}}}}
  twin: {spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {labelSelector: {}, topologyKey: h}]}}}}
  webhook: 'spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector: reaches'
  answer: 'spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector: is set'
- name: rather Pods of the system
  bad: {spec: {affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 1, podAffinityTerm: {labelSelector: {}, topologyKey: h, namespaces: [kube-system]}}]}}}}
  twin: {spec: {affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 1, podAffinityTerm: {labelSelector: {}, topologyKey: h}}]}}}}
  webhook: 'preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaces[0]: is "kube-system"'
  answer: 'podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaces: has kube-system'
- name: rather nobody of others beside it
  bad: {spec: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 1, podAffinityTerm: {labelSelector: {}, topologyKey: h, namespaceSelector: {matchLabels: {a: b}}}}]}}}}
  twin: {spec: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 1, podAffinityTerm: {labelSelector: {matchLabels: {a: b}}, topologyKey: h}}]}}}}
  webhook: 'preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaceSelector: reaches other'
  answer: 'podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaceSelector: is set'
"#;

/// To the DPU itself. `container` and `init` are the Pod's only container, and an init container beside it.
pub(super) const HOST: &str = r#"
- name: hostNetwork
  bad: {spec: {hostNetwork: true}}
  twin: {spec: {hostNetwork: false}}
  webhook: "spec.hostNetwork: is true and shares the DPU's network"
  podSecurity: host namespaces (hostNetwork=true)
- name: hostPID
  bad: {spec: {hostPID: true}}
  twin: {spec: {shareProcessNamespace: true}}
  webhook: "spec.hostPID: is true and shares the DPU's processes"
  podSecurity: host namespaces (hostPID=true)
- name: hostIPC
  bad: {spec: {hostIPC: true}}
  twin: {spec: {hostIPC: false}}
  webhook: "spec.hostIPC: is true and shares the DPU's IPC"
  podSecurity: host namespaces (hostIPC=true)
- name: hostUsers
  bad: {spec: {hostUsers: true}}
  twin: {spec: {hostUsers: false}}
  webhook: "spec.hostUsers: is true and shares the DPU's users"
  answer: 'spec.hostUsers: is true; leave it out'
- name: hostPath
  bad: {spec: {volumes: [{name: u, emptyDir: {}}, {name: v, hostPath: {path: /var/lib/kubelet}}]}}
  twin: {spec: {volumes: [{name: u, emptyDir: {}}, {name: v, emptyDir: {}}]}}
  webhook: 'spec.volumes[1].hostPath: is "/var/lib/kubelet", a directory of the DPU itself'
  podSecurity: hostPath volumes (volume "v")
- name: privileged
  bad: {container: {securityContext: {privileged: true}}}
  twin: {container: {securityContext: {privileged: false}}}
  webhook: 'spec.containers[0].securityContext.privileged: is true, which is root on the DPU'
  podSecurity: privileged (container "c" must not set securityContext.privileged=true)
- name: privileged to begin with
  bad: {init: {securityContext: {privileged: true}}}
  twin: {init: {securityContext: {privileged: false}}}
  webhook: 'spec.initContainers[0].securityContext.privileged: is true, which is root on the DPU'
  podSecurity: privileged (container "b" must not set securityContext.privileged=true)
- name: a privileged sidecar
  bad: {init: {restartPolicy: Always, securityContext: {privileged: true}}}
  twin: {init: {restartPolicy: Always, securityContext: {allowPrivilegeEscalation: true}}}
  webhook: 'spec.initContainers[0].securityContext.privileged: is true, which is root on the DPU'
  podSecurity: privileged (container "b" must not set securityContext.privileged=true)
- name: hostPort
  bad: {container: {ports: [{containerPort: 1}, {containerPort: 80, hostPort: 80}]}}
  twin: {container: {ports: [{containerPort: 1}, {containerPort: 80}]}}
  webhook: 'spec.containers[0].ports[1].hostPort: is "80", which Pod Security level baseline forbids'
  podSecurity: hostPort (container "c" uses hostPort 80)
- name: hostPort to begin with
  bad: {init: {ports: [{containerPort: 80, hostPort: 80}]}}
  twin: {init: {ports: [{containerPort: 80}]}}
  webhook: 'spec.initContainers[0].ports[0].hostPort: is "80", which Pod Security level baseline forbids'
  podSecurity: hostPort (container "b" uses hostPort 80)
- name: a capability
  bad: {container: {securityContext: {capabilities: {add: [CHOWN, SYS_ADMIN]}}}}
  twin: {container: {securityContext: {capabilities: {add: [CHOWN, NET_BIND_SERVICE]}}}}
  webhook: 'spec.containers[0].securityContext.capabilities.add[1]: is "SYS_ADMIN", which Pod Security level baseline'
  podSecurity: non-default capabilities (container "c" must not include "SYS_ADMIN"
- name: all capabilities to begin with
  bad: {init: {securityContext: {capabilities: {add: [ALL]}}}}
  twin: {init: {securityContext: {capabilities: {drop: [ALL]}}}}
  webhook: 'spec.initContainers[0].securityContext.capabilities.add[0]: is "ALL", which Pod Security level baseline'
  podSecurity: non-default capabilities (container "b" must not include "ALL"
- name: raw packets
  bad: {container: {securityContext: {capabilities: {add: [NET_RAW]}}}}
  twin: {container: {securityContext: {capabilities: {add: [KILL]}}}}
  webhook: 'spec.containers[0].securityContext.capabilities.add[0]: is "NET_RAW", which Pod Security level baseline'
  podSecurity: non-default capabilities (container "c" must not include "NET_RAW"
- name: all system calls
  bad: {spec: {securityContext: {seccompProfile: {type: Unconfined}}}}
  twin: {spec: {securityContext: {seccompProfile: {type: RuntimeDefault}}}}
  webhook: 'spec.securityContext.seccompProfile.type: is "Unconfined", which Pod Security level baseline forbids'
  podSecurity: seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")
- name: all system calls for one container
  bad: {container: {securityContext: {seccompProfile: {type: Unconfined}}}}
  twin: {container: {securityContext: {seccompProfile: {type: Localhost, localhostProfile: p}}}}
  webhook: 'spec.containers[0].securityContext.seccompProfile.type: is "Unconfined", which Pod Security level'
  podSecurity: seccompProfile (container "c" must not set
- name: no AppArmor
  bad: {spec: {securityContext: {appArmorProfile: {type: Unconfined}}}}
  twin: {spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}}}
  webhook: 'spec.securityContext.appArmorProfile.type: is "Unconfined", which Pod Security level baseline forbids'
  podSecurity: forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")
- name: no AppArmor for one container
  bad: {container: {securityContext: {appArmorProfile: {type: Unconfined}}}}
  twin: {container: {securityContext: {appArmorProfile: {type: RuntimeDefault}}}}
  webhook: 'spec.containers[0].securityContext.appArmorProfile.type: is "Unconfined", which Pod Security level'
  podSecurity: forbidden AppArmor profile (container "c" must not set
- name: no AppArmor, the old way
  bad: {metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}}}
  twin: {metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}}
  webhook: 'metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: is "unconfined", which Pod Security'
  podSecurity: forbidden AppArmor profile
- name: all of /proc
  bad: {spec: {hostUsers: false}, container: {securityContext: {procMount: Unmasked}}}
  twin: {spec: {hostUsers: false}, container: {securityContext: {procMount: Default}}}
  webhook: 'spec.containers[0].securityContext.procMount: is "Unmasked", which Pod Security level baseline forbids'
- name: a sysctl
  bad: {spec: {securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}}}
  twin: {spec: {securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}}}
  webhook: 'spec.securityContext.sysctls[0].name: is "kernel.msgmax", which Pod Security level baseline forbids'
  podSecurity: forbidden sysctls (kernel.msgmax)
- name: an SELinux type
  bad: {container: {securityContext: {seLinuxOptions: {type: spc_t}}}}
  twin: {container: {securityContext: {seLinuxOptions: {type: container_t}}}}
  webhook: 'spec.containers[0].securityContext.seLinuxOptions.type: is "spc_t", which Pod Security level baseline'
  podSecurity: 'seLinuxOptions (container "c" set forbidden securityContext.seLinuxOptions: type "spc_t")'
- name: an SELinux user
  bad: {spec: {securityContext: {seLinuxOptions: {user: system_u}}}}
  twin: {spec: {securityContext: {seLinuxOptions: {level: s0}}}}
  webhook: 'spec.securityContext.seLinuxOptions.user: is "system_u", which Pod Security level baseline forbids'
  podSecurity: 'seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set)'
- name: a probe elsewhere
  bad: {container: {livenessProbe: {httpGet: {port: 80, host: 127.0.0.1}}}}
  twin: {container: {livenessProbe: {httpGet: {port: 80}}}}
  webhook: 'spec.containers[0].livenessProbe.httpGet.host: is "127.0.0.1", which Pod Security level baseline forbids'
  podSecurity: probe or lifecycle host (container "c" uses probe or lifecycle host
- name: a hook elsewhere
  bad: {container: {lifecycle: {preStop: {tcpSocket: {port: 80, host: 169.254.169.254}}}}}
  twin: {container: {lifecycle: {preStop: {sleep: {seconds: 1}}}}}
  webhook: 'spec.containers[0].lifecycle.preStop.tcpSocket.host: is "169.254.169.254", which Pod Security level'
  podSecurity: probe or lifecycle host (container "c" uses probe or lifecycle host
- name: a sidecar's probe elsewhere
  bad: {init: {restartPolicy: Always, startupProbe: {tcpSocket: {port: 80, host: 10.0.0.1}}}}
  twin: {init: {restartPolicy: Always, startupProbe: {tcpSocket: {port: 80}}}}
  webhook: 'spec.initContainers[0].startupProbe.tcpSocket.host: is "10.0.0.1", which Pod Security level baseline'
  podSecurity: probe or lifecycle host (container "b" uses probe or lifecycle host
- name: a process of the host
  bad: {spec: {hostNetwork: true, securityContext: {windowsOptions: {hostProcess: true}}}}
  twin: {spec: {securityContext: {windowsOptions: {runAsUserName: u}}}}
  webhook: 'spec.securityContext.windowsOptions.hostProcess: is "true", which Pod Security level baseline forbids'
  answer: hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)
"#;

/// To what else there is in the cluster.
pub(super) const REFERENCES: &str = r#"
- name: another service account
  bad: {spec: {serviceAccountName: builder}}
  twin: {spec: {serviceAccountName: escape-allowed}}
  webhook: "spec.serviceAccountName: is \"builder\"; use \"default\", or have it allowed by the Tenant's"
- name: another service account, the old way
  bad: {spec: {serviceAccount: builder}}
  twin: {spec: {serviceAccount: escape-allowed}}
  webhook: "spec.serviceAccount: is \"builder\"; use \"default\", or have it allowed by the Tenant's"
- name: a token for others
  bad: {spec: {volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t, audience: vault}}]}}]}}
  twin: {spec: {volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]}}
  webhook: 'spec.volumes[0].projected.sources[0].serviceAccountToken.audience: is "vault"'
- name: a certificate of a signer of the platform
  bad: {spec: {volumes: [{name: v, projected: {sources: [{podCertificate: {
    signerName: example.com/agents, keyType: ED25519, credentialBundlePath: b}}]}}]}}
  twin: {spec: {volumes: [{name: v, projected: {sources: [{configMap: {name: example.com}}]}}]}}
  answer: "spec.volumes[0].projected.sources: has a podCertificate; a tenant's Pod gets no certificate of a signer"
  webhook: 'spec.volumes[0].projected.sources[0].podCertificate.signerName: is "example.com/agents"'
- name: Outrigger's own priority
  bad: {spec: {priorityClassName: outrigger}}
  twin: {spec: {priorityClassName: escape-allowed}}
  answer: "spec.priorityClassName: is that of Outrigger itself, for Pods in its own namespace only"
  webhook: "spec.priorityClassName: is \"outrigger\"; remove it, or have it allowed by the Tenant's"
- name: the system's priority
  bad: {spec: {priorityClassName: system-node-critical}}
  twin: {spec: {priorityClassName: escape-allowed}}
  webhook: "spec.priorityClassName: is \"system-node-critical\"; remove it, or have it allowed by the Tenant's"
- name: another priority
  bad: {spec: {priorityClassName: escape-high}}
  twin: {spec: {priorityClassName: escape-allowed}}
  webhook: "spec.priorityClassName: is \"escape-high\"; remove it, or have it allowed by the Tenant's"
- name: another runtime
  bad: {spec: {runtimeClassName: escape-bare}}
  twin: {spec: {runtimeClassName: escape-allowed}}
  webhook: "spec.runtimeClassName: is \"escape-bare\"; remove it, or have it allowed by the Tenant's"
- name: another workload's devices
  bad: {spec: {resourceClaims: [{name: c, resourceClaimName: free}, {name: d, resourceClaimName: taken}]}}
  twin: {spec: {resourceClaims: [{name: c, resourceClaimName: free}]}}
  webhook: 'spec.resourceClaims[1].resourceClaimName: is "taken", which was made for workload "somebody" alone'
- name: another workload's devices before they are asked for
  bad: {spec: {resourceClaims: [{name: d, resourceClaimName: firewall-573e560607f4a185}]}}
  twin: {spec: {resourceClaims: [{name: d, resourceClaimName: firewall-573e560607f4a18}]}}
  answer: 'spec.resourceClaims[0].resourceClaimName: is firewall-573e560607f4a185, a name as only claims for one workload'
  webhook: 'spec.resourceClaims[0].resourceClaimName: is "firewall-573e560607f4a185", a name as only claims for one workload'
- name: a device by the name of its class
  bad: {container: {resources: {limits: {deviceclass.resource.kubernetes.io/escape-other: 1}}}}
  twin: {container: {resources: {limits: {deviceclass.resource.kubernetes.io/escape-allowed: 1}}}}
  webhook: 'resources.limits[deviceclass.resource.kubernetes.io/escape-other]: asks for a device of class "escape-other"'
- name: a device by another name of its class
  bad: {container: {resources: {limits: {escape.example.com/other: 1}}}}
  twin: {container: {resources: {limits: {escape.example.com/allowed: 1}}}}
  webhook: 'resources.limits[escape.example.com/other]: asks for a device of class "escape-other"'
"#;

/// To pass for what it isn't.
pub(super) const METADATA: &str = r#"
- name: another tenant's label
  bad: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  twin: {metadata: {labels: {outrigger.dev.example.com/tenant: $OTHER}}}
  webhook: 'metadata.labels[outrigger.dev/tenant]: is added as "$OTHER"; only Outrigger itself may set keys'
  answer: 'metadata.labels[outrigger.dev/tenant]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.labels[outrigger.dev/tenant]: keys under outrigger.dev are set by Outrigger alone'
- name: a rule's label
  bad: {metadata: {labels: {outrigger.dev/rule: r}}}
  twin: {metadata: {labels: {rule: r}}}
  webhook: 'metadata.labels[outrigger.dev/rule]: is added as "r"; only Outrigger itself may set keys'
  answer: 'metadata.labels[outrigger.dev/rule]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.labels[outrigger.dev/rule]: keys under outrigger.dev are set by Outrigger alone'
- name: a workload's label
  bad: {metadata: {labels: {outrigger.dev/workload: somebody}}}
  twin: {metadata: {labels: {workload: somebody}}}
  webhook: 'metadata.labels[outrigger.dev/workload]: is added as "somebody"; only Outrigger itself may set keys'
  answer: 'metadata.labels[outrigger.dev/workload]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.labels[outrigger.dev/workload]: keys under outrigger.dev are set by Outrigger alone'
- name: a Node's label
  bad: {metadata: {labels: {outrigger.dev.node-restriction.kubernetes.io/tenant: x}}}
  twin: {metadata: {labels: {example.com.node-restriction.kubernetes.io/tenant: x}}}
  webhook: 'metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]: is added as "x"'
  answer: 'metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]: only Outrigger itself may set keys'
  rule: 'spec.template.metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]: keys under'
- name: a subdomain's label
  bad: {metadata: {labels: {x.outrigger.dev/y: z}}}
  twin: {metadata: {labels: {x-outrigger.dev/y: z}}}
  webhook: 'metadata.labels[x.outrigger.dev/y]: is added as "z"; only Outrigger itself may set keys'
  answer: 'metadata.labels[x.outrigger.dev/y]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.labels[x.outrigger.dev/y]: keys under outrigger.dev are set by Outrigger alone'
- name: another host
  bad: {metadata: {annotations: {outrigger.dev/host: b}}}
  twin: {metadata: {annotations: {host: b}}}
  webhook: 'metadata.annotations[outrigger.dev/host]: is added as "b"; only Outrigger itself may set keys'
  answer: 'metadata.annotations[outrigger.dev/host]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.annotations[outrigger.dev/host]: keys under outrigger.dev are set by Outrigger alone'
- name: a workload's facts
  bad: {metadata: {annotations: {outrigger.dev/workload: "{}"}}}
  twin: {metadata: {annotations: {workload: "{}"}}}
  webhook: 'metadata.annotations[outrigger.dev/workload]: is added as "{}"; only Outrigger itself may set keys'
  answer: 'metadata.annotations[outrigger.dev/workload]: only Outrigger itself may set keys under outrigger.dev'
  rule: 'spec.template.metadata.annotations[outrigger.dev/workload]: keys under outrigger.dev are set by Outrigger'
- name: a static Pod's mirror
  bad: {metadata: {annotations: {kubernetes.io/config.mirror: m}}, spec: {nodeName: $OWN}}
  twin: {metadata: {annotations: {kubernetes.io/config.hash: m}}}
  webhook: "metadata.annotations[kubernetes.io/config.mirror]: is \"m\": static Pods don't belong into a tenant's"
  answer: 'metadata.annotations[kubernetes.io/config.mirror]: is set; static Pods have no place'
  rule: 'spec.template.spec.nodeName: would bypass the scheduler'
- name: a companion's owner
  bad: {metadata: {ownerReferences: [
    {apiVersion: workload.universe.nvidia.com/v1alpha1, kind: WorkloadRule, name: r, uid: $RULE, controller: true}]}}
  twin: {metadata: {ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: $RULE, controller: true}]}}
  webhook: 'metadata.ownerReferences[0]: is WorkloadRule "r": only Outrigger makes companions'
  answer: 'metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself makes companions'
  rule: 'spec.template.metadata.ownerReferences: a companion belongs to its rule alone'
- name: a Tenant as owner
  bad: {metadata: {ownerReferences: [{apiVersion: outrigger.dev/v1alpha1, kind: Tenant, name: $OTHER, uid: $RULE}]}}
  twin: {metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: $OTHER, uid: $RULE}]}}
  webhook: 'metadata.ownerReferences[0]: is Tenant "$OTHER": only Outrigger makes companions'
  rule: 'spec.template.metadata.ownerReferences: a companion belongs to its rule alone'
- name: a finalizer
  bad: {metadata: {finalizers: [orphan, example.com/stay]}}
  twin: {metadata: {finalizers: [orphan]}}
  webhook: 'metadata.finalizers[1]: is "example.com/stay", which could keep the Pod from ever going'
  rule: 'spec.template.metadata.finalizers: a companion belongs to its rule alone'
"#;

/// By hand: a gate of ours, which mutation refuses, and what the API server refuses without any help.
pub(super) const BY_HAND: &str = r#"
- what: our gate
  ask: POST $NS/pods
  body: {spec: {schedulingGates: [{name: outrigger.dev/admission}]}}
  words: ['403', 'spec.schedulingGates[0].name: only Outrigger itself may set gates under outrigger.dev']
- what: another gate
  ask: POST $NS/pods
  body: {spec: {schedulingGates: [{name: example.com/admission}]}}
- what: priority as a number
  ask: POST $NS/pods
  body: {spec: {priority: 1000000}}
  words: ['403', the integer value of priority (1000000) must not be provided in pod spec]
- what: a runtime's overhead
  ask: POST $NS/pods
  body: {spec: {overhead: {cpu: 1m}}}
  words: ['403', Pod Overhead set without corresponding RuntimeClass]
- what: the priority that it has
  ask: POST $NS/pods
  body: {spec: {priority: 0}}
"#;

/// Rules, as merge patches on the spec of a good one: what they end as, and words of the message.
pub(super) const RULES: &str = r#"
- spec: {}
  end: AllReady
- spec: {workloadInfoInject: [{workloadKey: .metadata.resourceName, asAnnotation: {name: example.com/host}}]}
  end: AllReady
- spec: {workloadInfoInject: [{workloadKey: .metadata.resourceName, asAnnotation: {name: outrigger.dev/host}}]}
  end: Invalid
  words: 'spec.workloadInfoInject[0].asAnnotation.name: Invalid value: keys under outrigger.dev'
- spec: {workloadInfoInject: [{workloadKey: .metadata.resourceName, asAnnotation: {name: x.outrigger.dev/y}}]}
  end: Invalid
  words: 'spec.workloadInfoInject[0].asAnnotation.name: "x.outrigger.dev/y"'
# The workload's name is "unconfined".
- spec: {workloadInfoInject: [{workloadKey: .metadata.resourceName,
    asAnnotation: {name: container.apparmor.security.beta.kubernetes.io/c}}]}
  end: Refused
  words: 'violates PodSecurity "baseline:latest": forbidden AppArmor profile'
- spec: {workloadInfoInject: [{workloadKey: .metadata.resourceName, asAnnotation: {name: kubernetes.io/config.mirror}}]}
  end: Refused
  words: 'a mirror pod may not reference service accounts'
- spec: {template: {kind: Deployment}}
  end: Invalid
  words: 'spec.template.kind: Invalid value: use "Pod"'
- spec: {template: {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding}}
  end: Invalid
  words: 'spec.template.kind: Invalid value: use "Pod"'
# Built from what is known to be harmless: the namespace isn't.
- spec: {template: {metadata: {name: x, namespace: tenant-$OTHER, generateName: y, uid: z}}}
  end: AllReady
"#;

/// What a tenant may ask for: terms of required node affinity, or more of the spec; and whether there is a DPU for it.
pub(super) const AFFINITIES: &str = r#"
- {what: none, terms: null, runs: true}
- {what: an empty list, terms: [], runs: true}
- what: terms of its own
  terms: [{matchExpressions: [{key: free, operator: Exists}]}, {matchExpressions: [{key: free, operator: DoesNotExist}]}]
  runs: true
- what: a term beside the tenant's
  terms: [{matchExpressions: [{key: $LABEL, operator: In, values: [$TENANT]}]},
    {matchExpressions: [{key: free, operator: Exists}]}]
  runs: true
- {what: only the free Node, terms: [{matchExpressions: [{key: free, operator: Exists}]}], runs: false}
- what: their Node by name
  terms: [{matchFields: [{key: metadata.name, operator: In, values: [$THEIR]}]}]
  runs: false
- what: their Node by name, or the own
  terms: [{matchFields: [{key: metadata.name, operator: In, values: [$THEIR]}]},
    {matchFields: [{key: metadata.name, operator: In, values: [$OWN]}]}]
  runs: true
- {what: an empty term, terms: [{}], runs: false}
- what: an empty term among others
  terms: [{}, {matchExpressions: [{key: free, operator: DoesNotExist}]}]
  runs: true
- {what: both tenants, terms: [{matchExpressions: [{key: $LABEL, operator: In, values: [$TENANT, $OTHER]}]}], runs: true}
- {what: the other tenant, terms: [{matchExpressions: [{key: $LABEL, operator: In, values: [$OTHER]}]}], runs: false}
- {what: not the own tenant, terms: [{matchExpressions: [{key: $LABEL, operator: NotIn, values: [$TENANT]}]}], runs: false}
- {what: no tenant, terms: [{matchExpressions: [{key: $LABEL, operator: DoesNotExist}]}], runs: false}
- {what: any tenant, terms: [{matchExpressions: [{key: $LABEL, operator: Exists}]}], runs: true}
- {what: the other tenant by selector, terms: null, more: {nodeSelector: {$LABEL: $OTHER}}, runs: false}
- what: rather the other tenant
  terms: null
  more: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 100, preference: {matchExpressions: [{key: $LABEL, operator: In, values: [$OTHER]}]}}]}}}
  runs: true
"#;

/// Changes of a Pod: one that runs, one that is gated, and one that is being deleted.
pub(super) const CHANGES: &str = r#"
- what: all taints
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {operator: Exists}}]
  words: ['spec.tolerations[3]: has no key, so it tolerates every taint']
- what: another tenant's taint
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {key: outrigger.dev/tenant, value: $OTHER}}]
  words: ['spec.tolerations[3]: tolerates outrigger.dev/tenant Equal $OTHER']
- what: the hand-over
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {key: outrigger.dev/handover, operator: Exists}}]
  words: ['spec.tolerations[3]: tolerates outrigger.dev/handover Exists']
- what: a taint
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {key: mine, operator: Exists}}]
- what: another tenant's label
  ask: PATCH $POD
  body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['metadata.labels[outrigger.dev/tenant]: changes from (absent) to $OTHER; only Outrigger itself']
- what: another tenant's label by status
  ask: PATCH $POD/status
  body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['metadata.labels[outrigger.dev/tenant]: changes from (absent) to $OTHER; only Outrigger itself']
- what: labels
  ask: PATCH $POD
  body: {metadata: {labels: {a: b}}}
- what: labels by status
  ask: PATCH $POD/status
  body: {metadata: {labels: {b: c}}}
  words: ['status: is written by kubelets']
- what: our annotation
  ask: PATCH $POD
  body: {metadata: {annotations: {outrigger.dev/host: b}}}
  words: ['metadata.annotations[outrigger.dev/host]: only Outrigger itself may change keys']
- what: our annotation by status
  ask: PATCH $POD/status
  body: {metadata: {annotations: {outrigger.dev/host: b}}}
  words: ['metadata.annotations[outrigger.dev/host]: only Outrigger itself may change keys']
- what: annotations
  ask: PATCH $POD
  body: {metadata: {annotations: {a: b}}}
- what: annotations by status
  ask: PATCH $POD/status
  body: {metadata: {annotations: {b: c}}}
  words: ['status: is written by kubelets']
- what: a mirror
  ask: PATCH $POD
  body: {metadata: {annotations: {kubernetes.io/config.mirror: m}}}
  words: ['metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation']
- what: a rule as owner
  ask: PATCH $POD
  body: {metadata: {ownerReferences: [
    {apiVersion: workload.universe.nvidia.com/v1alpha1, kind: WorkloadRule, name: r, uid: $RULE, controller: true}]}}
  words: ['metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself makes companions']
- what: another owner
  ask: PATCH $POD
  body: {metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: $MAP}]}}
- what: a finalizer
  ask: PATCH $POD
  body: {metadata: {finalizers: [example.com/stay]}}
  # Kubernetes itself takes no new ones when the Pod is being deleted.
  words: [metadata.finalizers, example.com/stay]
- what: a Node
  ask: PATCH $POD
  body: {spec: {nodeName: $THEIR}}
  words: [spec, may not change fields other than]
- what: our gate
  ask: PATCH $POD
  body: {spec: {schedulingGates: [{name: outrigger.dev/admission}]}}
  words: [spec.schedulingGates]
- what: privileged debugging
  ask: PATCH $POD/ephemeralcontainers
  body: {spec: {ephemeralContainers: [{name: d, image: i, securityContext: {privileged: true}}]}}
  words: [violates PodSecurity, container "d" must not set securityContext.privileged=true]
- what: tracing
  ask: PATCH $POD/ephemeralcontainers
  body: {spec: {ephemeralContainers: [{name: d, image: i, securityContext: {capabilities: {add: [SYS_PTRACE]}}}]}}
  words: [violates PodSecurity, container "d" must not include "SYS_PTRACE"]
- what: debugging
  ask: PATCH $POD/ephemeralcontainers
  # The label is left out, as what a resize carries besides.
  body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}},
    spec: {ephemeralContainers: [{name: d, image: i, securityContext: {runAsUser: 1}}]}}
"#;

/// What only one of them can do.
pub(super) const LATE_CHANGES: &str = r#"
- what: another size
  ask: PATCH $NS/pods/running/resize
  body: [{op: replace, path: /spec/containers/0/resources/requests/cpu, value: 500m}]
- what: a size and more
  ask: PATCH $NS/pods/running/resize
  body: [{op: replace, path: /spec/containers/0/resources/requests/cpu, value: 600m},
    {op: add, path: /spec/containers/0/securityContext, value: {privileged: true}},
    {op: add, path: /metadata/labels/outrigger.dev~1tenant, value: $OTHER}]
- what: no finalizers any more
  ask: PATCH $NS/pods/leaving
  body: {metadata: {finalizers: null}}
- what: no required term
  ask: PATCH $NS/pods/gated
  body: [{op: remove, path: /spec/affinity}]
  words: [nodeSelectorTerms]
- what: another term
  ask: PATCH $NS/pods/gated
  body: [{op: replace, path: $TERMS/0/matchExpressions, value: [{key: free, operator: Exists}]}]
  words: ['nodeSelectorTerms[0]', 'only additions are allowed']
- what: one more term
  ask: PATCH $NS/pods/gated
  body: [{op: add, path: $TERMS/-, value: {matchExpressions: [{key: free, operator: Exists}]}}]
  words: [nodeSelectorTerms, 'no additions/deletions to non-empty NodeSelectorTerms list are allowed']
- what: a narrower term
  ask: PATCH $NS/pods/gated
  body: [{op: add, path: $TERMS/0/matchExpressions/-, value: {key: free, operator: DoesNotExist}}]
- what: no gates any more
  ask: PATCH $NS/pods/gated
  body: {spec: {schedulingGates: null}}
"#;

/// The same changes as the webhook sees them, which doesn't rely on the API server's rules for updates.
pub(super) const UPDATES: &str = r#"
- body: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchExpressions: [{key: free, operator: Exists}]}]}}}}}
  words: ['nodeSelectorTerms[0]: is [{"key":"free","operator":"Exists"}]; terms are ORed, so each must also require']
- body: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchExpressions: [{key: $LABEL, operator: In, values: [$TENANT]}]},
    {matchFields: [{key: metadata.name, operator: In, values: [$THEIR]}]}]}}}}}
  words: ['nodeSelectorTerms[1]: is []; terms are ORed']
- body: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}}
  words: ['nodeSelectorTerms: is empty']
- body: {spec: {affinity: null}}
  words: ['nodeSelectorTerms: is empty']
- body: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchExpressions: [{key: $LABEL, operator: In, values: [$TENANT]}, {key: free, operator: Exists}]}]}}}}}
- body: {spec: {nodeName: $THEIR}}
  words: ['spec.nodeName: changes from']
- body: {spec: {schedulingGates: [{name: outrigger.dev/admission}]}}
  words: ['spec.schedulingGates: changes from [] to ["outrigger.dev/admission"]']
- body: {spec: {schedulingGates: [{name: example.com/admission}]}}
- body: {spec: {ephemeralContainers: [{name: d, securityContext: {privileged: true}}]}}
  words: ['spec.ephemeralContainers[0].securityContext.privileged: is true']
- body: {spec: {ephemeralContainers: [{name: d, securityContext: {privileged: false}}]}}
- body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['metadata.labels[outrigger.dev/tenant]: is added as "$OTHER"']
- body: {metadata: {labels: {tenant: $OTHER}}}
"#;

/// Bindings. `$WAY` is one of the two paths.
pub(super) const BINDINGS: &str = r#"
- what: another tenant's DPU
  ask: POST $WAY
  body: {metadata: {name: p}, target: {kind: Node, name: $THEIR}}
  words: ['403', 'target.name: is $THEIR; only system:kube-scheduler binds the Pods of a tenant, not $USER']
- what: the own DPU
  ask: POST $WAY
  body: {metadata: {name: p}, target: {kind: Node, name: $OWN}}
  words: ['403', 'target.name: is $OWN; only system:kube-scheduler binds the Pods of a tenant, not $USER']
- what: a Node of nobody
  ask: POST $WAY
  body: {metadata: {name: p, annotations: {outrigger.dev/host: x}}, target: {kind: Node, name: $TENANT-plain}}
  words: ['403', 'target.name: is $TENANT-plain; only system:kube-scheduler binds the Pods of a tenant, not $USER']
"#;

/// A scheduler that doesn't know yet whose a Node is.
pub(super) const LATE_BINDINGS: &str = r#"
- what: another tenant's DPU
  ask: POST $WAY
  body: {metadata: {name: p}, target: {kind: Node, name: $THEIR}}
  words: ['403', 'target.name: is "$THEIR", which belongs to tenant "$OTHER", not to tenant "$TENANT"']
- what: a Node of nobody
  ask: POST $WAY
  body: {metadata: {name: p}, target: {kind: Node, name: $TENANT-plain}}
  words: ['403', 'target.name: is "$TENANT-plain", which belongs to nobody, not to tenant "$TENANT"']
- what: a Node that isn't there
  ask: POST $WAY
  body: {metadata: {name: p}, target: {kind: Node, name: $TENANT-none}}
  words: ['503', 'Node "$TENANT-none" is not known yet; try again']
"#;

/// A companion's owner and finalizers. Its labels and annotations are a matter of every key there is.
pub(super) const COMPANION: &str = r#"
- what: an owner of another name
  ask: PATCH $POD
  body: [{op: replace, path: /metadata/ownerReferences/0/name, value: s}]
  words: ['metadata.ownerReferences[0]: is WorkloadRule s; only Outrigger itself makes companions']
- what: an owner of another uid
  ask: PATCH $POD
  body: [{op: replace, path: /metadata/ownerReferences/0/uid, value: x}]
  words: ['metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself makes companions']
- what: an owner that isn't in control
  ask: PATCH $POD
  body: [{op: replace, path: /metadata/ownerReferences/0/controller, value: false}]
  words: ['metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself makes companions']
- what: an owner that waits for it
  ask: PATCH $POD
  body: [{op: replace, path: /metadata/ownerReferences/0/blockOwnerDeletion, value: true}]
  words: ['metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself makes companions']
- what: one more rule as owner
  ask: PATCH $POD
  body: [{op: add, path: /metadata/ownerReferences/-, value:
    {apiVersion: workload.universe.nvidia.com/v1alpha1, kind: WorkloadRule, name: s, uid: x}}]
  words: ['metadata.ownerReferences[1]: is WorkloadRule s; only Outrigger itself makes companions']
- what: one more owner
  ask: PATCH $POD
  body: [{op: add, path: /metadata/ownerReferences/-, value: {apiVersion: v1, kind: ConfigMap, name: m, uid: $MAP}}]
- what: a finalizer
  ask: PATCH $POD
  body: {metadata: {finalizers: [example.com/stay]}}
  words: ['metadata.finalizers[0]: is "example.com/stay", which could keep the Pod from ever going']
- what: an owner that goes first
  ask: PATCH $POD
  body: {metadata: {finalizers: [orphan]}}
- what: all taints
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {operator: Exists}}]
  words: ['spec.tolerations[3]: has no key']
- what: a taint
  ask: PATCH $POD
  body: [{op: add, path: /spec/tolerations/-, value: {key: mine, operator: Exists}}]
"#;

/// What the holder of a DPU's kubelet credentials tries. `$POD` is a companion on it, `$NODE` its Node, `$LABEL` the
/// tenant's label of Nodes.
pub(super) const KUBELET: &str = r#"
- what: another tenant
  ask: PATCH $NODE
  body: {metadata: {labels: {$LABEL: $OTHER}}}
  words: ['403', 'is not allowed to modify labels: $LABEL']
- what: another tenant by status
  ask: PATCH $NODE/status
  body: {metadata: {labels: {$LABEL: $OTHER}}}
  words: ['403', 'is not allowed to modify labels: $LABEL']
- what: no tenant
  ask: PATCH $NODE
  body: {metadata: {labels: {$LABEL: null}}}
  words: ['403', 'is not allowed to modify labels: $LABEL']
- what: our label
  ask: PATCH $NODE
  body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['403', 'metadata.labels[outrigger.dev/tenant]: changes from (absent) to $OTHER; only who may assign DPUs']
- what: our label by status
  ask: PATCH $NODE/status
  body: {metadata: {labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['403', 'metadata.labels[outrigger.dev/tenant]: changes from (absent) to $OTHER; only who may assign DPUs']
- what: another host
  ask: PATCH $NODE
  body: {metadata: {labels: {provisioning.dpu.nvidia.com/host: $OTHER-a}}}
  words: ['403', 'metadata.labels[provisioning.dpu.nvidia.com/host]: changes from $TENANT-a to $OTHER-a; a kubelet may not']
- what: another host by status
  ask: PATCH $NODE/status
  body: {metadata: {labels: {provisioning.dpu.nvidia.com/host: $OTHER-a}}}
  words: ['403', 'metadata.labels[provisioning.dpu.nvidia.com/host]: changes from $TENANT-a to $OTHER-a; a kubelet may not']
- what: no host
  ask: PATCH $NODE
  body: {metadata: {labels: {provisioning.dpu.nvidia.com/host: null}}}
  words: ['403', 'metadata.labels[provisioning.dpu.nvidia.com/host]: changes from $TENANT-a to (absent); a kubelet may']
- what: no taints
  ask: PATCH $NODE
  body: {spec: {taints: null}}
  words: ['403', is not allowed to modify taints]
- what: the hand-over
  ask: PATCH $NODE
  body: [{op: add, path: /spec/taints/-, value: {key: outrigger.dev/handover, effect: NoSchedule}}]
  words: ['403', is not allowed to modify taints]
- what: a label
  ask: PATCH $NODE
  body: {metadata: {labels: {a: b}, annotations: {a: b}}}
- what: a heartbeat
  ask: PATCH $NODE/status
  body: {status: {phase: Running}}
- what: the end of its Node
  ask: DELETE $NODE
  words: ['403', cannot delete resource "nodes"]
- what: their Node
  ask: PATCH $THEIR_NODE
  body: {metadata: {labels: {a: b}}}
  words: ['403', is not allowed to modify node "$THEIR"]
- what: their Node's status
  ask: PATCH $THEIR_NODE/status
  body: {status: {phase: Running}}
  words: ['403', is not allowed to modify node "$THEIR"]
- what: one more Node
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-more}}
  words: ['403', is not allowed to modify node "$TENANT-more"]
- what: a companion's host
  ask: PATCH $POD/status
  body: {metadata: {annotations: {outrigger.dev/host: $OTHER-a}}}
  words: ['403', 'metadata.annotations[outrigger.dev/host]: only Outrigger itself may change keys']
- what: a companion's facts
  ask: PATCH $POD/status
  body: {metadata: {annotations: {outrigger.dev/injected: null}}}
  words: ['403', 'metadata.annotations[outrigger.dev/injected]: only Outrigger itself may change keys']
- what: a companion's label
  ask: PATCH $POD/status
  body: {metadata: {labels: {outrigger.dev/workload: x}}}
  words: ['403', cannot update labels through pod status]
- what: a companion's status
  ask: PATCH $POD/status
  body: {metadata: {annotations: {a: b}}, status: {message: x}}
- what: a companion itself
  ask: PATCH $POD
  body: {metadata: {annotations: {a: b}}}
  words: ['403', cannot patch resource "pods"]
- what: a debugger
  ask: PATCH $POD/ephemeralcontainers
  body: {spec: {ephemeralContainers: [{name: d, image: i}]}}
  words: ['403', cannot patch resource "pods/ephemeralcontainers"]
- what: a Pod
  ask: POST $NS/pods
  body: {metadata: {name: x}, spec: {nodeName: $OWN, containers: [{name: c, image: i}]}}
  words: ['403', can only create mirror pods]
- what: a static Pod
  ask: POST $NS/pods
  body: &mirror {metadata: {name: x, annotations: {kubernetes.io/config.mirror: m}, ownerReferences: [
      {apiVersion: v1, kind: Node, name: $OWN, uid: $UID, controller: true}]},
    spec: {nodeName: $OWN, containers: [{name: c, image: i}]}}
  words: ['metadata.annotations[kubernetes.io/config.mirror]: is set; static Pods have no place']
- what: a static Pod among theirs
  ask: POST $THEIR_NS/pods
  body: *mirror
  words: ['metadata.annotations[kubernetes.io/config.mirror]: is set; static Pods have no place']
- what: a static Pod of the system
  ask: POST /api/v1/namespaces/kube-system/pods?dryRun=All
  body: *mirror
- what: a static Pod on their DPU
  ask: POST $THEIR_NS/pods
  body: {metadata: {name: x, annotations: {kubernetes.io/config.mirror: m}},
    spec: {nodeName: $THEIR, containers: [{name: c, image: i}]}}
  words: ['403', can only create pods with spec.nodeName set to itself]
- what: their Pod's status
  ask: PATCH $THEIR_NS/pods/p/status
  body: {status: {message: x}}
  words: ['403', can only update pod status for pods with spec.nodeName set to itself]
- what: their Pod
  ask: GET $THEIR_NS/pods/p
  words: ['403', no relationship found between node]
- what: their Pods
  ask: GET $THEIR_NS/pods
  words: ['403', can only list/watch pods with spec.nodeName field selector]
- what: their Secret
  ask: GET $THEIR_NS/secrets/s
  words: ['403', no relationship found between node]
- what: their Node's data
  ask: GET $THEIR_NODE
  words: ['403', cannot get resource "nodes"]
- what: their token
  ask: POST $THEIR_NS/serviceaccounts/default/token
  body: {spec: {boundObjectRef: {apiVersion: v1, kind: Pod, name: p}}}
  words: ['403', no relationship found between node]
- what: a binding
  ask: POST $THEIR_NS/pods/p/binding
  body: {metadata: {name: p}, target: {kind: Node, name: $OWN}}
  words: ['403', cannot create resource "pods/binding"]
- what: their Pod's eviction
  ask: POST $THEIR_NS/pods/p/eviction
  body: {apiVersion: policy/v1, kind: Eviction, metadata: {name: p}}
  words: ['403', can only evict pods with spec.nodeName set to itself]
- what: their Pod's end
  ask: DELETE $THEIR_NS/pods/p
  words: ['403', can only delete pods with spec.nodeName set to itself]
- what: a companion's data
  ask: GET $POD
- what: its Node's data
  ask: GET $NODE
- what: Tenants
  ask: GET /apis/outrigger.dev/v1alpha1/tenants
  words: ['403', cannot list resource "tenants"]
- what: their devices
  ask: POST /apis/resource.k8s.io/v1/resourceslices
  body: {metadata: {name: $TENANT-theirs}, spec: {driver: escape.example.com, nodeName: $THEIR, devices: [{name: d}],
    pool: {name: $THEIR, generation: 9, resourceSliceCount: 1}}}
  words: ['403', can only create ResourceSlice with the same NodeName]
- what: own devices
  ask: POST /apis/resource.k8s.io/v1/resourceslices
  body: {metadata: {name: $TENANT-own}, spec: {driver: escape.example.com, nodeName: $OWN, devices: [{name: d}],
    pool: {name: $OWN, generation: 9, resourceSliceCount: 1}}}
"#;

/// A kubelet that registers its Node, anew perhaps.
pub(super) const REGISTRATION: &str = r#"
- what: in another's host
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-new, labels: {provisioning.dpu.nvidia.com/host: $OTHER-a}}}
  words: ['403', 'metadata.labels[provisioning.dpu.nvidia.com/host]: changes from (absent) to $OTHER-a; a kubelet may not']
- what: as another tenant's
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-new, labels: {$LABEL: $OTHER}}}
  words: ['403', 'is not allowed to set the following labels: $LABEL']
- what: with our label
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-new, labels: {outrigger.dev/tenant: $OTHER}}}
  words: ['403', 'metadata.labels[outrigger.dev/tenant]: changes from (absent) to $OTHER; only who may assign DPUs']
- what: with another tenant's taint
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-new}, spec: {taints: [{key: outrigger.dev/tenant, value: $OTHER, effect: NoSchedule}]}}
  words: ['403', 'spec.taints: adds, changes or removes outrigger.dev/tenant=$OTHER:NoSchedule']
- what: as a Node
  ask: POST /api/v1/nodes
  body: {metadata: {name: $TENANT-new, labels: {a: b}}, spec: {taints: [{key: a, effect: NoSchedule}]}}
- what: in another's host, later
  ask: PATCH /api/v1/nodes/$TENANT-new
  body: {metadata: {labels: {provisioning.dpu.nvidia.com/host: $OTHER-a}}}
  words: ['403', 'metadata.labels[provisioning.dpu.nvidia.com/host]: changes from (absent) to $OTHER-a; a kubelet may not']
"#;

/// Claims; in a template of claims the same is one level deeper.
pub(super) const CLAIMS: &str = r#"
- what: adminAccess
  body: {spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed, adminAccess: true}}]}}}
  words: ['spec.devices.requests[0].exactly.adminAccess: is true and reaches devices that others have']
- what: no adminAccess
  body: {spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed, adminAccess: false}}]}}}
- what: another class
  body: {spec: {devices: {requests: [{name: c, exactly: {deviceClassName: escape-allowed}},
    {name: d, exactly: {deviceClassName: escape-other}}]}}}
  words: ['403', 'spec.devices.requests[1].exactly.deviceClassName: is "escape-other"; have it allowed by the Tenant''s']
- what: a class that isn't there
  body: {spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-none}}]}}}
  words: ['403', 'spec.devices.requests[0].exactly.deviceClassName: is "escape-none"']
- what: another class at last
  body: {spec: {devices: {requests: [{name: d, firstAvailable: [{name: x, deviceClassName: escape-allowed},
    {name: y, deviceClassName: escape-other}]}]}}}
  words: ['403', 'spec.devices.requests[0].firstAvailable[1].deviceClassName: is "escape-other"']
- what: its class at last
  body: {spec: {devices: {requests: [{name: d, firstAvailable: [{name: x, deviceClassName: escape-allowed}]}]}}}
- what: a workload's label
  body: {metadata: {labels: {outrigger.dev/workload: w}},
    spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed}}]}}}
  words: ['metadata.labels[outrigger.dev/workload]: is added as "w"']
- what: a Pod's
  body: {metadata: {ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u}]},
    spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed}}]}}}
  words: ['metadata.ownerReferences[0]: is Pod p']
- what: for a Pod's entry
  body: {metadata: {annotations: {resource.kubernetes.io/pod-claim-name: d}},
    spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed}}]}}}
  words: ['metadata.annotations[resource.kubernetes.io/pod-claim-name]: is for claims that Kubernetes makes']
- what: a label
  body: {metadata: {labels: {workload: w}},
    spec: {devices: {requests: [{name: d, exactly: {deviceClassName: escape-allowed}}]}}}
"#;

/// A claim that was made for one workload.
pub(super) const TAKEN: &str = r#"
- what: for nobody
  ask: PATCH $CLAIMS/taken
  body: {metadata: {labels: {outrigger.dev/workload: null}}}
  words: ['metadata.labels[outrigger.dev/workload]: is removed, was "somebody"']
- what: for another
  ask: PATCH $CLAIMS/taken
  body: {metadata: {labels: {outrigger.dev/workload: w}}}
  words: ['metadata.labels[outrigger.dev/workload]: changes from "somebody" to "w"']
- what: a label
  ask: PATCH $CLAIMS/taken
  body: {metadata: {labels: {a: b}}}
"#;

/// Whatever isn't in the namespace, or isn't the user's to write in it: Kubernetes' own authorization.
pub(super) const RIGHTS: &str = "
    PATCH $NS
    PATCH $NS/status
    DELETE $NS
    POST /api/v1/namespaces
    POST /apis/outrigger.dev/v1alpha1/tenants
    GET /apis/outrigger.dev/v1alpha1/tenants/$TENANT
    PATCH /apis/outrigger.dev/v1alpha1/tenants/$TENANT
    PATCH /apis/outrigger.dev/v1alpha1/tenants/$TENANT/status
    PATCH $NODE
    PATCH $THEIR_NODE/status
    GET /api/v1/nodes
    PATCH $NS/resourcequotas/outrigger
    DELETE $NS/resourcequotas/outrigger
    POST $NS/limitranges
    POST $NS/endpoints
    POST /apis/discovery.k8s.io/v1/namespaces/$NAMESPACE/endpointslices
    POST /apis/rbac.authorization.k8s.io/v1/namespaces/$NAMESPACE/roles
    POST /apis/rbac.authorization.k8s.io/v1/namespaces/$NAMESPACE/rolebindings
    DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/$NAMESPACE/rolebindings/outrigger
    PATCH /apis/workload.universe.nvidia.com/v1alpha1/namespaces/$NAMESPACE/workloadrules/x/status
    PATCH /apis/resource.k8s.io/v1/namespaces/$NAMESPACE/resourceclaims/x/status
    DELETE /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/outrigger
    DELETE /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/outrigger
    DELETE /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/outrigger-pods
    DELETE /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/outrigger-pods
    POST /api/v1/namespaces/outrigger-system/serviceaccounts/outrigger-manager/token
    GET /api/v1/namespaces/outrigger-system/secrets
    POST /api/v1/namespaces/outrigger-system/pods
    POST /api/v1/namespaces/default/pods
    POST /api/v1/namespaces/kube-system/pods
    POST /apis/scheduling.k8s.io/v1/priorityclasses
    POST /apis/node.k8s.io/v1/runtimeclasses
    POST /apis/resource.k8s.io/v1/deviceclasses
    POST /apis/resource.k8s.io/v1/resourceslices
    POST /api/v1/persistentvolumes
    POST $THEIR_NS/pods
    GET $THEIR_NS/pods
    GET $THEIR_NS/secrets
    POST $THEIR_NS/pods/p/binding
    POST /apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-$OTHER/workloadrules
    POST /apis/resource.k8s.io/v1/namespaces/tenant-$OTHER/resourceclaims
";

/// What a user tries who may write statuses.
pub(super) const STATUS: &str = r#"
- what: a finalizer by status
  ask: PATCH $POD/status
  body: {metadata: {finalizers: [example.com/stay]}}
  words: ['metadata.finalizers: gets example.com/stay']
- what: a place on another tenant's DPU
  ask: PATCH $NS/pods/pending/status
  body: {status: {nominatedNodeName: $THEIR}}
  words: ['status: is written by kubelets']
- what: another address
  ask: PATCH $POD/status
  body: {status: {podIP: 10.96.0.1, podIPs: [{ip: 10.96.0.1}]}}
  words: ['status: is written by kubelets']
"#;
