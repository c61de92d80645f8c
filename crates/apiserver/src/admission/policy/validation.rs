//! ValidatingAdmissionPolicy: what a request breaks, and what follows from it.

use serde_json::Value;

use super::Scene;
use super::load::{Binding, Bound};
use super::scene::{add_variables, conditions_hold};
use crate::admission::Operation;
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;

/// A broken validation.
struct Failure {
    message: String,
    reason: String,
}

/// Evaluates every policy that is bound to the request. The first binding that denies decides.
pub fn validate(
    call: &Call,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if call.resource.special == Special::Policy {
        return Ok(());
    }
    let policies = call.server.policies.load(&call.server);
    for bound in &policies.validating {
        let Some(version) = bound.policy.scope.matches(call, operation, object, old) else {
            continue;
        };
        let scene = Scene { call, operation, object, old, version: &version };
        for binding in &bound.bindings {
            if binding.scope.as_ref().is_some_and(|s| s.matches(call, operation, object, old).is_none()) {
                continue;
            }
            enforce(&scene, bound, binding)?;
        }
    }
    Ok(())
}

fn enforce(scene: &Scene<'_>, bound: &Bound, binding: &Binding) -> Result<(), ApiError> {
    let failures = match failures(scene, bound, binding) {
        Ok(failures) => failures,
        Err(_) if bound.policy.ignore_failure => return Ok(()),
        Err(message) => vec![Failure { message, reason: String::new() }],
    };
    let (policy, binding_name, call) = (&bound.policy.name, &binding.name, scene.call);
    let does = |action: &str| binding.actions.iter().any(|a| a == action);
    for failure in &failures {
        if does("Warn") {
            call.warn(format!(
                "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}': {}",
                failure.message
            ));
        }
        if does("Audit") {
            call.annotate("validation.policy.admission.k8s.io/validation_failure", &failure.message);
        }
    }
    match failures.into_iter().next() {
        Some(failure) if does("Deny") => Err(denial(scene, policy, binding_name, &failure)),
        _ => Ok(()),
    }
}

fn denial(scene: &Scene<'_>, policy: &str, binding: &str, failure: &Failure) -> ApiError {
    let call = scene.call;
    let name = match call.name() {
        "" => scene.object.map(crate::object::name).unwrap_or_default(),
        name => name,
    };
    let why =
        format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {}", failure.message);
    let mut error = ApiError::forbidden(call.resource.subject(name), &why);
    let (code, reason) = match failure.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    error.code = code;
    error.body["code"] = code.into();
    error.body["reason"] = reason.into();
    error.body["details"]["causes"] = serde_json::json!([{"message": failure.message}]);
    error
}

/// The validations that a request breaks. Err: an error before the validations, such as missing params.
fn failures(scene: &Scene<'_>, bound: &Bound, binding: &Binding) -> Result<Vec<Failure>, String> {
    let policy = &bound.policy;
    if let Some(fault) = policy.faults.first() {
        return Err(fault.to_string());
    }
    let mut context = scene.context();
    let mut failures = Vec::new();
    for params in scene.params(policy, binding)? {
        add_variables(&mut context, policy, params.as_ref());
        if !conditions_hold(&context, &policy.conditions)? {
            continue;
        }
        for validation in &policy.validations {
            let source = &validation.expression.source;
            let message = match validation.expression.holds(&context) {
                Ok(true) => continue,
                Ok(false) => {
                    validation.message_expression.as_ref().and_then(|e| e.text(&context)).unwrap_or_else(|| {
                        match validation.message.as_str() {
                            "" => format!("failed expression: {}", source.trim()),
                            message => message.to_owned(),
                        }
                    })
                }
                Err(_) if policy.ignore_failure => continue,
                Err(error) => format!("expression '{source}' resulted in error: {error}"),
            };
            failures.push(Failure { message, reason: validation.reason.clone() });
        }
        for (key, expression) in &policy.audit {
            if let Some(value) = expression.text(&context) {
                scene.call.annotate(&format!("{}/{key}", policy.name), &value);
            }
        }
    }
    Ok(failures)
}
