//! The list for people.

use super::device::{Configuration, Device, others};
use super::report::{Claim, Phase, Report};
use crate::document::{Document, Grade, Readable, Row, Table, bold, item};

const HEADS: [&str; 7] = ["CLAIM", "STATE", "NODE", "DEVICES", "PODS", "RULE", "WORKLOAD"];

impl Readable for Report {
    /// A table for each namespace of a tenant.
    fn document(&self) -> Document {
        let mut document = Document::default();
        document.notes(&self.notes);
        if self.claims.is_empty() {
            document.add(item!["no claims"]);
        }
        let place = |claim: &Claim| (claim.tenant.clone(), claim.namespace.clone());
        for (i, of_tenant) in self.claims.chunk_by(|a, b| place(a) == place(b)).enumerate() {
            if i > 0 {
                document.gap();
            }
            if let Some(Claim { tenant, namespace, .. }) = of_tenant.first() {
                document.add(item![
                    bold(format_args!("tenant {tenant}")),
                    format_args!(" (namespace {namespace})")
                ]);
            }
            let rows = of_tenant.iter().map(row).collect();
            document.table(Table { heads: HEADS.to_vec(), rows, ..Table::default() });
        }
        document
    }
}

fn row(claim: &Claim) -> Row {
    let devices: Vec<String> = claim.devices.iter().map(Device::path).collect();
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let grade = if claim.state == Phase::Pending { Grade::Odd } else { Grade::Good };
    let cells = [
        claim.name.clone(),
        claim.state.as_str().to_owned(),
        optional(&claim.node),
        devices.join(","),
        claim.pods.join(","),
        optional(&claim.rule),
        optional(&claim.workload),
    ];
    let list = |what: &str, all: &[String]| (!all.is_empty()).then(|| item![what, all.join(", ")]);
    let more = claim.devices.iter().filter(|device| !device.more().is_empty());
    let below = claim.reason.iter().map(|reason| item![reason]);
    let below = below
        .chain(more.map(|device| item![device.path(), ": ", device.more()]))
        .chain(list("reserved for ", &others(&claim.consumers)))
        .chain(claim.config.iter().map(Configuration::brief).map(|config| item![config]))
        .chain(list("reserved for Pods that are gone: ", &claim.former_pods));
    Row { below: below.collect(), ..Row::new(grade, cells) }
}
