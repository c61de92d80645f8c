//! CustomResourceDefinitions from KubeVirt's structural schemas: upstream's descriptions removed, ours and our own
//! fields added. A result that would break the rules for structural schemas is refused here, not by a cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::crd_kinds::{Column, CrdKind, KINDS};
use super::{Files, compact};

/// Fields that KubeVirt does not have, as paths below the spec of a VirtualMachineInstance.
const VMI_SPEC_ADDITIONS: [(&str, &str); 1] = [("hypervisor", "string")];

/// Fields of newer DataVolumes than those that KubeVirt's templates of them are made of, with where they are in a VirtualMachine. What
/// a template does not know would be dropped without a word, and an image that was to be checked would not be.
const TEMPLATE_ADDITIONS: [(&str, &str, &str); 4] = [
    ("spec.dataVolumeTemplates.spec", "serviceAccountName", "string"),
    ("spec.dataVolumeTemplates.spec.source.http", "checksum", "string"),
    ("spec.dataVolumeTemplates.spec.source.http", "insecureSkipVerify", "boolean"),
    ("spec.dataVolumeTemplates.spec.source.vddk", "certConfigMap", "string"),
];

/// Dotted path starting with a kind -> text. `*` stands for every kind.
type Descriptions = BTreeMap<String, String>;

pub fn generate(schemas: &Path, descriptions: &str) -> Result<Files> {
    let descriptions: Descriptions = serde_saphyr::from_str(descriptions).context("parsing the descriptions")?;
    for path in descriptions.keys() {
        let kind = path.split('.').next().unwrap_or_default();
        ensure!(kind == "*" || KINDS.iter().any(|k| k.kind == kind), "description for an unknown kind: {path}");
    }
    let mut files = Files::new();
    for kind in KINDS {
        let file = schemas.join(format!("{}.yaml", kind.singular()));
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let document: Value = serde_saphyr::from_str(&text).with_context(|| format!("parsing {}", file.display()))?;
        let upstream = document.get("openAPIV3Schema").context("no openAPIV3Schema")?;
        let schema = build_schema(kind, upstream, &descriptions).with_context(|| kind.kind.to_owned())?;
        let problems = lint(&schema);
        ensure!(problems.is_empty(), "{}: not a structural schema:\n{}", kind.kind, problems.join("\n"));
        files.insert(format!("crates/api/crds/{}.json", kind.singular()), compact(&definition(kind, &schema)));
    }
    Ok(files)
}

/// The hypervisor of an instance that names none.
const DEFAULT_HYPERVISOR: &str = "qemu-kvm";

