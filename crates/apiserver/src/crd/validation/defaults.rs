//! Default values: each has to be what its own schema allows, as it stands.

use ferrovirt_schema::structural::{self, Pool};
use ferrovirt_schema::{Cause, CauseKind};
use kube_cel::RootContext;
use serde_json::Value;

use super::schema::{on, properties, set};
use crate::crd::Rules;

/// What is wrong with the defaults of a structural schema.
pub fn check(schema: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk(schema, false, path, &mut Pool::default(), &mut causes);
    causes
}

/// There are none to check in `additionalProperties`: nothing tells for which names they would be filled in.
fn walk(schema: &Value, meta: bool, path: &str, pool: &mut Pool, causes: &mut Vec<Cause>) {
    let embedded = on(schema, "x-kubernetes-embedded-resource");
    let meta = meta && !embedded;
    if let Some(default) = set(schema, "default") {
        value(schema, default, meta, &format!("{path}.default"), pool, causes);
    }
    if let Some(items) = set(schema, "items") {
        walk(items, meta, &format!("{path}.items"), pool, causes);
    }
    for (name, child) in properties(schema) {
        let meta = meta || (embedded && matches!(name.as_str(), "metadata" | "apiVersion" | "kind"));
        walk(child, meta, &format!("{path}.properties[{name}]"), pool, causes);
    }
}

fn value(schema: &Value, default: &Value, meta: bool, path: &str, pool: &mut Pool, causes: &mut Vec<Cause>) {
    // A schema that cannot be read is refused for that elsewhere.
    let Ok(parsed) = pool.parse_part(schema) else { return };
    if !meta && !structural::unknown_fields(&parsed, default).is_empty() {
        causes.push(Cause::invalid(path, default, "must not have unknown fields"));
    }
    let mut faults = structural::validate(&parsed, default);
    // Lists of defaults may repeat themselves: upstream does not look.
    faults.retain(|cause| cause.kind != CauseKind::FieldValueDuplicate);
    if faults.is_empty()
        && let Ok(Some(rules)) = Rules::compile(schema, RootContext::default())
    {
        faults = rules.broken(default);
    }
    causes.extend(faults.into_iter().map(|cause| Cause { field: below(path, &cause.field), ..cause }));
}

fn below(path: &str, field: &str) -> String {
    match field {
        "" | "<nil>" => path.to_owned(),
        index if index.starts_with('[') => format!("{path}{index}"),
        name => format!("{path}.{name}"),
    }
}
