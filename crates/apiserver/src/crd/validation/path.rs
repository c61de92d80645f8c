//! Paths of fields, as definitions write them.

use serde_json::Value;

use super::schema::{kind, set};

/// A path that must at least look like one.
pub fn simple_fault(path: &str) -> Option<&'static str> {
    (!path.starts_with('.')).then_some("must be a simple json path starting with .")
}

/// The schema at a path such as `.spec.size` or `.spec['a.b']`, and the names on the way. Brackets are for rules only.
pub fn find<'a>(root: &'a Value, path: &str, brackets: bool) -> Result<(Vec<String>, &'a Value), String> {
    let mut names = Vec::new();
    let mut schema = root;
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let mut next = || tokens.next().ok_or("unexpected end of JSON path");
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = next()?;
                let name = quoted
                    .strip_prefix('\'')
                    .and_then(|q| q.strip_suffix('\''))
                    .ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let close = next()?;
                if close != "]" {
                    return Err(format!("expected ] but got {close}"));
                }
                name.replace("\\'", "'").replace("\\\\", "\\")
            }
            "." => next()?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let properties = schema["properties"].as_object().filter(|p| !p.is_empty());
        let child = match (properties, set(schema, "additionalProperties")) {
            (Some(properties), _) => properties.get(&name),
            (None, Some(additional)) => Some(additional),
            (None, None) => None,
        };
        schema = child.ok_or("does not refer to a valid field")?;
        names.push(name);
    }
    Ok((names, schema))
}

/// Delimiters, quoted strings, and what is between them.
fn tokens(path: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let length = match rest.strip_prefix('\'') {
            Some(quoted) => {
                let bytes = quoted.as_bytes();
                let end = (0..bytes.len()).find(|i| bytes[*i] == b'\'' && (*i == 0 || bytes[*i - 1] != b'\\'));
                end.map_or(rest.len(), |end| end + 2)
            }
            None => rest.find(['.', '[', ']']).map_or(rest.len(), |at| at.max(1)),
        };
        let (token, tail) = rest.split_at(length);
        found.push(token);
        rest = tail;
    }
    found
}

/// Whether objects can be selected by the value of such a field.
pub fn selectable(schema: &Value) -> bool {
    matches!(kind(schema), "string" | "boolean" | "integer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_schemas() {
        let root = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "string"}, "a.b": {"type": "integer"}}},
            "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
        }});
        let cases = [
            (".spec.size", true, Ok("string")),
            (".spec['a.b']", true, Ok("integer")),
            (".map.any", true, Ok("boolean")),
            (".spec", false, Ok("object")),
            (".spec.none", false, Err("does not refer to a valid field")),
            (".spec['a.b']", false, Err("array notation is not allowed")),
            (".spec[size]", true, Err("expected single quoted string but got size")),
            ("spec", true, Err("expected [ or . but got: spec")),
            (".", true, Err("unexpected end of JSON path")),
            (".spec['size'", true, Err("unexpected end of JSON path")),
        ];
        for (path, brackets, expected) in cases {
            let found = find(&root, path, brackets).map(|(_, schema)| kind(schema));
            assert_eq!(found, expected.map_err(str::to_owned), "{path}");
        }
    }
}
