//! From request bytes to an object, with everything that strict validation wants to know.

use std::fmt;

use bytes::Bytes;
use ferrovirt_schema::{proto, structural};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::Call;
use crate::http::negotiate::{self, PROTOBUF};
use crate::registry;
use crate::registry::go_form::Known;
use crate::status::ApiError;

const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
/// Unknown and duplicate fields beyond this many are not reported.
const MAX_FAULTS: usize = 100;
const ACCEPTED_CUSTOM: &str = "application/json, application/yaml";

/// The `fieldValidation` query parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    pub fn of(call: &Call) -> Result<Self, ApiError> {
        match call.query.get("fieldValidation") {
            "Ignore" => Ok(Self::Ignore),
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            other => Err(ApiError::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// A decoded object with its unknown fields removed.
pub fn object(call: &Call, bytes: &Bytes) -> Result<Value, ApiError> {
    let (mut object, duplicates) = any(call, bytes)?;
    check_kind(call, &mut object)?;
    let unknown = prune(call, &mut object);
    // Built-in kinds are decoded field by field, custom ones as a whole first.
    let faults = if call.resource.custom { [duplicates, unknown].concat() } else { [unknown, duplicates].concat() };
    report(call, &faults, |faults| {
        let kind = &call.resource.kind;
        ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {faults}",
            call.target.version
        ))
    })?;
    Ok(object)
}

/// Removes what the schema does not know, and what a struct of Go would not hold. Returns one fault per unknown field.
pub fn prune(call: &Call, object: &mut Value) -> Vec<String> {
    let unknown = structural::prune(&call.version().schema(), object);
    tidy(call, object);
    unknown.into_iter().take(MAX_FAULTS).map(|path| format!("unknown field {path:?}")).collect()
}

/// Gives a built-in object the form it has after kube-apiserver has decoded it.
pub fn tidy(call: &Call, object: &mut Value) {
    if let Some(Known { table, message, .. }) = go_form(call) {
        table.tidy(message, object);
        table.add_structs(message, object);
    }
}

/// Gives a built-in object the form in which kube-apiserver writes it.
pub fn complete(call: &Call, object: &mut Value) {
    if let Some(Known { table, message, .. }) = go_form(call) {
        table.complete(message, object);
    }
}

/// Gives a built-in object the form it has when it was stored and read again.
pub fn settle(call: &Call, object: &mut Value) {
    // Definitions are stored as JSON, where an empty list stays one.
    if let Some(Known { table, message, .. }) = go_form(call).filter(|_| call.resource.group != "apiextensions.k8s.io")
    {
        table.settle(message, object);
    }
}

/// What Go makes of objects of this kind, unless it is a custom one.
pub fn go_form(call: &Call) -> Option<&Known> {
    if call.resource.custom {
        return None;
    }
    call.version()
        .go_form
        .get_or_find(|| Some((registry::proto_table()?, message_name(&call.api_version(), &call.resource.kind)?)))
}

/// Turns faults into an error or into warnings, as the client asked.
pub fn report(call: &Call, faults: &[String], strict: impl FnOnce(&str) -> ApiError) -> Result<(), ApiError> {
    if faults.is_empty() {
        return Ok(());
    }
    match FieldValidation::of(call)? {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => faults.iter().for_each(|f| call.warn(f.clone())),
        FieldValidation::Strict => return Err(strict(&faults.join(", "))),
    }
    Ok(())
}

/// A JSON, YAML or protobuf body as a value, with the duplicate fields it had.
pub fn any(call: &Call, bytes: &Bytes) -> Result<(Value, Vec<String>), ApiError> {
    let undecodable = |e: &dyn fmt::Display| {
        let kind = &call.resource.kind;
        ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: {e}",
            call.target.version
        ))
    };
    match negotiate::content_type(&call.headers) {
        "" | "application/json" => json_with_duplicates(bytes).map_err(|e| undecodable(&e)),
        "application/yaml" | "text/yaml" | "application/x-yaml" => {
            let text = std::str::from_utf8(bytes).map_err(|e| undecodable(&e))?;
            yaml_with_duplicates(text).map_err(|e| undecodable(&e))
        }
        PROTOBUF if !call.resource.custom => Ok((protobuf(bytes)?, Vec::new())),
        _ => Err(ApiError::unsupported_media(if call.resource.custom { ACCEPTED_CUSTOM } else { ACCEPTED })),
    }
}

