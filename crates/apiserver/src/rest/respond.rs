//! From stored bytes to the form the client asked for.

use bytes::{BufMut, Bytes, BytesMut};
use ferrovirt_schema::{proto, structural};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Call;
use super::decode::message_name;
use crate::crd::conversion;
use crate::http::body::{self, Body};
use crate::http::negotiate::{Encoding, PROTOBUF, Shape};
use crate::registry::{self, Direction, Resource, Version};
use crate::status::ApiError;
use crate::storage::Entry;

const PREFIX: &[u8] = b"{\"apiVersion\":\"";

/// An object in another version of its kind: `apiVersion` and, where groups share storage, renamed fields.
pub fn convert(resource: &Resource, version: &Version, object: &mut Value) {
    object["apiVersion"] = resource.api_version(&version.name).into();
    rename(object, version.renames.iter().map(|(stored, here)| (*stored, *here)));
    if let Some(reshape) = version.reshape {
        reshape(object, Direction::FromStorage);
    }
}

/// The inverse of [`convert`]: into the version that is stored.
pub fn convert_to_storage(resource: &Resource, version: &Version, object: &mut Value) {
    object["apiVersion"] = resource.storage_api_version().into();
    rename(object, version.renames.iter().map(|(stored, here)| (*here, *stored)));
    if let Some(reshape) = version.reshape {
        reshape(object, Direction::ToStorage);
    }
}

fn rename<'a>(object: &mut Value, pairs: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    for (from, to) in pairs {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

/// Stored bytes in the requested version, without parsing them if only `apiVersion` differs.
pub fn in_version(resource: &Resource, version: &Version, stored: &Bytes) -> Result<Bytes, ApiError> {
    let wanted = resource.api_version(&version.name);
    let rest =
        stored.strip_prefix(PREFIX).ok_or_else(|| ApiError::internal("stored object has no apiVersion in front"))?;
    let end = rest.iter().position(|b| *b == b'"').unwrap_or(0);
    if &rest[..end] == wanted.as_bytes() {
        return Ok(stored.clone());
    }
    if version.renames.is_empty() && version.reshape.is_none() {
        let mut bytes = BytesMut::with_capacity(stored.len() + wanted.len());
        bytes.put_slice(PREFIX);
        bytes.put_slice(wanted.as_bytes());
        bytes.put_slice(&rest[end..]);
        return Ok(bytes.freeze());
    }
    let mut value = parse(stored)?;
    convert(resource, version, &mut value);
    Ok(value.to_string().into())
}

/// A stored entry as its readers see it: in the requested version, with the defaults it has by now.
pub fn entry(resource: &Resource, version: &Version, entry: &Entry) -> Result<Bytes, ApiError> {
    let bytes = in_version(resource, version, &entry.bytes)?;
    if !version.defaults_on_read(resource, entry.revision) {
        return Ok(bytes);
    }
    let mut value = parse(&bytes)?;
    structural::default(&version.schema(), &mut value);
    Ok(value.to_string().into())
}

/// As [`entry`], parsed.
pub fn entry_value(resource: &Resource, version: &Version, entry: &Entry) -> Result<Value, ApiError> {
    let mut value = crate::storage::parse(entry)?;
    convert(resource, version, &mut value);
    if version.defaults_on_read(resource, entry.revision) {
        structural::default(&version.schema(), &mut value);
    }
    Ok(value)
}

pub fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::internal(format!("stored object: {e}")))
}

/// One stored object as a response.
pub async fn object(call: &Call, status: StatusCode, bytes: &Bytes) -> Result<Response<Body>, ApiError> {
    shaped(call, status, stored(call, bytes).await?)
}

/// Stored bytes in the requested version, also if that takes a webhook.
pub async fn stored(call: &Call, bytes: &Bytes) -> Result<Bytes, ApiError> {
    if call.resource.conversion.is_none() {
        return in_version(&call.resource, call.version(), bytes);
    }
    let object = conversion::value(&call.server, &call.resource, &parse(bytes)?, &call.api_version()).await?;
    Ok(object.to_string().into())
}

