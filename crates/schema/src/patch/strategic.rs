//! Strategic merge patch: a merge patch that knows which lists are maps in disguise.
//!
//! | directive | meaning |
//! |---|---|
//! | `$patch: replace` | in an object: the rest of it replaces the original; in a list element: the rest of the list does |
//! | `$patch: delete` | in an object: it becomes empty; in a list element: the element with its merge key goes |
//! | `$retainKeys: [..]` | keys of the original that are not listed go |
//! | `$deleteFromPrimitiveList/name: [..]` | these values leave the list `name` |
//! | `$setElementOrder/name: [..]` | the order of the list `name` after the merge |
//!
//! New elements stand before old ones unless an order is given: the patch's order wins over the live one, and
//! upstream clients have come to expect it.

use serde_json::{Map, Value};

use super::{PatchError, depth};
use crate::structural::{MAX_DEPTH, Node, Schema};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";
const ORDER_PREFIX: &str = "$setElementOrder/";

/// Merges `patch` into the document. Fields the schema does not know are merged as by a plain merge patch.
pub fn strategic_merge(schema: &Schema, document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Object(patch_fields) = patch else {
        return Err(PatchError::Malformed("Invalid JSON document".to_owned()));
    };
    if depth(patch, 0) > MAX_DEPTH || depth(document, 0) > MAX_DEPTH {
        return Err(PatchError::TooDeep);
    }
    let fields = match &*document {
        Value::Object(fields) => fields.clone(),
        _ => Map::new(),
    };
    *document = Value::Object(merge_object(Some(&schema.root), fields, patch_fields)?);
    Ok(())
}

fn merge_object(
    schema: Option<&Node>,
    mut fields: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(word)) if word == "replace" => {
            return merge_fields(schema, Map::new(), patch);
        }
        Some(Value::String(word)) if word == "delete" => return Ok(Map::new()),
        Some(Value::String(word)) if word == "merge" => {}
        Some(other) => return Err(unknown_directive(other)),
    }
    if let Some(retained) = patch.get(RETAIN_KEYS) {
        let retained = retained.as_array().ok_or_else(|| refuse("invalid patch format of retainKeys"))?;
        if patch
            .iter()
            .any(|(name, v)| !name.starts_with('$') && !v.is_null() && !retained.iter().any(|r| r == name.as_str()))
        {
            return Err(refuse("invalid patch format of retainKeys"));
        }
        fields.retain(|name, _| retained.iter().any(|r| r == name.as_str()));
    }
    merge_fields(schema, fields, patch)
}

fn merge_fields(
    schema: Option<&Node>,
    mut fields: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    let node = schema.map(Node::resolve);
    for (name, change) in patch {
        if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(DELETE_PREFIX) || name.starts_with(ORDER_PREFIX)
        {
            continue;
        }
        if change.is_null() {
            fields.remove(name);
            continue;
        }
        // Upstream drops an object with a directive where there is nothing to direct, whatever else it holds.
        if !fields.contains_key(name) && change.get(DIRECTIVE).is_some() {
            continue;
        }
        let child = node.and_then(|n| n.member(name));
        let merged = merge_value(child, fields.remove(name), change)?;
        fields.insert(name.clone(), merged);
    }
    for (name, order) in patch.iter().filter_map(|(name, order)| Some((name.strip_prefix(ORDER_PREFIX)?, order))) {
        let order = order.as_array().ok_or_else(|| refuse("invalid patch format of setElementOrder list"))?;
        let key = node.and_then(|n| n.member(name)).and_then(merge_key);
        if let Some(Value::Array(patched)) = patch.get(name) {
            check_order(patched, order, key, name)?;
        }
        if let Some(Value::Array(list)) = fields.get_mut(name) {
            *list = ordered(std::mem::take(list), order, key);
        }
    }
    // After the merge: a value that is both added and deleted is gone.
    for (name, list) in patch.iter().filter_map(|(name, list)| Some((name.strip_prefix(DELETE_PREFIX)?, list))) {
        let gone = list.as_array().ok_or_else(|| refuse("invalid patch format of primitive list"))?;
        if let Some(Value::Array(values)) = fields.get_mut(name) {
            values.retain(|value| !gone.contains(value));
        }
    }
    Ok(fields)
}

fn merge_value(schema: Option<&Node>, live: Option<Value>, change: &Value) -> Result<Value, PatchError> {
    let hints = schema.and_then(|n| n.patch.as_deref().or(n.resolve().patch.as_deref()));
    match change {
        Value::Object(patch) => {
            let fields = match live {
                Some(Value::Object(fields)) if !hints.is_some_and(|h| h.replace) => fields,
                _ => Map::new(),
            };
            merge_object(schema, fields, patch).map(Value::Object)
        }
        Value::Array(patch) => {
            let live = match live {
                Some(Value::Array(list)) => list,
                _ => Vec::new(),
            };
            let items = schema.and_then(|n| n.resolve().items.as_deref());
            match (hints.is_some_and(|h| h.merge), schema.and_then(merge_key)) {
                (false, _) => Ok(change.clone()),
                (true, Some(key)) => merge_elements(items, live, patch, key).map(Value::Array),
                (true, None) => Ok(Value::Array(merge_values(live, patch))),
            }
        }
        scalar => Ok(scalar.clone()),
    }
}

