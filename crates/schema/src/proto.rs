//! Kubernetes protobuf to JSON and back, driven by a table instead of generated types.
//!
//! The table names the fields of each message of the published `generated.proto` files, by their JSON names:
//!
//! ```json
//! {"messages": {"k8s.io.api.core.v1.ConfigMap": {"fields": [
//!   {"name": "metadata", "number": 1, "label": "optional", "type": "message:k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
//!   {"name": "binaryData", "number": 3, "label": "map", "type": "string", "value": "bytes"}]}}}
//! ```
//!
//! `inline: true` on a field says that the fields of that message stand in its place in JSON (an embedded Go struct).
//! `list: true` on a message says that its JSON is the list of its one field. Messages with a JSON form of their own,
//! such as times and quantities, are in `special`.
//!
//! **Zero values.** Go writes every field that is not a pointer, zero or not. `omitempty: true` marks those where zero
//! means "not set"; decoding leaves their empty strings, `false` and `0` out. Everything else on the wire is kept, so
//! that `replicas: 0`, `storageClassName: ""` and `emptyDir: {}` survive. Unknown fields are skipped, as protobuf asks.
//! `always: true` marks what Go's JSON has whether it was set or not; with both, `go` gives objects the form that
//! kube-apiserver answers with.

mod decode;
mod encode;
mod envelope;
mod go;
mod names;
mod special;
mod wire;

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

pub use envelope::{Envelope, MAGIC, decode_envelope, encode_envelope};

use special::Special;

/// Messages nest no deeper than this.
pub const MAX_DEPTH: usize = 120;

