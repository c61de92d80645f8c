//! Counts what is asked through a client, by verb and resource. A watch is one question, however long it is answered.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use http::{Method, Request};
use kube::client::Body;
use tower::Service;

/// Counts of writes, and apart from them of reads. Clones count together.
#[derive(Clone, Default)]
pub struct Writes(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    writes: BTreeMap<String, u64>,
    reads: BTreeMap<String, u64>,
}

impl Writes {
    /// `PATCH virtualmachines/status` and so on, with how often.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).writes.clone()
    }

    /// The same of reads: `GET pods`.
    pub fn reads(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reads.clone()
    }

    /// All writes of a resource, whatever the verb.
    pub fn of(&self, resource: &str) -> u64 {
        let counts = self.counts();
        let mine = counts.iter().filter(|(key, _)| {
            let target = key.split(' ').nth(1).unwrap_or_default();
            target.split('/').next() == Some(resource)
        });
        mine.map(|(_, count)| count).sum()
    }

    fn count(&self, method: &Method, path: &str) {
        let key = format!("{method} {}", target(path));
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = if *method == Method::GET { &mut counts.reads } else { &mut counts.writes };
        *kind.entry(key).or_default() += 1;
    }
}

/// Resource and subresource of a path such as `/apis/<group>/<version>/namespaces/<namespace>/<resource>/<name>/<sub>`.
fn target(path: &str) -> String {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let after = match parts.first() {
        Some(&"api") => parts.get(2..),
        _ => parts.get(3..),
    };
    let after = after.unwrap_or_default();
    let after = match after {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    match after {
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
        [resource, ..] => (*resource).to_owned(),
        [] => path.to_owned(),
    }
}

/// A service that counts.
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    writes: Writes,
}

impl<S> Counted<S> {
    pub fn new(inner: S, writes: Writes) -> Self {
        Self { inner, writes }
    }
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !request.uri().query().unwrap_or_default().contains("watch=true") {
            self.writes.count(request.method(), request.uri().path());
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resources() {
        for (path, expected) in [
            ("/api/v1/namespaces/n/pods/p/status", "pods/status"),
            ("/api/v1/nodes/n", "nodes"),
            ("/api/v1/namespaces/n", "namespaces"),
            ("/apis/kubevirt.io/v1/namespaces/n/virtualmachines", "virtualmachines"),
            ("/apis/kubevirt.io/v1/namespaces/n/virtualmachines/a", "virtualmachines"),
        ] {
            assert_eq!(target(path), expected);
        }
    }
}