fn merge_key(node: &Node) -> Option<&str> {
    node.patch.as_deref().or(node.resolve().patch.as_deref())?.merge_key.as_deref()
}

/// Lists of plain values are united.
fn merge_values(live: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut merged = live.clone();
    for value in patch {
        if !merged.contains(value) {
            merged.push(value.clone());
        }
    }
    interleave(merged, patch, &live, None)
}

fn merge_elements(
    items: Option<&Node>,
    live: Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut merged = live;
    let mut replace = false;
    let mut ordinary = Vec::new();
    for element in patch {
        let Value::Object(fields) = element else {
            return Err(refuse("list of maps with a merge key has an element that is not a map"));
        };
        match fields.get(DIRECTIVE).map(|d| d.as_str().ok_or(d)) {
            None | Some(Ok("merge")) => ordinary.push(element),
            Some(Ok("delete")) => {
                let id = fields.get(key).ok_or_else(|| refuse("delete patch type with no merge key defined"))?;
                merged.retain(|one| one.get(key) != Some(id));
            }
            Some(Ok("replace")) => {
                replace = true;
                // The marker may carry an element of its own.
                if fields.len() > 1 {
                    ordinary.push(element);
                }
            }
            Some(Ok(_)) | Some(Err(_)) => return Err(unknown_directive(&fields[DIRECTIVE])),
        }
    }
    if replace {
        merged.clear();
    }
    // An element that is deleted and given anew is a new one, also in its place.
    let live = merged.clone();
    for element in &ordinary {
        let Value::Object(fields) = element else {
            continue;
        };
        let Some(id) = fields.get(key).filter(|id| !id.is_null()) else {
            return Err(refuse(format!("map: {element} does not contain declared merge key: {key}")));
        };
        match merged.iter_mut().find(|one| one.get(key) == Some(id)) {
            Some(place) => {
                let old = match place.take() {
                    Value::Object(old) => old,
                    _ => Map::new(),
                };
                *place = Value::Object(merge_object(items, old, fields)?);
            }
            None => {
                let mut fields = fields.clone();
                fields.remove(DIRECTIVE);
                merged.push(Value::Object(merge_object(items, Map::new(), &fields)?));
            }
        }
    }
    let patched: Vec<Value> = ordinary.into_iter().cloned().collect();
    Ok(interleave(merged, &patched, &live, Some(key)))
}

/// Puts the elements named by `order` in that order, and lets the others stand where they stood among them.
fn ordered(list: Vec<Value>, order: &[Value], key: Option<&str>) -> Vec<Value> {
    let live = list.clone();
    interleave(list, order, &live, key)
}

/// Two kinds of elements: those of the patch, in the patch's order, and those only the server has, in the live order.
/// A server's element goes before the first element of the patch that the live list has after it.
fn interleave(merged: Vec<Value>, patch: &[Value], live: &[Value], key: Option<&str>) -> Vec<Value> {
    let position = |list: &[Value], value: &Value| list.iter().position(|one| same(one, value, key));
    let (mut from_patch, mut from_server) = (Vec::new(), Vec::new());
    for value in merged {
        match position(patch, &value) {
            Some(at) => from_patch.push((at, value)),
            None => from_server.push((position(live, &value).unwrap_or(usize::MAX), value)),
        }
    }
    from_patch.sort_by_key(|(at, _)| *at);
    from_server.sort_by_key(|(at, _)| *at);

    let mut out = Vec::with_capacity(from_patch.len() + from_server.len());
    let mut server = from_server.into_iter().peekable();
    for (_, value) in from_patch {
        if let Some(here) = position(live, &value) {
            while let Some((_, earlier)) = server.next_if(|(at, _)| *at < here) {
                out.push(earlier);
            }
        }
        out.push(value);
    }
    out.extend(server.map(|(_, value)| value));
    out
}

/// The patch's list must follow the order it announces, or the client contradicts itself.
fn check_order(patched: &[Value], order: &[Value], key: Option<&str>, name: &str) -> Result<(), PatchError> {
    let mut rest = order.iter();
    for value in patched.iter().filter(|v| v.get(DIRECTIVE).is_none()) {
        if !rest.any(|one| same(one, value, key)) {
            let (patched, order) = (Value::from(patched.to_vec()), Value::from(order.to_vec()));
            return Err(refuse(format!(
                "The order in patch list:\n{patched}\n doesn't match {ORDER_PREFIX}{name} list:\n{order}\n"
            )));
        }
    }
    Ok(())
}

fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

fn unknown_directive(found: &Value) -> PatchError {
    refuse(format!("unknown patch type found: {}", found.as_str().map_or_else(|| found.to_string(), str::to_owned)))
}

fn refuse(text: impl Into<String>) -> PatchError {
    PatchError::Strategic(text.into())
}
