//! What makes a CustomResourceDefinition acceptable.

use ferrovirt_schema::structural::Pool;
use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use crate::object::{at, strings, text};
use crate::registry::custom_resource;

pub fn validate(crd: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let group = text(crd, &["spec", "group"]);
    let plural = text(crd, &["spec", "names", "plural"]);
    let name = crate::object::name(crd);
    if name != format!("{plural}.{group}") {
        causes.push(Cause::invalid("metadata.name", &json!(name), "must be spec.names.plural+\".\"+spec.group"));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !group.contains('.') {
        causes.push(Cause::invalid("spec.group", &json!(group), "should be a domain with at least one dot"));
    }
    for key in ["plural", "kind"] {
        let value = text(crd, &["spec", "names", key]);
        if value.is_empty() {
            causes.push(Cause::required(format!("spec.names.{key}"), ""));
        } else {
            let faults = names::dns_label_1035(&value.to_lowercase());
            let invalid = |fault| Cause::invalid(format!("spec.names.{key}"), &json!(value), fault);
            causes.extend(faults.into_iter().map(invalid));
        }
    }
    let scope = text(crd, &["spec", "scope"]);
    if !matches!(scope, "Namespaced" | "Cluster") {
        causes.push(Cause::not_supported("spec.scope", &json!(scope), &[json!("Cluster"), json!("Namespaced")]));
    }
    causes.extend(version_causes(crd));
    causes.extend(super::conversion::check(crd));
    if let Some(old) = old {
        causes.extend(change_causes(crd, old));
    }
    if causes.is_empty()
        && let Err(more) = custom_resource(crd, &mut Pool::default())
    {
        causes.extend(more);
    }
    causes
}

fn version_causes(crd: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let none = Vec::new();
    let versions = at(crd, &["spec", "versions"]).and_then(Value::as_array).unwrap_or(&none);
    if versions.is_empty() {
        return vec![Cause::required("spec.versions", "must have at least one version")];
    }
    let storing = versions.iter().filter(|v| v["storage"] == true).count();
    if storing != 1 {
        causes.push(Cause::invalid(
            "spec.versions",
            &json!(storing),
            "must have exactly one version marked as storage version",
        ));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let name = text(version, &["name"]);
        if seen.contains(&name) {
            causes.push(Cause::duplicate(format!("spec.versions[{index}].name"), &json!(name)));
        }
        seen.push(name);
        if at(version, &["schema", "openAPIV3Schema"]).is_none() {
            causes.push(Cause::required(
                format!("spec.versions[{index}].schema.openAPIV3Schema"),
                "schemas are required",
            ));
        }
    }
    causes
}

/// What may not change once a CRD exists, and versions that stored objects still use.
fn change_causes(crd: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for path in
        [["spec", "group"].as_slice(), &["spec", "scope"], &["spec", "names", "kind"], &["spec", "names", "plural"]]
    {
        if at(crd, path) != at(old, path) {
            let value = at(crd, path).cloned().unwrap_or_default();
            causes.push(Cause::invalid(path.join("."), &value, "field is immutable"));
        }
    }
    let versions: Vec<&str> = at(crd, &["spec", "versions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|v| text(v, &["name"]))
        .collect();
    for stored in strings(at(crd, &["status", "storedVersions"])) {
        if !versions.contains(&stored.as_str()) {
            causes.push(Cause::invalid(
                "status.storedVersions",
                &json!(stored),
                "missing from spec.versions; it was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in it",
            ));
        }
    }
    causes
}
