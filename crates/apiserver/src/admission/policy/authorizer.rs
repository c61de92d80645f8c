//! `authorizer`: asks in CEL whether the requesting user may do something.
//!
//! ```text
//!  authorizer.group('').resource('pods').namespace('x').check('create').allowed()
//!  authorizer.path('/healthz').check('get').allowed()      authorizer.requestResource.check('update').allowed()
//! ```
//!
//! A check under construction is a map, so that it needs no type of its own.

use std::sync::Arc;

use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ResolveResult, Value as Cel};
use serde_json::{Value, json};

use super::expression::{to_cel, to_json};
use crate::authn::User;
use crate::authz::{Attributes, On};
use crate::object::text;
use crate::rest::Call;

type Text = Arc<String>;

pub fn add(context: &mut Context<'static>, call: &Call) {
    let request = json!({
        "group": call.resource.group, "resource": call.resource.plural, "subresource": call.subresource(),
        "namespace": call.namespace().unwrap_or_default(), "name": call.name(),
    });
    context.add_variable_from_value("authorizer", to_cel(&json!({"requestResource": request})));
    for (function, key) in [
        ("group", "group"),
        ("resource", "resource"),
        ("subresource", "subresource"),
        ("namespace", "namespace"),
        ("name", "name"),
        ("path", "path"),
    ] {
        context.add_function(function, move |This(this): This<Cel>, value: Text| with(&this, key, &value));
    }
    context.add_function("serviceAccount", |This(this): This<Cel>, namespace: Text, name: Text| {
        with(&this, "user", &format!("system:serviceaccount:{namespace}:{name}"))
    });
    let (server, user) = (call.server.clone(), call.user.clone());
    context.add_function("check", move |This(this): This<Cel>, verb: Text| {
        let check = to_json(&this).unwrap_or_default();
        let user = match text(&check, &["user"]) {
            "" => user.clone(),
            account => service_account(account),
        };
        let on = match text(&check, &["path"]) {
            "" => On::Resource {
                group: text(&check, &["group"]),
                resource: text(&check, &["resource"]),
                subresource: text(&check, &["subresource"]),
                namespace: text(&check, &["namespace"]),
                name: text(&check, &["name"]),
            },
            path => On::Path(path),
        };
        let answer = server.rbac.authorize(&server.store, Attributes { user: &user, verb: &verb, on });
        let reason = answer.as_ref().err().map(|e| e.message().to_owned()).unwrap_or_default();
        Ok(to_cel(&json!({"allowed": answer.is_ok(), "reason": reason}))) as ResolveResult
    });
    context.add_function("allowed", |This(this): This<Cel>| answer(&this)["allowed"] == true);
    context.add_function("reason", |This(this): This<Cel>| Arc::new(text(&answer(&this), &["reason"]).to_owned()));
    context.add_function("errored", |This(_): This<Cel>| false);
}

fn answer(value: &Cel) -> Value {
    to_json(value).unwrap_or_default()
}

fn with(check: &Cel, key: &str, value: &str) -> ResolveResult {
    let mut check = to_json(check).unwrap_or_else(|| json!({}));
    if let Some(map) = check.as_object_mut() {
        map.remove("requestResource");
        map.insert(key.to_owned(), value.into());
    }
    Ok(to_cel(&check))
}

fn service_account(name: &str) -> User {
    let namespace = name.split(':').nth(2).unwrap_or_default();
    let group = format!("system:serviceaccounts:{namespace}");
    User::new(name, &["system:serviceaccounts", &group, crate::authn::AUTHENTICATED])
}
