//! Whether a schema is structural: every field has its type outside of `allOf`, `anyOf`, `oneOf` and `not`, which only add
//! conditions to it.

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::pattern;
use super::schema::{branches, kind, on, properties, set};

const BRANCHES: [&str; 3] = ["anyOf", "allOf", "oneOf"];
/// What a condition has no say in, and what it has to be there.
const FORBIDDEN: [(&str, &str); 12] = [
    ("type", "empty"),
    ("default", "undefined"),
    ("title", "empty"),
    ("description", "empty"),
    ("nullable", "false"),
    ("externalDocs", "undefined"),
    ("x-kubernetes-preserve-unknown-fields", "false"),
    ("x-kubernetes-embedded-resource", "false"),
    ("x-kubernetes-int-or-string", "false"),
    ("x-kubernetes-list-map-keys", "empty"),
    ("x-kubernetes-list-type", "undefined"),
    ("x-kubernetes-map-type", "undefined"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// What keeps a schema from being structural, in the order upstream has: by text.
pub fn check(schema: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    node(schema, Level::Root, path, &mut causes);
    counterparts(schema, schema, path, path, &mut causes);
    causes.sort_by_cached_key(Cause::to_string);
    causes
}

/// Why a schema cannot even be read as a structural one. The walk over the whole schema has better words for most of it.
pub fn unreadable(schema: &Value) -> Option<String> {
    const UNSUPPORTED: [(&str, &str); 7] = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(key, _)| set(schema, key).is_some()) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    if schema["items"].is_array() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let below = ["items", "additionalProperties", "not"].into_iter().filter_map(|key| set(schema, key));
    let branches = BRANCHES.into_iter().flat_map(|key| branches(schema, key));
    below.chain(branches).chain(properties(schema).map(|(_, child)| child)).find_map(unreadable)
}

fn node(schema: &Value, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let kind = kind(schema);
    let items = set(schema, "items");
    if kind == "array" && items.is_none() {
        causes.push(Cause::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(items) = items {
        node(items, Level::Item, &format!("{path}.items"), causes);
    }
    for (name, child) in properties(schema) {
        node(child, Level::Field, &format!("{path}.properties[{name}]"), causes);
    }
    let additional = set(schema, "additionalProperties");
    if let Some(additional) = additional {
        let path = format!("{path}.additionalProperties");
        if level == Level::Root {
            causes.push(Cause::forbidden(path.as_str(), "must not be used at the root"));
        }
        if additional.is_object() {
            node(additional, Level::Field, &path, causes);
        }
    }
    let (free, embedded) =
        (on(schema, "x-kubernetes-preserve-unknown-fields"), on(schema, "x-kubernetes-embedded-resource"));
    let either = on(schema, "x-kubernetes-int-or-string");
    for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if either && on(schema, key) {
            let why = "must be false if x-kubernetes-int-or-string is true";
            causes.push(Cause::invalid(format!("{path}.{key}"), &json!(true), why));
        }
    }
    let first = branches(schema, "allOf").first();
    conditions(schema, int_or_string(schema), first.is_some_and(int_or_string), path, causes);

    let wrong_type = |why: &str| match kind {
        "" => Cause::required(format!("{path}.type"), why),
        _ => Cause::invalid(format!("{path}.type"), &json!(kind), why),
    };
    if embedded && kind != "object" {
        causes.push(wrong_type("must be object if x-kubernetes-embedded-resource is true"));
    } else if kind.is_empty() && !either && !free {
        causes.push(wrong_type(match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        }));
    }
    if embedded && additional.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        causes.push(wrong_type("must be object at the root"));
    }
    if level == Level::Root || embedded {
        type_meta(schema, path, causes);
    }
    if let Some(metadata) = schema["properties"].get("metadata").filter(|_| level == Level::Root)
        && restricts_more_than_names(metadata)
    {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        causes.push(Cause::forbidden(format!("{path}.properties[metadata]"), why));
    }
    if embedded && !free && properties(schema).next().is_none() {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(format!("{path}.properties"), why));
    }
}

fn type_meta(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        if let Some(child) = schema["properties"].get(name).filter(|child| kind(child) != wanted) {
            let field = format!("{path}.properties[{name}].type");
            causes.push(Cause::invalid(field, &json!(kind(child)), format!("must be {wanted}")));
        }
    }
}

