//! What is wrong with the expressions of a policy, kind by kind that it matches: warnings in its status.

use serde_json::{Value, json};

use super::load::Policy;
use super::typing::{Checker, Schemas, Type};
use crate::object::{at, group_of, strings, text, version_of};
use crate::registry::{Resource, definitions_json};
use crate::server::Server;
use crate::storage::parse;

/// A policy that matches more kinds than this is not checked against all of them.
const MAX_KINDS: usize = 10;

/// `status.typeChecking` of a ValidatingAdmissionPolicy.
pub fn type_checking(server: &Server, policy: &Value) -> Value {
    let compiled = Policy::read(policy);
    let definitions = definitions_json();
    let type_of = |resource: &Resource, version: &str| type_of(server, &definitions, resource, version);
    let params = compiled.param_kind.as_ref().map_or(Type::Dyn, |(api_version, kind)| {
        let snapshot = server.registry.snapshot();
        let found = snapshot.find_kind(group_of(api_version), kind);
        found.map_or(Type::Dyn, |resource| type_of(resource, version_of(api_version)))
    });
    // (field, what each kind has to say)
    let mut warnings: Vec<(String, Vec<String>)> = Vec::new();
    for (resource, version) in kinds(server, policy) {
        let label = format!("{}, Kind={}", resource.api_version(&version), resource.kind);
        let mut checker = Checker::new(Schemas { definitions: &definitions });
        let object = type_of(&resource, &version);
        for name in ["object", "oldObject"] {
            checker.names.insert(name.into(), object.clone());
        }
        checker.names.insert("params".into(), params.clone());
        let mut note = |field: String, outcome: Result<Type, Vec<String>>, wanted: Option<(Type, &str)>| {
            let faults = match (&outcome, wanted) {
                (Err(faults), _) => faults.clone(),
                (Ok(found), Some((wanted, name))) if *found != Type::Dyn && *found != wanted => {
                    vec![format!("must evaluate to {name}")]
                }
                _ => Vec::new(),
            };
            if !faults.is_empty() {
                let text = faults.iter().map(|fault| format!("ERROR: <input>: {fault}")).collect::<Vec<_>>().join("\n");
                let text = format!("{label}: {text}");
                match warnings.iter_mut().find(|(known, _)| *known == field) {
                    Some((_, texts)) => texts.push(text),
                    None => warnings.push((field, vec![text])),
                }
            }
            outcome.unwrap_or(Type::Dyn)
        };
        for (index, (_, expression)) in compiled.conditions.iter().enumerate() {
            let outcome = checker.check(expression.tree());
            note(format!("spec.matchConditions[{index}].expression"), outcome, Some((Type::Bool, "bool")));
        }
        for (index, (name, expression)) in compiled.variables.iter().enumerate() {
            let outcome = checker.check(expression.tree());
            let found = note(format!("spec.variables[{index}].expression"), outcome, None);
            checker.variables.insert(name.clone(), found);
        }
        for (index, validation) in compiled.validations.iter().enumerate() {
            let outcome = checker.check(validation.expression.tree());
            note(format!("spec.validations[{index}].expression"), outcome, Some((Type::Bool, "bool")));
            if let Some(message) = &validation.message_expression {
                let outcome = checker.check(message.tree());
                let field = format!("spec.validations[{index}].messageExpression");
                note(field, outcome, Some((Type::String, "string")));
            }
        }
        for (index, (_, expression)) in compiled.audit.iter().enumerate() {
            let outcome = checker.check(expression.tree());
            note(format!("spec.auditAnnotations[{index}].valueExpression"), outcome, None);
        }
    }
    if warnings.is_empty() {
        return json!({});
    }
    let list = warnings.into_iter().map(|(field, texts)| json!({"fieldRef": field, "warning": texts.join("\n")}));
    json!({"expressionWarnings": list.collect::<Vec<_>>()})
}

/// The kinds that a policy names without wildcards.
fn kinds(server: &Server, policy: &Value) -> Vec<(std::sync::Arc<Resource>, String)> {
    let snapshot = server.registry.snapshot();
    let rules = at(policy, &["spec", "matchConstraints", "resourceRules"]).and_then(Value::as_array);
    let mut found = Vec::new();
    for rule in rules.into_iter().flatten() {
        let list = |key: &str| strings(rule.get(key));
        for (group, plural) in list("apiGroups").iter().flat_map(|g| list("resources").into_iter().map(move |r| (g, r)))
        {
            let Some(resource) = snapshot.find(group, &plural) else { continue };
            for version in list("apiVersions").into_iter().filter(|v| resource.version(v).is_some()) {
                if found.len() < MAX_KINDS {
                    found.push((resource.clone(), version));
                }
            }
        }
    }
    found
}

fn type_of(server: &Server, definitions: &Value, resource: &Resource, version: &str) -> Type {
    let schemas = Schemas { definitions };
    if !resource.custom {
        return resource.version(version).map_or(Type::Dyn, |v| schemas.named(&v.definition));
    }
    let name = format!("{}.{}", resource.plural, resource.group);
    let key = ferrovirt_store::Key::new("", name.as_str());
    let entry = server.store.get("apiextensions.k8s.io/customresourcedefinitions", &key);
    let Some(crd) = entry.and_then(|e| parse(&e).ok()) else { return Type::Dyn };
    let versions = at(&crd, &["spec", "versions"]).and_then(Value::as_array);
    let found = versions.into_iter().flatten().find(|v| text(v, &["name"]) == version);
    found.and_then(|v| at(v, &["schema", "openAPIV3Schema"])).map_or(Type::Dyn, |schema| schemas.custom(schema))
}
