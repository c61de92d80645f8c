//! Schema tables: pruning, defaults, validation, and KubeVirt-like shapes.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use ferrovirt_schema::structural::{Pool, default, prune, unknown_fields, validate, validate_update};
use ferrovirt_schema::{Definitions, Schema, cause};
use proptest::prelude::*;
use serde_json::{Value, json};

fn schema(spec: Value) -> Schema {
    Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).unwrap_or_else(|c| panic!("{c:?}"))
}

#[test]
fn pruning() {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}});
    for (spec, document, expected, dropped) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            json!({"a": "x", "b": 1}),
            json!({"a": "x"}),
            vec!["spec.b"],
        ),
        (json!({"type": "object"}), json!({"a": 1}), json!({}), vec!["spec.a"]),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"a": "1"}),
            json!({"a": "1"}),
            vec![],
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
            json!([{"n": "a"}, {"n": "b", "x": 1}]),
            json!([{"n": "a"}, {"n": "b"}]),
            vec!["spec[1].x"],
        ),
        (
            free,
            json!({"other": {"z": 1}, "known": {"a": "1", "b": 2}}),
            json!({"other": {"z": 1}, "known": {"a": "1"}}),
            vec!["spec.known.b"],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "foo": 1}, "spec": {}}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
            vec!["spec.metadata.foo", "spec.spec"],
        ),
    ] {
        let schema = schema(spec);
        let mut whole = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n", "labels": {"l": "v"}}, "spec": document});
        assert_eq!(unknown_fields(&schema, &whole), dropped);
        assert_eq!(prune(&schema, &mut whole), dropped);
        assert_eq!(
            whole,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n", "labels": {"l": "v"}}, "spec": expected})
        );
    }
}

#[test]
fn defaults() {
    let schema = schema(json!({
        "type": "object",
        "properties": {
            "replicas": {"type": "integer", "default": 1},
            "nested": {"type": "object", "default": {}, "properties": {"a": {"type": "string", "default": "x"}}},
            "absent": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"p": {"type": "integer", "default": 2}}}},
            "nul": {"type": "string", "nullable": true, "default": "x"},
            "plain": {"type": "string"},
        },
    }));
    let mut document =
        json!({"spec": {"list": [{}, {"p": "UDP"}], "map": {"k": {}}, "nul": null, "plain": null, "replicas": null}});
    default(&schema, &mut document);
    assert_eq!(
        document["spec"],
        json!({"replicas": 1, "nested": {"a": "x"}, "list": [{"p": "TCP"}, {"p": "UDP"}], "map": {"k": {"p": 2}}, "nul": null})
    );
}

#[test]
fn validation_words() {
    let check = |spec: Value, document: Value, expected: &str| {
        let causes = validate(&schema(spec.clone()), &json!({"spec": document}));
        let text = if causes.is_empty() { String::new() } else { cause::summary(&causes) };
        assert_eq!(text, expected, "{spec}");
    };
    check(json!({"type": "boolean"}), json!(true), "");
    check(
        json!({"type": "boolean"}),
        json!("x"),
        r#"spec: Invalid value: "string": spec in body must be of type boolean: "string""#,
    );
    check(
        json!({"type": "integer"}),
        json!(1.5),
        r#"spec: Invalid value: "number": spec in body must be of type integer: "number""#,
    );
    check(json!({"type": "integer"}), json!(1.0), "");
    check(json!({"type": "number"}), json!(1), "");
    check(
        json!({"type": "string"}),
        json!(null),
        r#"spec: Invalid value: "null": spec in body must be of type string: "null""#,
    );
    check(json!({"type": "string", "nullable": true}), json!(null), "");
    check(json!({"type": "object", "required": ["a"]}), json!({}), "spec.a: Required value");
    check(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("x"),
        r#"spec: Unsupported value: "x": supported values: "a", "b""#,
    );
    check(
        json!({"type": "string", "pattern": "^a+$"}),
        json!("b"),
        r#"spec: Invalid value: "b": spec in body should match '^a+$'"#,
    );
    check(json!({"type": "string", "maxLength": 2}), json!("abc"), "spec: Too long: may not be more than 2 bytes");
    check(
        json!({"type": "string", "minLength": 2}),
        json!("a"),
        r#"spec: Invalid value: "a": spec in body should be at least 2 chars long"#,
    );
    check(
        json!({"type": "integer", "minimum": 1}),
        json!(0),
        "spec: Invalid value: 0: spec in body should be greater than or equal to 1",
    );
    check(
        json!({"type": "integer", "maximum": 1, "exclusiveMaximum": true}),
        json!(1),
        "spec: Invalid value: 1: spec in body should be less than 1",
    );
    check(
        json!({"type": "integer", "multipleOf": 2}),
        json!(3),
        "spec: Invalid value: 3: spec in body should be a multiple of 2",
    );
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(3_000_000_000u64),
        r#"spec: Invalid value: 3000000000: spec in body must be of type int32: "3000000000""#,
    );
    check(
        json!({"type": "string", "format": "date-time"}),
        json!("now"),
        r#"spec: Invalid value: "now": spec in body must be of type date-time: "now""#,
    );
    check(json!({"type": "array", "maxItems": 1}), json!([1, 2]), "spec: Too many: 2: must have at most 1 item");
    check(
        json!({"type": "array", "minItems": 1}),
        json!([]),
        "spec: Invalid value: []: spec in body should have at least 1 items",
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "set"}),
        json!(["a", "a"]),
        r#"spec[1]: Duplicate value: "a""#,
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object"}}),
        json!([{"name": "a", "x": 1}, {"name": "a"}]),
        r#"spec[1]: Duplicate value: {"name":"a"}"#,
    );
    check(json!({"x-kubernetes-int-or-string": true}), json!("1"), "");
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        r#"spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean""#,
    );
    check(
        json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"a": 1, "b": 1}),
        r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
    );
    check(
        json!({"type": "object", "not": {"required": ["a"]}}),
        json!({"a": 1}),
        r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#,
    );
    check(json!({"type": "object", "anyOf": [{"required": ["a"]}]}), json!({"a": 1}), "");
    check(
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}}}),
        json!({"l": ["a", 1]}),
        r#"spec.l[1]: Invalid value: "integer": spec.l[1] in body must be of type string: "integer""#,
    );
}

