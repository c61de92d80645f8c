//! The difference between two values as a JSON merge patch.
//!
//! A merge patch leaves alone what it does not name, at every depth. So what vanished has to be named as `null`, however
//! deep it stood; otherwise a status keeps what is no longer true.

use serde_json::{Map, Value};

/// The merge patch that turns `old` into `new`. `None` if there is nothing to change.
///
/// What a merge patch cannot say, a `null` in `new`, counts as not there: our types never write one.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        let change = match old.get(key) {
            Some(before) => merge_patch(before, value),
            None if value.is_null() => None,
            None => Some(value.clone()),
        };
        patch.extend(change.map(|change| (key.clone(), change)));
    }
    let gone = old.iter().filter(|(key, value)| !new.contains_key(*key) && !value.is_null());
    patch.extend(gone.map(|(key, _)| (key.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// RFC 7396, as short as it is there.
    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let Value::Object(fields) = target else { return };
        for (key, change) in patch {
            match change {
                Value::Null => drop(fields.remove(key)),
                change => apply(fields.entry(key.clone()).or_insert(Value::Null), change),
            }
        }
    }

    #[test]
    fn what_vanished_is_named_at_every_depth() {
        let rows = [
            (json!({}), json!({}), None),
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({}), Some(json!({"a": null}))),
            (json!({}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            // A second migration must not look finished.
            (
                json!({"migrationState": {"completed": true, "endTimestamp": "x", "sourceNode": "n"}}),
                json!({"migrationState": {"sourceNode": "m"}}),
                Some(json!({"migrationState": {"completed": null, "endTimestamp": null, "sourceNode": "m"}})),
            ),
            (
                json!({"a": {"b": {"c": 1, "d": 2}}}),
                json!({"a": {"b": {"d": 2}}}),
                Some(json!({"a": {"b": {"c": null}}})),
            ),
            // Lists are replaced as a whole, with everything that stands in their elements.
            (json!({"l": [{"a": 1, "b": 2}]}), json!({"l": [{"a": 1}]}), Some(json!({"l": [{"a": 1}]}))),
            (json!({"a": {"b": 1}}), json!({"a": 7}), Some(json!({"a": 7}))),
            (json!({"a": 7}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            (json!({"a": {}}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            (json!({"a": {"b": 1}}), json!({"a": {}}), Some(json!({"a": {"b": null}}))),
        ];
        for (old, new, expected) in rows {
            let patch = merge_patch(&old, &new);
            assert_eq!(patch, expected, "{old} -> {new}");
            let mut result = old.clone();
            patch.iter().for_each(|patch| apply(&mut result, patch));
            assert_eq!(result, new, "{old} with {patch:?}");
        }
    }
}
