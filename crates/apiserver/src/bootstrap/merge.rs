//! An object of ours as an administrator left it, as we shipped it last, and as we ship it now: what it should be. Pure.
//!
//! What we ship is written, what we shipped and took back goes, and what others added stays. Of roles and bindings this is
//! so for each single right and subject; of other objects for each field, while lists are ours as a whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::authz::{GROUP, Rule};
use crate::object;

/// Upstream's word by which somebody keeps a role or binding as it is.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Whether this is a role or a binding.
pub fn is_rbac(object: &Value) -> bool {
    object::group_of(object::text(object, &["apiVersion"])) == GROUP
}

/// Whether an administrator said that a role or binding is to stay as it is.
pub fn opted_out(current: &Value) -> bool {
    is_rbac(current) && object::at(current, &["metadata", "annotations", AUTOUPDATE]) == Some(&json!("false"))
}

/// What is to be written, or nothing if `current` is as it should be. Without `last` nothing is known to be taken back.
pub fn merge(current: &Value, last: Option<&Value>, wanted: &Value) -> Option<Value> {
    if opted_out(current) {
        return None;
    }
    let mut merged = current.clone();
    for field in ["labels", "annotations"] {
        let of = |object: &Value| object::at(object, &["metadata", field]).cloned().unwrap_or_default();
        let result = words(&of(current), last.map(of).as_ref(), &of(wanted), is_rbac(wanted));
        if result != of(current).as_object().cloned().unwrap_or_default() {
            merged["metadata"][field] = result.into();
        }
    }
    if is_rbac(wanted) {
        rights(&mut merged, last, wanted)
    } else {
        fields(&mut merged, last, wanted)
    }
    (merged != *current).then_some(merged)
}