#[test]
fn unsupported_patterns_are_reported_and_ignored() {
    let schema = schema(json!({"type": "string", "pattern": "(?=x)y"}));
    assert_eq!(schema.warnings().len(), 1);
    assert!(validate(&schema, &json!({"spec": "z"})).is_empty());
}

#[test]
fn broken_schemas_are_refused() {
    for bad in [
        json!([]),
        json!({"type": "thing"}),
        json!({"properties": []}),
        json!({"properties": {"a": 1}}),
        json!({"$ref": "#/x"}),
        json!({"items": 3}),
    ] {
        assert!(Schema::parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn equal_subtrees_are_shared() {
    let part = |text: &str| json!({"type": "object", "properties": {"a": {"type": "string", "description": text}}});
    let mut pool = Pool::default();
    let one =
        pool.parse(&json!({"type": "object", "properties": {"spec": part("x"), "other": part("y")}})).expect("parses");
    let held = pool.len();
    let two =
        pool.parse(&json!({"type": "object", "properties": {"spec": part("z"), "other": part("x")}})).expect("parses");
    assert_eq!(pool.len(), held);
    drop((one, two));
    pool.shrink();
    assert!(pool.is_empty());
}

#[test]
fn definitions_refer_to_each_other() {
    let definitions = Definitions::parse(&json!({
        "Node": {"type": "object", "properties": {
            "child": {"$ref": "#/definitions/Node"},
            "size": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"},
            "port": {"allOf": [{"$ref": "#/definitions/IntOrString"}], "default": {}},
            "raw": {"type": "object"},
            "gone": {"$ref": "#/definitions/Missing"},
            "protocol": {"type": "string", "default": "TCP"},
        }},
        "IntOrString": {"type": "string", "format": "int-or-string"},
        "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"},
    }))
    .expect("parses");
    let node = definitions.get("Node").expect("known");
    let mut document = json!({"child": {"child": {"bad": 1, "port": 8}}, "size": 1, "port": "http", "raw": {"x": 1}, "gone": {"y": 2}, "protocol": null});
    assert_eq!(prune(&node, &mut document), ["child.child.bad"]);
    default(&node, &mut document);
    assert_eq!(document["protocol"], "TCP");
    assert_eq!(validate(&node, &document), []);
    assert_eq!(validate(&node, &json!({"child": {"port": true}})).len(), 1);
    assert!(format!("{node:?}").len() < 10_000);
}

#[test]
fn rules_are_kept() {
    let rules = json!([{"rule": "self.a == oldSelf.a", "message": "a is immutable"}]);
    let schema = schema(json!({"type": "object", "x-kubernetes-validations": rules}));
    assert_eq!(schema.rules().iter().map(|r| (r.path.as_str(), &r.rules)).collect::<Vec<_>>(), [("spec", &rules)]);
}

#[test]
fn custom_resources_name_their_types() {
    for (source, why) in [
        (json!({}), "openAPIV3Schema.type: Required value: must not be empty at the root"),
        (json!({"type": "array"}), r#"openAPIV3Schema.type: Invalid value: "array": must be object at the root"#),
        (
            json!({"type": "object", "properties": {"spec": {"properties": {}}}}),
            "openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {}}}}),
            "openAPIV3Schema.properties[l].items.type: Required value: must not be empty for specified array items",
        ),
    ] {
        assert_eq!(cause::summary(&Schema::parse(&source).expect_err("not structural")), why);
    }
    for source in [
        json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
        json!({"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": true}}}),
        json!({"type": "object", "not": {"properties": {"a": {"enum": ["x"]}}}}),
    ] {
        assert!(Schema::parse(&source).is_ok(), "{source}");
    }
}

#[test]
fn ports_have_the_protocol_their_key_needs() {
    let definitions = Definitions::parse(&json!({
        "io.k8s.api.core.v1.ContainerPort": {"type": "object", "properties": {"protocol": {"type": "string"}}},
    }))
    .expect("parses");
    let mut port = json!({});
    default(&definitions.get("io.k8s.api.core.v1.ContainerPort").expect("known"), &mut port);
    assert_eq!(port, json!({"protocol": "TCP"}));
}

/// Schemas that parse, so that the operations are reached.
fn structural() -> impl Strategy<Value = Value> {
    let kind = "(string|integer|number|boolean|object|array)";
    let leaf = (kind, any::<bool>(), prop::option::of(any_json())).prop_map(|(kind, nullable, default)| {
        let mut out = json!({"type": kind, "nullable": nullable});
        if let Some(default) = default {
            out["default"] = default;
        }
        out
    });
    let name = "(a|b|spec|metadata|type|default)";
    let node = leaf.prop_recursive(4, 32, 4, move |inner| {
        let properties = prop::collection::btree_map(name, inner.clone(), 0..4);
        prop_oneof![
            (properties, prop::collection::vec(name, 0..2), any::<bool>()).prop_map(|(properties, required, keep)| {
                json!({"type": "object", "properties": properties, "required": required, "x-kubernetes-preserve-unknown-fields": keep})
            }),
            inner.clone().prop_map(|one| json!({"type": "object", "additionalProperties": one})),
            (inner.clone(), "(set|atomic|map)").prop_map(|(one, list)| {
                json!({"type": "array", "items": one, "x-kubernetes-list-type": list, "x-kubernetes-list-map-keys": ["a"], "uniqueItems": true})
            }),
            (inner.clone(), inner).prop_map(|(one, other)| json!({"type": "object", "oneOf": [one], "anyOf": [other.clone()], "not": other})),
        ]
    });
    prop::collection::btree_map(name, node, 0..4)
        .prop_map(|properties| json!({"type": "object", "properties": properties}))
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(type|object|array|string|properties|items|default|spec|a|[a-z\u{e9}]{0,3})".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let key = "(type|properties|items|default|required|enum|oneOf|not|allOf|metadata|spec|x-kubernetes-list-type|additionalProperties|pattern|a|b)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn parsers_never_panic(source in any_json()) {
        let _ = Definitions::parse(&source);
        let _ = Schema::parse(&source);
    }

    #[test]
    fn pruned_and_defaulted_documents_stay_so(source in structural(), mut document in any_json()) {
        let schema = Schema::parse(&source).unwrap();
        let unknown = unknown_fields(&schema, &document);
        prop_assert_eq!(unknown, prune(&schema, &mut document));
        prop_assert!(prune(&schema, &mut document).is_empty());
        default(&schema, &mut document);
        let once = document.clone();
        default(&schema, &mut document);
        prop_assert_eq!(&once, &document);
        validate(&schema, &document);
    }
}

#[test]
fn what_stayed_wrong_is_not_reported_again() {
    let schema = Schema::parse(&json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 2},
        "size": {"type": "integer", "minimum": 3},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": {
            "type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "n": {"type": "integer", "maximum": 5}}}},
        "plain": {"type": "array", "items": {"type": "integer", "maximum": 5}},
    }}))
    .unwrap();
    let old = json!({"name": "long", "size": 1, "parts": [{"id": "a", "n": 9}], "plain": [9]});
    // (new, fields that are refused)
    let cases: [(Value, &[&str]); 5] = [
        (old.clone(), &[]),
        (json!({"name": "long", "size": 2, "parts": [{"id": "a", "n": 9}], "plain": [9]}), &["size"]),
        (json!({"name": "longer", "size": 1}), &["name"]),
        (json!({"parts": [{"id": "b", "n": 1}, {"id": "a", "n": 9}, {"id": "c", "n": 9}]}), &["parts[2].n"]),
        (json!({"plain": [1, 9]}), &["plain[1]"]),
    ];
    for (new, expected) in cases {
        let fields: Vec<String> = validate_update(&schema, &new, &old).into_iter().map(|c| c.field).collect();
        assert_eq!(fields, expected, "{new}");
    }
}
