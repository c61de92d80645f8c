//! Schemas in published form: embedded definitions for built-in kinds, the stored CRD for custom ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::crd;
use crate::object::{at, text};
use crate::registry::{OPENAPI, Resource, Snapshot};
use crate::server::Server;
use crate::storage::{Entry, parse};

/// Where references of OpenAPI version 2 lead.
const V2: &str = "#/definitions/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const ALWAYS: &[&str] = &[
    META,
    LIST_META,
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
];

/// Stored CRDs of a group.
pub fn crds_of(server: &Server, group: &str) -> Vec<Arc<Entry>> {
    let mut items = server.store.list(crd::STORAGE, None).items;
    items.retain(|e| e.key.name.split_once('.').is_some_and(|(_, g)| g == group));
    items
}

/// All schemas that the kinds of a version need, with references below `base`.
pub fn of_version(server: &Server, snapshot: &Snapshot, group: &str, version: &str, base: &str) -> Map<String, Value> {
    // Parsed for the document and dropped with it.
    let embedded: Value = serde_json::from_slice(OPENAPI).unwrap_or_default();
    let definitions = &embedded["definitions"];
    let mut out = Map::new();
    let mut wanted: BTreeSet<String> = ALWAYS.iter().map(|s| (*s).to_owned()).collect();
    for (resource, version) in snapshot.in_version(group, version).filter(|(r, _)| !r.custom) {
        wanted.insert(version.definition.clone());
        wanted.insert(format!("{}List", version.definition));
        let _ = resource;
    }
    for entry in crds_of(server, group) {
        let Ok(crd) = parse(&entry) else { continue };
        let plural = text(&crd, &["spec", "names", "plural"]);
        if let Some(resource) = snapshot.find(group, plural)
            && resource.version(version).is_some()
        {
            custom(&mut out, resource, version, &crd, base);
        }
    }
    let mut queue: Vec<String> = wanted.iter().cloned().collect();
    while let Some(name) = queue.pop() {
        let Some(schema) = definitions.get(&name) else {
            continue;
        };
        references(schema, &mut |reference| {
            if wanted.insert(reference.to_owned()) {
                queue.push(reference.to_owned());
            }
        });
        let mut schema = schema.clone();
        if name == META {
            describe(&mut schema);
        }
        if base != V2 {
            rebase(&mut schema, base);
        }
        out.insert(name, schema);
    }
    out
}

/// What every object has deserves words.
fn describe(schema: &mut Value) {
    const WORDS: &[(&str, &str)] = &[
        ("annotations", "Annotations are notes of tools and people. They are not queryable."),
        ("creationTimestamp", "CreationTimestamp is a timestamp of when the server made this object."),
        ("deletionTimestamp", "DeletionTimestamp is when this object will be gone, once its deletion was asked for."),
        ("finalizers", "Finalizers keep the object until each of them was taken away."),
        ("generateName", "GenerateName is the start of a name that the server completes."),
        ("generation", "Generation counts the changes of what is wanted."),
        ("labels", "Labels are for selecting objects."),
        ("managedFields", "ManagedFields says who set which field."),
        ("name", "Name is unique among the objects of a kind in a namespace."),
        ("namespace", "Namespace is the space within which the name is unique."),
        ("ownerReferences", "OwnerReferences lists the objects that this one depends on and goes with."),
        ("resourceVersion", "ResourceVersion changes with every write."),
        ("uid", "UID is unique in time and space."),
    ];
    schema["description"] = "ObjectMeta is what all stored objects have.".into();
    for (name, text) in WORDS {
        if let Some(property) = schema["properties"].get_mut(*name) {
            property["description"] = (*text).into();
        }
    }
}

fn custom(out: &mut Map<String, Value>, resource: &Resource, version: &str, crd: &Value, base: &str) {
    let Some(spec) =
        at(crd, &["spec", "versions"]).and_then(Value::as_array).and_then(|v| v.iter().find(|v| v["name"] == version))
    else {
        return;
    };
    let Some(known) = resource.version(version) else {
        return;
    };
    let gvk = |kind: &str| json!([{"group": resource.group, "version": version, "kind": kind}]);
    let mut schema = at(spec, &["schema", "openAPIV3Schema"]).cloned().unwrap_or_else(|| json!({"type": "object"}));
    if !schema.is_object() {
        schema = json!({"type": "object"});
    }
    schema["x-kubernetes-group-version-kind"] = gvk(&resource.kind);
    // A reader of version 2 takes named properties for all there are. So those that allow more name none.
    if base == V2 && schema["x-kubernetes-preserve-unknown-fields"] == true {
        let open = json!({"type": "object", "x-kubernetes-group-version-kind": gvk(&resource.kind)});
        out.insert(known.definition.clone(), open);
        insert_list(out, resource, version, &known.definition, base);
        return;
    }
    let properties = crate::object::field_map(&mut schema, "properties");
    properties.insert("apiVersion".into(), json!({"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}));
    properties.insert("kind".into(), json!({"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}));
    let mut metadata = reference(base, META);
    metadata["description"] = "Standard object's metadata.".into();
    properties.insert("metadata".into(), metadata);
    out.insert(known.definition.clone(), schema);
    insert_list(out, resource, version, &known.definition, base);
}

fn insert_list(out: &mut Map<String, Value>, resource: &Resource, version: &str, definition: &str, base: &str) {
    let list = json!({
        "type": "object", "required": ["items"],
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": reference(base, LIST_META),
            "items": {"type": "array", "items": reference(base, definition)},
        },
        "x-kubernetes-group-version-kind": [{"group": resource.group, "version": version, "kind": resource.list_kind}],
    });
    out.insert(format!("{definition}List"), list);
}

/// OpenAPI 3.0 forbids members beside `$ref`; kubectl's reader wants it wrapped.
fn reference(base: &str, name: &str) -> Value {
    let target = json!({"$ref": format!("{base}{name}")});
    if base == V2 { target } else { json!({"allOf": [target], "default": {}}) }
}

fn references(schema: &Value, found: &mut impl FnMut(&str)) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/definitions/")) {
                found(name);
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

fn rebase(schema: &mut Value, base: &str) {
    match schema {
        Value::Object(map) => {
            let moved = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix("#/definitions/"))
                .map(|n| format!("{base}{n}"));
            if let Some(target) = moved {
                map.remove("$ref");
                map.insert("allOf".into(), json!([{"$ref": target}]));
                return;
            }
            map.values_mut().for_each(|v| rebase(v, base));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| rebase(v, base)),
        _ => {}
    }
}
