//! Paths of a resource, with what clients look for in them: kinds, actions and the parameters of writes.

use serde_json::{Map, Value, json};

use crate::registry::{Resource, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

/// Query parameters of writes. kubectl asks the document whether `fieldValidation` and `dryRun` are understood.
const WRITE_PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "pretty"];

pub fn add(paths: &mut Map<String, Value>, resource: &Resource, version: &Version, dialect: Dialect) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", version.name)
    } else {
        format!("/apis/{}/{}", resource.group, version.name)
    };
    let place = if resource.namespaced { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
    let collection = format!("{place}/{}", resource.plural);
    let item = format!("{collection}/{{name}}");
    let op = |action: &str, list: bool| operation(resource, version, action, list, dialect);
    let has = |verb: &str| resource.verbs.contains(&verb);
    let mut at_collection = Map::new();
    if has("list") {
        at_collection.insert("get".into(), op("list", true));
        at_collection.insert("delete".into(), op("deletecollection", false));
    }
    if has("create") {
        at_collection.insert("post".into(), op("post", false));
    }
    at_collection.insert("parameters".into(), parameters(&collection, dialect));
    paths.insert(collection, at_collection.into());
    if !has("get") {
        return;
    }
    let mut names = vec![(item.clone(), true)];
    if version.status {
        names.push((format!("{item}/status"), false));
    }
    for (path, with_delete) in names {
        let mut entry = Map::new();
        entry.insert("get".into(), op("get", false));
        entry.insert("put".into(), op("put", false));
        entry.insert("patch".into(), op("patch", false));
        if with_delete {
            entry.insert("delete".into(), op("delete", false));
        }
        entry.insert("parameters".into(), parameters(&path, dialect));
        paths.insert(path, entry.into());
    }
    if resource.namespaced {
        paths.insert(format!("{root}/{}", resource.plural), json!({"get": op("list", true)}));
    }
}

fn parameters(path: &str, dialect: Dialect) -> Value {
    let in_path = ["namespace", "name"].into_iter().filter(|p| path.contains(&format!("{{{p}}}")));
    in_path
        .map(|name| match dialect {
            Dialect::V2 => json!({"name": name, "in": "path", "required": true, "type": "string"}),
            Dialect::V3 => {
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
            }
        })
        .collect()
}

fn operation(resource: &Resource, version: &Version, action: &str, list: bool, dialect: Dialect) -> Value {
    let definition = if list { format!("{}List", version.definition) } else { version.definition.clone() };
    let schema = match dialect {
        Dialect::V2 => json!({"$ref": format!("#/definitions/{definition}")}),
        Dialect::V3 => json!({"$ref": format!("#/components/schemas/{definition}")}),
    };
    let ok = match dialect {
        Dialect::V2 => json!({"description": "OK", "schema": schema}),
        Dialect::V3 => {
            json!({"description": "OK", "content": {"application/json": {"schema": schema}}})
        }
    };
    let mut operation = json!({
        "responses": {"200": ok, "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": version.name, "kind": resource.kind},
    });
    if matches!(action, "post" | "put" | "patch") {
        let mut parameters: Vec<Value> = WRITE_PARAMETERS
            .iter()
            .map(|name| match dialect {
                Dialect::V2 => json!({"name": name, "in": "query", "type": "string", "uniqueItems": true}),
                Dialect::V3 => json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}),
            })
            .collect();
        match dialect {
            Dialect::V2 => parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": schema})),
            Dialect::V3 => operation["requestBody"] = json!({"content": {"*/*": {"schema": schema}}, "required": true}),
        }
        operation["parameters"] = parameters.into();
    }
    operation
}
