//! The table that drives protobuf transcoding of built-in kinds: message -> fields with JSON names.
//!
//! ```json
//! {"messages": {"k8s.io.api.core.v1.Pod": {"fields": [
//!   {"name": "metadata", "number": 1, "type": "message:k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta", "label": "optional"},
//!   {"name": "data", "number": 2, "label": "map", "type": "string", "value": "bytes"}]}}}
//! ```
//!
//! - `type`: a scalar or `message:<name>`; of a map, the key's. `value`: what a map holds.
//! - `inline: true` on a field: the fields of that message stand in its place in JSON.
//! - `omitempty: true` on a field: a zero value on the wire means "not set"; JSON leaves it out. Fields without it
//!   are either always written or, when optional in Go (a pointer), meant when present.
//! - `always: true` on a field: Go writes it in JSON even if nobody set it, as it does with every struct that is no pointer.
//! - `list: true` on a message: in JSON it is its one repeated field's list, with no object around it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::go_module::{LIBRARIES, Located, locate};
use super::go_structs::GoTypes;
use super::kube_kinds::PACKAGES;
use super::proto_file::{self, Field, Message, Shape};
use super::{Files, Outcome, compact};

const OUTPUT: &str = "crates/apiserver/data/proto.json";
const SCALARS: [&str; 6] = ["string", "bool", "int32", "int64", "bytes", "double"];
/// What wraps every protobuf body, and how a list of anything is met by clients.
const EXTRA_ROOTS: [&str; 2] = ["k8s.io.apimachinery.pkg.runtime.Unknown", "k8s.io.apimachinery.pkg.apis.meta.v1.List"];

/// Full message name -> its table entry and the messages it refers to.
type Table = BTreeMap<String, (Value, BTreeSet<String>)>;

pub fn generate(offline: bool) -> Result<Outcome> {
    let mut all = Table::new();
    for module in LIBRARIES {
        let dir = match locate(module, offline)? {
            Located::At(dir) => dir,
            Located::Missing(reason) => return Ok(Outcome::Skipped(reason)),
        };
        for file in proto_files(&dir)? {
            read_package(&file, &mut all).with_context(|| format!("reading {}", file.display()))?;
        }
    }
    let roots = PACKAGES.iter().flat_map(|package| {
        // A protobuf package name cannot have a dash.
        let prefix = package.path.replace('/', ".").replace('-', "_");
        package.kinds().map(move |kind| format!("{prefix}.{kind}"))
    });
    let table = reachable(&all, roots.chain(EXTRA_ROOTS.map(str::to_owned)).collect())?;
    Ok(Outcome::Files(Files::from([(OUTPUT.to_owned(), compact(&table))])))
}

