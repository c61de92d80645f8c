//! Policies and bindings as they are stored, compiled.

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::CONDITION_VARIABLES;
use super::expression::Expression;
use crate::admission::matching::Match;
use crate::object::{at, strings, text};
use crate::server::Server;
use crate::storage::parse;

const GROUP: &str = "admissionregistration.k8s.io";
const VARIABLES: &[&str] = &["object", "oldObject", "request", "authorizer", "params", "namespaceObject", "variables"];

/// Every binding with its policy, by kind of policy.
#[derive(Debug, Default)]
pub struct Loaded {
    pub validating: Vec<Bound>,
    pub mutating: Vec<Bound>,
}

/// A policy and those who ask for it.
#[derive(Debug)]
pub struct Bound {
    pub policy: Policy,
    pub bindings: Vec<Binding>,
}

#[derive(Debug)]
pub struct Policy {
    pub name: String,
    pub scope: Match,
    pub conditions: Vec<(String, Expression)>,
    pub variables: Vec<(String, Expression)>,
    pub validations: Vec<Validation>,
    pub audit: Vec<(String, Expression)>,
    pub mutations: Vec<Mutation>,
    pub ignore_failure: bool,
    /// apiVersion and kind.
    pub param_kind: Option<(String, String)>,
    /// Expressions that do not compile.
    pub faults: Vec<Cause>,
}

#[derive(Debug)]
pub struct Validation {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Expression>,
    pub reason: String,
}

#[derive(Debug)]
pub enum Mutation {
    Apply(Expression),
    JsonPatch(Expression),
}

#[derive(Debug)]
pub struct Binding {
    pub name: String,
    pub scope: Option<Match>,
    pub actions: Vec<String>,
    pub param: Option<Value>,
}

impl Loaded {
    pub fn read(server: &Server) -> Self {
        let list = |plural: &str| -> Vec<Value> {
            let list = server.store.list(&format!("{GROUP}/{plural}"), None);
            list.items.iter().filter_map(|e| parse(e).ok()).collect()
        };
        let read = |policies: &str, bindings: &str| -> Vec<Bound> {
            let bindings = list(bindings);
            let bound = list(policies).into_iter().map(|object| {
                let policy = Policy::read(&object);
                let mine = bindings.iter().filter(|b| text(b, &["spec", "policyName"]) == policy.name);
                Bound { bindings: mine.map(Binding::read).collect(), policy }
            });
            bound.filter(|b| !b.bindings.is_empty()).collect()
        };
        Self {
            validating: read("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
            mutating: read("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
        }
    }
}

impl Binding {
    fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            name: crate::object::name(object).to_owned(),
            scope: at(spec, &["matchResources"]).filter(|m| m.is_object()).map(Match::of_policy),
            actions: strings(spec.get("validationActions")),
            param: at(spec, &["paramRef"]).filter(|p| p.is_object()).cloned(),
        }
    }
}

impl Policy {
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let mut faults = Vec::new();
        let mut compile = |field: String, source: &str, variables: &[&str]| {
            if source.trim().is_empty() {
                faults.push(Cause::required(field, "expression is not specified"));
                return None;
            }
            match Expression::parse(source, variables) {
                Ok(expression) => Some(expression),
                Err(fault) => {
                    faults.push(Cause::invalid(field, &json!(source), format!("compilation failed: {fault}")));
                    None
                }
            }
        };
        let mut named = |list: &str, key: &str, field: &str, variables: &[&str]| -> Vec<(String, Expression)> {
            let items = spec[list].as_array().into_iter().flatten().enumerate();
            let compiled = items.filter_map(|(index, item)| {
                let path = format!("spec.{list}[{index}].{field}");
                Some((text(item, &[key]).to_owned(), compile(path, text(item, &[field]), variables)?))
            });
            compiled.collect()
        };
        let conditions = named("matchConditions", "name", "expression", CONDITION_VARIABLES);
        let variables = named("variables", "name", "expression", VARIABLES);
        let audit = named("auditAnnotations", "key", "valueExpression", VARIABLES);
        let mut validations = Vec::new();
        for (index, item) in spec["validations"].as_array().into_iter().flatten().enumerate() {
            let path = format!("spec.validations[{index}]");
            let expression = compile(format!("{path}.expression"), text(item, &["expression"]), VARIABLES);
            let message_expression = match text(item, &["messageExpression"]) {
                "" => None,
                source => compile(format!("{path}.messageExpression"), source, VARIABLES),
            };
            validations.extend(expression.map(|expression| Validation {
                expression,
                message_expression,
                message: text(item, &["message"]).trim().to_owned(),
                reason: text(item, &["reason"]).to_owned(),
            }));
        }
        let mut mutations = Vec::new();
        for (index, item) in spec["mutations"].as_array().into_iter().flatten().enumerate() {
            let (key, make): (_, fn(Expression) -> Mutation) = match text(item, &["patchType"]) {
                "ApplyConfiguration" => ("applyConfiguration", Mutation::Apply),
                _ => ("jsonPatch", Mutation::JsonPatch),
            };
            let path = format!("spec.mutations[{index}].{key}.expression");
            mutations.extend(compile(path, text(item, &[key, "expression"]), VARIABLES).map(make));
        }
        let kind = at(spec, &["paramKind"]).filter(|k| k.is_object());
        Self {
            name: crate::object::name(object).to_owned(),
            scope: Match::of_policy(&spec["matchConstraints"]),
            conditions,
            variables,
            validations,
            audit,
            mutations,
            ignore_failure: text(spec, &["failurePolicy"]) == "Ignore",
            param_kind: kind.map(|k| (text(k, &["apiVersion"]).to_owned(), text(k, &["kind"]).to_owned())),
            faults,
        }
    }
}
