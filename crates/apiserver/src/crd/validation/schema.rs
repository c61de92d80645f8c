//! The schema of a version: what it may say at all, and where.

use std::sync::Arc;

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::cost::{self, Declaration};
use super::{defaults, lists, rules, structural};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const META: [&str; 3] = ["metadata", "kind", "apiVersion"];
/// What the root may not have beside a status subresource, whose schema is cut out of it.
const NOT_AT_ROOT: [&str; 19] = [
    "nullable",
    "default",
    "maxProperties",
    "minProperties",
    "enum",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
];
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

/// What is wrong with the schema at `path`, which ends in `openAPIV3Schema`.
pub fn check(schema: &Value, status: bool, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if status {
        causes.extend(root_fault(schema, path));
    }
    if on(schema, "nullable") {
        causes.push(Cause::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let unreadable = structural::unreadable(schema);
    let mut typed = false;
    if unreadable.is_none() {
        let mut faults = structural::check(schema, path);
        if faults.is_empty() {
            faults = defaults::check(schema, path);
        }
        typed = faults.is_empty();
        causes.extend(faults);
    }
    let mut found = Found::default();
    let place = Place { root: true, rules: typed, cardinality: Some(1), ..Place::default() };
    node(schema, path, &place, &mut found);
    causes.extend(found.schema);
    causes.extend(found.rules);
    if let (Some(why), true) = (unreadable, causes.is_empty()) {
        causes.push(Cause::invalid(path, &json!(""), why));
    }
    causes.extend(found.total.causes(path));
    causes
}

/// A member that says something: present, and not the value it would have if it were absent.
pub fn set<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let always =
        matches!(key, "additionalProperties" | "additionalItems" | "externalDocs" | "not" | "items" | "default");
    schema.get(key).filter(|value| match value {
        Value::Null => false,
        Value::Bool(on) => *on || always,
        Value::String(text) => !text.is_empty() || always,
        Value::Array(list) => !list.is_empty() || always,
        Value::Object(map) => !map.is_empty() || always,
        Value::Number(_) => true,
    })
}

pub fn on(schema: &Value, key: &str) -> bool {
    schema[key] == true
}

pub fn kind(schema: &Value) -> &str {
    schema["type"].as_str().unwrap_or_default()
}

pub fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

pub fn branches<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema[key].as_array().map_or(&[], Vec::as_slice)
}

/// Faults of rules come after all others, and only where there are no others.
#[derive(Default)]
struct Found {
    schema: Vec<Cause>,
    rules: Vec<Cause>,
    total: cost::Total,
}

/// Where a part of the schema stands.
#[derive(Clone, Default)]
struct Place {
    root: bool,
    /// Inside the metadata of a resource.
    meta: bool,
    /// Why there may be no default here.
    no_default: Option<String>,
    /// The list whose items have no predecessor to compare with.
    uncorrelated: Option<String>,
    /// The types that rules see are known here, so rules can be checked.
    rules: bool,
    /// The root of the object, or of an embedded one, for rules.
    resource: bool,
    /// How often a value can be here, if the schema bounds it.
    cardinality: Option<u64>,
    /// What rules see here, once some rule on the way has asked.
    declared: Option<Arc<Declaration>>,
}

fn root_fault(schema: &Value, path: &str) -> Option<Cause> {
    let has = |key: &&str| set(schema, key).is_some();
    let kind = kind(schema);
    let reference = ["id", "$schema", "$ref"].iter().any(has);
    if !reference && !kind.is_empty() && kind != "object" {
        let why =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(Cause::invalid(format!("{path}.type"), &json!(kind), why));
    }
    (reference || NOT_AT_ROOT.iter().any(has)).then(|| {
        let why =
            format!("only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled");
        Cause::invalid(path, schema, why)
    })
}

