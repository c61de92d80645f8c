//! Just enough of a Kubernetes API for the node: objects by path, watches, optimistic locking, bindings, graceful
//! deletion. No validation, one list for everything.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::broadcast;

type Reply = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, Infallible>;

#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<(String, String)>,
    /// What reviews allow, as `user verb namespace/subresource`.
    pub rights: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    revision: u64,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self { state: Arc::default(), changes: broadcast::channel(4096).0, rights: Arc::default() }
    }
}

impl FakeApi {
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    pub fn list(&self, prefix: &str) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        state.objects.iter().filter(|(path, _)| path.starts_with(prefix)).map(|(_, object)| object.clone()).collect()
    }

    pub fn put(&self, path: &str, object: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        let known = state.objects.contains_key(path);
        state.revision += 1;
        let mut object = object;
        let revision = state.revision;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = revision.to_string().into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("{revision:08}-0000").into();
            metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        if metadata["name"].is_null() {
            metadata["name"] = path.rsplit('/').next().unwrap_or_default().into();
        }
        state.objects.insert(path.to_owned(), object.clone());
        let kind = if known { "MODIFIED" } else { "ADDED" };
        let _ = self.changes.send((path.to_owned(), json!({"type": kind, "object": object}).to_string()));
        object
    }

    pub fn create(&self, collection: &str, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.put(&format!("{collection}/{name}"), object)
    }

    pub fn patch_annotation(&self, path: &str, name: &str, value: &str) {
        let mut object = self.get(path).unwrap();
        object["metadata"]["annotations"][name] = value.into();
        self.put(path, object);
    }

    /// Graceful deletion of a pod.
    pub fn delete(&self, path: &str) {
        let mut object = self.get(path).unwrap();
        let grace = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        let at = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + grace).unwrap();
        object["metadata"]["deletionTimestamp"] = at.to_string().into();
        self.put(path, object);
    }

    pub fn remove(&self, path: &str) -> Option<Value> {
        let object = self.state.lock().unwrap().objects.remove(path)?;
        let _ = self.changes.send((path.to_owned(), json!({"type": "DELETED", "object": object}).to_string()));
        Some(object)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Reply> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().trim_end_matches('/').to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let body = body.collect().await.unwrap().to_bytes();
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let segments = path.trim_start_matches('/').split('/').collect::<Vec<_>>();
        let last = segments.last().copied().unwrap_or_default();
        match parts.method {
            Method::GET if query.contains("watch=") => self.watch(last, &query),
            Method::GET if ["pods", "nodes", "networkpolicies", "namespaces"].contains(&last) => {
                let state = self.state.lock().unwrap();
                let items: Vec<&Value> =
                    state.objects.iter().filter(|(path, _)| is_of(path, last)).map(|(_, object)| object).collect();
                reply(
                    200,
                    &json!({"apiVersion": "v1", "kind": "List", "items": items,
                                   "metadata": {"resourceVersion": state.revision.to_string()}}),
                )
            }
            Method::GET => self.get(&path).map_or_else(|| failure(404, &path), |object| reply(200, &object)),
            Method::POST if last == "subjectaccessreviews" => {
                let asked = &sent["spec"]["resourceAttributes"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let right = format!(
                    "{} {} {}/{}",
                    text(&sent["spec"]["user"]),
                    text(&asked["verb"]),
                    text(&asked["namespace"]),
                    text(&asked["subresource"])
                );
                let mut answer = sent.clone();
                answer["status"] = json!({"allowed": self.rights.lock().unwrap().contains(&right)});
                reply(201, &answer)
            }
            Method::POST if last == "binding" => {
                let path = path.trim_end_matches("/binding");
                let Some(mut pod) = self.get(path) else {
                    return failure(404, path);
                };
                pod["spec"]["nodeName"] = sent["target"]["name"].clone();
                self.put(path, pod);
                reply(201, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}))
            }
            Method::POST => reply(201, &self.create(&path, sent)),
            Method::PUT => {
                let path = path.trim_end_matches("/status");
                let Some(mut current) = self.get(path) else {
                    return failure(404, path);
                };
                if current["metadata"]["resourceVersion"] != sent["metadata"]["resourceVersion"] {
                    return failure(409, path);
                }
                current["status"] = sent["status"].clone();
                reply(200, &self.put(path, current))
            }
            Method::PATCH => {
                let Some(mut current) = self.get(&path) else {
                    return failure(404, &path);
                };
                merge(&mut current, &sent);
                reply(200, &self.put(&path, current))
            }
            Method::DELETE => {
                assert_eq!(sent["gracePeriodSeconds"], 0, "{sent}");
                self.remove(&path).map_or_else(|| failure(404, &path), |object| reply(200, &object))
            }
            _ => failure(405, &path),
        }
    }

    fn watch(&self, plural: &str, query: &str) -> Response<Reply> {
        let wanted = plural.to_owned();
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse::<u64>().ok());
        let state = self.state.lock().unwrap();
        // What happened between the list and now comes first, as its latest state.
        let missed: Vec<String> = state
            .objects
            .iter()
            .filter(|(path, object)| {
                let revision = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
                is_of(path, &wanted) && revision > from
            })
            .map(|(_, object)| json!({"type": "MODIFIED", "object": object}).to_string())
            .collect();
        let changes = self.changes.subscribe();
        drop(state);
        let stream = futures::stream::unfold((missed.into_iter(), changes), move |(mut missed, mut changes)| {
            let wanted = wanted.clone();
            async move {
                if let Some(line) = missed.next() {
                    return Some((line, (missed, changes)));
                }
                loop {
                    let (path, line) = changes.recv().await.ok()?;
                    if is_of(&path, &wanted) {
                        return Some((line, (missed, changes)));
                    }
                }
            }
        });
        let frames = futures::StreamExt::map(stream, |line| {
            Ok::<_, Infallible>(http_body::Frame::data(bytes::Bytes::from(format!("{line}\n"))))
        });
        Response::new(Reply::new(http_body_util::StreamBody::new(frames)))
    }
}

/// Whether an object's path is one of this resource.
fn is_of(path: &str, plural: &str) -> bool {
    path.rsplit('/').nth(1) == Some(plural)
}

fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            for (name, value) in fields {
                merge(&mut target[name], value);
            }
        }
        other => *target = other.clone(),
    }
}

fn reply(code: u16, body: &Value) -> Response<Reply> {
    let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
    Response::builder().status(code).body(Reply::new(body)).unwrap()
}

fn failure(code: u16, path: &str) -> Response<Reply> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "reason": if code == 404 { "NotFound" } else { "Conflict" }, "message": path});
    reply(code, &status)
}
