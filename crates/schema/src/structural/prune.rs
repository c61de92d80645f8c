//! Dropping, or only finding, the fields a schema does not know.

use serde_json::Value;

use super::{Additional, MAX_DEPTH, Node, Schema};

/// Removes unknown fields and returns their paths as `kubectl` shows them, e.g. `spec.template.spec.foo`.
pub fn prune(schema: &Schema, document: &mut Value) -> Vec<String> {
    let mut found = Vec::new();
    prune_node(&schema.root, document, &mut String::new(), 0, &mut found);
    found.sort();
    found
}

/// What [`prune`] would remove.
pub fn unknown_fields(schema: &Schema, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    find(&schema.root, document, &mut String::new(), 0, &mut found);
    found.sort();
    found
}

enum Member<'a> {
    Known(&'a Node),
    Free,
    Unknown,
}

fn member<'a>(node: &'a Node, name: &str) -> Member<'a> {
    match (node.member(name), &node.additional) {
        (Some(child), _) => Member::Known(child),
        (None, Additional::Any) => Member::Free,
        (None, _) if node.preserve_unknown => Member::Free,
        (None, _) => Member::Unknown,
    }
}

fn prune_node(node: &Node, value: &mut Value, path: &mut String, depth: usize, found: &mut Vec<String>) {
    let node = node.resolve();
    if depth > MAX_DEPTH {
        return;
    }
    let before = path.len();
    match value {
        Value::Object(fields) => {
            fields.retain(|name, child| {
                push_name(path, name);
                let keep = match member(node, name) {
                    Member::Known(schema) => {
                        prune_node(schema, child, path, depth + 1, found);
                        true
                    }
                    Member::Free => true,
                    Member::Unknown => {
                        found.push(path.clone());
                        false
                    }
                };
                path.truncate(before);
                keep
            });
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (index, child) in list.iter_mut().enumerate() {
                push_index(path, index);
                prune_node(items, child, path, depth + 1, found);
                path.truncate(before);
            }
        }
        _ => {}
    }
}

fn find(node: &Node, value: &Value, path: &mut String, depth: usize, found: &mut Vec<String>) {
    let node = node.resolve();
    if depth > MAX_DEPTH {
        return;
    }
    let before = path.len();
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                push_name(path, name);
                match member(node, name) {
                    Member::Known(schema) => find(schema, child, path, depth + 1, found),
                    Member::Free => {}
                    Member::Unknown => found.push(path.clone()),
                }
                path.truncate(before);
            }
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (index, child) in list.iter().enumerate() {
                push_index(path, index);
                find(items, child, path, depth + 1, found);
                path.truncate(before);
            }
        }
        _ => {}
    }
}

pub(super) fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

pub(super) fn push_index(path: &mut String, index: usize) {
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
}
