//! The OpenAPI v2 document as protobuf, the only form in which `kubectl` reads it.
//!
//! `kubectl` checks lists and the like on its own side with the definitions in here. It looks at nothing else, so nothing
//! else is written: paths and parameters are left to the JSON form.

use serde_json::Value;

/// What clients ask for, and what they are answered with: the `@` of the first is not allowed in a media type.
pub const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Encodes an OpenAPI v2 document's definitions.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, document["swagger"].as_str().unwrap_or_default());
    let mut info = Message::default();
    info.text(1, document["info"]["title"].as_str().unwrap_or_default());
    info.text(2, document["info"]["version"].as_str().unwrap_or_default());
    out.message(2, info);
    out.message(8, Message::default());
    let mut definitions = Message::default();
    for (name, definition) in document["definitions"].as_object().into_iter().flatten() {
        definitions.message(1, named(name, schema(definition)));
    }
    out.message(9, definitions);
    out.0
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    let Some(fields) = value.as_object() else { return out };
    // A quantity or a port may be a number or a text; version 2 cannot say so, and a schema without a type allows both.
    let either = fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    for (name, field) in fields {
        match (name.as_str(), field) {
            ("$ref", Value::String(text)) => out.text(1, text),
            ("format", Value::String(text)) if !either => out.text(2, text),
            ("description", Value::String(text)) => out.text(4, text),
            ("type", Value::String(text)) if !either => {
                let mut kind = Message::default();
                kind.text(1, text);
                out.message(22, kind);
            }
            ("required", Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| out.text(19, name));
            }
            ("additionalProperties", Value::Bool(allowed)) => {
                let mut item = Message::default();
                item.flag(2, *allowed);
                out.message(21, item);
            }
            ("additionalProperties", inner) => {
                let mut item = Message::default();
                item.message(1, schema(inner));
                out.message(21, item);
            }
            ("items", inner) => {
                let mut item = Message::default();
                item.message(1, schema(inner));
                out.message(23, item);
            }
            ("properties", Value::Object(properties)) => {
                let mut all = Message::default();
                for (name, property) in properties {
                    all.message(1, named(name, schema(property)));
                }
                out.message(25, all);
            }
            (name, field) if name.starts_with("x-") => {
                // An extension's value is YAML, and JSON is YAML.
                let mut any = Message::default();
                any.text(2, &field.to_string());
                out.message(31, named(name, any));
            }
            _ => {}
        }
    }
    out
}

fn named(name: &str, value: Message) -> Message {
    let mut out = Message::default();
    out.text(1, name);
    out.message(2, value);
    out
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, message: Self) {
        self.bytes(field, &message.0);
    }

    fn flag(&mut self, field: u32, value: bool) {
        self.varint(u64::from(field) << 3);
        self.varint(u64::from(value));
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definitions_are_written_with_their_extensions() {
        let document = json!({
            "swagger": "2.0", "info": { "title": "t", "version": "v" },
            "definitions": { "a": { "type": "object", "x-kubernetes-group-version-kind": [{ "kind": "A" }] } },
        });
        let bytes = encode(&document);
        assert_eq!(bytes[..5], [0x0a, 3, b'2', b'.', b'0']);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("x-kubernetes-group-version-kind") && text.contains(r#"[{"kind":"A"}]"#), "{text}");
    }

    #[test]
    fn what_may_be_a_number_or_a_text_has_no_type() {
        let plain = schema(&json!({ "type": "string" })).0;
        let either = schema(&json!({ "type": "string", "x-kubernetes-int-or-string": true })).0;
        assert!(plain.windows(6).any(|w| w == b"string"));
        assert!(!either.starts_with(&plain));
    }
}
