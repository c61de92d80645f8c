//! `metadata`: the fields the server owns, and the rules for those it does not.

use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use super::Call;
use crate::object::{self, at, metadata, text};
use crate::registry::{NameRule, Resource};
use crate::status::ApiError;

/// All annotations of an object together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Fields of metadata that clients cannot set or change.
const SERVER_OWNED: &[&str] =
    &["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];

/// Fills what the server owns in a new object.
pub fn fill(call: &Call, object: &mut Value) {
    let generation = call.resource.generation;
    let namespace = call.namespace().map(str::to_owned);
    let meta = metadata(object);
    // Where nobody counts generations, they are whatever the client says.
    for key in SERVER_OWNED.iter().filter(|key| generation || **key != "generation") {
        meta.remove(*key);
    }
    meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), object::now().into());
    if generation {
        meta.insert("generation".into(), 1.into());
    }
    match namespace {
        Some(namespace) => meta.insert("namespace".into(), namespace.into()),
        None => meta.remove("namespace"),
    };
}

/// Drops what the wire format never shows: empty collections in metadata and, for built-in kinds, nulls anywhere.
pub fn normalize(resource: &Resource, object: &mut Value) {
    let meta = metadata(object);
    meta.retain(|key, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() || !matches!(key.as_str(), "finalizers" | "ownerReferences"),
        Value::Object(map) => !map.is_empty() || !matches!(key.as_str(), "labels" | "annotations"),
        _ => true,
    });
    if !resource.custom {
        drop_nulls(object);
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// A name from `generateName`. Five characters out of an alphabet without vowels, as upstream makes them.
pub fn generate_name(base: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = uuid::Uuid::new_v4();
    let suffix: String =
        random.as_bytes().iter().take(5).map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect();
    let base: String = base.chars().take(58).collect();
    format!("{base}{suffix}")
}

/// Carries what the server owns from the stored object over to its successor.
pub fn keep(old: &Value, new: &mut Value) {
    let kept = &old["metadata"];
    let meta = metadata(new);
    for key in SERVER_OWNED.iter().chain(&["name", "namespace"]) {
        match kept.get(*key) {
            Some(value) => meta.insert((*key).to_owned(), value.clone()),
            None => meta.remove(*key),
        };
    }
}

/// The namespace in the URL and in the object must agree; a missing one is filled.
pub fn check_namespace(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    let given = text(object, &["metadata", "namespace"]);
    match call.namespace() {
        Some(namespace) if given.is_empty() => {
            metadata(object).insert("namespace".into(), namespace.into());
            Ok(())
        }
        Some(namespace) if given != namespace => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        Some(_) => Ok(()),
        None if call.resource.namespaced => {
            Err(ApiError::bad_request("an empty namespace may not be set during creation"))
        }
        None => {
            metadata(object).remove("namespace");
            Ok(())
        }
    }
}

/// What is wrong with the metadata of an object about to be stored.
pub fn validate(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = object::name(object);
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if old.is_none() {
        let faults = name_faults(resource.name_rule, name);
        causes.extend(faults.into_iter().map(|fault| Cause::invalid("metadata.name", &json!(name), fault)));
    }
    for (key, value) in map(object, "labels") {
        let faults = names::label_key(key);
        causes.extend(faults.into_iter().map(|fault| Cause::invalid("metadata.labels", &json!(key), fault)));
        let faults = names::label_value(value.as_str().unwrap_or_default());
        causes.extend(faults.into_iter().map(|fault| Cause::invalid("metadata.labels", value, fault)));
    }
    let mut size = 0;
    for (key, value) in map(object, "annotations") {
        size += key.len() + value.as_str().map_or(0, str::len);
        let faults = names::label_key(&key.to_lowercase());
        causes.extend(faults.into_iter().map(|fault| Cause::invalid("metadata.annotations", &json!(key), fault)));
    }
    if size > MAX_ANNOTATIONS {
        causes.push(Cause::too_long("metadata.annotations", MAX_ANNOTATIONS as u64));
    }
    causes.extend(owner_faults(object));
    // Definitions and registrations are extensions themselves, and held to the rules of extensions.
    if !resource.custom && !matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io") {
        causes.extend(finalizer_names(object));
    }
    if let Some(old) = old {
        let faults = finalizer_faults(object, old);
        // Said twice of built-in kinds, by what is common to all and by their own rules.
        let times = if resource.custom { 1 } else { 2 };
        causes.extend(std::iter::repeat_n(faults, times).flatten());
    }
    causes
}

fn map<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, &["metadata", key]).and_then(Value::as_object).into_iter().flatten()
}

fn owner_faults(object: &Value) -> Vec<Cause> {
    let owners = at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array);
    let mut causes = Vec::new();
    let mut controllers = Vec::new();
    for owner in owners.into_iter().flatten() {
        for (key, fault) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, &[key]).is_empty() {
                causes.push(Cause::invalid(format!("metadata.ownerReferences.{key}"), &json!(""), fault));
            }
        }
        if text(owner, &["apiVersion"]) == "v1" && text(owner, &["kind"]) == "Event" {
            let fault = "/v1, Kind=Event is disallowed from being an owner";
            causes.push(Cause::invalid("metadata.ownerReferences", owner, fault));
        }
        if owner["controller"] == true {
            controllers.push(format!("{}/{}", text(owner, &["kind"]), text(owner, &["name"])));
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let fault = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        causes.push(Cause::invalid("metadata.ownerReferences", &json!(owners), fault));
    }
    causes
}

/// Finalizers of built-in kinds belong to somebody, by their name.
fn finalizer_names(object: &Value) -> Vec<Cause> {
    let names = object::strings(at(object, &["metadata", "finalizers"]));
    let odd = |name: &str| !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion");
    let fault = "name is neither a standard finalizer name nor is it fully qualified";
    let named = names.iter().enumerate().filter(|(_, name)| odd(name));
    named.map(|(i, name)| Cause::invalid(format!("metadata.finalizers[{i}]"), &json!(name), fault)).collect()
}

/// Once an object is being deleted, finalizers can only go.
fn finalizer_faults(object: &Value, old: &Value) -> Vec<Cause> {
    if !at(old, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string) {
        return Vec::new();
    }
    let before = object::strings(at(old, &["metadata", "finalizers"]));
    let added: Vec<String> =
        object::strings(at(object, &["metadata", "finalizers"])).into_iter().filter(|f| !before.contains(f)).collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![Cause::forbidden(
        "metadata.finalizers",
        &format!("no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"),
    )]
}

/// Why a name is not allowed.
fn name_faults(rule: NameRule, name: &str) -> Vec<String> {
    match rule {
        NameRule::PathSegment => names::path_segment(name),
        NameRule::Label => names::dns_label(name),
        NameRule::Label1035 => names::dns_label_1035(name),
        NameRule::Subdomain => names::dns_subdomain(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_have_a_suffix() {
        let name = generate_name("vm-");
        assert!(name.starts_with("vm-") && name.len() == 8, "{name}");
    }
}
