//! RFC 6902, with the errors of the library that Kubernetes uses.

use serde_json::Value;

use super::{PatchError, depth};
use crate::structural::MAX_DEPTH;

const MAX_OPERATIONS: usize = 10_000;

/// All copies of one patch together. Without it a few dozen operations could double a document into gigabytes.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Applies the operations in order, or none of them.
pub fn json_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch
        .as_array()
        .ok_or_else(|| PatchError::Malformed("json patch must be an array of operations".to_owned()))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_OPERATIONS, got: operations.len() });
    }
    let mut work = document.clone();
    let mut copied = 0;
    for operation in operations {
        run(&mut work, operation, &mut copied)?;
    }
    *document = work;
    Ok(())
}

fn run(document: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let missing = |name: &str| PatchError::Malformed(format!("operation missing {name} field"));
    let op = text("op").ok_or_else(|| PatchError::Malformed("Unexpected kind: unknown".to_owned()))?;
    let path = Pointer::parse(text("path").ok_or_else(|| missing("path"))?)?;
    let value = || operation.get("value").cloned().ok_or_else(|| missing("value"));
    let from = || text("from").ok_or_else(|| missing("from")).and_then(Pointer::parse);
    match op {
        "add" => add(document, &path, value()?),
        "remove" => remove(document, &path, "remove").map(drop),
        "replace" => {
            let value = value()?;
            checked_depth(&path, &value)?;
            if !has_parent(document, &path) {
                return Err(absent("replace", "doc is missing path", &path.text));
            }
            match find(document, &path) {
                Some(place) => *place = value,
                // Upstream's library sets members that are not there, too.
                None => add(document, &path, value)?,
            }
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.tokens.len() > from.tokens.len() && path.tokens.starts_with(&from.tokens) {
                return Err(PatchError::Malformed(format!("cannot move {:?} into itself", from.text)));
            }
            let value = remove(document, &from, "move")?;
            add(document, &path, value)
        }
        "copy" => {
            let from = from()?;
            let value =
                find(document, &from).ok_or_else(|| absent("copy", "doc is missing from path", &from.text))?.clone();
            *copied += value.to_string().len();
            if *copied > MAX_COPIED_BYTES {
                return Err(PatchError::CopyLimit(*copied));
            }
            add(document, &path, value)
        }
        "test" => {
            // An absent value equals an explicit null here, as upstream has it.
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            if !has_parent(document, &path) {
                return Err(absent("test", "is missing path", &path.text));
            }
            let actual = find(document, &path).map_or(&Value::Null, |v| v);
            if equal(actual, wanted) { Ok(()) } else { Err(PatchError::TestFailed(path.text)) }
        }
        other => Err(PatchError::Malformed(format!("Unexpected kind: {other}"))),
    }
}

/// A parsed JSON pointer (RFC 6901).
struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    fn parse(text: &str) -> Result<Self, PatchError> {
        let tokens = match text.strip_prefix('/') {
            _ if text.is_empty() => Vec::new(),
            Some(rest) => rest.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect(),
            None => {
                return Err(PatchError::Malformed(format!("json pointer {text:?} must start with '/'")));
            }
        };
        Ok(Self { text: text.to_owned(), tokens })
    }
}

fn find<'a>(document: &'a mut Value, path: &Pointer) -> Option<&'a mut Value> {
    walk(document, &path.tokens)
}

fn has_parent(document: &mut Value, path: &Pointer) -> bool {
    match path.tokens.split_last() {
        Some((_, parents)) => matches!(walk(document, parents), Some(Value::Object(_) | Value::Array(_))),
        None => true,
    }
}

fn walk<'a>(mut at: &'a mut Value, tokens: &[String]) -> Option<&'a mut Value> {
    for token in tokens {
        at = match at {
            Value::Object(fields) => fields.get_mut(token)?,
            Value::Array(list) => {
                let index = existing(list.len(), token)?;
                list.get_mut(index)?
            }
            _ => return None,
        };
    }
    Some(at)
}

fn add(document: &mut Value, path: &Pointer, value: Value) -> Result<(), PatchError> {
    checked_depth(path, &value)?;
    let Some((last, parents)) = path.tokens.split_last() else {
        *document = value;
        return Ok(());
    };
    match walk(document, parents) {
        Some(Value::Object(fields)) => {
            fields.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(list)) => {
            let index = if last == "-" {
                list.len()
            } else {
                insertion(list.len(), last).map_err(|e| at_path("add", &path.text, e))?
            };
            list.insert(index, value);
            Ok(())
        }
        _ => Err(absent("add", "doc is missing path", format_args!("\"{}\"", path.text))),
    }
}

fn remove(document: &mut Value, path: &Pointer, op: &str) -> Result<Value, PatchError> {
    let Some((last, parents)) = path.tokens.split_last() else {
        return Ok(document.take());
    };
    match walk(document, parents) {
        Some(Value::Object(fields)) => fields.remove(last).ok_or_else(|| {
            PatchError::Missing(format!(
                "error in {op} for path: '{}': Unable to remove nonexistent key: {last}",
                path.text
            ))
        }),
        Some(Value::Array(list)) => match existing(list.len(), last) {
            Some(index) => Ok(list.remove(index)),
            None => Err(at_path(op, &path.text, bad_index(last))),
        },
        _ if op == "move" => Err(absent(op, "doc is missing from path", &path.text)),
        _ => Err(absent(op, "doc is missing path", format_args!("\"{}\"", path.text))),
    }
}

/// Some of these quote the path and some do not; so does the original.
fn absent(op: &str, what: &str, path: impl std::fmt::Display) -> PatchError {
    PatchError::Missing(format!("{op} operation does not apply: {what}: {path}"))
}

fn at_path(op: &str, path: &str, error: PatchError) -> PatchError {
    match error {
        PatchError::Index(text) => PatchError::Index(format!("error in {op} for path: '{path}': {text}")),
        other => other,
    }
}

fn bad_index(token: &str) -> PatchError {
    PatchError::Index(format!("Unable to access invalid index: {token}"))
}

fn checked_depth(path: &Pointer, value: &Value) -> Result<(), PatchError> {
    if depth(value, path.tokens.len()) > MAX_DEPTH { Err(PatchError::TooDeep) } else { Ok(()) }
}

/// The index of an element that is there. Negative indexes count from the end, a habit of upstream's library.
fn existing(len: usize, token: &str) -> Option<usize> {
    let index = token.parse::<i64>().ok()?;
    let len = i64::try_from(len).ok()?;
    let index = if index < 0 { index.checked_add(len)? } else { index };
    usize::try_from(index).ok().filter(|_| index < len)
}

fn insertion(len: usize, token: &str) -> Result<usize, PatchError> {
    // One past the end is a place to insert, so the same rules apply to a list one longer.
    existing(len + 1, token).ok_or_else(|| bad_index(token))
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.as_f64() == b.as_f64() && (a.is_f64() || b.is_f64())),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}
