//! MutatingAdmissionPolicy: changes to objects on their way in.

use ferrovirt_schema::apply::{self as ssa, Manager};
use ferrovirt_schema::patch::json_patch;
use serde_json::Value;

use super::Scene;
use super::expression::to_json;
use super::load::{Binding, Bound, Mutation};
use super::scene::{add_variables, conditions_hold};
use crate::admission::Operation;
use crate::object;
use crate::registry::Special;
use crate::rest::{Call, convert};
use crate::status::ApiError;

/// Applies every policy that is bound to the request, in the order of their names.
pub fn mutate(call: &Call, operation: Operation, target: &mut Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.resource.special == Special::Policy {
        return Ok(());
    }
    let policies = call.server.policies.load(&call.server);
    for bound in &policies.mutating {
        let Some(version) = bound.policy.scope.matches(call, operation, Some(target), old) else {
            continue;
        };
        for binding in &bound.bindings {
            if binding.scope.as_ref().is_some_and(|s| s.matches(call, operation, Some(target), old).is_none()) {
                continue;
            }
            match changed(call, operation, target, old, &version, bound, binding) {
                Ok(Some(object)) => *target = object,
                Ok(None) => {}
                Err(_) if bound.policy.ignore_failure => {}
                Err(why) => {
                    let (policy, binding) = (&bound.policy.name, &binding.name);
                    let why = format!("policy '{policy}' with binding '{binding}' denied request: {why}");
                    return Err(ApiError::forbidden(call.resource.subject(object::name(target)), &why));
                }
            }
        }
    }
    Ok(())
}

fn changed(
    call: &Call,
    operation: Operation,
    object: &Value,
    old: Option<&Value>,
    version: &str,
    bound: &Bound,
    binding: &Binding,
) -> Result<Option<Value>, String> {
    let policy = &bound.policy;
    if let Some(fault) = policy.faults.first() {
        return Err(fault.to_string());
    }
    let mut current = object.clone();
    let params = Scene { call, operation, object: Some(object), old, version }.params(policy, binding)?;
    let mut any = false;
    for params in params {
        for mutation in &policy.mutations {
            // Each mutation sees what the one before it did.
            let scene = Scene { call, operation, object: Some(&current), old, version };
            let mut context = scene.context();
            add_variables(&mut context, policy, params.as_ref());
            if !conditions_hold(&context, &policy.conditions)? {
                break;
            }
            let (Mutation::Apply(expression) | Mutation::JsonPatch(expression)) = mutation;
            let value = expression.evaluate(&context)?;
            let value = to_json(&value).ok_or("the expression does not evaluate to a JSON document")?;
            current = match mutation {
                Mutation::Apply(_) => applied(call, &current, value)?,
                Mutation::JsonPatch(_) => {
                    let mut patched = current.clone();
                    json_patch(&mut patched, &value).map_err(|e| e.to_string())?;
                    patched
                }
            };
            any = true;
        }
    }
    Ok(any.then_some(current))
}

/// Merges as server-side apply does, and leaves no trace of it in `managedFields`.
fn applied(call: &Call, object: &Value, mut configuration: Value) -> Result<Value, String> {
    let mut bare = object.clone();
    let fields = object::metadata(&mut bare).remove("managedFields");
    for key in ["apiVersion", "kind"] {
        configuration[key] = object[key].clone();
    }
    let manager = Manager {
        name: "admission-policy".to_owned(),
        api_version: call.api_version(),
        subresource: None,
        time: object::now(),
    };
    let schema = call.version().schema();
    let mut merged = ssa::apply(&schema, Some(&bare), &configuration, &manager, true).map_err(|e| e.to_string())?;
    let meta = object::metadata(&mut merged);
    match fields {
        Some(fields) => meta.insert("managedFields".into(), fields),
        None => meta.remove("managedFields"),
    };
    convert(&call.resource, call.version(), &mut merged);
    Ok(merged)
}
