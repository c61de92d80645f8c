//! Patch tables and the laws they follow.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use ferrovirt_schema::Schema;
use ferrovirt_schema::patch::{json_patch, merge_patch, strategic_merge};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[test]
fn json_patches() {
    let base = json!({"a": {"b": [1, 2, 3]}, "x/y": 1, "n": null});
    for (patch, expected) in [
        (json!([{"op": "add", "path": "/c", "value": 1}]), json!({"a": {"b": [1, 2, 3]}, "x/y": 1, "n": null, "c": 1})),
        (
            json!([{"op": "add", "path": "/a/b/-", "value": 4}, {"op": "remove", "path": "/x~1y"}]),
            json!({"a": {"b": [1, 2, 3, 4]}, "n": null}),
        ),
        (json!([{"op": "add", "path": "/a/b/1", "value": 9}]), json!({"a": {"b": [1, 9, 2, 3]}, "x/y": 1, "n": null})),
        (json!([{"op": "replace", "path": "/a/b/0", "value": 7}]), json!({"a": {"b": [7, 2, 3]}, "x/y": 1, "n": null})),
        (json!([{"op": "move", "from": "/a/b", "path": "/b"}]), json!({"a": {}, "b": [1, 2, 3], "x/y": 1, "n": null})),
        (
            json!([{"op": "copy", "from": "/a/b/2", "path": "/b"}]),
            json!({"a": {"b": [1, 2, 3]}, "b": 3, "x/y": 1, "n": null}),
        ),
        (
            json!([{"op": "test", "path": "/a/b/-1", "value": 3.0}, {"op": "test", "path": "/absent", "value": null}, {"op": "replace", "path": "", "value": 1}]),
            json!(1),
        ),
    ] {
        let mut document = base.clone();
        json_patch(&mut document, &patch).unwrap_or_else(|e| panic!("{patch}: {e}"));
        assert_eq!(document, expected, "{patch}");
    }
    for (patch, why) in [
        (json!([{"op": "test", "path": "/a", "value": 1}]), "testing value /a failed: test failed"),
        (
            json!([{"op": "add", "path": "/q/r", "value": 1}]),
            "add operation does not apply: doc is missing path: \"/q/r\": missing value",
        ),
        (
            json!([{"op": "replace", "path": "/q/r", "value": 1}]),
            "replace operation does not apply: doc is missing path: /q/r: missing value",
        ),
        (
            json!([{"op": "remove", "path": "/q"}]),
            "error in remove for path: '/q': Unable to remove nonexistent key: q: missing value",
        ),
        (
            json!([{"op": "add", "path": "/a/b/9", "value": 1}]),
            "error in add for path: '/a/b/9': Unable to access invalid index: 9: invalid index referenced",
        ),
        (
            json!([{"op": "test", "path": "/q/r", "value": null}]),
            "test operation does not apply: is missing path: /q/r: missing value",
        ),
        (
            json!([{"op": "move", "from": "/q/r", "path": "/a"}]),
            "move operation does not apply: doc is missing from path: /q/r: missing value",
        ),
        (json!([{"op": "frob", "path": "/a"}]), "Unexpected kind: frob"),
        (json!([{"op": "move", "from": "/a", "path": "/a/b/c"}]), "cannot move \"/a\" into itself"),
        (json!({}), "json patch must be an array of operations"),
        (
            json!([{"op": "add", "path": "/z", "value": 1}, {"op": "test", "path": "/z", "value": 2}]),
            "testing value /z failed: test failed",
        ),
    ] {
        let mut document = base.clone();
        assert_eq!(json_patch(&mut document, &patch).expect_err("refused").to_string(), why);
        assert_eq!(document, base, "a failed patch changes nothing");
    }
}

#[test]
fn copies_cannot_explode() {
    let doubling: Vec<Value> = (0..64).map(|_| json!({"op": "copy", "from": "", "path": "/a/-"})).collect();
    assert!(json_patch(&mut json!({"a": ["0123456789"]}), &Value::from(doubling)).is_err());
}

#[test]
fn merge_patches() {
    // The examples of RFC 7386, appendix A.
    for (document, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        let mut document = document;
        merge_patch(&mut document, &patch).expect("applies");
        assert_eq!(document, expected);
    }
}

fn pod_like() -> Schema {
    let container = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "image": {"type": "string"},
        "ports": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "containerPort",
            "items": {"type": "object", "properties": {"containerPort": {"type": "integer"}}}},
        "args": {"type": "array", "items": {"type": "string"}},
    }});
    Schema::parse(&json!({"type": "object", "properties": {
        "containers": {"type": "array", "items": container,
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
        "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys",
            "properties": {"type": {"type": "string"}, "rollingUpdate": {"type": "object"}}},
        "whole": {"type": "object", "x-kubernetes-patch-strategy": "replace", "additionalProperties": {"type": "string"}},
        "marks": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    }}))
    .expect("parses")
}