fn proto_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else if entry.file_name() == "generated.proto" {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read_package(file: &Path, all: &mut Table) -> Result<()> {
    let parsed = proto_file::parse(&fs::read_to_string(file)?)?;
    let types = GoTypes::read(file.parent().context("a file without a directory")?)?;
    for message in &parsed.messages {
        all.insert(format!("{}.{}", parsed.package, message.name), entry(&parsed.package, message, &types)?);
    }
    Ok(())
}

fn entry(package: &str, message: &Message, types: &GoTypes) -> Result<(Value, BTreeSet<String>)> {
    let mut references = BTreeSet::new();
    let mut fields = Vec::new();
    for field in &message.fields {
        fields.push(field_entry(package, message, field, types, &mut references));
    }
    let mut out = json!({"fields": fields});
    if types.is_list(&message.name) {
        ensure!(fields.len() == 1, "{}: a list with {} fields", message.name, fields.len());
        out["list"] = json!(true);
    }
    Ok((out, references))
}

fn field_entry(
    package: &str,
    message: &Message,
    field: &Field,
    types: &GoTypes,
    references: &mut BTreeSet<String>,
) -> Value {
    let mut resolve = |written: &str| {
        if SCALARS.contains(&written) {
            return written.to_owned();
        }
        let full = match written.strip_prefix('.') {
            Some(full) => full.to_owned(),
            None => format!("{package}.{written}"),
        };
        let r#type = format!("message:{full}");
        references.insert(full);
        r#type
    };
    let mut out = match &field.shape {
        Shape::Optional(of) => json!({"label": "optional", "type": resolve(of)}),
        Shape::Repeated(of) => json!({"label": "repeated", "type": resolve(of)}),
        Shape::Map { key, value } => {
            json!({"label": "map", "type": resolve(key), "value": resolve(value)})
        }
    };
    out["number"] = json!(field.number);
    out["name"] = json!(field.name);
    if let Some(in_json) = types.field(&message.name, field.number) {
        match in_json.name.as_deref() {
            // Kept out of plain JSON: the type writes itself, and the table needs some name for its content.
            Some("-") => {}
            Some(name) => out["name"] = json!(name),
            None => out["inline"] = json!(true),
        }
        if in_json.omit_zero {
            out["omitempty"] = json!(true);
        }
        let structure = matches!(&field.shape, Shape::Optional(of) if !SCALARS.contains(&of.as_str()));
        let written = in_json.always || (structure && in_json.always_if_struct);
        if written && in_json.name.as_deref().is_some_and(|name| name != "-") {
            out["always"] = json!(true);
        }
    }
    out
}

fn reachable(all: &Table, roots: BTreeSet<String>) -> Result<Value> {
    let mut open = roots;
    let mut kept = BTreeMap::new();
    while let Some(name) = open.pop_first() {
        let (message, references) = all.get(&name).with_context(|| format!("no message {name}"))?;
        if kept.insert(name, message).is_none() {
            open.extend(references.iter().filter(|r| !kept.contains_key(*r)).cloned());
        }
    }
    Ok(json!({"messages": kept}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Value {
        let path = format!("../{OUTPUT}");
        serde_json::from_str(&fs::read_to_string(&path).expect(&path)).expect(&path)
    }

    /// Facts looked up by hand in the Go types.
    #[test]
    fn known_fields() {
        let table = table();
        let core = "k8s.io.api.core.v1";
        let extensions = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1";
        for (message, expected) in [
            (
                format!("{core}.Pod"),
                json!({"name": "metadata", "number": 1, "label": "optional", "omitempty": true, "always": true,
                       "type": "message:k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"}),
            ),
            (
                format!("{core}.Secret"),
                json!({"name": "data", "number": 2, "label": "map", "type": "string", "value": "bytes", "omitempty": true}),
            ),
            (
                format!("{core}.PodStatus"),
                json!({"name": "hostIP", "number": 5, "label": "optional", "type": "string", "omitempty": true}),
            ),
            (
                format!("{core}.Volume"),
                json!({"name": "volumeSource", "number": 2, "label": "optional", "inline": true,
                       "type": format!("message:{core}.VolumeSource")}),
            ),
            (
                format!("{core}.PodSpec"),
                json!({"name": "terminationGracePeriodSeconds", "number": 4, "label": "optional", "type": "int64"}),
            ),
            (
                format!("{core}.PodSpec"),
                json!({"name": "hostNetwork", "number": 11, "label": "optional", "type": "bool", "omitempty": true}),
            ),
            (
                format!("{extensions}.JSONSchemaProps"),
                json!({"name": "$ref", "number": 3, "label": "optional", "type": "string"}),
            ),
        ] {
            let fields = table["messages"][&message]["fields"].as_array().expect("fields");
            let found = fields.iter().find(|f| f["number"] == expected["number"]);
            assert_eq!(found, Some(&expected), "{message}");
        }
        assert_eq!(table["messages"]["k8s.io.api.authorization.v1.ExtraValue"]["list"], true);
        assert_eq!(table["messages"][format!("{core}.Pod")]["list"], Value::Null);
    }

    /// Messages that have a JSON form of their own; a transcoder knows them by name.
    const SPECIAL: [&str; 10] = [
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
        "io.k8s.apimachinery.pkg.runtime.RawExtension",
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    ];

    /// Two independent sources, one truth: OpenAPI and protobuf name the same fields.
    #[test]
    fn fields_agree_with_openapi() {
        let table = table();
        let path = "../crates/apiserver/data/openapi.json";
        let openapi: Value = serde_json::from_str(&fs::read_to_string(path).expect(path)).expect(path);
        let own = |name: &String| !["apiVersion", "kind"].contains(&name.as_str());
        for (name, definition) in openapi["definitions"].as_object().expect("definitions") {
            if SPECIAL.contains(&name.as_str()) {
                continue;
            }
            let message = name.replacen("io.k8s.", "k8s.io.", 1).replace('-', "_");
            let mut in_proto = BTreeSet::new();
            json_names(&table, &message, &mut in_proto);
            let properties = definition["properties"].as_object().into_iter().flat_map(|p| p.keys());
            let in_openapi: BTreeSet<String> = properties.filter(|name| own(name)).cloned().collect();
            assert_eq!(in_proto.into_iter().filter(own).collect::<BTreeSet<_>>(), in_openapi, "{name}");
        }
    }

    fn json_names(table: &Value, message: &str, out: &mut BTreeSet<String>) {
        for field in table["messages"][message]["fields"].as_array().expect(message) {
            if field["inline"] == true {
                json_names(table, field["type"].as_str().expect("type").trim_start_matches("message:"), out);
            } else {
                out.insert(field["name"].as_str().expect("name").to_owned());
            }
        }
    }

    #[test]
    fn every_reference_resolves_and_every_type_is_known() {
        let table = table();
        let messages = table["messages"].as_object().expect("messages");
        assert!(messages.len() > 300, "{}", messages.len());
        for (name, message) in messages {
            for field in message["fields"].as_array().expect("fields") {
                for key in ["type", "value"] {
                    let Some(r#type) = field.get(key).and_then(Value::as_str) else {
                        continue;
                    };
                    let known = match r#type.strip_prefix("message:") {
                        Some(target) => messages.contains_key(target),
                        None => SCALARS.contains(&r#type),
                    };
                    assert!(known, "{name}: {field}");
                }
            }
        }
    }
}
