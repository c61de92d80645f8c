//! Responses, shaped as Kubernetes clients expect them.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::Body;

pub(crate) fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn json(code: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(body(value.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn text(text: impl Into<bytes::Bytes>) -> Response<Body> {
    Response::new(body(text))
}

pub(crate) fn accepted() -> Response<Body> {
    let mut response = Response::new(body(Bytes::new()));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

pub(crate) fn done() -> Response<Body> {
    Response::new(body(Bytes::new()))
}

pub(crate) fn not_implemented(message: &str) -> Response<Body> {
    status(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}

pub(crate) fn internal(message: &str) -> Response<Body> {
    status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &format!("Internal error occurred: {message}"))
}

pub(crate) fn method_not_allowed() -> Response<Body> {
    let message = "the server does not allow this method on the requested resource";
    status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
}

/// A failure as a `Status` object.
pub(crate) fn status(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    json(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16(),
        }),
    )
}

pub(crate) fn not_found(message: &str) -> Response<Body> {
    status(StatusCode::NOT_FOUND, "NotFound", message)
}

pub(crate) fn bad_request(message: &str) -> Response<Body> {
    status(StatusCode::BAD_REQUEST, "BadRequest", message)
}

/// Upstream's shape of a conflict, which clients show as it is.
pub(crate) fn conflict(resource: &str, name: &str, message: &str) -> Response<Body> {
    let message = format!("Operation cannot be fulfilled on {resource}.kubevirt.io \"{name}\": {message}");
    status(StatusCode::CONFLICT, "Conflict", &message)
}

/// What the API server answered to us, handed on.
pub(crate) fn from_kube(error: kube::Error) -> Response<Body> {
    match error {
        kube::Error::Api(answer) => {
            let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            status(code, &answer.reason, &answer.message)
        }
        other => {
            let message = format!("virt-api cannot ask the API server: {}; try again", ferrovirt_api::chain(&other));
            status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
        }
    }
}