fn node(schema: &Value, path: &str, place: &Place, found: &mut Found) {
    let before = found.schema.len();
    standard(schema, path, place, &mut found.schema);
    let resource = place.root || place.resource;
    let mut place = place.clone();
    if place.rules && place.declared.is_none() && rules::any(schema) {
        place.declared = Declaration::of(schema, resource);
    }
    below(schema, path, &place, found);
    lists::check(schema, path, &mut found.schema);
    found.schema.extend(rules::wording(schema, path));
    if place.rules && found.schema.len() == before {
        let scene = rules::Scene {
            resource,
            uncorrelated: place.uncorrelated.as_deref(),
            declared: place.declared.as_ref(),
            cardinality: place.cardinality,
        };
        found.rules.extend(rules::check(schema, &scene, path, &mut found.total));
    }
}

/// The parts of JSON Schema that are not part of OpenAPI, or not of Kubernetes.
fn standard(schema: &Value, path: &str, place: &Place, causes: &mut Vec<Cause>) {
    let kind = kind(schema);
    if !kind.is_empty() && !TYPES.contains(&kind) {
        causes.push(Cause::not_supported(format!("{path}.type"), &json!(kind), &TYPES.map(Value::from)));
    }
    let mut forbid = |key: &str, why: &str| causes.push(Cause::forbidden(format!("{path}.{key}"), why));
    if let (Some(_), Some(reason)) = (set(schema, "default"), &place.no_default) {
        forbid("default", &format!("must not be set {reason}"));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        // A reference to nothing is a reference, too.
        if set(schema, key).is_some() || (key == "$ref" && schema[key].is_string()) {
            forbid(key, &format!("{key} is not supported"));
        }
    }
    if kind == "null" {
        forbid("type", "type cannot be set to null, use nullable as an alternative");
    }
    if schema["items"].as_array().is_some_and(|items| !items.is_empty()) {
        forbid("items", "items must be a schema object and not an array");
    }
    if place.meta && on(schema, "x-kubernetes-embedded-resource") {
        forbid("x-kubernetes-embedded-resource", "must not be used inside of resource meta");
    }
    if on(schema, "uniqueItems") {
        forbid("uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic");
    }
    let both = properties(schema).next().is_some() && set(schema, "additionalProperties").is_some_and(|a| *a != true);
    if both {
        forbid("additionalProperties", "additionalProperties and properties are mutual exclusive");
    }
}

fn below(schema: &Value, path: &str, place: &Place, found: &mut Found) {
    let cardinality = place.cardinality.zip(cost::multiplicity(schema)).map(|(times, each)| times.saturating_mul(each));
    let inner = Place { root: false, resource: false, cardinality, declared: None, ..place.clone() };
    let declared = |step: &str| place.declared.as_ref().and_then(|own| own.child(step)).cloned();
    let resource = |child: &Value| on(child, "x-kubernetes-embedded-resource");
    if let Some(additional) = set(schema, "additionalProperties").filter(|a| a.is_object()) {
        let mut inner = Place { resource: resource(additional), declared: declared("@values"), ..inner.clone() };
        if place.meta {
            inner.no_default = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        node(additional, &format!("{path}.additionalProperties"), &inner, found);
    }
    for (name, child) in properties(schema) {
        let declared = place.declared.as_ref().and_then(|own| own.property(name)).cloned();
        let mut inner = Place { resource: resource(child), declared, ..inner.clone() };
        if (place.root || resource(schema)) && META.contains(&name.as_str()) {
            inner.meta = true;
            if place.root {
                inner.no_default = Some(format!("in top-level {name}"));
            }
        }
        node(child, &format!("{path}.properties[{name}]"), &inner, found);
    }
    let unruled = Place { rules: false, ..inner.clone() };
    if let Some(not) = set(schema, "not") {
        node(not, &format!("{path}.not"), &unruled, found);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        for (index, branch) in branches(schema, key).iter().enumerate() {
            node(branch, &format!("{path}.{key}[{index}]"), &unruled, found);
        }
    }
    if let Some(items) = set(schema, "items") {
        let mut inner = Place { resource: resource(items), declared: declared("@items"), ..inner };
        if schema["x-kubernetes-list-type"] != "map" {
            inner.uncorrelated.get_or_insert_with(|| path.to_owned());
        }
        match items.as_array() {
            None => node(items, &format!("{path}.items"), &inner, found),
            Some(list) => list.iter().enumerate().for_each(|(index, one)| {
                node(one, &format!("{path}.items[{index}]"), &inner, found);
            }),
        }
    }
}
