//! Random Pods that the API server accepts, each by its number.

use outrigger_core::keys;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// Pods of the same number are equal.
const SEED: u64 = 20_261_128;

struct Random(StdRng);

/// The Pod of this number.
pub(super) fn pod(number: u64) -> Value {
    let mut random = Random(StdRng::seed_from_u64(SEED + number));
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number}"), "labels": {"number": number.to_string()}, "annotations": {}},
        // A token's volume would have another name each time.
        "spec": {"automountServiceAccountToken": false}});
    match number % 20 {
        0 => random.mirror(&mut pod),
        1 => random.windows(&mut pod),
        _ => random.linux(&mut pod),
    }
    pod
}

impl Random {
    /// True in so many of a hundred cases.
    fn is(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.0).unwrap().clone()
    }

    fn upto(&mut self, most: usize) -> usize {
        self.0.random_range(0..=most)
    }

    /// Sets a field to one of the values in so many of a hundred cases.
    fn maybe(&mut self, to: &mut Value, percent: u32, field: &str, values: &[Value]) {
        if self.is(percent) {
            to[field] = self.one(values);
        }
    }

    /// The mirror of a static Pod.
    fn mirror(&mut self, pod: &mut Value) {
        pod["metadata"]["annotations"] =
            json!({keys::MIRROR_POD: "x", "kubernetes.io/config.source": "file"});
        pod["spec"] = json!({"nodeName": "nowhere", "hostNetwork": self.is(50),
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            "containers": [{"name": "c", "image": "i", "resources": self.resources()}]});
    }

    fn windows(&mut self, pod: &mut Value) {
        let containers: Vec<Value> = (0..=self.upto(2))
            .map(|i| json!({"name": format!("c{i}"), "image": "i", "resources": self.resources()}))
            .collect();
        pod["spec"] = json!({"automountServiceAccountToken": false, "os": {"name": "windows"}, "nodeSelector": {"kubernetes.io/os": "windows"}, "containers": containers});
        self.maybe(
            &mut pod["spec"],
            50,
            "securityContext",
            &[json!({"windowsOptions": {"runAsUserName": "ContainerUser"}})],
        );
        self.affinity(&mut pod["spec"]);
    }

    fn linux(&mut self, pod: &mut Value) {
        let (mut volumes, count) = (Vec::new(), self.upto(5));
        for i in 0..count {
            let mut volume = self.volume();
            volume["name"] = json!(format!("v{i}"));
            volumes.push(volume);
        }
        let spec = &mut pod["spec"];
        self.maybe(spec, 40, "restartPolicy", &[json!("Never"), json!("OnFailure"), json!("Always")]);
        self.claims(spec);
        spec["containers"] =
            (0..=self.upto(3)).map(|i| self.container(&format!("c{i}"), &volumes, spec)).collect();
        spec["initContainers"] =
            (0..self.upto(2)).map(|i| self.init_container(&format!("i{i}"), &volumes, spec)).collect();
        spec["volumes"] = json!(volumes);
        self.whole(spec);
        self.affinity(spec);
        self.placement(spec);
        self.host(spec);
        self.rest(spec);
        if self.is(15) {
            let containers = spec["containers"].as_array().unwrap().clone();
            pod["metadata"]["annotations"][keys::DEFAULT_CONTAINER] = self.one(&containers)["name"].clone();
        }
    }

    /// Requests and limits that go together.
    fn resources(&mut self) -> Value {
        let mut resources = match self.upto(6) {
            0 => json!({}),
            1 => json!({"requests": {"cpu": "100m", "memory": "64Mi"}}),
            2 => json!({"limits": {"cpu": "1500m", "memory": "1Gi"}}),
            3 => json!({"requests": {"cpu": "0.25"}, "limits": {"cpu": 1}}),
            4 => {
                json!({"requests": {"memory": "100M", "ephemeral-storage": "1Gi"}, "limits": {"memory": "1e9"}})
            }
            5 => {
                json!({"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}})
            }
            _ => json!({"limits": {"memory": "128Mi", "hugepages-2Mi": "4Mi"}}),
        };
        if self.is(10) {
            for list in ["requests", "limits"] {
                resources[list]["example.com/device"] = json!("2");
            }
        }
        resources
    }

    /// Resources of the Pod as a whole, which hold those of the containers or are filled in by the API server.
    fn whole(&mut self, spec: &mut Value) {
        if !self.is(40) {
            return;
        }
        // No container has limits beyond these, nor do all together request as much.
        spec["resources"] = self.one(&[
            json!({"limits": {"memory": "16Gi"}}),
            json!({"limits": {"cpu": "12", "memory": "16Gi"}}),
            json!({"requests": {"cpu": "12"}, "limits": {"cpu": "12"}}),
            json!({"requests": {"cpu": "12", "memory": "16Gi"}, "limits": {"cpu": "12", "memory": "16Gi"}}),
            json!({"requests": {"memory": "16Gi"}}),
            json!({"limits": {"cpu": "12", "memory": "16Gi", "hugepages-2Mi": "64Mi"}}),
        ]);
    }

    fn claims(&mut self, spec: &mut Value) {
        if self.is(15) {
            spec["resourceClaims"] = json!([{"name": "one", "resourceClaimName": "some"},
                {"name": "two", "resourceClaimTemplateName": "some"}]);
        }
    }

    fn container(&mut self, name: &str, volumes: &[Value], spec: &Value) -> Value {
        let mut container =
            json!({"name": name, "image": "registry.example/i:1", "resources": self.resources()});
        let mut mounts = Vec::new();
        for volume in volumes {
            let name = volume["name"].as_str().unwrap();
            let mut mount = json!({"name": name, "mountPath": format!("/{name}"), "readOnly": self.is(50)});
            if volume["persistentVolumeClaim"].is_object() {
                mount["subPath"] = json!("a/b");
            }
            if self.is(50) {
                mounts.push(mount);
            }
        }
        container["volumeMounts"] = json!(mounts);
        if spec["resourceClaims"].is_array() && self.is(50) {
            container["resources"]["claims"] = json!([{"name": "one"}, {"name": "two", "request": "r"}]);
        }
        let restart = if spec["restartPolicy"] == "Never" { "NotRequired" } else { "RestartContainer" };
        self.maybe(&mut container, 30, "resizePolicy", &[json!([
            {"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "memory", "restartPolicy": restart}])]);
        self.maybe(
            &mut container,
            30,
            "env",
            &[
                json!([{"name": "A", "value": "$(B)"}]),
                json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}}]),
            ],
        );
        self.maybe(
            &mut container,
            30,
            "livenessProbe",
            &[
                json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 3}),
                json!({"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 3}),
                json!({"grpc": {"port": 9000}}),
            ],
        );
        self.maybe(&mut container, 30, "securityContext", &[
            json!({"privileged": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
            json!({"runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true}),
            json!({"seccompProfile": {"type": "RuntimeDefault"}}),
        ]);
        self.maybe(
            &mut container,
            20,
            "lifecycle",
            &[
                json!({"preStop": {"sleep": {"seconds": 2}}}),
                json!({"postStart": {"exec": {"command": ["true"]}}}),
            ],
        );
        container
    }

    /// A plain one, or a native sidecar.
    fn init_container(&mut self, name: &str, volumes: &[Value], spec: &Value) -> Value {
        let mut container = self.container(name, volumes, spec);
        let fields = container.as_object_mut().unwrap();
        if self.is(60) {
            fields.insert("restartPolicy".to_owned(), json!("Always"));
        } else {
            for field in ["lifecycle", "livenessProbe", "resizePolicy"] {
                fields.remove(field);
            }
        }
        container
    }

    fn volume(&mut self) -> Value {
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        self.one(&[
            json!({"emptyDir": {}}),
            json!({"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
            json!({"emptyDir": {"medium": "HugePages"}}),
            json!({"configMap": {"name": "a", "optional": true, "items": [{"key": "k", "path": "a/b", "mode": 256}]}}),
            json!({"secret": {"secretName": "a", "defaultMode": 288}}),
            json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}},
                {"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "s"}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}),
            json!({"hostPath": {"path": "/var/log", "type": "Directory"}}),
            json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}),
            json!({"csi": {"driver": "csi.example.com", "volumeAttributes": {"a": "b"}}}),
            json!({"nfs": {"server": "nfs.example", "path": "/a"}}),
            json!({"iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:storage.disk1", "lun": 0}}),
            json!({"fc": {"targetWWNs": ["500a0982991b8dc5"], "lun": 2}}),
            json!({"image": {"reference": "registry.example/data:1", "pullPolicy": "IfNotPresent"}}),
        ])
    }

    fn node_term(&mut self) -> Value {
        let zone = |operator: &str, values: Value| json!({"key": "topology.kubernetes.io/zone", "operator": operator, "values": values});
        self.one(&[
            json!({"matchExpressions": [zone("In", json!(["a", "b"]))]}),
            json!({"matchExpressions": [zone("NotIn", json!(["c"])), {"key": "x", "operator": "Exists"}]}),
            json!({"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}, {"key": "y", "operator": "DoesNotExist"}]}),
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
            json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}], "matchExpressions": [zone("In", json!(["a"]))]}),
            json!({}),
        ])
    }

    fn affinity(&mut self, spec: &mut Value) {
        let mut affinity = Map::new();
        if self.is(50) {
            let terms: Vec<Value> = (0..=self.upto(3)).map(|_| self.node_term()).collect();
            let mut node =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            self.maybe(
                &mut node,
                30,
                "preferredDuringSchedulingIgnoredDuringExecution",
                &[json!([{"weight": 3,
                "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}])],
            );
            affinity.insert("nodeAffinity".to_owned(), node);
        }
        let term =
            json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}});
        if self.is(20) {
            affinity.insert("podAffinity".to_owned(), json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}));
        }
        if self.is(20) {
            affinity.insert(
                "podAntiAffinity".to_owned(),
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]}),
            );
        }
        if self.is(70) {
            spec["affinity"] = Value::Object(affinity);
        }
    }

    fn placement(&mut self, spec: &mut Value) {
        let mut tolerations = Vec::new();
        for _ in 0..self.upto(3) {
            tolerations.push(self.one(&[
                json!({"operator": "Exists"}),
                json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}),
                json!({"key": "a", "value": "b", "effect": "NoSchedule"}),
                json!({"key": "a", "operator": "Equal"}),
                json!({"key": keys::NOT_ALLOWED, "operator": "Exists", "effect": "NoExecute"}),
                json!({"key": keys::NODE_POOL, "operator": "Exists"}),
            ]));
        }
        if self.is(60) {
            spec["tolerations"] = json!(tolerations);
        }
        self.maybe(spec, 20, "nodeSelector", &[json!({"a": "b"}), json!({"kubernetes.io/os": "linux"})]);
        self.maybe(spec, 15, "schedulingGates", &[json!([{"name": "example.com/wait"}])]);
        self.maybe(spec, 15, "readinessGates", &[json!([{"conditionType": "example.com/ready"}])]);
        let selector = json!({"matchLabels": {"a": "b"}});
        self.maybe(
            spec,
            15,
            "topologySpreadConstraints",
            &[json!([{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector, "nodeTaintsPolicy": "Honor"}])],
        );
    }

    /// What it has of its host, or of users of its own.
    fn host(&mut self, spec: &mut Value) {
        match self.upto(5) {
            0 => {
                spec["hostNetwork"] = json!(true);
                spec["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8080}]);
                spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
            }
            1 => spec["hostUsers"] = json!(false),
            2 => spec["hostPID"] = json!(true),
            3 => spec["shareProcessNamespace"] = json!(true),
            _ => {
                spec["containers"][0]["ports"] =
                    json!([{"containerPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}]);
            }
        }
    }

    fn rest(&mut self, spec: &mut Value) {
        self.maybe(spec, 20, "activeDeadlineSeconds", &[json!(60)]);
        self.maybe(spec, 20, "terminationGracePeriodSeconds", &[json!(3), json!(600)]);
        self.maybe(spec, 20, "os", &[json!({"name": "linux"})]);
        self.maybe(
            spec,
            20,
            "dnsConfig",
            &[json!({"nameservers": ["10.0.0.10"], "options": [{"name": "ndots", "value": "2"}]})],
        );
        self.maybe(spec, 20, "hostAliases", &[json!([{"ip": "10.0.0.1", "hostnames": ["a.example"]}])]);
        self.maybe(spec, 20, "hostname", &[json!("web-1")]);
        self.maybe(spec, 20, "preemptionPolicy", &[json!("PreemptLowerPriority")]);
        self.maybe(spec, 20, "imagePullSecrets", &[json!([{"name": "s"}])]);
        self.maybe(spec, 30, "securityContext", &[
            json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000, "supplementalGroups": [1, 2]}),
            json!({"seccompProfile": {"type": "RuntimeDefault"}, "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}),
            json!({"runAsNonRoot": true}),
        ]);
    }
}
