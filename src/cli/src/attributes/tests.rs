use http::{Request, Response};
use kube::client::Body;
use outrigger_core::json::annotation;
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;
use crate::admission::{Admission, default_args};
use crate::companion::{PodName, companion};

const STATE: &str = "
apiVersion: outrigger.dev/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {hosts: [host-a]}
---
apiVersion: workload.universe.nvidia.com/v1alpha1
kind: WorkloadRule
metadata: {name: r, namespace: tenant-blue}
spec:
  workloadTerms:
    - matchExpressions: [{key: '@', operator: Exists}]
  workloadInfoInject:
    - {workloadKey: \".state.extra.deviceAttributes['mine/one/gpu.example.com/model']\", asAnnotation: {name: gpu}}
  template: {apiVersion: v1, kind: Pod, spec: {containers: [{name: c, image: 'i:1'}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: work, uid: u}
spec: {nodeName: host-a, containers: [], resourceClaims: [{name: gpu, resourceClaimName: mine}]}
---
";

const CLAIM: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine, namespace: work}
spec: {}
status:
  allocation: {devices: {results: [{request: one, driver: gpu.example.com, pool: h, device: d}]}}
  reservedFor: [{resource: pods, name: web, uid: u}]
---
";

const SLICE: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.example.com
  pool: {name: h, generation: 1, resourceSliceCount: 1}
  devices: [{name: d, attributes: {model: {string: a100}}}]
";

fn models() -> Arc<[Pattern]> {
    Arc::from(["gpu.example.com/model".parse::<Pattern>().unwrap()])
}

fn state(text: &str) -> State {
    State::of_text("f", text).unwrap()
}

#[test]
fn a_companion_gets_the_attributes_or_it_is_said_that_it_lacks_them() {
    let of = |text: &str, sent: Arc<[Pattern]>| {
        let admission = Admission::new(state(text), default_args()).unwrap();
        let attributes = ReadAttributes::of_files(admission.state(), sent).unwrap();
        let workload = PodName::parse("work/web").unwrap();
        let made = companion(&admission, "r", &workload, &Default::default(), &attributes).unwrap();
        let (request, left_out) = made.unwrap();
        // Admission injects the facts of this annotation.
        let facts = annotation(&request.object, keys::WORKLOAD).unwrap();
        (facts.contains("a100"), left_out.join("\n"))
    };
    let whole = format!("{STATE}{CLAIM}{SLICE}");
    assert_eq!(of(&whole, models()), (true, String::new()));
    for (text, sent, why) in [
        (whole, Arc::default(), "--send-device-attribute"),
        (format!("{STATE}{CLAIM}"), models(), "lack a ResourceClaim"),
        (format!("{STATE}{SLICE}"), models(), "lack a ResourceClaim"),
    ] {
        let (has_it, left_out) = of(&text, sent);
        assert!(!has_it);
        assert!(left_out.contains("annotation gpu is left out") && left_out.contains(why), "{left_out}");
    }
}

/// A cluster that answers each path with a code and an object.
fn cluster(answers: BTreeMap<&'static str, (u16, Value)>) -> Client {
    Client::new(
        service_fn(move |request: Request<Body>| {
            let missing = (
                404,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "code": 404, "reason": "NotFound", "message": "the server could not find the requested resource"}),
            );
            let (code, body) = answers.get(request.uri().path()).cloned().unwrap_or(missing);
            async move {
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        }),
        "default",
    )
}

/// What is read of a namespace of such a cluster.
async fn read(answers: &[(&'static str, (u16, Value))]) -> ReadAttributes {
    let cluster = cluster(answers.iter().cloned().collect());
    ReadAttributes::of_cluster(&cluster, Some("work"), &models()).await
}

#[tokio::test(start_paused = true)]
async fn what_a_cluster_refuses_or_does_not_have_is_unknown() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/work/resourceclaims";
    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
    let listed = |text: &str, kind: &str| {
        let items: Vec<Value> =
            state(text).of(keys::DEVICE_GROUP, kind).map(|object| object.value.clone()).collect();
        (
            200,
            json!({"apiVersion": "resource.k8s.io/v1", "kind": format!("{kind}List"), "metadata": {}, "items": items}),
        )
    };
    let [claims, slices] =
        [(CLAIM, "ResourceClaim"), (SLICE, "ResourceSlice")].map(|(text, kind)| listed(text, kind));
    let forbidden = (
        403,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
            "reason": "Forbidden", "message": "resourceslices is forbidden"}),
    );
    let all = read(&[(CLAIMS, claims.clone()), (SLICES, slices)]).await;
    let mut workload = Workload::new(WorkloadId::new("u").unwrap(), "work", "web");
    all.describe(&mut workload);
    assert_eq!(workload.extra[DEVICE_ATTRIBUTES].get("mine/one/gpu.example.com/model"), Some("a100"));
    let pods = state(STATE);
    assert!(!UnknownAttributes::new(&pods, &all).concern(&workload));
    for (answers, why) in [
        (vec![(CLAIMS, claims), (SLICES, forbidden)], "resourceslices is forbidden"),
        (vec![], "the cluster doesn't have the kind"),
    ] {
        let unread = read(&answers).await;
        let unknown = UnknownAttributes::new(&pods, &unread);
        assert!(unknown.concern(&workload) && unknown.why().contains(why), "{unread:?}");
    }
    assert!(matches!(
        ReadAttributes::of_cluster(&cluster(BTreeMap::new()), None, &[]).await,
        ReadAttributes::Unread(why) if why == UNNAMED
    ));
}

#[test]
fn the_claims_of_a_pod_are_those_that_it_names_or_that_were_generated_for_it() {
    let pod = json!({"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "own"},
            {"name": "b", "resourceClaimTemplateName": "t"}, {"name": "c", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended"}}});
    assert_eq!(claims_of(&pod), [Some("own"), Some("made"), None, Some("extended")]);
    assert!(claims_of(&json!({"spec": {}})).is_empty());
}
