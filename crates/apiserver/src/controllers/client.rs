//! A small client for the server's own controllers: objects in, objects out, through the whole pipeline.

use std::sync::{Arc, Weak};

use http::{Method, Request, header};
use serde_json::Value;

use crate::authn::User;
use crate::http::body;
use crate::object::{group_of, name, text, version_of};
use crate::pipeline;
use crate::registry::Resource;
use crate::server::Server;
use crate::status::ApiError;

/// Weak, so that a controller never keeps a server alive that nobody else uses.
#[derive(Clone)]
pub struct Client {
    server: Weak<Server>,
    user: User,
}

impl Client {
    pub fn new(server: &Arc<Server>, component: &str) -> Self {
        Self { server: Arc::downgrade(server), user: User::system(component) }
    }

    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        content: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let server = self.server.upgrade().ok_or_else(|| ApiError::unavailable("the server is shutting down"))?;
        let bytes = content.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .extension(self.user.clone())
            .body(body::full(bytes))
            .map_err(|e| ApiError::internal(e.to_string()))?;
        let response = pipeline::handle(server, request).await;
        let status = response.status();
        let bytes = body::read_all(response.into_body()).await?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status.is_success() { Ok(value) } else { Err(ApiError::from_status(value)) }
    }

    /// Creates an object. If it is already there, returns it as it is.
    pub async fn create_if_absent(&self, object: &Value) -> Result<Option<Value>, ApiError> {
        let collection = self.path_of(object)?;
        let item = format!("{collection}/{}", name(object));
        match self.request(Method::GET, &item, "application/json", None).await {
            Ok(current) => return Ok(Some(current)),
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
        match self.request(Method::POST, &collection, "application/json", Some(object)).await {
            Ok(_) => Ok(None),
            Err(error) if error.reason() == "AlreadyExists" => {
                self.request(Method::GET, &item, "application/json", None).await.map(Some)
            }
            Err(error) => Err(error),
        }
    }

    /// The object of this kind and name, if there is one.
    pub async fn get(&self, object: &Value) -> Result<Option<Value>, ApiError> {
        let path = format!("{}/{}", self.path_of(object)?, name(object));
        match self.request(Method::GET, &path, "application/json", None).await {
            Err(error) if error.code == 404 => Ok(None),
            result => result.map(Some),
        }
    }

    /// Deletes the object of this kind and name, if there is one.
    pub async fn delete_object(&self, object: &Value) -> Result<(), ApiError> {
        let path = format!("{}/{}", self.path_of(object)?, name(object));
        match self.delete(&path, &Value::Object(Default::default())).await {
            Err(error) if error.code == 404 => Ok(()),
            result => result.map(drop),
        }
    }

    pub async fn update(&self, object: &Value) -> Result<Value, ApiError> {
        self.update_at(object, "").await
    }

    /// PUT of an object to a subresource ("" is the object itself).
    pub async fn update_at(&self, object: &Value, subresource: &str) -> Result<Value, ApiError> {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let path = format!("{}/{}{slash}{subresource}", self.path_of(object)?, name(object));
        self.request(Method::PUT, &path, "application/json", Some(object)).await
    }

    pub async fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value, ApiError> {
        self.request(Method::PATCH, path, "application/merge-patch+json", Some(patch)).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Result<Value, ApiError> {
        self.request(Method::DELETE, path, "application/json", Some(options)).await
    }

    fn path_of(&self, object: &Value) -> Result<String, ApiError> {
        let server = self.server.upgrade().ok_or_else(|| ApiError::unavailable("the server is shutting down"))?;
        let (api_version, kind) = (text(object, &["apiVersion"]), text(object, &["kind"]));
        let snapshot = server.registry.snapshot();
        let resource = snapshot
            .find_kind(group_of(api_version), kind)
            .ok_or_else(|| ApiError::bad_request(format!("no kind {kind} in {api_version}")))?;
        let namespace = match text(object, &["metadata", "namespace"]) {
            "" => "default",
            namespace => namespace,
        };
        Ok(collection_path(resource, version_of(api_version), resource.namespaced.then_some(namespace)))
    }
}

/// The URL of a collection; without a namespace, that of all namespaces.
pub fn collection_path(resource: &Resource, version: &str, namespace: Option<&str>) -> String {
    let root = if resource.group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{}/{version}", resource.group)
    };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", resource.plural),
        None => format!("{root}/{}", resource.plural),
    }
}

/// The URL of one stored object, in the first served version.
pub fn item_path(resource: &Resource, key: &ferrovirt_store::Key) -> String {
    let version = resource.versions.first().map_or("v1", |v| v.name.as_str());
    let namespace = resource.namespaced.then_some(key.namespace.as_ref());
    format!("{}/{}", collection_path(resource, version, namespace), key.name.replace('%', "%25"))
}
