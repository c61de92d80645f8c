//! Merging an applied configuration into the live object, and taking out what is no longer applied.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::field_set::{FieldSet, field_element};
use super::walk::{Shape, child, items, shape};
use crate::structural::{MAX_DEPTH, Node};

/// Sets in `live` what `applied` has.
pub(super) fn merge(node: Option<&Node>, live: &Value, applied: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return applied.clone();
    }
    match (shape(node, live), shape(node, applied)) {
        (Shape::Fields(live), Shape::Fields(applied)) => {
            let mut out = live.clone();
            for (name, value) in applied {
                let merged = match live.get(name) {
                    Some(old) => merge(child(node, name), old, value, depth + 1),
                    None => value.clone(),
                };
                out.insert(name.clone(), merged);
            }
            Value::Object(out)
        }
        (Shape::Elements { items: live, keyed }, Shape::Elements { items: applied, .. }) => {
            Value::Array(merge_lists(items(node), &live, &applied, keyed, depth))
        }
        _ => applied.clone(),
    }
}

/// Elements take the applied order. Those that are only in the live list stay before the next element that both have.
fn merge_lists(
    items: Option<&Node>,
    live: &[(String, &Value)],
    applied: &[(String, &Value)],
    keyed: bool,
    depth: usize,
) -> Vec<Value> {
    let live_by_name: BTreeMap<&String, &Value> = live.iter().map(|(name, value)| (name, *value)).collect();
    let wanted: BTreeSet<&String> = applied.iter().map(|(name, _)| name).collect();
    let mut shared = applied.iter().map(|(name, _)| name).filter(|name| live_by_name.contains_key(name)).peekable();
    let mut next = applied.iter();
    let mut out = Vec::with_capacity(live.len() + applied.len());
    for (name, value) in live {
        if !wanted.contains(name) {
            out.push((*value).clone());
        } else if shared.next_if_eq(&name).is_some() {
            for (applied_name, value) in next.by_ref() {
                out.push(merged(items, live_by_name.get(applied_name).copied(), value, keyed, depth));
                if applied_name == name {
                    break;
                }
            }
        }
        // An element that both have, but in another order, comes with the applied ones.
    }
    for (name, value) in next {
        out.push(merged(items, live_by_name.get(name).copied(), value, keyed, depth));
    }
    out
}

fn merged(items: Option<&Node>, live: Option<&Value>, applied: &Value, keyed: bool, depth: usize) -> Value {
    match live {
        Some(live) if keyed => merge(items, live, applied, depth + 1),
        _ => applied.clone(),
    }
}

/// Takes out the paths in `gone`, except what `kept` has. Containers that become empty this way go too.
///
/// Returns None if nothing of the value remains.
pub(super) fn remove(
    node: Option<&Node>,
    value: &Value,
    gone: &FieldSet,
    kept: &FieldSet,
    depth: usize,
) -> Option<Value> {
    if gone.is_empty() || depth > MAX_DEPTH {
        return Some(value.clone());
    }
    match shape(node, value) {
        Shape::Atomic => (!gone.own || kept.own).then(|| value.clone()),
        Shape::Fields(fields) => {
            let mut out = Map::new();
            for (name, value) in fields {
                let element = field_element(name);
                let (gone, kept) = (gone.children.get(&element), kept.children.get(&element));
                let left = match gone {
                    Some(gone) => {
                        remove(child(node, name), value, gone, kept.unwrap_or(&FieldSet::default()), depth + 1)
                    }
                    None => Some(value.clone()),
                };
                if let Some(left) = left {
                    out.insert(name.clone(), left);
                }
            }
            let emptied = out.is_empty() && (!fields.is_empty() || gone.own);
            (!emptied || kept.own).then_some(Value::Object(out))
        }
        Shape::Elements { items: list, .. } => {
            let before = list.len();
            let mut out = Vec::with_capacity(before);
            for (name, value) in list {
                let (gone, kept) = (gone.children.get(&name), kept.children.get(&name));
                let Some(gone) = gone else {
                    out.push(value.clone());
                    continue;
                };
                // An element belongs to those who listed it, not to those who only changed something in it.
                if gone.own && !kept.is_some_and(|kept| kept.own) {
                    continue;
                }
                let gone = without_keys(node, gone);
                out.extend(remove(items(node), value, &gone, kept.unwrap_or(&FieldSet::default()), depth + 1));
            }
            let emptied = out.is_empty() && (before > 0 || gone.own);
            (!emptied || kept.own).then_some(Value::Array(out))
        }
    }
}

/// An element that stays keeps its keys, whoever set them.
fn without_keys(node: Option<&Node>, gone: &FieldSet) -> FieldSet {
    let mut out = gone.clone();
    if let Some(crate::structural::ListType::Map(keys)) = node.map(|n| &n.resolve().list) {
        for key in keys {
            out.children.remove(&field_element(key));
        }
    }
    out
}
