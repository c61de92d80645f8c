//! `metadata`: the fields the server owns, and the rules for those it does not.

use ferrovirt_schema::Cause;
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
    for key in SERVER_OWNED {
        meta.remove(*key);
    }
    meta.remove("resourceVersion");
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
        Some(namespace) if given != namespace => Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given} != {namespace})"
        ))),
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
    } else if old.is_none()
        && let Some(fault) = name_fault(resource.name_rule, name)
    {
        causes.push(Cause::invalid("metadata.name", &json!(name), fault));
    }
    for (key, value) in map(object, "labels") {
        if let Err(fault) = ferrovirt_schema::selector::check_label_key(key) {
            causes.push(Cause::invalid("metadata.labels", &json!(key), fault));
        }
        if let Err(fault) = ferrovirt_schema::selector::check_label_value(value.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid("metadata.labels", value, fault));
        }
    }
    let mut size = 0;
    for (key, value) in map(object, "annotations") {
        size += key.len() + value.as_str().map_or(0, str::len);
        if let Err(fault) = ferrovirt_schema::selector::check_label_key(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), fault));
        }
    }
    if size > MAX_ANNOTATIONS {
        causes.push(Cause::too_long("metadata.annotations", MAX_ANNOTATIONS as u64));
    }
    causes.extend(owner_faults(object));
    if let Some(old) = old {
        causes.extend(finalizer_faults(object, old));
    }
    causes
}

fn map<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, &["metadata", key]).and_then(Value::as_object).into_iter().flatten()
}

fn owner_faults(object: &Value) -> Vec<Cause> {
    let owners = at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array);
    let mut causes = Vec::new();
    let mut controllers = 0;
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[key]).is_empty() {
                causes.push(Cause::invalid(
                    format!("metadata.ownerReferences[{index}].{key}"),
                    &json!(""),
                    format!("{key} must not be empty"),
                ));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        causes.push(Cause::invalid(
            "metadata.ownerReferences",
            &json!(controllers),
            "Only one reference can have Controller set to true",
        ));
    }
    causes
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
pub fn name_fault(rule: NameRule, name: &str) -> Option<String> {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|c| alnum(c) || c == b'-')
            && part.bytes().next().is_some_and(alnum)
            && part.bytes().last().is_some_and(alnum)
    };
    let too_long = |max: usize| (name.len() > max).then(|| format!("must be no more than {max} bytes"));
    match rule {
        NameRule::PathSegment => match name {
            "." | ".." => Some(format!("may not be '{name}'")),
            _ => name.chars().find(|c| matches!(c, '/' | '%')).map(|c| format!("may not contain '{c}'")),
        },
        NameRule::Label => too_long(63).or_else(|| {
            (!label(name)).then(|| "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')".to_owned())
        }),
        NameRule::Label1035 => too_long(63).or_else(|| {
            (!label(name) || name.starts_with(|c: char| c.is_ascii_digit())).then(|| "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')".to_owned())
        }),
        NameRule::Subdomain => too_long(253).or_else(|| {
            (!name.split('.').all(label)).then(|| "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".to_owned())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule() {
        let cases = [
            (NameRule::Subdomain, "a.b-c", true),
            (NameRule::Subdomain, "A", false),
            (NameRule::Subdomain, "a..b", false),
            (NameRule::Label, "a.b", false),
            (NameRule::Label, "0a", true),
            (NameRule::Label1035, "0a", false),
            (NameRule::PathSegment, "system:x", true),
            (NameRule::PathSegment, "a/b", false),
        ];
        for (rule, name, good) in cases {
            assert_eq!(name_fault(rule, name).is_none(), good, "{rule:?} {name}");
        }
        let name = generate_name("vm-");
        assert!(name.starts_with("vm-") && name.len() == 8, "{name}");
    }
}
