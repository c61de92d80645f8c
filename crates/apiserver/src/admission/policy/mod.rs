//! Admission policies: rules in CEL that the server evaluates itself.
//!
//! ```text
//!  binding ─> policy ─> constraints match? ─> matchConditions hold? ─> variables ─> validations (deny, warn, audit)
//!     └─> params: none, one, or every object a selector finds                   └─> mutations (apply, JSON patch)
//! ```

mod authorizer;
mod budget;
mod expression;
mod load;
mod mutation;
mod scene;
mod typing;
mod validation;
mod warnings;

use std::sync::{Arc, PoisonError, RwLock};

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use crate::object::{default, default_in, items_mut, text};
use crate::server::Server;

pub use expression::Expression;
pub use load::Loaded;
pub use mutation::mutate;
pub use scene::{Scene, conditions_hold};
pub use validation::validate;
pub use warnings::type_checking;

/// What match conditions may refer to.
pub const CONDITION_VARIABLES: &[&str] = &["object", "oldObject", "request", "authorizer", "params"];

/// All policies with their bindings, compiled when first needed after a change.
#[derive(Debug, Default)]
pub struct Policies {
    loaded: RwLock<Option<Arc<Loaded>>>,
}

impl Policies {
    pub fn invalidate(&self) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn load(&self, server: &Server) -> Arc<Loaded> {
        if let Some(loaded) = &*self.loaded.read().unwrap_or_else(PoisonError::into_inner) {
            return loaded.clone();
        }
        let mut slot = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| Arc::new(Loaded::read(server))).clone()
    }
}

/// Defaults of policies and bindings.
pub fn defaults(object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else { return };
    if spec.get("matchConstraints").is_some() || spec.get("policyName").is_none() {
        default(spec, "failurePolicy", "Fail");
    }
    for key in ["matchConstraints", "matchResources"] {
        let Some(resources) = spec.get_mut(key).filter(|r| r.is_object()) else { continue };
        default(resources, "matchPolicy", "Equivalent");
        default(resources, "namespaceSelector", json!({}));
        default(resources, "objectSelector", json!({}));
        for rules in ["resourceRules", "excludeResourceRules"] {
            items_mut(resources, rules).for_each(|rule| default(rule, "scope", "*"));
        }
    }
    default_in(spec, "paramRef", "parameterNotFoundAction", "Deny");
}

/// What is wrong with a policy or a binding.
pub fn check(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &object["spec"];
    let required = |path: &str, value: &Value, causes: &mut Vec<Cause>| {
        if value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty) {
            causes.push(Cause::required(path, ""));
        }
    };
    let kind = text(object, &["kind"]);
    if kind.ends_with("Binding") {
        required("spec.policyName", &spec["policyName"], &mut causes);
        if kind.starts_with("Validating") {
            required("spec.validationActions", &spec["validationActions"], &mut causes);
            let actions = crate::object::strings(spec.get("validationActions"));
            if actions.iter().any(|a| a == "Deny") && actions.iter().any(|a| a == "Warn") {
                let message = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
                causes.push(Cause::invalid("spec.validationActions", &json!(actions), message));
            }
        }
        return causes;
    }
    required("spec.matchConstraints", &spec["matchConstraints"], &mut causes);
    if spec["matchConstraints"].is_object() {
        let rules = &spec["matchConstraints"]["resourceRules"];
        required("spec.matchConstraints.resourceRules", rules, &mut causes);
    }
    if kind.starts_with("Mutating") {
        required("spec.mutations", &spec["mutations"], &mut causes);
        required("spec.reinvocationPolicy", &spec["reinvocationPolicy"], &mut causes);
    } else if ["validations", "auditAnnotations"].iter().all(|key| spec[*key].as_array().is_none_or(Vec::is_empty)) {
        let why = "validations or auditAnnotations must contain at least one item";
        causes.extend(["spec.validations", "spec.auditAnnotations"].map(|field| Cause::required(field, why)));
    }
    causes.extend(load::Policy::read(object).faults);
    causes
}

/// Match conditions of a webhook or policy that do not compile.
pub fn condition_faults(conditions: &Value, base: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, condition) in conditions.as_array().into_iter().flatten().enumerate() {
        if text(condition, &["name"]).is_empty() {
            causes.push(Cause::required(format!("{base}[{index}].name"), ""));
        }
        let source = text(condition, &["expression"]);
        if source.trim().is_empty() {
            causes.push(Cause::required(format!("{base}[{index}].expression"), ""));
        } else if let Err(fault) = Expression::parse(source, CONDITION_VARIABLES) {
            let field = format!("{base}[{index}].expression");
            causes.push(Cause::invalid(field, &json!(source), format!("compilation failed: {fault}")));
        }
    }
    causes
}
