//! The verbs, once, for every resource.
//!
//! ```text
//!  create: decode ─> mutate ─> system fields ─> defaults ─> validate ─> admit ─> commit ─> effects
//!  update: decode ─┐
//!  patch:  patch ──┴> keep system fields, split status ─> mutate ─> validate ─> admit ─> commit or remove ─> effects
//! ```

mod amount_rules;
mod apply;
mod budget;
mod checks;
mod commit;
mod create;
mod decode;
mod delete;
mod effects;
mod get;
mod list;
mod metadata;
mod options;
mod patch;
mod pod_rules;
mod pods;
mod rarer_rules;
mod respond;
mod reviews;
mod scale;
mod select;
mod service_numbers;
mod service_rules;
mod services;
mod strategy;
mod token;
mod update;
mod watch;
mod workloads;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::authn::User;
use crate::crd::conversion;
use crate::http::body::{self, Body};
use crate::http::negotiate::Accept;
use crate::http::request::{Query, Target};
use crate::registry::{Resource, Version};
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::Entry;

pub use budget::{Evicting, count as budget_count};
pub use list::Begun;
pub use metadata::generate_name;
pub use respond::convert;
pub use service_numbers::ServiceNumbers;
pub use services::ServiceNetwork;
pub use workloads::template as pod_template;

/// Warnings of one answer: their number, their bytes together, and the characters of each when there are too many bytes.
const MAX_WARNINGS: usize = 200;
const MAX_WARNING_BYTES: usize = 4096;
const MAX_CUT_WARNING: usize = 256;

/// One request to a resource.
pub struct Call {
    pub server: Arc<Server>,
    pub user: User,
    pub verb: &'static str,
    pub target: Target,
    pub resource: Arc<Resource>,
    pub query: Query,
    pub headers: HeaderMap,
    pub accept: Accept,
    /// Ends long answers (watches).
    pub stop: CancellationToken,
    pub warnings: Mutex<Vec<String>>,
    /// What admission wants the audit log to say.
    pub annotations: Mutex<Annotations>,
}

/// Annotations of a request's audit event. Travels with the response.
#[derive(Debug, Clone, Default)]
pub struct Annotations(pub BTreeMap<String, String>);

impl Call {
    /// The requested version. Routing made sure that it exists.
    pub fn version(&self) -> &Version {
        self.resource.version(&self.target.version).unwrap_or(&self.resource.versions[0])
    }

    pub fn api_version(&self) -> String {
        self.resource.api_version(&self.version().name)
    }

    /// A stored entry with its bytes in the requested version, if that takes a webhook.
    async fn converted(&self, entry: Arc<Entry>) -> Result<Arc<Entry>, ApiError> {
        conversion::entry(&self.server, &self.resource, &self.api_version(), entry).await
    }

    pub fn namespace(&self) -> Option<&str> {
        if self.resource.namespaced { self.target.namespace.as_deref() } else { None }
    }

    pub fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    pub fn subresource(&self) -> &str {
        self.target.subresource.as_deref().unwrap_or_default()
    }

    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.query.all("dryRun") {
            [] => Ok(false),
            values => match options::dry_run(values) {
                None => Ok(values.iter().any(|v| v == "All")),
                Some(cause) => options::refuse("DeleteOptions", &[cause]).map(|()| false),
            },
        }
    }

    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MAX_WARNINGS && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Adds to the audit event of this request.
    pub fn annotate(&self, key: &str, value: &str) {
        let mut annotations = self.annotations.lock().unwrap_or_else(PoisonError::into_inner);
        annotations.0.insert(key.to_owned(), value.to_owned());
    }

    /// The same request, about one object of a collection.
    fn named(&self, key: &ferrovirt_store::Key) -> Self {
        let mut target = self.target.clone();
        target.name = Some(key.name.to_string());
        if self.resource.namespaced {
            target.namespace = Some(key.namespace.to_string());
        }
        self.about(target)
    }

    /// The same request, about the object itself.
    fn without_subresource(&self) -> Self {
        self.about(Target { subresource: None, ..self.target.clone() })
    }

    fn about(&self, target: Target) -> Self {
        Self {
            server: self.server.clone(),
            user: self.user.clone(),
            verb: self.verb,
            target,
            resource: self.resource.clone(),
            query: self.query.clone(),
            headers: self.headers.clone(),
            accept: self.accept,
            stop: self.stop.clone(),
            warnings: Mutex::default(),
            annotations: Mutex::default(),
        }
    }

    pub fn not_found(&self) -> ApiError {
        ApiError::not_found(self.resource.subject(self.name()))
    }
}

