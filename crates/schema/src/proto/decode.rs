//! Protobuf to JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::wire::{Reader, Wire};
use super::{Field, Kind, Label, MAX_DEPTH, Message, ProtoError, ProtoTable, special};

/// Null stands for a value that is not there, such as a zero time; parents leave it out.
pub(super) fn message(table: &ProtoTable, index: usize, bytes: &[u8], depth: usize) -> Result<Value, ProtoError> {
    if depth > MAX_DEPTH {
        return Err(ProtoError::TooDeep);
    }
    let Some(message) = table.messages.get(index) else {
        return Ok(Value::Null);
    };
    if let Some(special) = message.special {
        return special::decode(table, message, special, bytes, depth);
    }
    let mut fields = fields(table, message, bytes, depth)?;
    if message.is_list {
        let name = message.fields.first().map_or("items", |f| f.json.as_str());
        return Ok(fields.remove(name).unwrap_or_else(|| json!([])));
    }
    Ok(Value::Object(fields))
}

/// The fields of a message by JSON name, whatever becomes of them.
pub(super) fn fields(
    table: &ProtoTable,
    message: &Message,
    bytes: &[u8],
    depth: usize,
) -> Result<Map<String, Value>, ProtoError> {
    let mut out = Map::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.field()? {
        let Ok(at) = message.fields.binary_search_by_key(&number, |f| f.number) else {
            continue;
        };
        let Some(field) = message.fields.get(at).filter(|f| f.kind != Kind::Missing) else {
            continue;
        };
        match field.label {
            Label::Optional => {
                let value = value(table, message, field, wire, depth)?;
                match value {
                    Value::Object(inner) if field.inline => out.extend(inner),
                    value if is_unset(field, &value) => {}
                    value => drop(out.insert(field.json.clone(), value)),
                }
            }
            Label::Repeated => {
                let list = out.entry(field.json.clone()).or_insert_with(|| json!([]));
                let Value::Array(list) = list else { continue };
                match (field.kind, wire) {
                    (Kind::Bool | Kind::Int32 | Kind::Int64 | Kind::Double, Wire::Bytes(packed)) => {
                        let mut packed = Reader::new(packed);
                        while !packed.is_done() {
                            let wire = match field.kind {
                                Kind::Double => Wire::Fixed64(u64::from_le_bytes(packed.array()?)),
                                _ => Wire::Varint(packed.varint()?),
                            };
                            list.push(value(table, message, field, wire, depth)?);
                        }
                    }
                    _ => list.push(value(table, message, field, wire, depth)?),
                }
            }
            Label::Map => {
                let (key, entry) = map_entry(table, message, field, wire, depth)?;
                let map = out.entry(field.json.clone()).or_insert_with(|| json!({}));
                if let Value::Object(map) = map {
                    map.insert(key, entry);
                }
            }
        }
    }
    Ok(out)
}

fn is_unset(field: &Field, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => field.omit_zero && text.is_empty(),
        Value::Bool(on) => field.omit_zero && !on,
        Value::Number(n) => field.omit_zero && n.as_f64() == Some(0.0),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn map_entry(
    table: &ProtoTable,
    message: &Message,
    field: &Field,
    wire: Wire<'_>,
    depth: usize,
) -> Result<(String, Value), ProtoError> {
    let Wire::Bytes(bytes) = wire else {
        return Err(wire_error(message, field, wire));
    };
    let mut key = String::new();
    let mut entry = None;
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, wire) => entry = Some(value(table, message, field, wire, depth)?),
            _ => {}
        }
    }
    let entry = match entry {
        Some(entry) => entry,
        // Absent on the wire is the zero value, which for a map is still an entry.
        None => match field.kind {
            Kind::String | Kind::Bytes => json!(""),
            Kind::Bool => json!(false),
            Kind::Int32 | Kind::Int64 | Kind::Double => json!(0),
            Kind::Message(index) => self::message(table, index, &[], depth + 1)?,
            Kind::Missing => Value::Null,
        },
    };
    Ok((key, entry))
}

fn value(
    table: &ProtoTable,
    message: &Message,
    field: &Field,
    wire: Wire<'_>,
    depth: usize,
) -> Result<Value, ProtoError> {
    Ok(match (field.kind, wire) {
        (Kind::String, Wire::Bytes(bytes)) => Value::String(text(bytes)?),
        (Kind::Bytes, Wire::Bytes(bytes)) => Value::String(STANDARD.encode(bytes)),
        (Kind::Message(index), Wire::Bytes(bytes)) => self::message(table, index, bytes, depth + 1)?,
        (Kind::Bool, Wire::Varint(n)) => json!(n != 0),
        // Negative numbers are sign-extended to ten bytes.
        (Kind::Int32, Wire::Varint(n)) => json!(n as i64 as i32),
        (Kind::Int64, Wire::Varint(n)) => json!(n as i64),
        (Kind::Double, Wire::Fixed64(bits)) => json!(f64::from_bits(bits)),
        (Kind::Missing, _) => Value::Null,
        (_, wire) => return Err(wire_error(message, field, wire)),
    })
}

fn wire_error(message: &Message, field: &Field, wire: Wire<'_>) -> ProtoError {
    ProtoError::WireType { message: message.name.clone(), number: field.number, wire: wire.number() }
}

fn text(bytes: &[u8]) -> Result<String, ProtoError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ProtoError::Utf8)
}
