//! What servers behind APIServices publish of themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Map, Value};

use crate::aggregation::{self, Route};
use crate::server::Server;

/// A server elsewhere is asked once in this time, whether it answers or not.
const FRESH: Duration = Duration::from_secs(60);

/// What a server elsewhere answered, and when it was asked.
type Answer = (Instant, Option<Arc<Value>>);

/// What servers elsewhere answered last, by path and group version.
#[derive(Default)]
pub struct Cache {
    known: Mutex<HashMap<String, Answer>>,
}

/// A document of one delegated group version.
pub struct Part {
    /// The paths that are its own begin with this.
    prefix: String,
    pub document: Arc<Value>,
}

impl Part {
    /// Paths of others and definitions that are there already stay as they are: nobody speaks for somebody else.
    pub fn add_to(&self, paths: &mut Map<String, Value>, definitions: &mut Map<String, Value>) {
        let of = |key: &str| self.document[key].as_object().into_iter().flatten();
        let below =
            |path: &str| path.strip_prefix(&self.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        for (path, entry) in of("paths").filter(|(path, _)| below(path)) {
            paths.entry(path.clone()).or_insert_with(|| entry.clone());
        }
        for (name, definition) in of("definitions") {
            definitions.entry(name.clone()).or_insert_with(|| definition.clone());
        }
    }
}

/// The documents of all delegated group versions, in a fixed order.
pub async fn all(server: &Arc<Server>, path: &str) -> Vec<Part> {
    let routes = server.aggregation.routes(server);
    let parts = routes.iter().map(|route| async move {
        one(server, route, path).await.map(|document| Part { prefix: route.path(), document })
    });
    join_all(parts).await.into_iter().flatten().collect()
}

/// The document that the server behind a route has at a path.
pub async fn one(server: &Arc<Server>, route: &Route, path: &str) -> Option<Arc<Value>> {
    if server.in_process(&route.namespace, &route.service).is_some() {
        return aggregation::document(server, route, path).await.map(Arc::new);
    }
    let key = format!("{path} {}", route.path());
    let known = &server.openapi.delegated.known;
    if let Some((asked, document)) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
        && asked.elapsed() < FRESH
    {
        return document.clone();
    }
    let document = match route.available {
        true => aggregation::document(server, route, path).await.map(Arc::new),
        false => None,
    };
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    // Those who are gone are forgotten with all others that were not asked for lately.
    known.retain(|_, (asked, _)| asked.elapsed() < FRESH);
    known.insert(key, (Instant::now(), document.clone()));
    document
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_delegate_speaks_for_itself_only() {
        let document = json!({
            "paths": {"/apis/a.example.com/v1/x": {"get": 1}, "/apis/a.example.com/v10/x": {}, "/api/v1/pods": {"get": "mine"}},
            "definitions": {"Own": {"type": "string"}, "Pod": {"type": "string"}},
        });
        let part = Part { prefix: "/apis/a.example.com/v1".to_owned(), document: Arc::new(document) };
        let mut paths = json!({"/api/v1/pods": {"get": "ours"}}).as_object().cloned().unwrap();
        let mut definitions = json!({"Pod": {"type": "object"}}).as_object().cloned().unwrap();
        part.add_to(&mut paths, &mut definitions);
        assert_eq!(paths.keys().collect::<Vec<_>>(), ["/api/v1/pods", "/apis/a.example.com/v1/x"]);
        assert_eq!(paths["/api/v1/pods"]["get"], "ours");
        assert_eq!((&definitions["Own"]["type"], &definitions["Pod"]["type"]), (&json!("string"), &json!("object")));
    }
}