/// Runs one request to its end.
pub async fn handle(call: Call, request_body: Body) -> Response<Body> {
    if let Some(warning) = &call.version().deprecation {
        call.warn(warning.clone());
    }
    let result = dispatch(&call, request_body).await;
    let mut response = result.unwrap_or_else(|error| body::error(&error));
    let warnings = std::mem::take(&mut *call.warnings.lock().unwrap_or_else(PoisonError::into_inner));
    add_warnings(response.headers_mut(), &warnings);
    let annotations = std::mem::take(&mut *call.annotations.lock().unwrap_or_else(PoisonError::into_inner));
    if !annotations.0.is_empty() {
        response.extensions_mut().insert(annotations);
    }
    response
}

/// Warnings as headers. Many or long ones are cut as upstream cuts them: clients refuse large headers.
fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    let cut = warnings.iter().map(String::len).sum::<usize>() > MAX_WARNING_BYTES;
    let mut total = 0;
    for warning in warnings {
        let limit = if cut { MAX_CUT_WARNING } else { usize::MAX };
        let text: String = warning.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let quoted = format!("299 - \"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        total += quoted.len();
        if total > MAX_WARNING_BYTES {
            return;
        }
        if let Ok(value) = HeaderValue::from_bytes(quoted.as_bytes()) {
            headers.append(http::header::WARNING, value);
        }
    }
}

async fn dispatch(call: &Call, request_body: Body) -> Result<Response<Body>, ApiError> {
    let not_allowed = ApiError::method_not_allowed;
    // What is in a namespace can be listed in all of them, and nothing else.
    let homeless = call.resource.namespaced && call.target.namespace.is_none();
    if homeless && (call.target.name.is_some() || !matches!(call.verb, "list" | "watch")) {
        return Err(match call.target.name {
            Some(_) => ApiError::no_route(),
            None => not_allowed(),
        });
    }
    if call.resource.is_virtual() {
        if call.verb != "create" {
            return Err(not_allowed());
        }
        return reviews::create(call, body::read(request_body).await?).await;
    }
    if call.target.name.is_none() && matches!(call.verb, "update" | "patch") {
        return Err(not_allowed());
    }
    options::check(call)?;
    match (call.subresource(), call.verb) {
        ("" | "status" | "approval", "get") => get::get(call).await,
        ("", "list") => list::list(call).await,
        ("", "watch") => watch::watch(call).await,
        ("", "create") if call.target.name.is_none() => create::create(call, body::read(request_body).await?).await,
        ("" | "status" | "finalize" | "approval", "update") => {
            update::update(call, body::read(request_body).await?).await
        }
        ("" | "status" | "approval", "patch") => patch::patch(call, body::read(request_body).await?).await,
        ("", "delete") => delete::delete(call, body::read(request_body).await?).await,
        ("", "deletecollection") => delete::delete_collection(call, body::read(request_body).await?).await,
        ("scale", "get") => scale::get(call).await,
        ("scale", "update") => scale::update(call, body::read(request_body).await?).await,
        ("scale", "patch") => scale::patch(call, body::read(request_body).await?).await,
        ("binding", "create") => pods::bind(call, body::read(request_body).await?).await,
        ("token", "create") => token::create(call, body::read(request_body).await?).await,
        ("eviction", "create") => pods::evict(call, body::read(request_body).await?).await,
        _ => Err(not_allowed()),
    }
}

/// A plain success `Status`, with the subject in its details.
fn success(call: &Call, name: &str, uid: &str) -> Response<Body> {
    let mut details = serde_json::json!({"name": name, "kind": call.resource.plural});
    if !call.resource.group.is_empty() {
        details["group"] = call.resource.group.clone().into();
    }
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    body::json(StatusCode::OK, &status)
}

fn parse_json(bytes: &Bytes) -> Result<serde_json::Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::bad_request(format!("error decoding the request body: {e}")))
}
