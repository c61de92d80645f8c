//! Nobody grants what they do not hold.

use serde_json::Value;

use super::{Attributes, GROUP, Index, On, RoleRef, Rule};
use crate::authn::MASTERS;
use crate::object::{at, name};
use crate::rest::Call;
use crate::status::ApiError;

/// Checks a role or binding that is about to be stored.
pub fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.user.in_group(MASTERS) {
        return Ok(());
    }
    // Labels, too, give rights: aggregated roles collect by them. Only what the garbage collector does changes nothing.
    if old.is_some_and(|old| without_bookkeeping(old) == without_bookkeeping(object)) {
        return Ok(());
    }
    let namespace = call.namespace().unwrap_or_default();
    let allowed = |verb: &str, on: &On<'_>| {
        call.server.rbac.allowed(&call.server.store, Attributes { user: &call.user, verb, on: *on })
    };
    let (rules, exempt) = if object.get("roleRef").is_some() {
        let Some(role) = RoleRef::of(object, namespace) else {
            // No role is meant, so nothing is granted. Validation says what is wrong with it.
            return Ok(());
        };
        let (resource, name) = match role {
            RoleRef::Cluster(name) => ("clusterroles", name),
            RoleRef::Namespaced(_, name) => ("roles", name),
        };
        let on = On::Resource { group: GROUP, resource, subresource: "", namespace, name };
        let exempt = allowed("bind", &on);
        let rules = Index::rules_of(&call.server.store, role);
        // What a role that comes later will grant is not known, so only who may bind anything may bind it.
        let missing = || ApiError::not_found(call.resource.subject(name));
        (if exempt { Vec::new() } else { rules.ok_or_else(missing)? }, exempt)
    } else {
        let on = On::Resource {
            group: GROUP,
            resource: &call.resource.plural,
            subresource: "",
            namespace,
            name: name(object),
        };
        let mut rules = Rule::parse_all(&object["rules"]);
        // What it will collect is anybody's guess.
        if at(object, &["aggregationRule"]).is_some_and(Value::is_object) {
            rules.push(Rule::everything());
        }
        (rules, allowed("escalate", &on))
    };
    if exempt || rules.iter().all(|rule| rule.covered(namespace, &allowed)) {
        return Ok(());
    }
    let why = format!(
        "user \"{}\" (groups={:?}) is attempting to grant RBAC permissions not currently held",
        call.user.name, call.user.groups
    );
    Err(ApiError::forbidden(call.resource.subject(name(object)), &why))
}

/// An object without what the server and the garbage collector write into it.
fn without_bookkeeping(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
            meta.remove(key);
        }
    }
    object
}
