//! Liqo's Pod webhook, and nothing else of Liqo.

use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::reviews::SIZES;

use crate::peers::case::{self, Case, Review};
use crate::peers::{Peer, Started};

pub(crate) const PEER: Peer =
    Peer { name: "Liqo", dir: "liqo", module: "github.com/liqotech/liqo", cases, start };

fn cases() -> Vec<Case> {
    let case = |(what, selector, own): (&str, _, _)| Case {
        what: what.to_owned(),
        path: "/mutate/pod",
        review: Review::offloading(selector, own),
        others: Vec::new(),
    };
    SIZES.into_iter().map(case).collect()
}

fn start(o: &Outrigger, program: String) -> anyhow::Result<Started> {
    let objects: Vec<_> = SIZES.into_iter().flat_map(|(_, selector, _)| case::offloaded(selector)).collect();
    o.plane.infra.apply(&objects)?;
    // The names that controller-runtime looks for.
    let pair = o.authority.issue("tls", &["127.0.0.1"])?;
    let [port] = ports()?;
    let argument = format!("--port={port}");
    let certs = pair.cert.parent().expect("a directory").display();
    let kubeconfig = o.plane.infra.kubeconfig.display();
    let args =
        [program, argument.clone(), format!("--cert-dir={certs}"), format!("--kubeconfig={kubeconfig}")];
    o.plane.run(PEER.dir, &args, &[])?;
    Ok(Started { port, argument })
}
