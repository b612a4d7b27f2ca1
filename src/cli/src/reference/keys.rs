//! Labels, annotations, taints, finalizers and gates, from the table beside their constants.

use outrigger_core::keys::{Form, TABLE};

use super::Page;
use super::markdown::{cell, code, table};

pub(super) fn page() -> Page {
    let mut text = "Every key that Outrigger reads or writes on objects. Those under `outrigger.dev` are Outrigger's: only its components may set them on Pods and claims of tenants. The others are Kubernetes', NVIDIA's, Liqo's \
                    and Imperator's, and have their meaning there. \"Manager\" as who writes one stands for the controllers \
                    of `outrigger manager`.\n"
        .to_owned();
    for form in Form::ALL {
        let rows: Vec<_> = TABLE
            .iter()
            .filter(|key| key.form == form)
            .map(|key| [code(key.key), cell(key.on), cell(key.by), cell(key.meaning)])
            .collect();
        text += &format!("\n## {}\n\n{}", form.title(), table(["key", "on", "written by", "meaning"], &rows));
    }
    Page::new(
        "keys",
        "Labels, annotations, taints, finalizers",
        "every key on objects, who writes it and what it means",
        text,
    )
}
