//! CustomResourceDefinitions: their status, their rules, and their way into the registry.
//!
//! Upstream a controller accepts names and establishes the resource some time after the write. Here both happen with the
//! write itself, so a client that creates a CRD and then an object of it never races the server.

pub mod conversion;
mod cost;
pub mod engine;
mod rules;
mod validation;

use std::sync::Arc;

use ferrovirt_store::Key;
use serde_json::{Value, json};

use crate::object::{self, at, default, default_in, field_map, metadata, strings, text};
use crate::registry::custom_resource;
use crate::rest::Call;
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::parse;

pub use conversion::Conversion;
pub use rules::Rules;
pub use validation::validate;

/// Keeps a CRD until its instances are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
pub const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";

pub fn defaults(crd: &mut Value) {
    let kind = text(crd, &["spec", "names", "kind"]).to_owned();
    if let Some(names) = crd.get_mut("spec").and_then(|s| s.get_mut("names")) {
        default(names, "singular", kind.to_lowercase());
        default(names, "listKind", format!("{kind}List"));
    }
    default_in(crd, "spec", "conversion", json!({"strategy": "None"}));
}

/// Sets the status that the server owns: accepted names, conditions, stored versions.
pub fn prepare(call: &Call, crd: &mut Value, old: Option<&Value>) -> Result<(), ApiError> {
    defaults(crd);
    if old.is_none() {
        let mut finalizers = strings(at(crd, &["metadata", "finalizers"]));
        if !finalizers.iter().any(|f| f == CLEANUP) {
            finalizers.push(CLEANUP.to_owned());
        }
        metadata(crd).insert("finalizers".into(), json!(finalizers));
    }
    let conflict = names_conflict(call, crd);
    let names = at(crd, &["spec", "names"]).cloned().unwrap_or_default();
    let storage = at(crd, &["spec", "versions"])
        .and_then(Value::as_array)
        .and_then(|v| v.iter().find(|v| v["storage"] == true))
        .map(|v| text(v, &["name"]).to_owned())
        .unwrap_or_default();
    let mut stored = old.map(|o| strings(at(o, &["status", "storedVersions"]))).unwrap_or_default();
    if !stored.contains(&storage) && !storage.is_empty() {
        stored.push(storage);
    }
    let status = field_map(crd, "status");
    status.insert("storedVersions".into(), json!(stored));
    match conflict {
        None => {
            status.insert("acceptedNames".into(), names);
            object::set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found");
            object::set_condition(
                crd,
                "Established",
                "True",
                "InitialNamesAccepted",
                "the initial names have been accepted",
            );
        }
        Some((reason, message)) => {
            status.entry("acceptedNames").or_insert_with(|| json!({"kind": "", "plural": ""}));
            object::set_condition(crd, "NamesAccepted", "False", reason, &message);
            if object::condition(crd, "Established").is_none() {
                object::set_condition(crd, "Established", "False", "NotAccepted", "not all names are accepted");
            }
        }
    }
    Ok(())
}

/// A name that another resource of the group already has.
fn names_conflict(call: &Call, crd: &Value) -> Option<(&'static str, String)> {
    let group = text(crd, &["spec", "group"]);
    let names = crd.get("spec")?.get("names")?;
    let (plural, singular, kind, list_kind) =
        (text(names, &["plural"]), text(names, &["singular"]), text(names, &["kind"]), text(names, &["listKind"]));
    let short = strings(names.get("shortNames"));
    let snapshot = call.server.registry.snapshot();
    for other in snapshot.iter().filter(|r| r.group == group && r.plural != plural) {
        let taken =
            |name: &str| other.plural == name || other.singular == name || other.short_names.iter().any(|s| s == name);
        let words = [("PluralConflict", plural), ("SingularConflict", singular)];
        if let Some((reason, name)) = words.into_iter().find(|(_, name)| taken(name)) {
            return Some((reason, format!("\"{name}\" is already in use")));
        }
        if let Some(name) = short.iter().find(|name| taken(name)) {
            return Some(("ShortNamesConflict", format!("\"{name}\" is already in use")));
        }
        if other.kind == kind || other.list_kind == kind {
            return Some(("KindConflict", format!("\"{kind}\" is already in use")));
        }
        if other.list_kind == list_kind {
            return Some(("ListKindConflict", format!("\"{list_kind}\" is already in use")));
        }
    }
    None
}

/// Brings the registry in line with one stored CRD, present or gone.
pub async fn sync(server: &Arc<Server>, name: &str) {
    // One at a time, and always from the store: the last one to run has seen the last write.
    let mut pool = server.crd_pool.lock().await;
    let entry = server.store.get(STORAGE, &Key::new("", name));
    let crd = entry.as_ref().and_then(|e| parse(e).ok());
    match crd.filter(established) {
        Some(crd) => match custom_resource(&crd, &mut pool) {
            Ok(mut resource) => {
                resource.schema_revision = entry.as_ref().map_or(0, |e| e.revision);
                server.registry.insert(resource);
            }
            Err(causes) => {
                tracing::error!(crd = name, causes = %ferrovirt_schema::cause::summary(&causes), "stored CRD does not compile")
            }
        },
        None => {
            if let Some((plural, group)) = name.split_once('.') {
                server.registry.remove(group, plural);
            }
        }
    }
}

/// All stored CRDs, at start.
pub async fn load(server: &Arc<Server>) {
    for entry in server.store.list(STORAGE, None).items {
        sync(server, &entry.key.name).await;
    }
}

fn established(crd: &Value) -> bool {
    object::condition(crd, "Established").is_some_and(|c| c["status"] == "True")
}
