//! What is written to an API server, from its own metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;

/// Writes of a resource that an API server has taken, of it (`pods`) and of its subresources (`pods/status`), by whomever.
pub async fn writes(client: &Client, resource: &str) -> BTreeMap<String, u64> {
    let text = client.request_text(http::Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            rest.split('"').next().map(str::to_owned)
        };
        let is_write =
            label("verb").is_some_and(|v| ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&&*v));
        if !is_write
            || label("resource").as_deref() != Some(resource)
            || label("dry_run").is_some_and(|d| !d.is_empty())
        {
            continue;
        }
        let sub = label("subresource")
            .filter(|sub| !sub.is_empty())
            .map(|sub| format!("/{sub}"))
            .unwrap_or_default();
        let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        *counts.entry(format!("{resource}{sub}")).or_default() += count as u64;
    }
    counts
}

/// What came after `before`.
pub fn since(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    now.iter()
        .map(|(key, count)| (key.clone(), count - before.get(key).copied().unwrap_or_default()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Waits until no more is written, which is until a count is the same after a pause; returns it.
pub async fn settled<T: PartialEq>(pause: Duration, count: impl AsyncFn() -> T) -> T {
    let mut last = count().await;
    loop {
        tokio::time::sleep(pause).await;
        let now = count().await;
        if now == last {
            return now;
        }
        last = now;
    }
}
