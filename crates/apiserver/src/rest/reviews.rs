//! Reviews: questions to the server that are created, answered and forgotten.

use bytes::Bytes;
use ferrovirt_schema::Cause;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, decode, respond};
use crate::authn::User;
use crate::authz::{Attributes, On};
use crate::http::body::Body;
use crate::object::{field_map, strings, text};
use crate::registry::Special;
use crate::status::{ApiError, Subject};
use crate::tokens::ISSUER;

pub async fn create(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let mut review = decode::object(call, &bytes)?;
    if matches!(
        call.resource.special,
        Special::SelfSubjectAccessReview | Special::SubjectAccessReview | Special::LocalSubjectAccessReview
    ) {
        check_attributes(call, &review)?;
    }
    match call.resource.special {
        Special::SelfSubjectRulesReview if text(&review, &["spec", "namespace"]).is_empty() => {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        Special::TokenReview if text(&review, &["spec", "token"]).is_empty() => {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        _ => {}
    }
    let status = match call.resource.special {
        Special::SelfSubjectAccessReview => access(call, &call.user, &review["spec"]),
        Special::SubjectAccessReview | Special::LocalSubjectAccessReview => {
            let user = User::from_json(&review["spec"], "user");
            access(call, &user, &review["spec"])
        }
        Special::SelfSubjectRulesReview => rules(call, text(&review, &["spec", "namespace"])),
        Special::SelfSubjectReview => json!({"userInfo": call.user.to_json()}),
        Special::TokenReview => token(call, &review["spec"]),
        _ => return Err(ApiError::method_not_allowed()),
    };
    if call.resource.special == Special::SelfSubjectRulesReview {
        // Upstream forgets what it was asked.
        field_map(&mut review, "spec").clear();
    } else {
        // Nobody keeps it, and yet it is recorded who asked what.
        super::update::track(call, None, &mut review, None);
    }
    if call.resource.special == Special::SelfSubjectReview {
        field_map(&mut review, "metadata").insert("creationTimestamp".into(), crate::object::now().into());
    } else {
        field_map(&mut review, "metadata").remove("creationTimestamp");
    }
    review["status"] = status;
    respond::encoded(call, StatusCode::CREATED, review.to_string().into())
}

/// A question is about a resource or about a path, and about somebody.
fn check_attributes(call: &Call, review: &Value) -> Result<(), ApiError> {
    let spec = &review["spec"];
    let has = |key: &str| spec[key].is_object();
    let mut causes = Vec::new();
    match (has("resourceAttributes"), has("nonResourceAttributes")) {
        (true, true) => causes.push(Cause::invalid(
            "spec.nonResourceAttributes",
            &spec["nonResourceAttributes"],
            "cannot be specified in combination with resourceAttributes",
        )),
        (false, false) => causes.push(Cause::invalid(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    let about_self = call.resource.special == Special::SelfSubjectAccessReview;
    if !about_self && text(spec, &["user"]).is_empty() && strings(spec.get("groups")).is_empty() {
        let fault = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", &json!(text(spec, &["user"])), fault));
    }
    let namespace = text(spec, &["resourceAttributes", "namespace"]);
    if call.resource.special == Special::LocalSubjectAccessReview
        && has("resourceAttributes")
        && Some(namespace) != call.namespace()
    {
        let fault = "must match metadata.namespace";
        causes.push(Cause::invalid("spec.resourceAttributes.namespace", &json!(namespace), fault));
    }
    if causes.is_empty() {
        return Ok(());
    }
    // Upstream names no kind here.
    let subject = Subject { kind: "", ..call.resource.kind_subject("") };
    Err(ApiError::invalid(subject, &causes))
}

fn token(call: &Call, spec: &Value) -> Value {
    let mut audiences = strings(spec.get("audiences"));
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let now = jiff::Timestamp::now().as_second();
    match call.server.tokens.check(&call.server.store, text(spec, &["token"]), &audiences, now) {
        Ok((user, audiences)) => json!({"authenticated": true, "user": user.to_json(), "audiences": audiences}),
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    }
}

fn access(call: &Call, user: &User, spec: &Value) -> Value {
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let (verb, on) = if resource.is_object() {
        let on = On::Resource {
            group: text(resource, &["group"]),
            resource: text(resource, &["resource"]),
            subresource: text(resource, &["subresource"]),
            namespace: text(resource, &["namespace"]),
            name: text(resource, &["name"]),
        };
        (text(resource, &["verb"]), on)
    } else {
        (text(path, &["verb"]), On::Path(text(path, &["path"])))
    };
    let allowed = call.server.rbac.allowed(&call.server.store, Attributes { user, verb, on });
    json!({"allowed": allowed})
}

fn rules(call: &Call, namespace: &str) -> Value {
    let rules = call.server.rbac.rules(&call.server.store, &call.user, namespace);
    let resource: Vec<Value> = rules.iter().filter_map(|r| r.to_resource_rule()).collect();
    let urls: Vec<Value> = rules.iter().filter_map(|r| r.to_url_rule()).collect();
    json!({"resourceRules": resource, "nonResourceRules": urls, "incomplete": false})
}
