//! The gRPC services.

mod access;
mod admin_rules;
mod companions;
mod intake;
pub mod limits;
mod rates;
mod rules;
mod status;
mod sync;
mod verbs;
mod workloads;

use std::sync::{Arc, OnceLock};

use axum::middleware::from_fn_with_state;
use outrigger_core::ids::TenantId;
use outrigger_proto::TENANT_ID;
use outrigger_proto::admin::admin_workload_rule_service_server::AdminWorkloadRuleServiceServer;
use outrigger_proto::companion::companion_service_server::CompanionServiceServer;
use outrigger_proto::v1::workload_rule_service_server::WorkloadRuleServiceServer;
use outrigger_proto::v1::workload_service_server::WorkloadServiceServer;
use outrigger_runtime::Process;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::context::Context;
use access::{Access, Admitted};
use admin_rules::AdminRules;
use companions::CompanionOutcomes;
pub(crate) use companions::message;
use intake::Intake;
use rules::Rules;
use workloads::Workloads;

type Answer<T> = Result<Response<T>, Status>;

/// All services, behind the checks that every call has to pass. Whatever accepts connections may serve this: a listener of the
/// process, or a connection in memory. It has to say who calls by a [`Peer`](outrigger_runtime::serve::Peer) among the extensions
/// of each request. Fails when the descriptors of the services can't be used for reflection.
pub(crate) fn router(process: &Process, context: &Arc<Context>) -> anyhow::Result<axum::Router> {
    let access = Arc::new(Access::new(context, &process.readiness));
    let clock = context.environment.clock;
    let intake = Arc::new(Intake::new(access.clone(), clock, context.replica.args.max_message_bytes));
    let router = routes(process, context, &access).into_axum_router().fallback_service(reflection()?);
    Ok(router.layer(from_fn_with_state(intake, Intake::take_in)))
}

fn routes(process: &Process, context: &Arc<Context>, access: &Arc<Access>) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (readiness, drain) = (process.readiness.clone(), process.drain.clone());
    process.drained(async move {
        report_health(&reporter, ServingStatus::NotServing).await;
        tokio::select! {
            biased;
            () = drain.cancelled() => return,
            () = readiness.done() => report_health(&reporter, ServingStatus::Serving).await,
        }
        drain.cancelled().await;
        report_health(&reporter, ServingStatus::NotServing).await;
    });
    // tonic reads no messages of streams. Those of other calls have been compared with their bounds before it reads them.
    let workloads = Workloads::new(context, access, &process.drain);
    let workloads = WorkloadServiceServer::new(workloads).max_decoding_message_size(0);
    let most = limits::RULE_MESSAGE.bytes;
    let rules = WorkloadRuleServiceServer::new(Rules(access.clone())).max_decoding_message_size(most);
    let admin_rules = AdminWorkloadRuleServiceServer::new(AdminRules(access.clone()));
    let companions = CompanionOutcomes::new(context, access, &process.drain);
    let companions = CompanionServiceServer::new(companions).max_decoding_message_size(limits::SMALL_BYTES);
    Routes::new(workloads)
        .add_service(rules)
        .add_service(companions)
        .add_service(admin_rules.max_decoding_message_size(most))
        .add_service(health.max_decoding_message_size(limits::SMALL_BYTES))
}

/// The services of reflection, which know all services of this process. What isn't theirs is unimplemented. Reading the descriptors is
/// most of a manager's start: the managers of a process share them.
fn reflection() -> anyhow::Result<axum::Router> {
    static SERVICES: OnceLock<axum::Router> = OnceLock::new();
    if let Some(services) = SERVICES.get() {
        return Ok(services.clone());
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(outrigger_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let services = Routes::new(reflection().build_v1()?.max_decoding_message_size(limits::SMALL_BYTES))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(limits::SMALL_BYTES));
    Ok(SERVICES.get_or_init(|| services.into_axum_router()).clone())
}

async fn report_health(reporter: &HealthReporter, status: ServingStatus) {
    use tonic::server::NamedService;
    for service in [
        WorkloadServiceServer::<Workloads>::NAME,
        WorkloadRuleServiceServer::<Rules>::NAME,
        CompanionServiceServer::<CompanionOutcomes>::NAME,
        AdminWorkloadRuleServiceServer::<AdminRules>::NAME,
    ] {
        reporter.set_service_status(service, status).await;
    }
}

/// The tenant that a call's metadata names. Returns INVALID_ARGUMENT when `tenant-id` is missing, there several times, or no
/// tenant's id.
pub(crate) fn tenant_id(metadata: &MetadataMap) -> Result<TenantId, Status> {
    let mut values = metadata.get_all(TENANT_ID).iter();
    let Some(value) = values.next() else {
        return Err(Status::invalid_argument(format!(
            "metadata {TENANT_ID}: is missing; set it to the tenant's id"
        )));
    };
    if values.next().is_some() {
        return Err(Status::invalid_argument(format!("metadata {TENANT_ID}: is there more than once")));
    }
    let text = value.to_str().map_err(|_| {
        Status::invalid_argument(format!("metadata {TENANT_ID}: has other than ASCII characters"))
    })?;
    TenantId::new(text).map_err(|e| Status::invalid_argument(format!("metadata {TENANT_ID}: {e}")))
}

/// For whom a call has come through [`Intake`]. Returns INTERNAL when it hasn't: nothing is served without it.
fn admitted<T>(request: &Request<T>) -> Result<Admitted, Status> {
    let admitted = request.extensions().get::<Option<Admitted>>().cloned().flatten();
    admitted.ok_or_else(|| Status::internal("the call's tenant was not looked up"))
}
