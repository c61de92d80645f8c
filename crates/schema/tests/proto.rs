//! Transcoding: known bytes, round trips, hostile input.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use ferrovirt_schema::proto::{Envelope, ProtoTable, decode_envelope, encode_envelope};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A slice of the real table: one of everything that needs care.
fn table() -> ProtoTable {
    let meta = "message:k8s.io.apimachinery.pkg.apis.meta.v1";
    let text = |name: &str, number: u32| json!({"name": name, "number": number, "label": "optional", "type": "string", "omitempty": true});
    let field = |name: &str, number: u32, kind: &str| json!({"name": name, "number": number, "label": "optional", "type": kind});
    let list = |name: &str, number: u32, kind: &str| json!({"name": name, "number": number, "label": "repeated", "type": kind});
    let source = json!({"messages": {
        "k8s.io.apimachinery.pkg.apis.meta.v1.Time": {"fields": [field("seconds", 1, "int64"), field("nanos", 2, "int32")]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": {"fields": [field("seconds", 1, "int64"), field("nanos", 2, "int32")]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.Duration": {"fields": [field("duration", 1, "int64")]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": {"fields": [field("Raw", 1, "bytes")]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry": {"fields": [text("manager", 1), field("fieldsV1", 7, &format!("{meta}.FieldsV1"))]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"fields": [
            text("name", 1), text("namespace", 3),
            {"name": "generation", "number": 7, "label": "optional", "type": "int64", "omitempty": true},
            field("creationTimestamp", 8, &format!("{meta}.Time")),
            {"name": "labels", "number": 11, "label": "map", "type": "string", "value": "string"},
            list("finalizers", 14, "string"),
            list("managedFields", 17, &format!("{meta}.ManagedFieldsEntry")),
        ]},
        "k8s.io.apimachinery.pkg.apis.meta.v1.WatchEvent": {"fields": [text("type", 1), field("object", 2, "message:k8s.io.apimachinery.pkg.runtime.RawExtension")]},
        "k8s.io.apimachinery.pkg.runtime.RawExtension": {"fields": [field("raw", 1, "bytes")]},
        "k8s.io.apimachinery.pkg.util.intstr.IntOrString": {"fields": [field("type", 1, "int64"), field("intVal", 2, "int32"), text("strVal", 3)]},
        "k8s.io.apimachinery.pkg.api.resource.Quantity": {"fields": [text("string", 1)]},
        "k8s.io.api.authentication.v1.ExtraValue": {"list": true, "fields": [list("items", 1, "string")]},
        "k8s.io.api.core.v1.ConfigMap": {"fields": [
            field("metadata", 1, &format!("{meta}.ObjectMeta")),
            {"name": "data", "number": 2, "label": "map", "type": "string", "value": "string"},
            {"name": "binaryData", "number": 3, "label": "map", "type": "string", "value": "bytes"},
            field("immutable", 4, "bool"),
        ]},
        "k8s.io.api.core.v1.EmptyDir": {"fields": [text("medium", 1)]},
        "k8s.io.api.core.v1.VolumeSource": {"fields": [field("emptyDir", 2, "message:k8s.io.api.core.v1.EmptyDir")]},
        "k8s.io.api.core.v1.Volume": {"fields": [text("name", 1), {"name": "volumeSource", "number": 2, "label": "optional", "type": "message:k8s.io.api.core.v1.VolumeSource", "inline": true}]},
        "k8s.io.api.test.v1.Thing": {"fields": [
            field("metadata", 1, &format!("{meta}.ObjectMeta")),
            list("volumes", 2, "message:k8s.io.api.core.v1.Volume"),
            field("port", 3, "message:k8s.io.apimachinery.pkg.util.intstr.IntOrString"),
            field("replicas", 4, "int32"),
            field("ratio", 5, "double"),
            {"name": "requests", "number": 6, "label": "map", "type": "string", "value": "message:k8s.io.apimachinery.pkg.api.resource.Quantity"},
            field("timeout", 7, &format!("{meta}.Duration")),
            field("seen", 8, &format!("{meta}.MicroTime")),
            {"name": "extra", "number": 9, "label": "map", "type": "string", "value": "message:k8s.io.api.authentication.v1.ExtraValue"},
            list("numbers", 10, "int32"),
            field("className", 11, "string"),
            field("props", 12, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"),
            field("absent", 13, "message:not.in.the.Table"),
        ]},
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON": {"fields": [field("raw", 1, "bytes")]},
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool": {"fields": [
            field("allows", 1, "bool"), field("schema", 2, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")]},
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray": {"fields": [
            field("schema", 1, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"),
            list("jSONSchemas", 2, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")]},
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps": {"fields": [
            text("$ref", 3), text("type", 5),
            field("default", 8, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON"),
            field("items", 24, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray"),
            {"name": "properties", "number": 29, "label": "map", "type": "string", "value": "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"},
            field("additionalProperties", 30, "message:k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool"),
            field("x-kubernetes-preserve-unknown-fields", 38, "bool"),
        ]},
    }});
    ProtoTable::parse(source.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn round_trips() {
    let table = table();
    for value in [
        json!({"metadata": {"name": "x", "labels": {"a": ""}, "finalizers": ["f"], "creationTimestamp": "2024-02-29T12:34:56Z"}, "data": {"k": "v"}, "binaryData": {"b": "AAEC"}, "immutable": false, "apiVersion": "v1", "kind": "ConfigMap"}),
        json!({"apiVersion": "test/v1", "kind": "Thing", "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w"}], "port": "http", "replicas": 0, "ratio": 0.5}),
        json!({"apiVersion": "test/v1", "kind": "Thing", "port": 8080, "requests": {"cpu": "100m"}, "timeout": "1m30s", "seen": "2024-02-29T12:34:56.000123Z"}),
        json!({"apiVersion": "test/v1", "kind": "Thing", "extra": {"scopes": ["a", ""], "none": []}, "numbers": [1, -1, 0], "className": ""}),
        json!({"apiVersion": "test/v1", "kind": "Thing", "metadata": {"managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}}),
        json!({"apiVersion": "test/v1", "kind": "Thing", "props": {"type": "object", "default": {"a": [1]}, "additionalProperties": true, "x-kubernetes-preserve-unknown-fields": false,
            "properties": {"a": {"items": {"type": "string"}}, "b": {"additionalProperties": {"$ref": "x"}}, "c": {"items": [{"type": "string"}, {}]}}}}),
    ] {
        let bytes = table.encode_object(&value).unwrap_or_else(|e| panic!("{value}: {e}"));
        assert_eq!(table.decode_object(&bytes).unwrap_or_else(|e| panic!("{value}: {e}")), value);
    }
}

#[test]
fn bytes_as_go_writes_them() {
    let table = table();
    // Name "x", namespace "", generation 0, a zero time: only the name is set.
    let meta = [0x0a, 1, b'x', 0x1a, 0, 0x38, 0, 0x42, 0];
    let decoded = table.decode("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta", &meta).expect("decodes");
    assert_eq!(decoded, json!({"name": "x"}));
    let encoded = table
        .encode("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta", &json!({"name": "x", "creationTimestamp": null}))
        .expect("encodes");
    assert_eq!(encoded, [0x0a, 1, b'x']);
    // Negative numbers take ten bytes; packed lists are read too.
    let encoded = table.encode("k8s.io.api.test.v1.Thing", &json!({"replicas": -1})).expect("encodes");
    assert_eq!(encoded, [0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    let decoded = table.decode("k8s.io.api.test.v1.Thing", &[0x52, 3, 1, 2, 3, 0xfa, 0x01, 1, 0]).expect("decodes");
    assert_eq!(decoded, json!({"numbers": [1, 2, 3]}));
}

#[test]
fn envelopes() {
    let envelope = Envelope { api_version: "v1".into(), kind: "Pod".into(), raw: vec![1], ..Envelope::default() };
    let bytes = encode_envelope(&envelope);
    assert_eq!(bytes, *b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x01\x01\x1a\0\x22\0");
    assert_eq!(decode_envelope(&bytes).expect("decodes"), envelope);
    assert!(decode_envelope(b"{}").is_err());
    assert!(decode_envelope(b"k8s\0\x0a\xff").is_err());
}

#[test]
fn watch_events_hold_enveloped_objects() {
    let table = table();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
    let inner = table.encode_object(&object).expect("encodes");
    let mut raw = vec![0x0a, u8::try_from(inner.len()).expect("short")];
    raw.extend(&inner);
    let mut event = b"\x0a\x05ADDED\x12".to_vec();
    event.push(u8::try_from(raw.len()).expect("short"));
    event.extend(&raw);
    let decoded = table.decode("k8s.io.apimachinery.pkg.apis.meta.v1.WatchEvent", &event).expect("decodes");
    assert_eq!(decoded, json!({"type": "ADDED", "object": object}));
}

#[test]
fn type_names() {
    let table = table();
    assert_eq!(table.message_for("v1", "ConfigMap"), Some("k8s.io.api.core.v1.ConfigMap"));
    assert_eq!(table.message_for("test.example.io/v1", "Thing"), Some("k8s.io.api.test.v1.Thing"));
    assert_eq!(table.message_for("apps/v1", "WatchEvent"), Some("k8s.io.apimachinery.pkg.apis.meta.v1.WatchEvent"));
    assert_eq!(table.message_for("v1", "Nothing"), None);
}

#[test]
fn wrong_values_are_named() {
    let table = table();
    for (value, why) in [
        (json!({"replicas": "x"}), "k8s.io.api.test.v1.Thing.replicas: \"x\" is not a 32-bit integer"),
        (
            json!({"replicas": 4_000_000_000u64}),
            "k8s.io.api.test.v1.Thing.replicas: 4000000000 is not a 32-bit integer",
        ),
        (json!({"volumes": {}}), "k8s.io.api.test.v1.Thing.volumes: {} is not a array"),
        (json!({"seen": "yesterday"}), "k8s.io.api.test.v1.Thing.seen: \"yesterday\" is not a RFC 3339 time"),
        (json!({"port": true}), "k8s.io.api.test.v1.Thing.port: true is not a 32-bit integer or string"),
    ] {
        assert_eq!(table.encode("k8s.io.api.test.v1.Thing", &value).expect_err("refused").to_string(), why);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z=:0-9]{0,6}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let key = "(metadata|volumes|port|replicas|requests|timeout|seen|extra|numbers|props|items|properties|additionalProperties|name|labels)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let table = table();
        let _ = table.decode("k8s.io.api.test.v1.Thing", &bytes);
        let _ = decode_envelope(&[b"k8s\0".as_slice(), &bytes].concat());
    }

    #[test]
    fn what_encodes_decodes(value in any_json()) {
        let table = table();
        if let Ok(bytes) = table.encode("k8s.io.api.test.v1.Thing", &value) {
            let decoded = table.decode("k8s.io.api.test.v1.Thing", &bytes).unwrap();
            let again = table.encode("k8s.io.api.test.v1.Thing", &decoded).unwrap();
            prop_assert_eq!(table.decode("k8s.io.api.test.v1.Thing", &again).unwrap(), decoded);
        }
    }
}
