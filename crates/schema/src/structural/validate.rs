//! Finding faults. The words are the ones of upstream's validator, since tools match on them.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::node::Checks;
use super::parse::type_name;
use super::prune::{push_index, push_name};
use super::{Cause, ListType, MAX_DEPTH, Node, Schema, Type, format};

/// How Go prints a field path that is not there.
const NO_FIELD: &str = "<nil>";

/// Checks a document, usually after [`super::prune`] and [`super::default`].
pub fn validate(schema: &Schema, document: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    check(&schema.root, document, None, &mut String::new(), 0, &mut found);
    found
}

/// As [`validate`], for the successor of a stored document: what stayed as it was may go on being wrong, so that a
/// stricter schema does not lock up what is already there.
pub fn validate_update(schema: &Schema, document: &Value, old: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    check(&schema.root, document, Some(old), &mut String::new(), 0, &mut found);
    found
}

fn check(node: &Node, value: &Value, old: Option<&Value>, path: &mut String, depth: usize, found: &mut Vec<Cause>) {
    if old == Some(value) {
        return;
    }
    let node = node.resolve();
    if depth > MAX_DEPTH {
        found.push(Cause::forbidden(path.clone(), "nested too deeply"));
        return;
    }
    if value.is_null() && node.nullable {
        return;
    }
    if !type_fits(node, value) {
        let wanted = if node.int_or_string { "integer,string" } else { node.kind.map_or("", Type::name) };
        found.push(wrong_type(path, wanted, &json!(type_name(value)), type_name(value)));
        return;
    }
    if let Some(checks) = &node.checks {
        check_value(checks, value, path, found);
    }
    let before = path.len();
    match value {
        Value::Object(fields) => {
            for name in &node.required {
                if !fields.contains_key(&**name) {
                    push_name(path, name);
                    found.push(Cause::required(path.clone(), ""));
                    path.truncate(before);
                }
            }
            for (name, child) in fields {
                if let Some(schema) = node.member(name) {
                    push_name(path, name);
                    check(schema, child, old.and_then(|o| o.get(name)), path, depth + 1, found);
                    path.truncate(before);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for (index, child) in list.iter().enumerate() {
                    push_index(path, index);
                    check(items, child, old.and_then(|o| counterpart(node, o, child)), path, depth + 1, found);
                    path.truncate(before);
                }
            }
            check_duplicates(node, list, path, found);
        }
        _ => {}
    }
    if let Some(checks) = &node.checks {
        check_combined(checks, value, path, depth, found);
    }
}

/// The item of the old list that an item of the new one comes from. Only lists with keys tell.
fn counterpart<'a>(node: &Node, old: &'a Value, item: &Value) -> Option<&'a Value> {
    let ListType::Map(keys) = &node.list else { return None };
    let same = |other: &&Value| keys.iter().all(|key| other.get(&**key) == item.get(&**key));
    old.as_array()?.iter().find(same)
}

fn type_fits(node: &Node, value: &Value) -> bool {
    if node.int_or_string {
        return value.is_string() || matches!(type_name(value), "integer");
    }
    match node.kind {
        None => true,
        Some(Type::Number) => value.is_number(),
        Some(kind) => type_name(value) == kind.name(),
    }
}

