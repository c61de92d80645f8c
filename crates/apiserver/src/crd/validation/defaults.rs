//! Default values: each has to be what its own schema allows, as it stands.

use ferrovirt_schema::structural::{self, Pool};
use ferrovirt_schema::{Cause, CauseKind, Schema};
use kube_cel::RootContext;
use serde_json::Value;

use super::schema::{on, properties, set};
use crate::crd::Rules;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// What is wrong with the defaults of a structural schema.
pub fn check(schema: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk(schema, true, false, path, &mut Pool::default(), &mut causes);
    causes
}

/// There are none to check in `additionalProperties`: nothing tells for which names they would be filled in.
fn walk(schema: &Value, root: bool, meta: bool, path: &str, pool: &mut Pool, causes: &mut Vec<Cause>) {
    let resource = root || on(schema, EMBEDDED);
    let meta = meta && !resource;
    if let Some(default) = set(schema, "default") {
        let path = format!("{path}.default");
        let mut faults = Vec::new();
        resources(schema, resource, default, &path, &mut faults);
        let unknown = |parsed: &Schema| !meta && !structural::unknown_fields(parsed, default).is_empty();
        // A schema that cannot be read is refused for that elsewhere.
        if let Ok(parsed) = pool.parse_part(schema) {
            if unknown(&parsed) {
                causes.push(Cause::invalid(&*path, default, "must not have unknown fields"));
            }
            if faults.is_empty() {
                faults = value(schema, &parsed, default, &path);
            }
        }
        causes.extend(faults);
    }
    if let Some(items) = set(schema, "items") {
        walk(items, false, meta, &format!("{path}.items"), pool, causes);
    }
    for (name, child) in properties(schema) {
        let meta = meta || (resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind"));
        walk(child, false, meta, &format!("{path}.properties[{name}]"), pool, causes);
    }
}

/// A default that is or has a whole resource says which kind of resource it is.
fn resources(schema: &Value, resource: bool, default: &Value, path: &str, faults: &mut Vec<Cause>) {
    match default {
        Value::Object(fields) => {
            for name in ["apiVersion", "kind"].into_iter().filter(|_| resource) {
                let field = format!("{path}.{name}");
                match fields.get(name) {
                    None => faults.push(Cause::required(field, "")),
                    Some(Value::String(text)) if !text.is_empty() => {}
                    Some(empty @ Value::String(_)) => faults.push(Cause::invalid(field, empty, "must not be empty")),
                    Some(other) => faults.push(Cause::invalid(field, other, "must be a string")),
                }
            }
            for (name, value) in fields {
                let (child, path) = match schema["properties"].get(name) {
                    Some(child) => (child, format!("{path}.{name}")),
                    None => (&schema["additionalProperties"], format!("{path}[{name}]")),
                };
                resources(child, on(child, EMBEDDED), value, &path, faults);
            }
        }
        Value::Array(list) => {
            let items = &schema["items"];
            for (index, value) in list.iter().enumerate() {
                resources(items, on(items, EMBEDDED), value, &format!("{path}[{index}]"), faults);
            }
        }
        _ => {}
    }
}

fn value(schema: &Value, parsed: &Schema, default: &Value, path: &str) -> Vec<Cause> {
    let mut faults = structural::validate(parsed, default);
    // Lists of defaults may repeat themselves: upstream does not look.
    faults.retain(|cause| cause.kind != CauseKind::FieldValueDuplicate);
    if faults.is_empty()
        && let Ok(Some(rules)) = Rules::compile(schema, RootContext::default())
    {
        faults = rules.broken(default);
    }
    faults.into_iter().map(|cause| Cause { field: below(path, &cause.field), ..cause }).collect()
}

fn below(path: &str, field: &str) -> String {
    match field {
        "" | "<nil>" => path.to_owned(),
        // An index is joined like a name, as upstream does.
        name => format!("{path}.{name}"),
    }
}
