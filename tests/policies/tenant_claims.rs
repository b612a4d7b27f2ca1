//! The twins for claims of devices in tenants' namespaces: what they may ask for, and whose they are.

use super::*;

/// Claims of the tenant blue.
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/tenant-blue/resourceclaims";
/// The same of an older version.
const OLDER: &str = "/apis/resource.k8s.io/v1beta2/namespaces/tenant-blue/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/tenant-blue/resourceclaimtemplates";
/// A name as companions have it.
const FORETOLD: &str = "firewall-573e560607f4a185";

fn spec(admin: bool) -> Value {
    let request = json!({"deviceClassName": "c", "adminAccess": admin});
    json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}, {"name": "b", "exactly": request}]}})
}

fn claim(name: &str, change: Value) -> Value {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": spec(false)});
    merged(claim, change)
}

fn template(admin: bool) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
        "spec": {"spec": spec(admin)}})
}

/// The claim in the older version.
fn older(admin: bool) -> Value {
    claim("old", json!({"apiVersion": "resource.k8s.io/v1beta2", "spec": spec(admin)}))
}

fn of_pod(kind: &str) -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "p", "uid": "1"}]}})
}

fn uses(name: &str) -> Value {
    pod(
        "blue",
        json!({"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "shared"},
        {"name": "b", "resourceClaimName": name}]}}),
    )
}

/// The namespace's label that lets a claim reach other claims' devices, which its tenant may not do all the same.
pub(crate) fn prepared() -> Value {
    json!({"metadata": {"labels": {keys::ADMIN_ACCESS: "true"}}})
}

/// A claim that is there, and is for one workload.
pub(crate) fn taken() -> Ask {
    Admin.create(CLAIMS, claim("taken", label(keys::WORKLOAD, "w")))
}

pub(crate) fn tenant_claims() -> Vec<Twins> {
    let make = |who: Who, change| who.create(CLAIMS, claim("c", change));
    let change = |change| Operator.patch(format!("{CLAIMS}/taken"), change);
    let mut all = twins! {"outrigger-tenant-claims";
        "adminAccess": make(Operator, json!({})), make(Operator, json!({"spec": spec(true)}))
            => "spec.devices.requests[1].exactly.adminAccess: is true and reaches devices that others have";
        "adminAccess, by whoever": make(Admin, json!({})), make(Admin, json!({"spec": spec(true)}))
            => "spec.devices.requests[1].exactly.adminAccess: is true";
        "adminAccess in a template": Operator.create(TEMPLATES, template(false)), Operator.create(TEMPLATES, template(true))
            => "spec.spec.devices.requests[1].exactly.adminAccess: is true";
        "adminAccess in another version": Operator.create(OLDER, older(false)), Operator.create(OLDER, older(true))
            => "spec.devices.requests[1].exactly.adminAccess: is true";
        "a companion's name": Operator.create(CLAIMS, claim("firewall-573e560607f4a18", json!({}))),
            Operator.create(CLAIMS, claim(FORETOLD, json!({})))
            => "metadata.name: is firewall-573e560607f4a185, a name as only companions have it";
        "a companion's name, by whom it concerns": Manager.create(CLAIMS, claim(FORETOLD, devices::of_rule())),
            Operator.create(CLAIMS, claim(FORETOLD, json!({})))
            => "metadata.name: is firewall-573e560607f4a185";
        "a Pod's": make(Operator, of_pod("ConfigMap")), make(Operator, of_pod("Pod"))
            => "metadata.ownerReferences[0]: is Pod p";
        "a Pod's, by whom it concerns": make(Scheduler, of_pod("Pod")), make(Operator, of_pod("Pod"))
            => "metadata.ownerReferences[0]: is Pod p";
        "a Pod's, later": change(of_pod("ConfigMap")), change(of_pod("Pod"))
            => "metadata.ownerReferences[0]: is Pod p";
        "for a Pod": make(Scheduler, annotation(keys::POD_CLAIM_NAME, "d")),
            make(Operator, annotation(keys::POD_CLAIM_NAME, "d"))
            => "metadata.annotations[resource.kubernetes.io/pod-claim-name]: is for claims that Kubernetes makes";
    };
    all.extend(twins! {"outrigger-pods";
        "a foretold claim": User.create(BLUE, uses("own")), User.create(BLUE, uses(FORETOLD))
            => "spec.resourceClaims[1].resourceClaimName: is firewall-573e560607f4a185, a name as only claims";
        "a claim made for a companion": User.create(BLUE, uses("firewall-573e560607f4a18-d-x7k2m")),
            User.create(BLUE, uses("firewall-573e560607f4a185-d-x7k2m"))
            => "spec.resourceClaims[1].resourceClaimName: is firewall-573e560607f4a185-d-x7k2m";
        "a foretold claim, by whom it concerns": Manager.create(BLUE, uses(FORETOLD)), User.create(BLUE, uses(FORETOLD))
            => "spec.resourceClaims[1].resourceClaimName";
    });
    all
}