fn check_value(checks: &Checks, value: &Value, path: &str, found: &mut Vec<Cause>) {
    let mut invalid = |detail: String| found.push(Cause::invalid(path, value, format!("{path} in body {detail}")));
    match value {
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if let Some(min) = checks.min_length.filter(|min| length < *min) {
                invalid(format!("should be at least {min} chars long"));
            }
            if let Some((pattern, _)) = checks.pattern.as_ref().filter(|(_, regex)| !regex.is_match(text)) {
                invalid(format!("should match '{pattern}'"));
            }
            if let Some(max) = checks.max_length.filter(|max| length > *max) {
                found.push(Cause::too_long(path, max));
            }
            if let Some(format) = checks.format.as_deref().filter(|f| !format::string_ok(f, text)) {
                found.push(wrong_type(path, format, value, text));
            }
        }
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or_default();
            match checks.minimum {
                Some((min, true)) if float <= min => invalid(format!("should be greater than {min}")),
                Some((min, false)) if float < min => invalid(format!("should be greater than or equal to {min}")),
                _ => {}
            }
            match checks.maximum {
                Some((max, true)) if float >= max => invalid(format!("should be less than {max}")),
                Some((max, false)) if float > max => invalid(format!("should be less than or equal to {max}")),
                _ => {}
            }
            if let Some(step) = checks.multiple_of.filter(|step| (float / step).fract() != 0.0) {
                invalid(format!("should be a multiple of {step}"));
            }
            if let Some(format) = checks.format.as_deref().filter(|f| !format::number_ok(f, number)) {
                found.push(wrong_type(path, format, value, &number.to_string()));
            }
        }
        Value::Array(list) => {
            if let Some(min) = checks.min_items.filter(|min| (list.len() as u64) < *min) {
                invalid(format!("should have at least {min} items"));
            }
            if checks.unique_items && first_repeat(list.iter().map(canonical)).is_some() {
                invalid("shouldn't contain duplicates".to_owned());
            }
            if let Some(max) = checks.max_items.filter(|max| list.len() as u64 > *max) {
                found.push(Cause::too_many(path, list.len(), max));
            }
        }
        Value::Object(fields) => {
            if let Some(min) = checks.min_properties.filter(|min| (fields.len() as u64) < *min) {
                invalid(format!("should have at least {min} properties"));
            }
            if let Some(max) = checks.max_properties.filter(|max| fields.len() as u64 > *max) {
                found.push(Cause::too_many(path, fields.len(), max));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    if !checks.allowed.is_empty() && !checks.allowed.iter().any(|one| same(one, value)) {
        found.push(Cause::not_supported(path, value, &checks.allowed));
    }
}

fn check_combined(checks: &Checks, value: &Value, path: &mut String, depth: usize, found: &mut Vec<Cause>) {
    let faults = |node: &Node, path: &mut String| {
        let mut inner = Vec::new();
        // A branch is decided by the value alone.
        check(node, value, None, path, depth + 1, &mut inner);
        inner
    };
    // Neither field nor value are given here, as upstream does: the value may be a whole document.
    let refuse = |path: &str, text: &str| Cause::invalid(NO_FIELD, &json!(""), format!("\"{path}\" must {text}"));
    let all: Vec<_> = checks.all_of.iter().map(|node| faults(node, path)).collect();
    match all.iter().filter(|inner| inner.is_empty()).count() {
        valid if valid == all.len() => {}
        0 => found.push(refuse(path, "validate all the schemas (allOf). None validated")),
        _ => found.push(refuse(path, "validate all the schemas (allOf)")),
    }
    found.extend(all.into_iter().flatten());
    if !checks.any_of.is_empty() {
        let all: Vec<_> = checks.any_of.iter().map(|node| faults(node, path)).collect();
        if all.iter().all(|inner| !inner.is_empty()) {
            found.push(refuse(path, "validate at least one schema (anyOf)"));
            found.extend(all.into_iter().min_by_key(Vec::len).unwrap_or_default());
        }
    }
    if !checks.one_of.is_empty() {
        let all: Vec<_> = checks.one_of.iter().map(|node| faults(node, path)).collect();
        match all.iter().filter(|inner| inner.is_empty()).count() {
            1 => {}
            0 => {
                found.push(refuse(path, "validate one and only one schema (oneOf). Found none valid"));
                found.extend(all.into_iter().min_by_key(Vec::len).unwrap_or_default());
            }
            valid => {
                let text = format!("validate one and only one schema (oneOf). Found {valid} valid alternatives");
                found.push(refuse(path, &text));
            }
        }
    }
    if let Some(node) = &checks.not
        && faults(node, path).is_empty()
    {
        found.push(refuse(path, "not validate the schema (not)"));
    }
}

/// Lists that are sets or maps have no element twice.
fn check_duplicates(node: &Node, list: &[Value], path: &mut String, found: &mut Vec<Cause>) {
    let before = path.len();
    match &node.list {
        ListType::Unset | ListType::Atomic => {}
        ListType::Set => {
            let mut seen = HashSet::new();
            for (index, item) in list.iter().enumerate() {
                if !seen.insert(canonical(item)) {
                    push_index(path, index);
                    found.push(Cause::duplicate(path.clone(), item));
                    path.truncate(before);
                }
            }
        }
        ListType::Map(keys) => {
            let mut seen = HashSet::new();
            for (index, item) in list.iter().enumerate() {
                let Some(fields) = item.as_object() else {
                    continue;
                };
                let picked: serde_json::Map<_, _> =
                    keys.iter().filter_map(|key| Some((key.to_string(), fields.get(&**key)?.clone()))).collect();
                let picked = Value::Object(picked);
                if !seen.insert(canonical(&picked)) {
                    push_index(path, index);
                    found.push(Cause::duplicate(path.clone(), &picked));
                    path.truncate(before);
                }
            }
        }
    }
}

fn wrong_type(path: &str, wanted: &str, shown: &Value, actual: &str) -> Cause {
    Cause::type_invalid(path, shown, format!("{path} in body must be of type {wanted}: {actual:?}"))
}

/// Equality as JSON Schema has it: numbers by value, however they are written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

/// Text that equal values share. `serde_json` sorts object keys unless a feature says otherwise, and even then a
/// difference in order can only hide a duplicate from `uniqueItems`.
fn canonical(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 => format!("{number:.0}"),
        _ => value.to_string(),
    }
}

fn first_repeat(keys: impl Iterator<Item = String>) -> Option<usize> {
    let mut seen = HashSet::new();
    keys.into_iter().position(|key| !seen.insert(key))
}
