//! Messages whose JSON is not an object of their fields.

use serde_json::{Value, json};

use super::encode::wrong;
use super::wire::{Reader, Wire, put_bytes, put_int};
use super::{MAGIC, Message, ProtoError, ProtoTable, decode, encode};
use crate::{duration, rfc3339};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Time,
    MicroTime,
    Duration,
    IntOrString,
    Quantity,
    /// A JSON document in a bytes field.
    Raw,
    /// As `Raw`, but may hold another enveloped object.
    RawExtension,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
}

impl Special {
    pub(super) fn of(message: &str) -> Option<Self> {
        let (package, name) = message.rsplit_once('.')?;
        Some(match name {
            "Time" if package.ends_with("meta.v1") => Special::Time,
            "MicroTime" if package.ends_with("meta.v1") => Special::MicroTime,
            "Duration" if package.ends_with("meta.v1") => Special::Duration,
            "FieldsV1" if package.ends_with("meta.v1") => Special::Raw,
            "IntOrString" if package.ends_with("util.intstr") => Special::IntOrString,
            "Quantity" if package.ends_with("api.resource") => Special::Quantity,
            "RawExtension" if package.ends_with("pkg.runtime") => Special::RawExtension,
            "JSON" if package.contains("apiextensions") => Special::Raw,
            "JSONSchemaPropsOrBool" => Special::SchemaOrBool,
            "JSONSchemaPropsOrArray" => Special::SchemaOrArray,
            "JSONSchemaPropsOrStringArray" => Special::SchemaOrStrings,
            _ => return None,
        })
    }
}

pub(super) fn decode(
    table: &ProtoTable,
    message: &Message,
    special: Special,
    bytes: &[u8],
    depth: usize,
) -> Result<Value, ProtoError> {
    Ok(match special {
        Special::Time if bytes.is_empty() => Value::Null,
        Special::MicroTime if bytes.is_empty() => Value::Null,
        Special::Time => json!(rfc3339::format(integer(bytes, 1)?)),
        Special::MicroTime => {
            let nanos = u32::try_from(integer(bytes, 2)?).unwrap_or(0);
            json!(rfc3339::format_micros(integer(bytes, 1)?, nanos))
        }
        Special::Duration => json!(duration::format(integer(bytes, 1)?)),
        Special::IntOrString => match integer(bytes, 1)? {
            1 => json!(text(bytes, 3)?),
            _ => json!(integer(bytes, 2)? as i32),
        },
        Special::Quantity => match text(bytes, 1)? {
            // Go writes the zero quantity as "0"; an empty message is a quantity never set.
            text if text.is_empty() => json!("0"),
            text => json!(text),
        },
        Special::Raw => raw(first_bytes(bytes, 1)?)?,
        Special::RawExtension => match first_bytes(bytes, 1)? {
            inner if inner.starts_with(MAGIC) => table.decode_object_at(inner, depth + 1)?,
            inner => raw(inner)?,
        },
        Special::SchemaOrBool => {
            let mut fields = decode::fields(table, message, bytes, depth)?;
            fields.remove("schema").or_else(|| fields.remove("allows")).unwrap_or(json!(false))
        }
        Special::SchemaOrArray => {
            let mut fields = decode::fields(table, message, bytes, depth)?;
            fields.remove("schema").or_else(|| fields.remove("jSONSchemas")).unwrap_or(Value::Null)
        }
        Special::SchemaOrStrings => {
            let mut fields = decode::fields(table, message, bytes, depth)?;
            fields.remove("schema").or_else(|| fields.remove("property")).unwrap_or(Value::Null)
        }
    })
}

pub(super) fn encode(
    table: &ProtoTable,
    message: &Message,
    special: Special,
    value: &Value,
    path: &str,
    depth: usize,
) -> Result<Vec<u8>, ProtoError> {
    let mut out = Vec::new();
    let string = |wanted| value.as_str().ok_or_else(|| wrong(path, value, wanted));
    match special {
        Special::Time | Special::MicroTime => {
            let (seconds, nanos) = match value {
                Value::Null => return Ok(out),
                _ => rfc3339::parse(string("RFC 3339 time")?).ok_or_else(|| wrong(path, value, "RFC 3339 time"))?,
            };
            put_int(&mut out, 1, seconds);
            put_int(&mut out, 2, if special == Special::Time { 0 } else { i64::from(nanos) });
        }
        Special::Duration => {
            let nanos = duration::parse(string("duration")?).ok_or_else(|| wrong(path, value, "duration"))?;
            put_int(&mut out, 1, nanos);
        }
        Special::IntOrString => {
            let (kind, number, text) = match value {
                Value::String(text) => (1, 0, text.as_str()),
                other => {
                    let number = other.as_i64().and_then(|n| i32::try_from(n).ok());
                    (0, number.ok_or_else(|| wrong(path, value, "32-bit integer or string"))?, "")
                }
            };
            put_int(&mut out, 1, kind);
            put_int(&mut out, 2, i64::from(number));
            put_bytes(&mut out, 3, text.as_bytes());
        }
        Special::Quantity => {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                other => return Err(wrong(path, other, "quantity")),
            };
            put_bytes(&mut out, 1, text.as_bytes());
        }
        Special::Raw | Special::RawExtension => put_bytes(&mut out, 1, value.to_string().as_bytes()),
        Special::SchemaOrBool => match value {
            Value::Bool(allows) => put_int(&mut out, 1, i64::from(*allows)),
            schema => {
                let wrapped =
                    [("allows".to_owned(), json!(true)), ("schema".to_owned(), schema.clone())].into_iter().collect();
                encode::fields(table, message, &wrapped, path, depth, &mut out)?;
            }
        },
        Special::SchemaOrArray | Special::SchemaOrStrings => {
            let list = if special == Special::SchemaOrArray { "jSONSchemas" } else { "property" };
            let name = if value.is_array() { list } else { "schema" };
            let wrapped = [(name.to_owned(), value.clone())].into_iter().collect();
            encode::fields(table, message, &wrapped, path, depth, &mut out)?;
        }
    }
    Ok(out)
}

fn raw(bytes: &[u8]) -> Result<Value, ProtoError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(ProtoError::RawJson)
}

fn integer(bytes: &[u8], wanted: u32) -> Result<i64, ProtoError> {
    let mut reader = Reader::new(bytes);
    let mut found = 0;
    while let Some((number, wire)) = reader.field()? {
        if let (Wire::Varint(n), true) = (wire, number == wanted) {
            found = n as i64;
        }
    }
    Ok(found)
}

fn first_bytes(bytes: &[u8], wanted: u32) -> Result<&[u8], ProtoError> {
    let mut reader = Reader::new(bytes);
    let mut found: &[u8] = &[];
    while let Some((number, wire)) = reader.field()? {
        if let (Wire::Bytes(inner), true) = (wire, number == wanted) {
            found = inner;
        }
    }
    Ok(found)
}

fn text(bytes: &[u8], wanted: u32) -> Result<String, ProtoError> {
    std::str::from_utf8(first_bytes(bytes, wanted)?).map(str::to_owned).map_err(|_| ProtoError::Utf8)
}
