//! Documents seen as sets of fields, through their schema.
//!
//! Objects are taken apart unless they are atomic. Lists are atomic unless the schema makes them sets or maps; a list
//! that breaks its own promise (an element without its keys, or twice) is atomic as long as it does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::field_set::{FieldSet, field_element, key_element, value_element};
use crate::structural::{ListType, MAX_DEPTH, Node};

/// How a value is owned.
pub(super) enum Shape<'a> {
    /// As a whole.
    Atomic,
    Fields(&'a Map<String, Value>),
    /// The elements by their names, in list order. Elements of a set have nothing below them.
    Elements {
        items: Vec<(String, &'a Value)>,
        keyed: bool,
    },
}

pub(super) fn shape<'a>(node: Option<&Node>, value: &'a Value) -> Shape<'a> {
    let node = node.map(Node::resolve);
    match value {
        Value::Object(fields) if !node.is_some_and(|n| n.atomic_map) => Shape::Fields(fields),
        Value::Array(list) => match node.and_then(|n| elements(n, list)) {
            Some(items) => Shape::Elements { items, keyed: matches!(node.map(|n| &n.list), Some(ListType::Map(_))) },
            None => Shape::Atomic,
        },
        _ => Shape::Atomic,
    }
}

/// The names of a list's elements, if it is a set or a map and each element has a name of its own.
fn elements<'a>(node: &Node, list: &'a [Value]) -> Option<Vec<(String, &'a Value)>> {
    if matches!(node.list, ListType::Unset | ListType::Atomic) {
        return None;
    }
    let mut seen = BTreeSet::new();
    let mut out = Vec::with_capacity(list.len());
    for item in list {
        let name = match &node.list {
            ListType::Unset | ListType::Atomic => return None,
            ListType::Set if item.is_object() || item.is_array() => return None,
            ListType::Set => value_element(item),
            ListType::Map(keys) => {
                let fields = item.as_object()?;
                let schema = node.items.as_deref().map(Node::resolve);
                let mut found = BTreeMap::new();
                for key in keys {
                    // A key that is left out has its default, such as the protocol of a port.
                    let default = || schema?.property(key)?.resolve().default.as_deref();
                    if let Some(value) = fields.get(&**key).filter(|v| !v.is_null()).or_else(default) {
                        found.insert(key.to_string(), value.clone());
                    }
                }
                if found.is_empty() {
                    return None;
                }
                key_element(found)
            }
        };
        if !seen.insert(name.clone()) {
            // What a set has twice it has.
            if node.list == ListType::Set {
                continue;
            }
            return None;
        }
        out.push((name, item));
    }
    Some(out)
}

pub(super) fn child<'n>(node: Option<&'n Node>, name: &str) -> Option<&'n Node> {
    node?.resolve().member(name)
}

pub(super) fn items(node: Option<&Node>) -> Option<&Node> {
    node?.resolve().items.as_deref()
}

/// The fields a document sets: what an applier comes to own.
pub(super) fn fields_of(node: Option<&Node>, value: &Value, depth: usize) -> FieldSet {
    fields_below(node, value, false, depth)
}

/// `containers`: also name the objects and lists on the way, as they are new too.
fn fields_below(node: Option<&Node>, value: &Value, containers: bool, depth: usize) -> FieldSet {
    if depth > MAX_DEPTH {
        return FieldSet::leaf();
    }
    let mut set = FieldSet::default();
    match shape(node, value) {
        Shape::Atomic => set.own = true,
        Shape::Fields(fields) => {
            for (name, value) in fields {
                set.insert(field_element(name), fields_below(child(node, name), value, containers, depth + 1));
            }
            set.own = containers || fields.is_empty();
        }
        Shape::Elements { items: list, keyed } => {
            // Unlike an empty object, an empty list says nothing that could be owned.
            set.own = containers;
            for (name, value) in list {
                let mut below = match keyed {
                    true => fields_below(items(node), value, containers, depth + 1),
                    false => FieldSet::default(),
                };
                below.own = true;
                set.insert(name, below);
            }
        }
    }
    set
}

/// The fields that `new` adds or changes. To empty a container is to remove what was in it, and changes no field.
pub(super) fn changed(node: Option<&Node>, old: &Value, new: &Value, depth: usize) -> FieldSet {
    if old == new {
        return FieldSet::default();
    }
    if depth > MAX_DEPTH {
        return FieldSet::leaf();
    }
    // A container that is null is there already, with nothing in it.
    let nothing = match new {
        Value::Object(_) => Value::Object(Map::new()),
        _ => Value::Array(Vec::new()),
    };
    if old.is_null() && *new == nothing {
        return FieldSet::leaf();
    }
    let old = if old.is_null() && (new.is_object() || new.is_array()) { &nothing } else { old };
    let mut set = FieldSet::default();
    match (shape(node, old), shape(node, new)) {
        (Shape::Fields(old), Shape::Fields(new)) => {
            for (name, value) in new {
                let schema = child(node, name);
                let below = match old.get(name) {
                    Some(old) => changed(schema, old, value, depth + 1),
                    None => fields_below(schema, value, true, depth + 1),
                };
                set.insert(field_element(name), below);
            }
        }
        (Shape::Elements { items: old, .. }, Shape::Elements { items: new, keyed }) => {
            let old: BTreeMap<String, &Value> = old.into_iter().collect();
            for (name, value) in new {
                let below = match (old.get(&name), keyed) {
                    (Some(_), false) => continue,
                    (Some(old), true) => changed(items(node), old, value, depth + 1),
                    (None, false) => FieldSet::leaf(),
                    (None, true) => FieldSet { own: true, ..fields_below(items(node), value, true, depth + 1) },
                };
                set.insert(name, below);
            }
        }
        (_, Shape::Atomic) => set.own = true,
        (_, _) => return fields_below(node, new, true, depth),
    }
    set
}

/// The paths of a set that the document still has.
pub(super) fn existing(set: &FieldSet, node: Option<&Node>, value: &Value, depth: usize) -> FieldSet {
    let mut out = FieldSet { own: set.own, children: BTreeMap::new() };
    if depth > MAX_DEPTH {
        return out;
    }
    match shape(node, value) {
        Shape::Atomic => {}
        Shape::Fields(fields) => {
            for (element, below) in &set.children {
                let Some(name) = element.strip_prefix("f:") else {
                    continue;
                };
                if let Some(value) = fields.get(name) {
                    out.insert(element.clone(), existing(below, child(node, name), value, depth + 1));
                }
            }
        }
        Shape::Elements { items: list, .. } => {
            for (name, value) in list {
                if let Some(below) = set.children.get(&name) {
                    out.insert(name, existing(below, items(node), value, depth + 1));
                }
            }
        }
    }
    out
}
