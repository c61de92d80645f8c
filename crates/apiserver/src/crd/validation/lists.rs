//! Lists and maps that say how they are merged: what their items have to be for that.

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::schema::{branches, kind, on, set};

pub fn check(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = kind(schema);
    let wrong_type = |wanted: &str, key: &str| {
        let why = format!("must be {wanted} if {key} is specified");
        match kind {
            "" => Cause::required(format!("{path}.type"), &why),
            _ => Cause::invalid(format!("{path}.type"), &json!(kind), why),
        }
    };
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        let field = format!("{path}.x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(field, &json!(false), "must be true or undefined"));
    }
    if let Some(map) = schema["x-kubernetes-map-type"].as_str() {
        if kind != "object" {
            causes.push(wrong_type("object", "x-kubernetes-map-type"));
        }
        if !matches!(map, "atomic" | "granular") {
            let field = format!("{path}.x-kubernetes-map-type");
            causes.push(Cause::not_supported(field, &json!(map), &["atomic", "granular"].map(Value::from)));
        }
    }
    let list = schema["x-kubernetes-list-type"].as_str();
    let items = set(schema, "items");
    if let Some(list) = list {
        if kind != "array" {
            causes.push(wrong_type("array", "x-kubernetes-list-type"));
        } else if let ("set", Some(items)) = (list, items) {
            causes.extend(set_items(items, path));
        }
        if !matches!(list, "atomic" | "set" | "map") {
            let field = format!("{path}.x-kubernetes-list-type");
            causes.push(Cause::not_supported(field, &json!(list), &["atomic", "set", "map"].map(Value::from)));
        }
    }
    if set(schema, "x-kubernetes-list-map-keys").is_some() && list != Some("map") {
        let (field, why) =
            (format!("{path}.x-kubernetes-list-type"), "must be map if x-kubernetes-list-map-keys is non-empty");
        causes.push(match list {
            None => Cause::required(field, why),
            Some(list) => Cause::invalid(field, &json!(list), why),
        });
    }
    if list == Some("map") {
        map_items(schema, items, path, causes);
    }
    if let (Some(list @ ("set" | "map")), Some(items)) = (list, items)
        && on(items, "nullable")
    {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        causes.push(Cause::forbidden(format!("{path}.items.nullable"), &why));
    }
    if let (Some("map"), Some(items)) = (list, items) {
        map_keys(schema, items, path, causes);
    }
}

/// What is in a set is compared as a whole.
fn set_items(items: &Value, path: &str) -> Option<Cause> {
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list = &items["x-kubernetes-list-type"];
    match kind(items) {
        "array" if list.is_string() && list != "atomic" => {
            Some(Cause::invalid(format!("{path}.items.x-kubernetes-list-type"), list, why))
        }
        // The value shown is the list's type here too: upstream's slip, which clients may have come to expect.
        "object" if items["x-kubernetes-map-type"] != "atomic" => {
            Some(Cause::invalid(format!("{path}.items.x-kubernetes-map-type"), list, why))
        }
        _ => None,
    }
}

fn map_items(schema: &Value, items: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let (field, keys) = (format!("{path}.x-kubernetes-list-map-keys"), branches(schema, "x-kubernetes-list-map-keys"));
    if keys.is_empty() {
        causes.push(Cause::required(field.as_str(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = items else {
        let why = "must have a schema if x-kubernetes-list-type is map";
        return causes.push(Cause::required(format!("{path}.items"), why));
    };
    if items.is_array() {
        let why = "must only have a single schema if x-kubernetes-list-type is map";
        return causes.push(Cause::invalid(format!("{path}.items"), items, why));
    }
    if kind(items) != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        return causes.push(Cause::invalid(format!("{path}.items.type"), &json!(kind(items)), why));
    }
    let shown = &schema["x-kubernetes-list-map-keys"];
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        match items["properties"].get(name) {
            Some(property) if matches!(kind(property), "array" | "object") => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let field = format!("{path}.items.properties[{name}].type");
                causes.push(Cause::invalid(field, &json!(kind(items)), why));
            }
            Some(_) => {}
            None => {
                causes.push(Cause::invalid(field.as_str(), shown, "entries must all be names of item properties"));
            }
        }
        if keys[..index].contains(key) {
            causes.push(Cause::invalid(field.as_str(), shown, "must not contain duplicate entries"));
        }
    }
}

/// An item without its key could not be told from others.
fn map_keys(schema: &Value, items: &Value, path: &str, causes: &mut Vec<Cause>) {
    for key in branches(schema, "x-kubernetes-list-map-keys") {
        let name = key.as_str().unwrap_or_default();
        let Some(property) = items["properties"].get(name) else { continue };
        let field = format!("{path}.items.properties[{name}]");
        let prefix = "this property is in x-kubernetes-list-map-keys, so it";
        if !branches(items, "required").contains(key) && set(property, "default").is_none() {
            let why = format!("{prefix} must have a default or be a required property");
            causes.push(Cause::required(format!("{field}.default"), &why));
        }
        if on(property, "nullable") {
            causes.push(Cause::forbidden(format!("{field}.nullable"), &format!("{prefix} cannot be nullable")));
        }
    }
}
