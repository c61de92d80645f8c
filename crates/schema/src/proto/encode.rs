//! JSON to protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::{FIXED64, VARINT, put_bytes, put_int, put_tag, put_varint};
use super::{Field, Kind, Label, MAX_DEPTH, Message, ProtoError, ProtoTable, special};

pub(super) fn message(
    table: &ProtoTable,
    index: usize,
    value: &Value,
    path: &str,
    depth: usize,
) -> Result<Vec<u8>, ProtoError> {
    if depth > MAX_DEPTH {
        return Err(ProtoError::TooDeep);
    }
    let Some(message) = table.messages.get(index) else {
        return Ok(Vec::new());
    };
    if let Some(special) = message.special {
        return special::encode(table, message, special, value, path, depth);
    }
    let mut out = Vec::new();
    if let ([items], true) = (message.fields.as_slice(), message.is_list) {
        repeated(table, items, value, path, depth, &mut out)?;
        return Ok(out);
    }
    let object = match value {
        Value::Object(object) => object,
        other => return Err(wrong(path, other, "object")),
    };
    fields(table, message, object, path, depth, &mut out)?;
    Ok(out)
}

/// Writes the fields that the object has. Null is the same as absent, as in Go.
pub(super) fn fields(
    table: &ProtoTable,
    message: &Message,
    object: &Map<String, Value>,
    path: &str,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), ProtoError> {
    if depth > MAX_DEPTH {
        return Err(ProtoError::TooDeep);
    }
    for field in &message.fields {
        if let (true, Kind::Message(index)) = (field.inline, field.kind) {
            let mut inner = Vec::new();
            if let Some(embedded) = table.messages.get(index) {
                fields(table, embedded, object, path, depth + 1, &mut inner)?;
            }
            if !inner.is_empty() {
                put_bytes(out, field.number, &inner);
            }
            continue;
        }
        let Some(value) = object.get(&field.json).filter(|v| !v.is_null()) else {
            continue;
        };
        match field.label {
            Label::Optional => single(table, field, field.number, value, &join(path, &field.json), depth, out)?,
            Label::Repeated => repeated(table, field, value, &join(path, &field.json), depth, out)?,
            Label::Map => {
                let path = join(path, &field.json);
                let Value::Object(entries) = value else {
                    return Err(wrong(&path, value, "object"));
                };
                for (key, entry) in entries {
                    let mut inner = Vec::new();
                    put_bytes(&mut inner, 1, key.as_bytes());
                    match (entry, field.kind) {
                        // An entry stays an entry: its value is the empty message, such as the time that is not set.
                        (Value::Null, Kind::Message(_)) => put_bytes(&mut inner, 2, &[]),
                        (Value::Null, _) => {}
                        _ => single(table, field, 2, entry, &join(&path, key), depth, &mut inner)?,
                    }
                    put_bytes(out, field.number, &inner);
                }
            }
        }
    }
    Ok(())
}

fn repeated(
    table: &ProtoTable,
    field: &Field,
    value: &Value,
    path: &str,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), ProtoError> {
    let list = match value {
        Value::Array(list) => list,
        Value::Null => return Ok(()),
        other => return Err(wrong(path, other, "array")),
    };
    list.iter().try_for_each(|item| single(table, field, field.number, item, path, depth, out))
}

fn single(
    table: &ProtoTable,
    field: &Field,
    number: u32,
    value: &Value,
    path: &str,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), ProtoError> {
    let integer = |wanted| value.as_i64().or_else(|| whole(value)).ok_or_else(|| wrong(path, value, wanted));
    match field.kind {
        Kind::String => put_bytes(out, number, value.as_str().ok_or_else(|| wrong(path, value, "string"))?.as_bytes()),
        Kind::Bytes => {
            let text = value.as_str().ok_or_else(|| wrong(path, value, "base64 string"))?;
            let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            put_bytes(out, number, &STANDARD.decode(plain).map_err(|_| wrong(path, value, "base64 string"))?);
        }
        Kind::Bool => {
            put_tag(out, number, VARINT);
            put_varint(out, u64::from(value.as_bool().ok_or_else(|| wrong(path, value, "boolean"))?));
        }
        Kind::Int32 => {
            let n = i32::try_from(integer("32-bit integer")?).map_err(|_| wrong(path, value, "32-bit integer"))?;
            put_int(out, number, i64::from(n));
        }
        Kind::Int64 => put_int(out, number, integer("64-bit integer")?),
        Kind::Double => {
            put_tag(out, number, FIXED64);
            out.extend_from_slice(&value.as_f64().ok_or_else(|| wrong(path, value, "number"))?.to_le_bytes());
        }
        Kind::Message(index) => put_bytes(out, number, &message(table, index, value, path, depth + 1)?),
        Kind::Missing => {}
    }
    Ok(())
}

/// `3.0` is an integer in JSON.
fn whole(value: &Value) -> Option<i64> {
    value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64)
}

pub(super) fn wrong(path: &str, value: &Value, wanted: &'static str) -> ProtoError {
    let mut found = value.to_string();
    if found.len() > 64 {
        found = found.chars().take(60).chain("...".chars()).collect();
    }
    ProtoError::Value { field: path.to_owned(), found, wanted }
}

fn join(path: &str, name: &str) -> String {
    format!("{path}.{name}")
}