/// An object in the Kubernetes protobuf envelope.
pub fn protobuf(bytes: &[u8]) -> Result<Value, ApiError> {
    let bad = |e: &dyn fmt::Display| ApiError::bad_request(format!("the protobuf body cannot be decoded: {e}"));
    let table = registry::proto_table().ok_or_else(|| ApiError::unsupported_media(ACCEPTED_CUSTOM))?;
    let envelope = proto::decode_envelope(bytes).map_err(|e| bad(&e))?;
    let message = message_name(&envelope.api_version, &envelope.kind)
        .ok_or_else(|| bad(&format!("no kind {:?} in {:?}", envelope.kind, envelope.api_version)))?;
    let mut value = table.decode(&message, &envelope.raw).map_err(|e| bad(&e))?;
    value["apiVersion"] = envelope.api_version.into();
    value["kind"] = envelope.kind.into();
    Ok(value)
}

/// The protobuf message of a built-in kind.
pub fn message_name(api_version: &str, kind: &str) -> Option<String> {
    if matches!(kind, "DeleteOptions" | "Status" | "WatchEvent") {
        return Some(format!("k8s.io.apimachinery.pkg.apis.meta.v1.{kind}"));
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let definition = registry::definition_name(group, version, kind)?;
    Some(definition.replacen("io.k8s.", "k8s.io.", 1).replace('-', "_"))
}

/// The object says what it is; if it says nothing, the URL does.
fn check_kind(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    if object.is_null() && !call.resource.custom {
        *object = Value::Object(Map::new());
    }
    if !object.is_object() {
        return Err(ApiError::bad_request(format!(
            "the object provided is not a {}: it is not a map",
            call.resource.kind
        )));
    }
    if !matches!(object["metadata"], Value::Null | Value::Object(_)) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: metadata is not a map",
            call.target.version,
            kind = call.resource.kind
        )));
    }
    let expected = call.api_version();
    let given = |key: &str| object[key].as_str().unwrap_or_default();
    let (api_version, kind) = (given("apiVersion"), given("kind"));
    if !kind.is_empty() && kind != call.resource.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: no kind \"{kind}\" is registered for this resource",
            crate::object::version_of(api_version),
            call.resource.kind
        )));
    }
    if !api_version.is_empty() && api_version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    object["apiVersion"] = expected.into();
    object["kind"] = call.resource.kind.clone().into();
    Ok(())
}

/// JSON as a value; duplicates (of which the last counts) are listed by path.
pub fn json_with_duplicates(bytes: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut path = String::new();
    let mut faults = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { path: &mut path, faults: &mut faults }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, faults))
}

/// YAML as a value; of a key that is there twice the last one counts, and the first such key is a fault.
pub fn yaml_with_duplicates(text: &str) -> Result<(Value, Vec<String>), serde_saphyr::Error> {
    let error = match serde_saphyr::from_str_with_options(text, yaml_options(DuplicateKeyPolicy::Error)) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    let fault = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => {
            format!("line {}: key {:?} already set in map", location.line(), key.as_deref().unwrap_or_default())
        }
        _ => return Err(error),
    };
    Ok((serde_saphyr::from_str_with_options(text, yaml_options(DuplicateKeyPolicy::LastWins))?, vec![fault]))
}

/// People repeat a few lines by an alias. Who repeats more than this wants the server's time.
const MAX_ALIASED_EVENTS: usize = 20_000;

fn yaml_options(duplicate_keys: DuplicateKeyPolicy) -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_EVENTS },
    }
}

struct Seed<'a> {
    path: &'a mut String,
    faults: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let length = self.path.len();
        loop {
            self.path.push_str(&format!("[{}]", items.len()));
            let item = seq.next_element_seed(Seed { path: self.path, faults: self.faults })?;
            self.path.truncate(length);
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.path.len();
        while let Some(key) = entries.next_key::<String>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            let value = entries.next_value_seed(Seed { path: self.path, faults: self.faults })?;
            if map.insert(key, value).is_some() && self.faults.len() < MAX_FAULTS {
                let fault = format!("duplicate field {:?}", self.path);
                if !self.faults.contains(&fault) {
                    self.faults.push(fault);
                }
            }
            self.path.truncate(length);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_by_path() {
        let cases: [(&str, &[&str]); 4] = [
            (r#"{"a":1,"b":{"c":1}}"#, &[]),
            (r#"{"a":1,"a":2}"#, &["duplicate field \"a\""]),
            (r#"{"spec":{"x":[{"y":1,"y":2}]}}"#, &["duplicate field \"spec.x[0].y\""]),
            (r#"{"a":1,"a":2,"a":3}"#, &["duplicate field \"a\""]),
        ];
        for (text, expected) in cases {
            let (value, faults) = json_with_duplicates(text.as_bytes()).unwrap();
            assert_eq!(faults, expected, "{text}");
            assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        }
        let deep = "[".repeat(100_000);
        assert!(json_with_duplicates(deep.as_bytes()).is_err(), "deep nesting is an error, not a crash");
    }
}
