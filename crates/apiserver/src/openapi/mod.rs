//! OpenAPI documents, made when asked for and kept as bytes until the registry changes.

mod delegated;
mod paths;
mod schemas;
mod v2_protobuf;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::http::body::{self, Body};
use crate::server::{self, Server};
use crate::status::ApiError;

/// Finished documents by path, each with the hash of what it was made from.
#[derive(Default)]
pub struct Cache {
    documents: Mutex<HashMap<String, (u64, Bytes)>>,
    delegated: delegated::Cache,
}

impl Cache {
    fn get(&self, path: &str, hash: u64, make: impl FnOnce() -> Value) -> Bytes {
        self.get_bytes(path, hash, || make().to_string().into_bytes())
    }

    fn get_bytes(&self, path: &str, hash: u64, make: impl FnOnce() -> Vec<u8>) -> Bytes {
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, bytes)) = documents.get(path)
            && *known == hash
        {
            return bytes.clone();
        }
        let bytes = Bytes::from(make());
        documents.insert(path.to_owned(), (hash, bytes.clone()));
        bytes
    }
}

/// Answers below `/openapi`.
pub async fn handle(server: &Arc<Server>, path: &str, headers: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let path = path.trim_end_matches('/');
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let protobuf =
        path == "/openapi/v2" && (accept.contains(v2_protobuf::ASKED) || accept.contains(v2_protobuf::MEDIA_TYPE));
    let bytes: Bytes = match path {
        "/openapi/v2" => {
            let others = delegated::all(server, "/openapi/v2").await;
            let hash = registry_hash(server, &others);
            if protobuf {
                server.openapi.get_bytes("/openapi/v2 protobuf", hash, || v2_protobuf::encode(&v2(server, &others)))
            } else {
                server.openapi.get(path, hash, || v2(server, &others))
            }
        }
        "/openapi/v3" => index(server).await.to_string().into(),
        _ => {
            let Some(rest) = path.strip_prefix("/openapi/v3/") else {
                return Err(ApiError::no_route());
            };
            let (group, version) = match rest.split('/').collect::<Vec<_>>().as_slice() {
                ["api", version] => (String::new(), (*version).to_owned()),
                ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
                _ => return Err(ApiError::no_route()),
            };
            let snapshot = server.registry.snapshot();
            if snapshot.in_version(&group, &version).next().is_none() {
                let Some(route) = server.aggregation.find(server, &group, &version) else {
                    return Err(ApiError::no_route());
                };
                let document = delegated::one(server, &route, path).await.ok_or_else(ApiError::no_route)?;
                return Ok(answer(headers, "application/json", document.to_string().into()));
            }
            let hash = version_hash(server, &group);
            server.openapi.get(path, hash, || v3(server, &group, &version))
        }
    };
    let media_type = if protobuf { v2_protobuf::MEDIA_TYPE } else { "application/json" };
    Ok(answer(headers, media_type, bytes))
}

fn answer(headers: &HeaderMap, media_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = body::respond(StatusCode::OK, media_type, Bytes::new());
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    if let Ok(etag) = HeaderValue::from_str(&format!("\"{:016X}\"", hasher.finish())) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    body::compress(headers, &mut response, bytes);
    response
}

async fn index(server: &Arc<Server>) -> Value {
    let mut paths = Map::new();
    for (group, versions) in server.registry.snapshot().groups() {
        for version in versions {
            let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let hash = version_hash(server, group);
            let url = format!("/openapi/v3/{path}?hash={hash:016X}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    for route in server.aggregation.routes(server) {
        let path = format!("/openapi/v3{}", route.path());
        if let Some(document) = delegated::one(server, &route, &path).await {
            let mut hasher = DefaultHasher::new();
            document.to_string().hash(&mut hasher);
            let url = format!("{path}?hash={:016X}", hasher.finish());
            paths.insert(route.path().trim_start_matches('/').to_owned(), json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// What the document of a group's version depends on.
fn version_hash(server: &Server, group: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    server::VERSION.hash(&mut hasher);
    group.hash(&mut hasher);
    for entry in schemas::crds_of(server, group) {
        (&*entry.key.name, entry.revision).hash(&mut hasher);
    }
    hasher.finish()
}

fn registry_hash(server: &Server, others: &[delegated::Part]) -> u64 {
    let mut hasher = DefaultHasher::new();
    server::VERSION.hash(&mut hasher);
    others.iter().for_each(|part| part.document.to_string().hash(&mut hasher));
    for entry in server.store.list(crate::crd::STORAGE, None).items {
        (&*entry.key.name, entry.revision).hash(&mut hasher);
    }
    hasher.finish()
}

fn v3(server: &Server, group: &str, version: &str) -> Value {
    let snapshot = server.registry.snapshot();
    let schemas = schemas::of_version(server, &snapshot, group, version, "#/components/schemas/");
    let mut paths = Map::new();
    for (resource, version) in snapshot.in_version(group, version) {
        paths::add(&mut paths, resource, version, paths::Dialect::V3);
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": server::VERSION},
        "paths": paths, "components": {"schemas": schemas},
    })
}

fn v2(server: &Server, others: &[delegated::Part]) -> Value {
    let snapshot = server.registry.snapshot();
    let mut definitions = Map::new();
    let mut paths = Map::new();
    for (group, versions) in snapshot.groups() {
        for version in versions {
            definitions.extend(schemas::of_version(server, &snapshot, group, version, "#/definitions/"));
            for (resource, version) in snapshot.in_version(group, version) {
                paths::add(&mut paths, resource, version, paths::Dialect::V2);
            }
        }
    }
    others.iter().for_each(|part| part.add_to(&mut paths, &mut definitions));
    json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": server::VERSION},
        "paths": paths, "definitions": definitions,
    })
}