fn build_schema(kind: &CrdKind, upstream: &Value, descriptions: &Descriptions) -> Result<Value> {
    let mut schema = without_descriptions(upstream);
    for spec in kind.vmi_specs {
        for (field, r#type) in VMI_SPEC_ADDITIONS {
            add(&mut schema, spec, field, r#type)?;
        }
    }
    if kind.kind == "VirtualMachine" {
        for (place, field, r#type) in TEMPLATE_ADDITIONS {
            add(&mut schema, place, field, r#type)?;
        }
    }
    if kind.kind == "KubeVirt" {
        widen_hypervisors(&mut schema)?;
    }
    if kind.kind == "VirtualMachineInstance" {
        keep_hypervisor(&mut schema)?;
    }
    for (path, text) in descriptions {
        for target in targets(kind, path) {
            let node = if target.is_empty() { Some(&mut schema) } else { lookup(&mut schema, &target) };
            let node = node.with_context(|| format!("description for a field that does not exist: {path}"))?;
            node["description"] = json!(text);
        }
    }
    Ok(schema)
}

/// Adds a field that upstream does not have.
fn add(schema: &mut Value, place: &str, field: &str, r#type: &str) -> Result<()> {
    let object = lookup(schema, place).with_context(|| format!("no {place}"))?;
    let properties = object.get_mut("properties").and_then(Value::as_object_mut).context("an object without fields")?;
    let previous = properties.insert(field.to_owned(), json!({"type": r#type}));
    ensure!(previous.is_none(), "upstream has the field {field} now; drop ours");
    Ok(())
}

/// Upstream allows one hypervisor for a whole cluster, and knows two names. Here it is a list of those that are admitted, and
/// admission knows the names.
fn widen_hypervisors(schema: &mut Value) -> Result<()> {
    let list = lookup(schema, "spec.configuration.hypervisors").context("no spec.configuration.hypervisors")?;
    let list = list.as_object_mut().context("hypervisors is no schema")?;
    ensure!(list.remove("maxItems").is_some(), "upstream admits several hypervisors now; drop this");
    let name = list.get_mut("items").and_then(|items| items.pointer_mut("/properties/name")?.as_object_mut());
    ensure!(name.and_then(|name| name.remove("enum")).is_some(), "upstream admits any hypervisor now; drop this");
    Ok(())
}

/// A machine cannot change what runs it while it runs, and an instance runs all its life.
fn keep_hypervisor(schema: &mut Value) -> Result<()> {
    let spec = lookup(schema, "spec").context("no spec")?;
    ensure!(spec.get("x-kubernetes-validations").is_none(), "upstream has rules for the spec now; add ours to them");
    let of = |object: &str| format!("(has({object}.hypervisor) ? {object}.hypervisor : '{DEFAULT_HYPERVISOR}')");
    spec["x-kubernetes-validations"] = json!([{
        "rule": format!("{} == {}", of("self"), of("oldSelf")),
        "message": "the hypervisor of an instance cannot be changed; change the VM's template and restart the VM",
        "fieldPath": ".hypervisor",
        "reason": "FieldValueForbidden",
    }]);
    Ok(())
}

/// The fields of `kind` a description is for. One for a field of a VirtualMachineInstance's spec serves wherever that
/// spec is embedded.
fn targets(kind: &CrdKind, path: &str) -> Vec<String> {
    let (owner, field) = path.split_once('.').unwrap_or((path, ""));
    if owner == kind.kind || owner == "*" {
        return vec![field.to_owned()];
    }
    if owner != "VirtualMachineInstance" {
        return Vec::new();
    }
    match field.strip_prefix("spec.") {
        Some(rest) => kind.vmi_specs.iter().map(|spec| format!("{spec}.{rest}")).collect(),
        None => Vec::new(),
    }
}

/// Follows field names; lists and maps are passed through to what they hold.
fn lookup<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(schema, |mut node, field| {
        while node.get("properties").is_none() {
            let inner = ["items", "additionalProperties"].into_iter().find(|key| node.get(*key).is_some())?;
            node = node.get_mut(inner)?;
        }
        node.get_mut("properties")?.get_mut(field)
    })
}

/// Removes the keyword `description`, and leaves alone a field that happens to have that name.
fn without_descriptions(schema: &Value) -> Value {
    let Value::Object(map) = schema else {
        return schema.clone();
    };
    let kept = map.iter().filter(|(key, _)| *key != "description").map(|(key, value)| {
        let value = match (key.as_str(), value) {
            ("properties", Value::Object(fields)) => {
                Value::Object(fields.iter().map(|(name, field)| (name.clone(), without_descriptions(field))).collect())
            }
            ("items" | "additionalProperties" | "not", inner) => without_descriptions(inner),
            ("anyOf" | "allOf" | "oneOf", Value::Array(parts)) => parts.iter().map(without_descriptions).collect(),
            (_, other) => other.clone(),
        };
        (key.clone(), value)
    });
    Value::Object(kept.collect())
}

fn definition(kind: &CrdKind, schema: &Value) -> Value {
    let mut names = json!({
        "kind": kind.kind,
        "listKind": format!("{}List", kind.kind),
        "plural": kind.plural,
        "singular": kind.singular(),
        "shortNames": kind.short_names,
    });
    // Cluster-wide kinds stay out of `kubectl get all`, which is about a namespace.
    if !kind.cluster_scoped {
        names["categories"] = json!(["all"]);
    }
    let versions: Vec<Value> = kind
        .versions
        .iter()
        .enumerate()
        .map(|(index, version)| {
            let mut out = json!({
                "name": version.name,
                "served": true,
                "storage": index == 0,
                "schema": {"openAPIV3Schema": schema},
            });
            if version.deprecated || kind.deprecated {
                out["deprecated"] = json!(true);
                out["deprecationWarning"] = json!(deprecation(kind, version.name));
            }
            if !kind.columns.is_empty() {
                out["additionalPrinterColumns"] = kind.columns.iter().map(printer_column).collect();
            }
            if kind.status || kind.scale {
                out["subresources"] = subresources(kind);
            }
            out
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": if kind.cluster_scoped { "Cluster" } else { "Namespaced" },
            "versions": versions,
        },
    })
}

fn deprecation(kind: &CrdKind, version: &str) -> String {
    let api = format!("{}/{version}", kind.group);
    if kind.deprecated {
        format!("{api} {} is deprecated; use instance types and preferences", kind.kind)
    } else {
        format!("{api} {} is deprecated; use {}/{}", kind.kind, kind.group, kind.versions[0].name)
    }
}

fn printer_column(column: &Column) -> Value {
    let mut out = json!({"name": column.name, "type": column.kind, "jsonPath": column.path});
    if let Some(description) = column.description {
        out["description"] = json!(description);
    }
    if column.wide {
        out["priority"] = json!(1);
    }
    out
}

fn subresources(kind: &CrdKind) -> Value {
    let mut out = Map::new();
    if kind.status {
        out.insert("status".to_owned(), json!({}));
    }
    if kind.scale {
        let scale = json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.labelSelector",
        });
        out.insert("scale".to_owned(), scale);
    }
    Value::Object(out)
}

/// The rules an API server holds structural schemas to, as far as they can be broken by what we generate.
fn lint(schema: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    lint_node(schema, "", &mut problems);
    // The API server knows this field better than any schema: even a description of it is refused.
    let metadata = schema["properties"]["metadata"].as_object().into_iter().flatten();
    for (keyword, _) in metadata.filter(|(keyword, _)| *keyword != "type") {
        problems.push(format!(".metadata: {keyword} may not be given"));
    }
    problems
}

fn lint_node(node: &Value, path: &str, problems: &mut Vec<String>) {
    let mut problem = |text: &str| problems.push(format!("{}: {text}", if path.is_empty() { "." } else { path }));
    let flag = |key: &str| node.get(key) == Some(&Value::Bool(true));
    let r#type = node.get("type").and_then(Value::as_str);
    if !node.is_object() {
        problem("not an object");
        return;
    }
    if r#type.is_none() && !flag("x-kubernetes-int-or-string") && !flag("x-kubernetes-preserve-unknown-fields") {
        problem("no type");
    }
    if node.get("properties").is_some() && node.get("additionalProperties").is_some() {
        problem("both properties and additionalProperties");
    }
    if r#type == Some("array") && node.get("items").is_none() {
        problem("a list without items");
    }
    if node.get("$ref").is_some() || flag("uniqueItems") {
        problem("$ref and uniqueItems are not allowed");
    }
    if node.get("x-kubernetes-list-type").and_then(Value::as_str) == Some("map")
        && node.get("x-kubernetes-list-map-keys").is_none()
    {
        problem("a map list without keys");
    }
    // Validations below a junctor may only refine what is outside it.
    for junctor in ["anyOf", "allOf", "oneOf"] {
        for part in node.get(junctor).and_then(Value::as_array).into_iter().flatten() {
            let forbidden = ["default", "nullable", "additionalProperties"].iter().any(|key| part.get(*key).is_some());
            let type_allowed = flag("x-kubernetes-int-or-string");
            if forbidden || (part.get("type").is_some() && !type_allowed) {
                problem("a structural keyword inside a junctor");
            }
        }
    }
    for (name, field) in node.get("properties").and_then(Value::as_object).into_iter().flatten() {
        lint_node(field, &format!("{path}.{name}"), problems);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = node.get(key).filter(|inner| inner.is_object()) {
            lint_node(inner, &format!("{path}{mark}"), problems);
        }
    }
}

#[cfg(test)]
mod tests;
