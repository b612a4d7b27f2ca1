//! A Pod's list of claims, and the references of its containers to them.

use crate::map::{HashMap, HashSet};
use serde_json::{Map, Value};

use crate::field::FieldError;
use crate::read::Reader;
use crate::syntax::{Form, is_dns_subdomain, is_short_dns_label};
use crate::text::quoted;

/// Everything that the API server would refuse about claims in a Pod's spec, with its field paths; `path` is where the
/// spec stands. What of other objects it takes (that a claim is there, say) isn't looked at.
pub fn pod_faults(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut reader = Reader::default();
    let Some(spec) = spec.as_object() else { return Vec::new() };
    let mut names = HashSet::default();
    for (path, claim) in reader.objects(spec, path, "resourceClaims", usize::MAX) {
        let name = reader.text(claim, &path, "name");
        if let Some(fault) = Form::DnsLabel.fault(format_args!("{path}.name"), name) {
            reader.faults.push(fault);
        } else if !names.insert(name) {
            reader.fault(
                format_args!("{path}.name"),
                format_args!("is {:?} for the second time; use another name", quoted(name)),
            );
        }
        if !name.is_empty() {
            names.insert(name);
        }
        source(&mut reader, claim, &path);
    }
    for key in ["initContainers", "containers"] {
        for (path, container) in reader.objects(spec, path, key, usize::MAX) {
            let Some(resources) = reader.object(container, &path, "resources") else { continue };
            container_claims(&mut reader, resources, &format!("{path}.resources"), &names);
        }
    }
    reader.faults
}

/// Where a claim comes from: it is one that is there, or is made from a template.
fn source(reader: &mut Reader, claim: &Map<String, Value>, path: &str) {
    const KEYS: [&str; 2] = ["resourceClaimName", "resourceClaimTemplateName"];
    let given = KEYS.map(|key| reader.optional_text(claim, path, key));
    match given {
        [Some(_), Some(_)] => {
            reader.fault(path, "has resourceClaimName and resourceClaimTemplateName; use one of them");
        }
        // A wrong type has been reported.
        [None, None] if KEYS.iter().all(|key| claim.get(*key).is_none_or(Value::is_null)) => {
            reader
                .fault(path, "has neither resourceClaimName nor resourceClaimTemplateName; use one of them");
        }
        _ => {}
    }
    for (key, name) in KEYS.iter().zip(given) {
        if let Some(name) = name.filter(|name| !is_dns_subdomain(name)) {
            reader.fault(
                format_args!("{path}.{key}"),
                format_args!("is {:?}; use the name of an object in the Pod's namespace", quoted(name)),
            );
        }
    }
}

/// The claims of one container. One may be used as a whole, or by single requests, not both.
fn container_claims(reader: &mut Reader, resources: &Map<String, Value>, path: &str, names: &HashSet<&str>) {
    let mut used: HashMap<&str, HashSet<&str>> = HashMap::default();
    for (path, claim) in reader.objects(resources, path, "claims", usize::MAX) {
        let name = reader.text(claim, &path, "name");
        let request = reader.text(claim, &path, "request");
        if name.is_empty() {
            reader.fault(&path, "has no name; use one of spec.resourceClaims");
            continue;
        }
        if !names.contains(name) {
            reader.fault(
                &path,
                format_args!("is {:?}; use the name of one of spec.resourceClaims", quoted(name)),
            );
        }
        let before = used.entry(name).or_default();
        let whole = before.contains("");
        if !whole && !request.is_empty() && !is_short_dns_label(request) {
            reader.fault(
                format_args!("{path}.request"),
                format_args!("is {:?}; use the name of one of the claim's requests", quoted(request)),
            );
        }
        if whole || before.contains(request) || (request.is_empty() && !before.is_empty()) {
            reader.fault(&path, format_args!("uses {:?} for the second time; remove it", quoted(name)));
        }
        before.insert(request);
    }
}
