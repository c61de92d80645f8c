//! Errors as clients see them: `Status` objects with a reason, a code and causes.

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use crate::registry::Resource;

/// A failed request. The body is the `Status` object the client gets.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: u16,
    pub body: Box<Value>,
}

/// What an error is about, for `details` and the quoted name in messages.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub group: &'a str,
    /// The plural in most errors, the kind in `Invalid` ones, as upstream has it.
    pub kind: &'a str,
    pub name: &'a str,
}

impl Subject<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }
}

impl Resource {
    /// The subject of errors about one object of this resource.
    pub fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.group, kind: &self.plural, name }
    }

    /// The same for `Invalid`, which names the kind instead of the plural.
    pub fn kind_subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.group, kind: &self.kind, name }
    }
}

impl ApiError {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message.into(), "code": code,
        });
        if !reason.is_empty() {
            body["reason"] = reason.into();
        }
        Self { code, body: Box::new(body) }
    }

    /// A `Status` made by somebody else (a webhook, an aggregated handler).
    pub fn from_status(body: Value) -> Self {
        let code = body["code"].as_u64().and_then(|c| u16::try_from(c).ok()).unwrap_or(500);
        Self { code, body: Box::new(body) }
    }

    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    fn about(mut self, subject: Subject<'_>) -> Self {
        let mut details = json!({});
        for (key, value) in [("name", subject.name), ("group", subject.group), ("kind", subject.kind)] {
            if !value.is_empty() {
                details[key] = value.into();
            }
        }
        self.body["details"] = details;
        self
    }

    /// About nothing in particular, which upstream says with empty details.
    pub fn without_subject(mut self) -> Self {
        self.body["details"] = json!({});
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(subject: Subject<'_>, why: &str) -> Self {
        let name = if subject.name.is_empty() { String::new() } else { format!(" \"{}\"", subject.name) };
        Self::new(403, "Forbidden", format!("{}{name} is forbidden: {why}", subject.qualified())).about(subject)
    }

    pub fn not_found(subject: Subject<'_>) -> Self {
        Self::new(404, "NotFound", format!("{} \"{}\" not found", subject.qualified(), subject.name)).about(subject)
    }

    /// The path leads nowhere: no such group, version or resource.
    pub fn no_route() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").without_subject()
    }

    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .without_subject()
    }

    pub fn not_acceptable(accepted: &str) -> Self {
        Self::not_acceptable_because(format!("only the following media types are accepted: {accepted}"))
    }

    pub fn not_acceptable_because(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    pub fn already_exists(subject: Subject<'_>) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{}\" already exists", subject.qualified(), subject.name))
            .about(subject)
    }

    pub fn conflict(subject: Subject<'_>, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{}\": {why}", subject.qualified(), subject.name);
        Self::new(409, "Conflict", message).about(subject)
    }

    /// The conflict of optimistic concurrency.
    pub fn modified(subject: Subject<'_>) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large() -> Self {
        Self::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")
    }

    pub fn unsupported_media(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}"),
        )
    }

    /// 422 with one cause per wrong field.
    pub fn invalid(subject: Subject<'_>, causes: &[Cause]) -> Self {
        let summary = ferrovirt_schema::cause::summary(causes);
        let message = format!("{} \"{}\" is invalid: {summary}", subject.qualified(), subject.name);
        let mut error = Self::new(422, "Invalid", message).about(subject);
        error.body["details"]["causes"] =
            causes.iter().map(|c| json!({"reason": c.kind.as_str(), "message": c.message, "field": c.field})).collect();
        error
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {}", message.into()))
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.body["details"] = json!({"retryAfterSeconds": 1});
        error
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }
}