/// One object that is in the requested version already.
pub fn shaped(call: &Call, status: StatusCode, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    check_include(call)?;
    match call.accept.shape {
        Shape::Object => encoded(call, status, bytes),
        Shape::Table => {
            let value = parse(&bytes)?;
            let meta = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
            encoded(call, status, table(call, std::slice::from_ref(&value), meta, true).to_string().into())
        }
        Shape::PartialMetadata => encoded(call, status, partial(call, &parse(&bytes)?).to_string().into()),
        Shape::PartialMetadataList => Err(ApiError::not_acceptable_because(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
            call.resource.kind
        ))),
    }
}

/// What the rows of a table may hold of their objects.
pub fn check_include(call: &Call) -> Result<(), ApiError> {
    let include = call.query.get("includeObject");
    if call.accept.shape != Shape::Table || matches!(include, "" | "Metadata" | "None" | "Object") {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "Unable to convert to Table as requested: includeObject: Invalid value: {include:?}: must be 'Metadata', 'Object', 'None', or empty"
    )))
}

/// A JSON document in the encoding the client asked for.
pub fn encoded(call: &Call, status: StatusCode, json: Bytes) -> Result<Response<Body>, ApiError> {
    let (content_type, bytes) = match call.accept.encoding {
        Encoding::Json => ("application/json", json),
        Encoding::Yaml => ("application/yaml", yaml(&parse(&json)?)?),
        Encoding::Protobuf => (PROTOBUF, protobuf(&parse(&json)?)?),
    };
    let mut response = body::respond(status, content_type, Bytes::new());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    body::compress(&call.headers, &mut response, bytes);
    Ok(response)
}

fn yaml(value: &Value) -> Result<Bytes, ApiError> {
    serde_saphyr::to_string(value).map(Bytes::from).map_err(|e| ApiError::internal(e.to_string()))
}

/// A built-in object or list in the Kubernetes protobuf envelope.
pub fn protobuf(value: &Value) -> Result<Bytes, ApiError> {
    let failed = |e: &dyn std::fmt::Display| ApiError::internal(format!("protobuf: {e}"));
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let table = registry::proto_table().ok_or_else(|| failed(&"no table"))?;
    let message = message_name(&api_version, &kind).ok_or_else(|| failed(&format!("no message for {kind}")))?;
    let raw = table.encode(&message, value).map_err(|e| failed(&e))?;
    let envelope = proto::Envelope { api_version, kind, raw, ..proto::Envelope::default() };
    Ok(proto::encode_envelope(&envelope).into())
}

/// `meta.k8s.io` PartialObjectMetadata of an object.
pub fn partial(call: &Call, object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{}", call.accept.meta_version),
        "metadata": object["metadata"],
    })
}

/// The same, from the bytes of the object, appended to a document. Only the metadata is looked at.
pub fn put_partial(call: &Call, bytes: &[u8], to: &mut BytesMut) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    struct Whole<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let whole: Whole<'_> =
        serde_json::from_slice(bytes).map_err(|e| ApiError::internal(format!("stored object: {e}")))?;
    let version = &call.accept.meta_version;
    let head = format!("{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":");
    to.put_slice(head.as_bytes());
    to.put_slice(whole.metadata.get().as_bytes());
    to.put_u8(b'}');
    Ok(())
}

/// A Table of objects. `with_columns` is false for all but the first event of a watch.
pub fn table(call: &Call, objects: &[Value], meta: Value, with_columns: bool) -> Value {
    let mut table = table_head(call, meta, with_columns);
    table["rows"] = objects.iter().map(|object| row(call, object)).collect();
    table
}

/// A Table without its rows.
pub fn table_head(call: &Call, meta: Value, with_columns: bool) -> Value {
    let definitions = if with_columns { call.version().columns.definitions() } else { Vec::new() };
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{}", call.accept.meta_version), "metadata": meta,
        "columnDefinitions": definitions,
    })
}

pub fn row(call: &Call, object: &Value) -> Value {
    let mut row = json!({"cells": call.version().columns.cells(object)});
    match call.query.get("includeObject") {
        "None" => row["object"] = Value::Null,
        "Object" => row["object"] = object.clone(),
        _ => row["object"] = partial(call, object),
    }
    row
}