fn restricts_more_than_names(metadata: &Value) -> bool {
    let other = |key: &str| match key {
        // Defaults are forbidden there with words of their own.
        "type" | "default" => false,
        "properties" => properties(metadata).any(|(name, _)| name != "name" && name != "generateName"),
        _ => set(metadata, key).is_some(),
    };
    metadata.as_object().is_some_and(|fields| fields.keys().any(|key| other(key)))
}

/// The one way in which a condition may speak of types: `anyOf: [{type: integer}, {type: string}]`.
fn int_or_string(schema: &Value) -> bool {
    let bare = |branch: &Value, wanted| {
        let mut keys = branch.as_object().into_iter().flat_map(|fields| fields.keys());
        kind(branch) == wanted && keys.all(|key| key == "type" || set(branch, key).is_none())
    };
    matches!(branches(schema, "anyOf"), [a, b] if bare(a, "integer") && bare(b, "string"))
}

/// The conditions of a schema. The flags say which of them are known to be the exception above.
fn conditions(schema: &Value, skip_any: bool, skip_first: bool, path: &str, causes: &mut Vec<Cause>) {
    for key in BRANCHES.into_iter().filter(|key| !(skip_any && *key == "anyOf")) {
        for (index, branch) in branches(schema, key).iter().enumerate() {
            let skip = skip_first && key == "allOf" && index == 0;
            condition(branch, skip, &format!("{path}.{key}[{index}]"), causes);
        }
    }
    if let Some(not) = set(schema, "not") {
        condition(not, false, &format!("{path}.not"), causes);
    }
    if let Some(text) = schema["pattern"].as_str()
        && let Some(fault) = pattern::fault(text)
    {
        let why = format!("must be a valid regular expression, but isn't: {fault}");
        causes.push(Cause::invalid(format!("{path}.pattern"), &json!(text), why));
    }
}

fn condition(schema: &Value, skip_any: bool, path: &str, causes: &mut Vec<Cause>) {
    conditions(schema, skip_any, false, path, causes);
    if let Some(items) = set(schema, "items") {
        condition(items, false, &format!("{path}.items"), causes);
    }
    for (name, child) in properties(schema) {
        condition(child, false, &format!("{path}.properties[{name}]"), causes);
    }
    if set(schema, "additionalProperties").is_some_and(|a| *a != false) {
        let why = "must be undefined to be structural";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    for (key, state) in FORBIDDEN.into_iter().chain([("x-kubernetes-validations", "empty")]) {
        if set(schema, key).is_some() {
            causes.push(Cause::forbidden(format!("{path}.{key}"), &format!("must be {state} to be structural")));
        }
    }
    if schema["properties"].get("metadata").is_some() {
        let why = "must not be specified in a nested context";
        causes.push(Cause::forbidden(format!("{path}.properties[metadata]"), why));
    }
}

/// Conditions on fields that the schema itself does not have. Only what stands at the root is looked at, as upstream.
fn counterparts(condition: &Value, schema: &Value, place: &str, path: &str, causes: &mut Vec<Cause>) {
    if let Some(not) = set(condition, "not") {
        counterpart(not, Some(schema), place, &format!("{path}.not"), causes);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in branches(condition, key).iter().enumerate() {
            counterpart(branch, Some(schema), place, &format!("{path}.{key}[{index}]"), causes);
        }
    }
}

fn counterpart(condition: &Value, schema: Option<&Value>, place: &str, path: &str, causes: &mut Vec<Cause>) {
    let Some(schema) = schema else {
        return causes.push(Cause::required(place, &format!("because it is defined in {path}")));
    };
    counterparts(condition, schema, place, path, causes);
    if let Some(items) = set(condition, "items") {
        counterpart(items, set(schema, "items"), &format!("{place}.items"), &format!("{path}.items"), causes);
    }
    for (name, child) in properties(condition) {
        let own = schema["properties"].get(name);
        let part = format!("properties[{name}]");
        counterpart(child, own, &format!("{place}.{part}"), &format!("{path}.{part}"), causes);
    }
}