#[test]
fn strategic_patches() {
    let schema = pod_like();
    for (what, document, patch, expected) in [
        (
            "plain",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"a": null, "c": "3"}}),
            json!({"labels": {"b": "2", "c": "3"}}),
        ),
        (
            "element by key",
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]}),
        ),
        (
            "new element first, nested list by its own key",
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}),
            json!({"containers": [{"name": "new"}, {"name": "a", "ports": [{"containerPort": 2}]}]}),
            json!({"containers": [{"name": "new"}, {"name": "a", "ports": [{"containerPort": 2}, {"containerPort": 1}]}]}),
        ),
        (
            "delete element",
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "delete", "name": "a"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        (
            "replace list",
            json!({"containers": [{"name": "a"}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b"}, {"$patch": "replace"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        (
            "replace map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "replace", "b": "2"}}),
            json!({"labels": {"b": "2"}}),
        ),
        ("delete map", json!({"labels": {"a": "1"}}), json!({"labels": {"$patch": "delete"}}), json!({"labels": {}})),
        ("replace strategy", json!({"whole": {"a": "1"}}), json!({"whole": {"b": "2"}}), json!({"whole": {"b": "2"}})),
        (
            "retain keys",
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"x": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        ),
        (
            "list of values unites",
            json!({"marks": ["a", "b"]}),
            json!({"marks": ["b", "c"]}),
            json!({"marks": ["a", "b", "c"]}),
        ),
        (
            "list of values shrinks",
            json!({"marks": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/marks": ["a"]}),
            json!({"marks": ["b"]}),
        ),
        (
            "order",
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "server"}]}),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}, {"name": "server"}]}),
        ),
        (
            "unlisted lists are replaced",
            json!({"containers": [{"name": "a", "args": ["x"]}]}),
            json!({"containers": [{"name": "a", "args": ["y"]}]}),
            json!({"containers": [{"name": "a", "args": ["y"]}]}),
        ),
        (
            "finalizers",
            json!({"metadata": {"finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b"]}}),
            json!({"metadata": {"finalizers": ["b", "a"]}}),
        ),
        (
            "a directive without an original",
            json!({}),
            json!({"labels": {"$patch": "replace", "a": "1"}, "strategy": {"$patch": "delete"}}),
            json!({}),
        ),
        (
            "into nothing",
            json!({}),
            json!({"containers": [{"$patch": "delete", "name": "a"}, {"name": "b", "image": null}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
    ] {
        let mut document = document;
        strategic_merge(&schema, &mut document, &patch).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(document, expected, "{what}");
    }
    for (patch, why) in [
        (json!([]), "Invalid JSON document"),
        (json!({"labels": {"$patch": "frob"}}), "unknown patch type found: frob"),
        (json!({"containers": [{"image": "x"}]}), "map: {\"image\":\"x\"} does not contain declared merge key: name"),
        (json!({"containers": [{"$patch": "delete"}]}), "delete patch type with no merge key defined"),
        (json!({"strategy": {"$retainKeys": ["a"], "type": "x"}}), "invalid patch format of retainKeys"),
        (
            json!({"$setElementOrder/marks": ["a", "b"], "marks": ["b", "a"]}),
            "The order in patch list:\n[\"b\",\"a\"]\n doesn't match $setElementOrder/marks list:\n[\"a\",\"b\"]\n",
        ),
    ] {
        let error = strategic_merge(&schema, &mut json!({"labels": {}}), &patch).expect_err("refused");
        assert_eq!(error.to_string(), why);
    }
}

/// A merge patch that turns `from` into `to`, for documents without nulls.
fn diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let mut out = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        out.insert(name.clone(), Value::Null);
    }
    for (name, new) in to {
        match from.get(name) {
            Some(old) if old == new => {}
            Some(old) if old.is_object() && new.is_object() => drop(out.insert(name.clone(), diff(old, new))),
            _ => drop(out.insert(name.clone(), new.clone())),
        }
    }
    Value::Object(out)
}

fn document(null: bool) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (0..5i64).prop_map(Value::from),
        Just(if null { Value::Null } else { json!("s") }),
        "(a|delete|replace|merge)".prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(4, 32, 4, |inner| {
        let key = "(a|b|name|containers|marks|labels|strategy|\\$patch|\\$retainKeys|\\$setElementOrder/marks|\\$setElementOrder/containers|\\$deleteFromPrimitiveList/marks)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    });
    prop::collection::btree_map("(containers|marks|labels|strategy|a|b)", tree, 0..4)
        .prop_map(|m| Value::Object(m.into_iter().collect()))
}

proptest! {
    #[test]
    fn a_diff_merges_back(from in document(false), to in document(false)) {
        let mut work = from.clone();
        merge_patch(&mut work, &diff(&from, &to)).unwrap();
        prop_assert_eq!(work, to);
    }

    #[test]
    fn strategic_patches_are_idempotent(from in document(false), patch in document(true)) {
        let schema = pod_like();
        let mut once = from;
        if strategic_merge(&schema, &mut once, &patch).is_ok() {
            let mut twice = once.clone();
            strategic_merge(&schema, &mut twice, &patch).unwrap();
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn json_patches_never_panic(from in document(true), paths in prop::collection::vec(("(add|remove|replace|move|copy|test)", "(/(a|b|-|0|1|-1|containers|~0|~1)){0,4}", "(/(a|b|0)){0,3}"), 0..6)) {
        let patch: Vec<Value> = paths.into_iter().map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"a": [1]}})).collect();
        let _ = json_patch(&mut from.clone(), &Value::from(patch));
        let _ = json_patch(&mut from.clone(), &from);
    }
}
