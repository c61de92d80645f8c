//! Filling in defaults.

use serde_json::Value;

use super::{MAX_DEPTH, Node, Schema};

/// Sets absent fields to their defaults. A null where null is not allowed counts as absent and goes away.
pub fn default(schema: &Schema, document: &mut Value) {
    fill(&schema.root, document, 0);
}

fn fill(node: &Node, value: &mut Value, depth: usize) {
    let node = node.resolve();
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            let dropped = |name: &str, child: &Value| {
                child.is_null()
                    && node.member(name).is_some_and(|schema| {
                        let schema = schema.resolve();
                        let free = schema.preserve_unknown && schema.kind.is_none();
                        !(schema.nullable || free)
                    })
            };
            fields.retain(|name, child| !dropped(name, child));
            for (name, schema) in &node.properties {
                let schema = schema.resolve();
                if let Some(default) = &schema.default
                    && !fields.contains_key(&**name)
                {
                    fields.insert(name.to_string(), (**default).clone());
                }
            }
            for (name, child) in fields.iter_mut() {
                if let Some(schema) = node.member(name) {
                    fill(schema, child, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                list.iter_mut().for_each(|child| fill(items, child, depth + 1));
            }
        }
        _ => {}
    }
}
