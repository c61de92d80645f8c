//! Small readings and writings of Kubernetes objects as JSON values.

use serde_json::{Map, Value, json};

/// The string at a path of keys, or "".
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |v, key| v.get(key))
}

pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// The metadata map, made if missing or not a map.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    field_map(object, "metadata")
}

/// The map in a field of an object, made if missing or of another type.
pub fn field_map<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[key];
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        // The line above made it a map.
        _ => unreachable!("field is a map"),
    }
}

/// The items of a list member, to be changed. Nothing if there is no list.
pub fn items_mut<'a>(object: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Sets a member that is missing or null, if there is a map to set it in.
pub fn default(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut()
        && map.get(key).is_none_or(Value::is_null)
    {
        map.insert(key.to_owned(), value.into());
    }
}

/// As [`default`], in a member that may not be there.
pub fn default_in(object: &mut Value, member: &str, key: &str, value: impl Into<Value>) {
    if let Some(member) = object.get_mut(member) {
        default(member, key, value);
    }
}

pub fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|items| items.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect())
        .unwrap_or_default()
}

/// Now, as `metav1.Time` writes it.
pub fn now() -> String {
    format_time(jiff::Timestamp::now())
}

pub fn format_time(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets one condition by type; `lastTransitionTime` moves only when the status does.
pub fn set_condition(object: &mut Value, kind: &str, status: &str, reason: &str, message: &str) {
    let holder = field_map(object, "status").entry("conditions").or_insert_with(|| json!([]));
    if !holder.is_array() {
        *holder = json!([]);
    }
    let Some(conditions) = holder.as_array_mut() else {
        return;
    };
    let mut fresh =
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()});
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                fresh["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = fresh;
        }
        None => conditions.push(fresh),
    }
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    at(object, &["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == kind)
}

/// The group of an `apiVersion`.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

pub fn version_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or(api_version, |(_, version)| version)
}

pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