/// What is left of an object that is not shipped any more: nothing, or what others added to it.
pub fn without(current: &Value, last: &Value) -> Option<Value> {
    if opted_out(current) {
        return Some(current.clone());
    }
    if !is_rbac(current) {
        return None;
    }
    let mut rest = current.clone();
    rights(&mut rest, Some(last), &json!({}));
    let empty = |field: &str| rest[field].as_array().is_none_or(Vec::is_empty);
    // An aggregated role has rules that others gave; what counts is which it selects.
    let selects = rest["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|all| !all.is_empty());
    let aggregated = current.get("aggregationRule").is_some_and(Value::is_object);
    let nothing = if aggregated { !selects } else { empty("rules") && empty("subjects") };
    (!nothing).then_some(rest)
}

/// Labels or annotations. An administrator's own value of one that we ship stays on a role, as upstream's.
fn words(current: &Value, last: Option<&Value>, wanted: &Value, keep: bool) -> Map<String, Value> {
    let mut result = current.as_object().cloned().unwrap_or_default();
    for (key, value) in last.and_then(Value::as_object).into_iter().flatten() {
        if wanted.get(key).is_none() && result.get(key) == Some(value) {
            result.remove(key);
        }
    }
    for (key, value) in wanted.as_object().into_iter().flatten() {
        if !keep || !result.contains_key(key) {
            result.insert(key.clone(), value.clone());
        }
    }
    result
}

/// Roles and bindings.
fn rights(merged: &mut Value, last: Option<&Value>, wanted: &Value) {
    let list = |object: Option<&Value>, path: &[&str]| -> Vec<Value> {
        object.and_then(|object| object::at(object, path)).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let selectors = &["aggregationRule", "clusterRoleSelectors"];
    let equal = |item: &Value, ours: &Value| item == ours;
    let selected = items(&list(Some(merged), selectors), &list(last, selectors), &list(Some(wanted), selectors), equal);
    if let Some(selected) = selected {
        if selected.is_empty() {
            // What it collected is not its own.
            merged["aggregationRule"] = Value::Null;
            merged["rules"] = json!([]);
        } else {
            merged["aggregationRule"]["clusterRoleSelectors"] = selected.into();
        }
    }
    if merged.get("aggregationRule").is_none_or(Value::is_null) {
        let current = list(Some(merged), &["rules"]);
        if let Some(rules) = rules(&current, &list(last, &["rules"]), &list(Some(wanted), &["rules"])) {
            merged["rules"] = rules.into();
        }
    }
    let of = |object: Option<&Value>| list(object, &["subjects"]);
    if let Some(subjects) = items(&of(Some(merged)), &of(last), &of(Some(wanted)), contains) {
        merged["subjects"] = subjects.into();
    }
    if let Some(role) = wanted.get("roleRef")
        && !contains(&merged["roleRef"], role)
    {
        merged["roleRef"] = role.clone();
        merged["subjects"] = wanted["subjects"].clone();
    }
}

/// Subjects and selectors: those that others added, and ours.
fn items(
    current: &[Value],
    last: &[Value],
    wanted: &[Value],
    same: impl Fn(&Value, &Value) -> bool,
) -> Option<Vec<Value>> {
    let among = |list: &[Value], item: &Value| list.iter().any(|ours| same(item, ours));
    let missing = wanted.iter().any(|ours| !current.iter().any(|item| same(item, ours)));
    let stale = current.iter().any(|item| among(last, item) && !among(wanted, item));
    (missing || stale).then(|| {
        let others = current.iter().filter(|item| !among(last, item) && !among(wanted, item));
        wanted.iter().chain(others).cloned().collect()
    })
}

/// One single right: verb, group, resource, name and path. What a right has not is empty.
type Right = [String; 5];

fn rules(current: &[Value], last: &[Value], wanted: &[Value]) -> Option<Vec<Value>> {
    let of = |rules: &[Value]| -> BTreeSet<Right> { rules.iter().flat_map(single_rights).collect() };
    let (ours, before) = (of(wanted), of(last));
    let covers = Rule::parse_all(&Value::Array(current.to_vec()));
    let allowed = |verb: &str, on: &crate::authz::On<'_>| covers.iter().any(|rule| rule.allows(verb, on));
    let missing = Rule::parse_all(&Value::Array(wanted.to_vec())).iter().any(|rule| !rule.covered("", &allowed));
    let stale = of(current).iter().any(|right| before.contains(right) && !ours.contains(right));
    if !missing && !stale {
        return None;
    }
    let mut result = wanted.to_vec();
    for rule in current {
        let all = single_rights(rule);
        let others: Vec<&Right> = all.iter().filter(|r| !before.contains(*r) && !ours.contains(*r)).collect();
        if others.len() == all.len() && !all.is_empty() {
            result.push(rule.clone());
        } else {
            result.extend(others.into_iter().map(rule_of));
        }
    }
    Some(result)
}

fn single_rights(rule: &Value) -> Vec<Right> {
    let list = |field: &str| object::strings(rule.get(field));
    let (groups, resources, mut names) = (list("apiGroups"), list("resources"), list("resourceNames"));
    if names.is_empty() {
        names.push(String::new());
    }
    let mut all = vec![];
    for verb in list("verbs") {
        for path in list("nonResourceURLs") {
            all.push([verb.clone(), String::new(), String::new(), String::new(), path]);
        }
        for group in &groups {
            for resource in &resources {
                let right =
                    |name: &String| [verb.clone(), group.clone(), resource.clone(), name.clone(), String::new()];
                all.extend(names.iter().map(right));
            }
        }
    }
    all
}

fn rule_of([verb, group, resource, name, path]: &Right) -> Value {
    if !path.is_empty() {
        return json!({ "verbs": [verb], "nonResourceURLs": [path] });
    }
    let mut rule = json!({ "verbs": [verb], "apiGroups": [group], "resources": [resource] });
    if !name.is_empty() {
        rule["resourceNames"] = json!([name]);
    }
    rule
}

/// All but what every object has.
fn fields(merged: &mut Value, last: Option<&Value>, wanted: &Value) {
    let common = |key: &str| matches!(key, "apiVersion" | "kind" | "metadata" | "status");
    let own = |object: &Value| -> Value {
        object
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !common(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    let result = three_way(&own(merged), last.map(own).as_ref(), &own(wanted));
    if let (Some(map), Value::Object(result)) = (merged.as_object_mut(), result) {
        map.retain(|key, _| common(key));
        map.extend(result);
    }
}

fn three_way(current: &Value, last: Option<&Value>, wanted: &Value) -> Value {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => {
            let mut result = current.clone();
            for (key, before) in last.and_then(Value::as_object).into_iter().flatten() {
                if !wanted.contains_key(key) && result.get(key).is_some_and(|now| contains(now, before)) {
                    result.remove(key);
                }
            }
            for (key, value) in wanted {
                let now = current.get(key).unwrap_or(&Value::Null);
                result.insert(key.clone(), three_way(now, last.and_then(|last| last.get(key)), value));
            }
            Value::Object(result)
        }
        // What stands in an item of a list and was shipped earlier cannot be told from what others added.
        (Value::Array(_), Value::Array(_)) if last == Some(wanted) && contains(current, wanted) => current.clone(),
        _ => wanted.clone(),
    }
}

/// True if everything in `wanted` is in `current` already; defaults may have been added there.
pub fn contains(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| value.is_null() || current.get(key).is_some_and(|c| contains(c, value)))
        }
        (Value::Array(current), Value::Array(wanted)) => {
            current.len() == wanted.len() && current.iter().zip(wanted).all(|(c, w)| contains(c, w))
        }
        (current, wanted) => current == wanted,
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
