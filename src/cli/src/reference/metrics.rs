//! The metrics, from the table that the servers register theirs from.

use outrigger_runtime::metrics::{ALL, LATENCY_BUCKETS, MICRO_BUCKETS, STANDARD};

use super::Page;

pub(super) fn page() -> Page {
    let mut text = "`/metrics` on the admin port is OpenMetrics text. Names, types, labels and their values are stable; new ones may be added. Labels never contain names of objects, so the number of series doesn't grow with the \
                    cluster. [Operation](../operation.md#metrics) tells how to read them.\n\n\
                    | metric | type | of | labels | what |\n|---|---|---|---|---|\n"
        .to_owned();
    for metric in ALL {
        text += &format!("{}\n", metric.row());
    }
    let bounds = |bounds: &[f64]| bounds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    text += &format!(
        "\nHistograms have buckets up to, in seconds: {}; that of steps of admission: {}.\n",
        bounds(&LATENCY_BUCKETS),
        bounds(&MICRO_BUCKETS)
    );
    let standard: Vec<String> = STANDARD.iter().map(|name| format!("`{name}`")).collect();
    text += &format!(
        "\nBeside these the process' own, under the names that every Prometheus client gives them: {}.\n",
        standard.join(", ")
    );
    Page::new("metrics", "Metrics", "every metric, its labels and their values", text)
}
