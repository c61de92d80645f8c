//! A CustomResourceDefinition as a [`Resource`].

use std::sync::Arc;

use ferrovirt_schema::structural::Pool;
use ferrovirt_schema::table::Column;
use ferrovirt_schema::{Cause, Schema};
use kube_cel::RootContext;
use serde_json::{Value, json};

use super::columns::Columns;
use super::go_form::GoForm;
use super::last_line::LastLine;
use super::resource::{NameRule, ReadDefaults, Resource, Scale, SchemaSource, Special, Version};
use crate::crd::{Conversion, Rules};
use crate::object::{at, strings, text};

const ALL: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Compiles a CRD; schemas share their equal parts through the pool. The causes name fields of the CRD.
pub fn custom_resource(crd: &Value, pool: &mut Pool) -> Result<Resource, Vec<Cause>> {
    let group = text(crd, &["spec", "group"]).to_owned();
    let names = &crd["spec"]["names"];
    let name = |key: &str| text(names, &[key]).to_owned();
    let kind = name("kind");
    let mut versions = Vec::new();
    let mut storage_version = String::new();
    for (index, version) in at(crd, &["spec", "versions"]).and_then(Value::as_array).into_iter().flatten().enumerate() {
        if version["storage"] == true {
            storage_version = text(version, &["name"]).to_owned();
        }
        if version["served"] == true {
            versions.push(custom_version(version, &group, &kind, pool).map_err(|causes| {
                let base = format!("spec.versions[{index}].schema");
                causes.into_iter().map(|c| prefixed(c, &base)).collect::<Vec<_>>()
            })?);
        }
    }
    let read_defaults = read_defaults(crd);
    versions.iter_mut().for_each(|version| version.read_defaults = read_defaults);
    let plural = name("plural");
    let or = |value: String, other: String| if value.is_empty() { other } else { value };
    Ok(Resource {
        storage: Arc::from(format!("{group}/{plural}")),
        storage_group: group.clone(),
        singular: or(name("singular"), kind.to_lowercase()),
        list_kind: or(name("listKind"), format!("{kind}List")),
        namespaced: text(crd, &["spec", "scope"]) == "Namespaced",
        short_names: strings(names.get("shortNames")),
        categories: strings(names.get("categories")),
        verbs: ALL,
        versions,
        storage_version,
        special: Special::None,
        custom: true,
        conversion: Conversion::of(crd),
        generation: true,
        unconditional_update: false,
        name_rule: NameRule::Subdomain,
        schema_revision: 0,
        relaxed: false,
        group,
        plural,
        kind,
    })
}

fn read_defaults(crd: &Value) -> ReadDefaults {
    let versions = at(crd, &["spec", "versions"]).and_then(Value::as_array).into_iter().flatten();
    let mut schemas = versions.filter(|v| v["served"] == true).map(|v| &v["schema"]["openAPIV3Schema"]);
    let Some(first) = schemas.next() else { return ReadDefaults::None };
    let same = schemas.clone().all(|schema| schema == first);
    match std::iter::once(first).chain(schemas).any(has_default) {
        false => ReadDefaults::None,
        true if same => ReadDefaults::Older,
        true => ReadDefaults::Any,
    }
}

/// Whether some part of a schema has a default. A property may be called so, too; then this is only cautious.
fn has_default(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.contains_key("default") || map.values().any(has_default),
        Value::Array(items) => items.iter().any(has_default),
        _ => false,
    }
}

fn prefixed(mut cause: Cause, base: &str) -> Cause {
    cause.field = if cause.field.is_empty() { base.to_owned() } else { format!("{base}.{}", cause.field) };
    cause
}

fn custom_version(version: &Value, group: &str, kind: &str, pool: &mut Pool) -> Result<Version, Vec<Cause>> {
    let name = text(version, &["name"]).to_owned();
    let schema = match at(version, &["schema", "openAPIV3Schema"]) {
        Some(schema) => pool.parse(schema)?,
        None => Schema::any(),
    };
    let root = RootContext {
        api_version: crate::object::api_version(group, &name),
        api_group: group.to_owned(),
        kind: kind.to_owned(),
    };
    let rules = match at(version, &["schema", "openAPIV3Schema"]) {
        Some(schema) => Rules::compile(schema, root)
            .map_err(|causes| causes.into_iter().map(|c| prefixed(c, "openAPIV3Schema")).collect::<Vec<_>>())?,
        None => None,
    };
    let columns = match version["additionalPrinterColumns"].as_array() {
        Some(columns) if !columns.is_empty() => columns.iter().filter_map(|c| Column::from_crd(c).ok()).collect(),
        _ => Column::from_crd(&json!({
            "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
            "description": "CreationTimestamp is a timestamp representing the server time when this object was created.",
        }))
        .into_iter()
        .collect(),
    };
    let scale = at(version, &["subresources", "scale"]).map(|scale| Scale {
        spec_replicas: text(scale, &["specReplicasPath"]).to_owned(),
        status_replicas: text(scale, &["statusReplicasPath"]).to_owned(),
        selector: scale["labelSelectorPath"].as_str().filter(|s| !s.is_empty()).map(str::to_owned),
    });
    let deprecation = (version["deprecated"] == true).then(|| match version["deprecationWarning"].as_str() {
        Some(warning) => warning.to_owned(),
        None => format!("{group}/{name} {kind} is deprecated"),
    });
    Ok(Version {
        status: at(version, &["subresources", "status"]).is_some_and(|s| !s.is_null()),
        scale,
        subresources: &[],
        schema: SchemaSource::Custom(schema),
        columns: Columns::Custom(columns),
        definition: definition_name_of_custom(group, &name, kind),
        renames: &[],
        reshape: None,
        deprecation,
        selectable: version["selectableFields"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|f| text(f, &["jsonPath"]).trim_start_matches('.').to_owned())
            .collect(),
        rules,
        read_defaults: ReadDefaults::None,
        last_line: LastLine::default(),
        go_form: GoForm::default(),
        name,
    })
}

/// `kubevirt.io`, `v1`, `VirtualMachine` is `io.kubevirt.v1.VirtualMachine`.
fn definition_name_of_custom(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}
