//! Nobody grants what they do not hold.

use serde_json::Value;

use super::{Attributes, Index, On, Rule};
use crate::authn::MASTERS;
use crate::object::{at, name, text};
use crate::rest::Call;
use crate::status::ApiError;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks a role or binding that is about to be stored.
pub fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.user.in_group(MASTERS) {
        return Ok(());
    }
    let same = |keys: &[&str]| old.is_some_and(|old| keys.iter().all(|key| old.get(key) == object.get(key)));
    let namespace = call.namespace().unwrap_or_default();
    let allowed = |verb: &str, on: &On<'_>| {
        call.server.rbac.allowed(&call.server.store, Attributes { user: &call.user, verb, on: *on })
    };
    let (rules, exempt) = if object.get("roleRef").is_some() {
        if same(&["roleRef", "subjects"]) {
            return Ok(());
        }
        let role = text(object, &["roleRef", "name"]);
        let cluster = text(object, &["roleRef", "kind"]) == "ClusterRole";
        let resource = if cluster { "clusterroles" } else { "roles" };
        let on = On::Resource { group: GROUP, resource, subresource: "", namespace, name: role };
        let index_namespace = if cluster { "" } else { namespace };
        let exempt = allowed("bind", &on);
        let rules = Index::rules_of(&call.server.store, index_namespace, role);
        // What a role that comes later will grant is not known, so only who may bind anything may bind it.
        let missing = || ApiError::not_found(call.resource.subject(role));
        (if exempt { Vec::new() } else { rules.ok_or_else(missing)? }, exempt)
    } else {
        if same(&["rules", "aggregationRule"]) {
            return Ok(());
        }
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
