//! The `token` subresource of service accounts.

use bytes::Bytes;
use ferrovirt_schema::Cause;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, decode, respond};
use crate::http::body::Body;
use crate::object::{self, at, strings, text};
use crate::status::{ApiError, Subject};
use crate::storage;
use crate::tokens::{Bound, Claims, ISSUER, Reference};

const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Answers a TokenRequest.
pub async fn create(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (mut request, _) = decode::any(call, &bytes)?;
    if !request.is_object() {
        return Err(ApiError::bad_request("the object provided is not a TokenRequest"));
    }
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let account = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
    let named = object::name(&request);
    if !named.is_empty() && named != call.name() {
        let fault = "must match the service account name if specified";
        let subject = Subject { group: "authentication.k8s.io", kind: "TokenRequest", name: call.name() };
        return Err(ApiError::invalid(subject, &[Cause::invalid("metadata.name", &json!(named), fault)]));
    }
    let seconds = match at(&request, &["spec", "expirationSeconds"]) {
        None | Some(Value::Null) => DEFAULT_SECONDS,
        Some(value) => value.as_i64().unwrap_or_default(),
    };
    let fault = match seconds {
        ..MIN_SECONDS => Some("may not specify a duration less than 10 minutes"),
        MIN_SECONDS..=MAX_SECONDS => None,
        _ => Some("may not specify a duration larger than 2^32 seconds"),
    };
    if let Some(fault) = fault {
        let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), fault);
        let subject = Subject { group: "authentication.k8s.io", kind: "TokenRequest", name: "" };
        return Err(ApiError::invalid(subject, &[cause]));
    }
    let mut audiences = strings(at(&request, &["spec", "audiences"]));
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let mut bound = Bound {
        namespace: key.namespace.to_string(),
        serviceaccount: Reference { name: key.name.to_string(), uid: account.meta.uid.to_string() },
        pod: None,
        secret: None,
    };
    bind(call, &request, &mut bound)?;
    let now = jiff::Timestamp::now();
    let (from, until) = (now.as_second(), now.as_second() + seconds);
    let claims = Claims {
        iss: ISSUER.to_owned(),
        sub: format!("system:serviceaccount:{}:{}", key.namespace, key.name),
        aud: audiences.clone(),
        exp: until,
        iat: from,
        nbf: from,
        jti: uuid::Uuid::new_v4().to_string(),
        kubernetes: bound,
    };
    let token = call
        .server
        .tokens
        .sign(&claims)
        .ok_or_else(|| ApiError::internal("this server has no key to sign tokens with"))?;
    let end = now + jiff::SignedDuration::from_secs(seconds);
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["kind"] = "TokenRequest".into();
    request["metadata"] = json!({"name": *key.name, "namespace": *key.namespace, "creationTimestamp": object::now()});
    let spec = object::field_map(&mut request, "spec");
    spec.insert("audiences".into(), json!(audiences));
    spec.insert("expirationSeconds".into(), seconds.into());
    request["status"] = json!({"token": token, "expirationTimestamp": object::format_time(end)});
    respond::encoded(call, StatusCode::CREATED, request.to_string().into())
}

/// Ties the token to the object that the request names, if it names one.
fn bind(call: &Call, request: &Value, bound: &mut Bound) -> Result<(), ApiError> {
    let Some(reference) = at(request, &["spec", "boundObjectRef"]).filter(|r| r.is_object()) else {
        return Ok(());
    };
    let (kind, name, uid) = (text(reference, &["kind"]), text(reference, &["name"]), text(reference, &["uid"]));
    let resource = match kind {
        "Pod" => "pods",
        "Secret" => "secrets",
        _ => return Err(ApiError::bad_request(format!("cannot bind token to object of type {kind:?}"))),
    };
    let subject = Subject { group: "", kind: resource, name };
    let key = ferrovirt_store::Key::new(bound.namespace.as_str(), name);
    let entry = call.server.store.get(resource, &key).ok_or_else(|| ApiError::not_found(subject))?;
    if !uid.is_empty() && *entry.meta.uid != *uid {
        let why = format!("the UID in the bound object reference ({uid}) does not match the UID in record");
        return Err(ApiError::conflict(subject, &why));
    }
    let reference = Some(Reference { name: name.to_owned(), uid: entry.meta.uid.to_string() });
    match kind {
        "Pod" => bound.pod = reference,
        _ => bound.secret = reference,
    }
    Ok(())
}