#[derive(Debug, thiserror::Error)]
pub enum ProtoError {
    #[error("the message table cannot be read")]
    Table(#[source] serde_json::Error),
    #[error("the message table gives field {field} of {message} the unknown type {kind:?}")]
    TableType { message: String, field: String, kind: String },
    #[error("no protobuf message is known for {0}")]
    UnknownMessage(String),
    #[error("provided data does not appear to be a protobuf message: the prefix is missing")]
    Magic,
    #[error("the protobuf data ends early")]
    Truncated,
    #[error("field number {number} of {message} has the unexpected wire type {wire}")]
    WireType { message: String, number: u32, wire: u8 },
    #[error("a string field is not UTF-8")]
    Utf8,
    #[error("a field that carries JSON holds something else")]
    RawJson(#[source] serde_json::Error),
    #[error("messages nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("{field}: {found} is not a {wanted}")]
    Value { field: String, found: String, wanted: &'static str },
    #[error("the object has no apiVersion and kind")]
    NoTypeMeta,
}

/// All known messages. Large, read once, shared by reference.
#[derive(Debug, Default)]
pub struct ProtoTable {
    messages: Vec<Message>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Message {
    name: String,
    special: Option<Special>,
    /// Ascending by number, the order Go writes them in.
    fields: Vec<Field>,
    /// A Go list type in message form: one repeated field, and a JSON array on the other side.
    is_list: bool,
    /// It, or a message below it, has a field that is always written.
    always: bool,
    /// Places in `fields`, ascending by name; `None` if some of the names are those of an inner message.
    by_json: Option<Vec<usize>>,
}

impl Message {
    /// The field of this name; only if all names are this message's own.
    fn named(&self, json: &str) -> Option<&Field> {
        let places = self.by_json.as_ref()?;
        let name = |place: &usize| self.fields.get(*place).map_or("", |field| field.json.as_str());
        let found = places.binary_search_by(|place| name(place).cmp(json)).ok()?;
        self.fields.get(*places.get(found)?)
    }
}

#[derive(Debug)]
struct Field {
    json: String,
    number: u32,
    label: Label,
    kind: Kind,
    /// The fields of the message stand directly in the parent object.
    inline: bool,
    /// A zero value on the wire means that the field is not set.
    omit_zero: bool,
    /// Go writes it in JSON whether it is set or not.
    always: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Optional,
    Repeated,
    Map,
}

/// The type of a field, or of a map's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    Bytes,
    Message(usize),
    /// A message the table leaves out: skipped in both directions.
    Missing,
}

#[derive(Deserialize)]
struct SourceTable {
    messages: HashMap<String, SourceMessage>,
}

#[derive(Deserialize)]
struct SourceMessage {
    #[serde(default)]
    fields: Vec<SourceField>,
    #[serde(default)]
    list: bool,
}

#[derive(Deserialize)]
struct SourceField {
    name: String,
    number: u32,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    label: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    inline: bool,
    #[serde(default)]
    omitempty: bool,
    #[serde(default)]
    always: bool,
}

impl ProtoTable {
    pub fn parse(bytes: &[u8]) -> Result<Self, ProtoError> {
        let source: SourceTable = serde_json::from_slice(bytes).map_err(ProtoError::Table)?;
        let mut names: Vec<&String> = source.messages.keys().collect();
        names.sort();
        let by_name: HashMap<String, usize> =
            names.iter().enumerate().map(|(at, name)| ((*name).clone(), at)).collect();
        let mut messages = Vec::with_capacity(names.len());
        for name in names {
            let Some(source) = source.messages.get(name) else {
                continue;
            };
            let mut fields = Vec::new();
            for field in &source.fields {
                fields.push(read_field(&by_name, name, field)?);
            }
            fields.sort_by_key(|f| f.number);
            let is_list = source.list && fields.len() == 1;
            let always = fields.iter().any(|field| field.always);
            let mut places: Vec<usize> = (0..fields.len()).collect();
            places.sort_by_key(|place| fields.get(*place).map(|field| field.json.clone()));
            let by_json = (!fields.iter().any(|field| field.inline)).then_some(places);
            messages.push(Message { name: name.clone(), special: Special::of(name), fields, is_list, always, by_json });
        }
        mark_always(&mut messages);
        Ok(Self { messages, by_name })
    }

    pub fn contains(&self, message: &str) -> bool {
        self.by_name.contains_key(message)
    }

    /// The message for an object's type, such as `k8s.io.api.apps.v1.Deployment` for `apps/v1` and `Deployment`.
    pub fn message_for(&self, api_version: &str, kind: &str) -> Option<&str> {
        names::candidates(api_version, kind)
            .into_iter()
            .find_map(|name| self.by_name.get_key_value(&name).map(|(name, _)| name.as_str()))
    }

    /// Reads one message, without envelope.
    pub fn decode(&self, message: &str, bytes: &[u8]) -> Result<Value, ProtoError> {
        decode::message(self, self.index(message)?, bytes, 0)
    }

    /// Writes one message, without envelope. Members of the object that the message does not have are left out.
    pub fn encode(&self, message: &str, value: &Value) -> Result<Vec<u8>, ProtoError> {
        encode::message(self, self.index(message)?, value, message, 0)
    }

    /// Reads what a client sends: the envelope and the object in it, with `apiVersion` and `kind` set.
    pub fn decode_object(&self, bytes: &[u8]) -> Result<Value, ProtoError> {
        self.decode_object_at(bytes, 0)
    }

    /// Writes what a client reads. The object names its own type.
    pub fn encode_object(&self, object: &Value) -> Result<Vec<u8>, ProtoError> {
        let text = |name: &str| object.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
            return Err(ProtoError::NoTypeMeta);
        };
        let message = self
            .message_for(api_version, kind)
            .ok_or_else(|| ProtoError::UnknownMessage(format!("{api_version} {kind}")))?;
        let raw = self.encode(message, object)?;
        Ok(encode_envelope(&Envelope {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            raw,
            ..Envelope::default()
        }))
    }

    fn decode_object_at(&self, bytes: &[u8], depth: usize) -> Result<Value, ProtoError> {
        let envelope = decode_envelope(bytes)?;
        let name = || format!("{} {}", envelope.api_version, envelope.kind);
        let message = self
            .message_for(&envelope.api_version, &envelope.kind)
            .ok_or_else(|| ProtoError::UnknownMessage(name()))?;
        let mut object = decode::message(self, self.index(message)?, &envelope.raw, depth)?;
        if let Value::Object(fields) = &mut object {
            fields.insert("apiVersion".to_owned(), Value::String(envelope.api_version));
            fields.insert("kind".to_owned(), Value::String(envelope.kind));
        }
        Ok(object)
    }

    fn index(&self, message: &str) -> Result<usize, ProtoError> {
        self.by_name.get(message).copied().ok_or_else(|| ProtoError::UnknownMessage(message.to_owned()))
    }
}

/// Marks the messages above those that have a field which is always written. They may contain each other, hence the rounds.
fn mark_always(messages: &mut [Message]) {
    loop {
        let marked: Vec<bool> = messages.iter().map(|message| message.always).collect();
        let below = |field: &Field| matches!(field.kind, Kind::Message(at) if marked.get(at) == Some(&true));
        for message in messages.iter_mut() {
            message.always |= message.fields.iter().any(below);
        }
        if messages.iter().map(|message| message.always).eq(marked) {
            return;
        }
    }
}

fn read_field(by_name: &HashMap<String, usize>, message: &str, field: &SourceField) -> Result<Field, ProtoError> {
    let kind_of = |text: &str| match text {
        "string" => Ok(Kind::String),
        "bool" => Ok(Kind::Bool),
        "int32" | "uint32" => Ok(Kind::Int32),
        "int64" | "uint64" => Ok(Kind::Int64),
        "double" => Ok(Kind::Double),
        "bytes" => Ok(Kind::Bytes),
        other => match other.strip_prefix("message:") {
            Some(name) => Ok(by_name.get(name).map_or(Kind::Missing, |at| Kind::Message(*at))),
            None => Err(ProtoError::TableType {
                message: message.to_owned(),
                field: field.name.clone(),
                kind: text.to_owned(),
            }),
        },
    };
    let (label, kind) = match field.label.as_str() {
        "map" => (Label::Map, kind_of(field.value.as_deref().unwrap_or("string"))?),
        "repeated" => (Label::Repeated, kind_of(&field.kind)?),
        _ => (Label::Optional, kind_of(&field.kind)?),
    };
    Ok(Field {
        json: field.name.clone(),
        number: field.number,
        label,
        kind,
        inline: field.inline && label == Label::Optional,
        omit_zero: field.omitempty,
        always: field.always,
    })
}
