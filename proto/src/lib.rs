//! The gRPC interface `universe.workload.v1`: messages, clients and servers, generated from the `.proto` files beside
//! this crate. They are byte-compatible with NVIDIA's: the same field numbers and enum values.
//! `universe.admin.workload.v1` has the same form.
//!
//! This crate makes no decisions. `outrigger-api` converts these messages into the domain's types and refuses invalid
//! ones; no other crate reads their fields.

pub mod shape;

/// `universe.*`
pub mod universe {
    /// `universe.admin.*`
    pub mod admin {
        /// `universe.admin.workload.*`
        pub mod workload {
            /// `universe.admin.workload.v1`: rules of the platform.
            #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
            pub mod v1 {
                tonic::include_proto!("universe.admin.workload.v1");
            }
        }
    }

    /// `universe.workload.*`
    pub mod workload {
        /// `universe.workload.v1`: workloads and rules of one tenant.
        #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
        pub mod v1 {
            tonic::include_proto!("universe.workload.v1");
        }
    }
}

/// `outrigger.companion.v1`: the state of companions, for agents.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod companion {
    tonic::include_proto!("outrigger.companion.v1");
}

/// The messages of workloads as they are received: their texts are slices of the received bytes and not yet known to be UTF-8, and
/// their maps are lists of entries, of which the last with a key counts. Decoding allocates nothing for either.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod raw {
    include!(concat!(env!("OUT_DIR"), "/raw/universe.workload.v1.rs"));
}

pub use universe::admin::workload::v1 as admin;
pub use universe::workload::v1;

/// All `.proto` files as one encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/universe.bin"));

/// Request metadata key that names the tenant a call is about.
pub const TENANT_ID: &str = "tenant-id";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prost::Message;

    use super::v1::*;

    /// Bytes as a client generated from NVIDIA's definition sends them, field numbers written out by hand.
    #[test]
    fn workloads_on_the_wire() {
        let request = WorkloadStreamRequest {
            message: Some(workload_stream_request::Message::WorkloadUpdate(WorkloadUpdate {
                workload_metadata: Some(WorkloadMetadata {
                    id: "i".into(),
                    orchestrator: OrchestratorType::Kubernetes.into(),
                    resource_type: "t".into(),
                    resource_namespace: "s".into(),
                    resource_name: "n".into(),
                }),
                workload_state: Some(WorkloadState {
                    node_name: "h".into(),
                    ready: true,
                    extra: HashMap::from([(
                        "l".into(),
                        workload_state::ExtraData { data: HashMap::from([("k".into(), "v".into())]) },
                    )]),
                    ..Default::default()
                }),
                annotation_keys: None,
            })),
        };
        #[rustfmt::skip]
        let wire = [
            0x0a, 38, // workload_update = 1
            0x0a, 14, 0x0a, 1, b'i', 0x10, 1, 0x1a, 1, b't', 0x22, 1, b's', 0x2a, 1, b'n', // workload_metadata = 1
            0x12, 20, 0x0a, 1, b'h', 0x10, 1, // workload_state = 2: node_name = 1, ready = 2
            0x1a, 13, 0x0a, 1, b'l', 0x12, 8, 0x0a, 6, 0x0a, 1, b'k', 0x12, 1, b'v', // extra = 3, data = 1
        ];
        assert_eq!(request.encode_to_vec(), wire);
        assert_eq!(WorkloadStreamRequest::decode(&wire[..]).unwrap(), request);
        for (message, tag) in [
            (workload_stream_request::Message::WorkloadDelete(WorkloadDelete::default()), 0x12),
            (workload_stream_request::Message::WorkloadSync(WorkloadSync::default()), 0x1a),
        ] {
            assert_eq!(WorkloadStreamRequest { message: Some(message) }.encode_to_vec(), [tag, 0]);
        }
    }

    #[test]
    fn admin_rules_on_the_wire() {
        use super::admin;
        let rule = admin::Rule {
            id: "r".into(),
            data: Some(RuleData { resource_type: "t".into(), ..RuleData::default() }),
            tenant_selector: Some(admin::TenantSelector {
                match_labels: HashMap::from([("k".into(), "v".into())]),
                match_expressions: vec![admin::TenantRequirement {
                    key: "k".into(),
                    operator: "In".into(),
                    values: vec!["v".into()],
                }],
            }),
            ..admin::Rule::default()
        };
        #[rustfmt::skip]
        let wire = [
            0x0a, 1, b'r', 0x12, 3, 0x12, 1, b't', // id = 1, data = 2, as a tenant's
            0xe2, 0x3e, 20, // tenant_selector = 1004
            0x0a, 6, 0x0a, 1, b'k', 0x12, 1, b'v', // match_labels = 1
            0x12, 10, 0x0a, 1, b'k', 0x12, 2, b'I', b'n', 0x1a, 1, b'v', // match_expressions = 2
        ];
        assert_eq!(rule.encode_to_vec(), wire);
    }

    #[test]
    fn rules_on_the_wire() {
        use rule_match_expression::Operation;
        let rule = Rule {
            id: "r".into(),
            data: Some(RuleData {
                orchestrator_type: OrchestratorType::Kubernetes.into(),
                resource_type: "t".into(),
                workload_terms: vec![RuleWorkloadTerm {
                    match_expressions: vec![RuleMatchExpression {
                        key: "k".into(),
                        operation: Operation::Lt.into(),
                        values: vec!["1".into()],
                    }],
                }],
                dpu_selection_policy: "Any".into(),
                workload_info_inject: vec![WorkloadInfoInject {
                    key: "@".into(),
                    message: Some(workload_info_inject::Message::AsAnnotation(
                        WorkloadInfoInjectConfigAsAnnotation { name: "a".into() },
                    )),
                }],
                rule_template: (&b"{}"[..]).into(),
                ..RuleData::default()
            }),
            ..Rule::default()
        };
        #[rustfmt::skip]
        let wire = [
            0x0a, 1, b'r', 0x12, 36, // id = 1, data = 2
            0x08, 1, 0x12, 1, b't', // orchestrator_type = 1, resource_type = 2
            0x1a, 10, 0x0a, 8, 0x0a, 1, b'k', 0x10, 6, 0x1a, 1, b'1', // workload_terms = 3
            0x22, 3, b'A', b'n', b'y', // dpu_selection_policy = 4
            0x2a, 8, 0x0a, 1, b'@', 0x12, 3, 0x0a, 1, b'a', // workload_info_inject = 5
            0x32, 2, b'{', b'}', // rule_template = 6
        ];
        assert_eq!(rule.encode_to_vec(), wire);
        let numbers = [
            Operation::Unspecified,
            Operation::In,
            Operation::NotIn,
            Operation::Exists,
            Operation::DoesNotExist,
            Operation::Gt,
            Operation::Lt,
        ]
        .map(i32::from);
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    }
}
