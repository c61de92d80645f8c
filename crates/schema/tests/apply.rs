//! Server-side apply: tables, then laws.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use ferrovirt_schema::Schema;
use ferrovirt_schema::apply::{ApplyError, FieldSet, Manager, apply, track_update};
use proptest::prelude::*;
use serde_json::{Value, json};

fn schema() -> Schema {
    Schema::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "image": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "disks": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "bus": {"type": "string"}, "size": {"type": "integer"}}}},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {
            "type": "object",
            "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}}}))
    .expect("parses")
}

fn manager(name: &str) -> Manager {
    Manager {
        name: name.into(),
        api_version: "example.io/v1".into(),
        subresource: None,
        time: "2024-01-01T00:00:00Z".into(),
    }
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

fn put(live: Option<&Value>, spec: Value, name: &str) -> Value {
    apply(&schema(), live, &object(spec), &manager(name), false).unwrap_or_else(|e| panic!("{e}"))
}

fn update(live: &Value, name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut new = live.clone();
    change(&mut new);
    track_update(&schema(), Some(live), &mut new, &manager(name));
    new
}

fn owned(object: &Value, name: &str) -> Value {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
    entries.into_iter().find(|e| e["manager"] == name).map_or(Value::Null, |e| e["fieldsV1"].clone())
}

#[test]
fn an_applier_owns_what_it_says() {
    let first = put(
        None,
        json!({"replicas": 1, "labels": {"a": "1"}, "disks": [{"name": "d", "bus": "virtio"}], "tags": ["t"], "args": ["x"], "whole": {"k": "v"}, "free": {"l": [1], "m": {}}}),
        "me",
    );
    assert_eq!(
        owned(&first, "me"),
        json!({"f:spec": {
            "f:replicas": {}, "f:labels": {"f:a": {}}, "f:tags": {"v:\"t\"": {}}, "f:args": {}, "f:whole": {},
            "f:disks": {"k:{\"name\":\"d\"}": {".": {}, "f:name": {}, "f:bus": {}}}, "f:free": {"f:l": {}, "f:m": {}},
        }})
    );
    let entry = &first["metadata"]["managedFields"][0];
    assert_eq!(
        (entry["operation"].as_str(), entry["fieldsType"].as_str(), entry["apiVersion"].as_str()),
        (Some("Apply"), Some("FieldsV1"), Some("example.io/v1"))
    );
}

#[test]
fn merging_and_removal() {
    for (what, first, second, expected) in [
        ("a value goes", json!({"replicas": 1, "image": "a"}), json!({"image": "a"}), json!({"image": "a"})),
        (
            "an emptied map goes",
            json!({"labels": {"a": "1"}, "image": "a"}),
            json!({"image": "a"}),
            json!({"image": "a"}),
        ),
        (
            "a map key goes",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"b": "2"}}),
            json!({"labels": {"b": "2"}}),
        ),
        (
            "an element goes",
            json!({"disks": [{"name": "a"}, {"name": "b"}]}),
            json!({"disks": [{"name": "b"}]}),
            json!({"disks": [{"name": "b"}]}),
        ),
        (
            "a field of an element goes",
            json!({"disks": [{"name": "a", "bus": "x", "size": 1}]}),
            json!({"disks": [{"name": "a", "size": 1}]}),
            json!({"disks": [{"name": "a", "size": 1}]}),
        ),
        ("a set member goes", json!({"tags": ["a", "b"]}), json!({"tags": ["b", "c"]}), json!({"tags": ["b", "c"]})),
        ("an atomic list is replaced", json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]})),
        (
            "an atomic map is replaced",
            json!({"whole": {"a": "1"}}),
            json!({"whole": {"b": "1"}}),
            json!({"whole": {"b": "1"}}),
        ),
        (
            "elements take the applied order",
            json!({"disks": [{"name": "a"}, {"name": "b"}]}),
            json!({"disks": [{"name": "b"}, {"name": "a"}]}),
            json!({"disks": [{"name": "b"}, {"name": "a"}]}),
        ),
        ("everything goes", json!({"image": "a"}), json!({}), json!({})),
    ] {
        let first = put(None, first, "me");
        assert_eq!(put(Some(&first), second, "me")["spec"], expected, "{what}");
    }
}

#[test]
fn empty_containers() {
    let applied = put(None, json!({"args": [], "tags": [], "labels": {}, "whole": {}}), "me");
    let expected = json!({"f:spec": {"f:args": {}, "f:labels": {}, "f:whole": {}}});
    assert_eq!(owned(&applied, "me"), expected, "an empty set has no element to own");
    let mut created = object(json!({"args": [], "tags": [], "labels": {}}));
    track_update(&schema(), None, &mut created, &manager("me"));
    assert_eq!(owned(&created, "me"), json!({"f:spec": {".": {}, "f:args": {}, "f:tags": {}, "f:labels": {}}}));
    let filled = put(None, json!({"labels": {"a": "1"}, "image": "i"}), "me");
    let emptied = update(&filled, "other", |o| o["spec"]["labels"] = json!({}));
    assert_eq!(owned(&emptied, "other"), Value::Null, "to empty is to remove");
}

#[test]
fn an_element_goes_with_those_who_listed_it() {
    let listed = put(None, json!({"disks": [{"name": "a"}, {"name": "b"}]}), "one");
    let touched = update(&listed, "editor", |o| o["spec"]["disks"][0]["size"] = json!(2));
    assert_eq!(
        put(Some(&touched), json!({"disks": [{"name": "b"}]}), "one")["spec"],
        json!({"disks": [{"name": "b"}]})
    );
    let both = put(Some(&touched), json!({"disks": [{"name": "a"}]}), "two");
    let left = put(Some(&both), json!({"disks": [{"name": "b"}]}), "one");
    assert_eq!(left["spec"], json!({"disks": [{"name": "a", "size": 2}, {"name": "b"}]}));
}

#[test]
fn elements_of_others_keep_their_place() {
    let names = |list: &[&str]| json!({"disks": list.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
    for (live, applied, expected) in [
        (vec!["a", "b"], vec!["n"], vec!["a", "b", "n"]),
        (vec!["a", "b"], vec!["n", "b"], vec!["a", "n", "b"]),
        (vec!["a", "x", "b"], vec!["b", "a"], vec!["x", "b", "a"]),
        (vec!["a", "x", "b", "y"], vec!["a", "n", "b"], vec!["a", "x", "n", "b", "y"]),
    ] {
        let one = put(None, names(&live), "one");
        assert_eq!(put(Some(&one), names(&applied), "two")["spec"], names(&expected), "{live:?} + {applied:?}");
    }
}

#[test]
fn two_managers_share_an_object() {
    let one = put(None, json!({"replicas": 1, "disks": [{"name": "a", "bus": "x"}], "tags": ["t"]}), "one");
    let both = put(
        Some(&one),
        json!({"image": "i", "disks": [{"name": "a", "size": 3}, {"name": "b"}], "tags": ["t", "u"]}),
        "two",
    );
    assert_eq!(
        both["spec"],
        json!({"replicas": 1, "image": "i", "disks": [{"name": "a", "bus": "x", "size": 3}, {"name": "b"}], "tags": ["t", "u"]})
    );
    let left = put(Some(&both), json!({}), "two");
    assert_eq!(left["spec"], json!({"replicas": 1, "disks": [{"name": "a", "bus": "x"}], "tags": ["t"]}));
    assert_eq!(owned(&left, "two"), json!({"f:spec": {}}));
    let same = put(Some(&one), json!({"replicas": 1}), "two");
    assert_eq!(owned(&same, "two"), json!({"f:spec": {"f:replicas": {}}}), "the same value is shared, not fought over");
    let apart = put(Some(&same), json!({}), "one");
    assert_eq!(apart["spec"], json!({"replicas": 1}), "the other owner keeps it");
}

#[test]
fn conflicts() {
    let one = put(
        None,
        json!({"replicas": 1, "disks": [{"name": "a", "bus": "x"}], "ports": [{"port": 80, "name": "n"}]}),
        "one",
    );
    let edited = update(&one, "editor", |o| o["spec"]["replicas"] = json!(5));
    assert_eq!(owned(&edited, "editor"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&edited, "one").pointer("/f:spec/f:replicas"), None, "an update takes the field over");

    let refuse = |spec: Value, who: &str| {
        apply(&schema(), Some(&edited), &object(spec), &manager(who), false).expect_err("conflict")
    };
    let error = refuse(json!({"replicas": 2}), "two");
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "editor" using example.io/v1: .spec.replicas"#
    );
    let causes = error.causes();
    assert_eq!(
        (causes[0].kind.as_str(), causes[0].field.as_str(), causes[0].message.as_str()),
        ("FieldManagerConflict", ".spec.replicas", r#"conflict with "editor" using example.io/v1"#)
    );
    let error = refuse(
        json!({"replicas": 2, "disks": [{"name": "a", "bus": "y"}], "ports": [{"port": 80, "protocol": "TCP", "name": "m"}]}),
        "two",
    );
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"editor\" using example.io/v1:\n- .spec.replicas\nconflicts with \"one\":\n- .spec.disks[name=\"a\"].bus\n- .spec.ports[port=80,protocol=\"TCP\"].name"
    );

    let forced =
        apply(&schema(), Some(&edited), &object(json!({"replicas": 2})), &manager("two"), true).expect("forced");
    assert_eq!(forced["spec"]["replicas"], 2);
    assert_eq!(owned(&forced, "editor"), Value::Null, "an entry that owns nothing goes");
}

#[test]
fn bad_configurations() {
    let managed = json!({"metadata": {"managedFields": [{"manager": "x"}]}});
    assert_eq!(apply(&schema(), None, &managed, &manager("m"), false), Err(ApplyError::ManagedFields));
    assert_eq!(apply(&schema(), None, &json!([]), &manager("m"), false), Err(ApplyError::NotAnObject));
}

#[test]
fn updates_are_tracked() {
    let mut created = object(json!({"labels": {"a": "1"}, "disks": [{"name": "d", "size": 1}], "free": {}}));
    created["metadata"]["labels"] = json!({"l": "v"});
    created["metadata"]["uid"] = json!("u");
    track_update(&schema(), None, &mut created, &manager("creator"));
    assert_eq!(
        owned(&created, "creator"),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
            "f:spec": {".": {}, "f:labels": {".": {}, "f:a": {}}, "f:free": {}, "f:disks": {".": {}, "k:{\"name\":\"d\"}": {".": {}, "f:name": {}, "f:size": {}}}},
        })
    );
    let same = update(&created, "other", |_| {});
    assert_eq!(same, created, "no change, no entry");
    let removed = update(&created, "other", |o| drop(o["spec"].as_object_mut().map(|s| s.remove("disks"))));
    assert_eq!(owned(&removed, "creator").pointer("/f:spec/f:disks"), None);
    assert_eq!(owned(&removed, "other"), Value::Null);
    let reset = update(&created, "other", |o| o["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(reset.pointer("/metadata/managedFields"), None);
    let dropped = update(&created, "other", |o| drop(o["metadata"].as_object_mut().map(|m| m.remove("managedFields"))));
    assert_eq!(owned(&dropped, "creator"), owned(&created, "creator"), "leaving the list out changes nothing");
}

#[test]
fn status_writers_are_apart() {
    let live = put(None, json!({"replicas": 1}), "me");
    let mut new = live.clone();
    new["status"] = json!({"ready": true});
    let status = Manager { subresource: Some("status".into()), ..manager("me") };
    track_update(&schema(), Some(&live), &mut new, &status);
    let entries = new["metadata"]["managedFields"].as_array().expect("a list").clone();
    assert_eq!(entries.len(), 2);
    assert_eq!(
        (entries[1]["subresource"].as_str(), entries[1]["operation"].as_str()),
        (Some("status"), Some("Update"))
    );
}

#[test]
fn old_updaters_are_merged() {
    let mut live = object(json!({}));
    for n in 0..15 {
        let mut new = live.clone();
        new["spec"][format!("x{n}")] = json!(n);
        let who = Manager { time: format!("2024-01-01T00:00:{n:02}Z"), ..manager(&format!("m{n}")) };
        track_update(&Schema::any(), Some(&live), &mut new, &who);
        live = new;
    }
    let entries = live["metadata"]["managedFields"].as_array().expect("a list");
    assert_eq!(entries.len(), 10);
    assert!(entries.iter().any(|e| e["manager"] == "ancient-changes"));
}

#[test]
fn a_repeated_apply_changes_nothing() {
    let first = put(None, json!({"replicas": 1, "disks": [{"name": "a"}]}), "me");
    let later = Manager { time: "2025-01-01T00:00:00Z".into(), ..manager("me") };
    let again =
        apply(&schema(), Some(&first), &object(json!({"replicas": 1, "disks": [{"name": "a"}]})), &later, false)
            .expect("applies");
    assert_eq!(again, first);
}

fn spec() -> impl Strategy<Value = Value> {
    let text = "(a|b|c)";
    let disk = (text, prop::option::of(text), prop::option::of(0..3i64)).prop_map(|(name, bus, size)| {
        let mut disk = json!({"name": name});
        if let Some(bus) = bus {
            disk["bus"] = json!(bus);
        }
        if let Some(size) = size {
            disk["size"] = json!(size);
        }
        disk
    });
    let unique = |list: Vec<Value>| {
        let mut seen = std::collections::BTreeSet::new();
        list.into_iter().filter(|v| seen.insert(v.get("name").unwrap_or(v).to_string())).collect::<Vec<_>>()
    };
    (
        prop::option::of(0..3i64),
        prop::option::of(prop::collection::btree_map(text, text, 1..3)),
        prop::option::of(prop::collection::vec(disk, 1..4).prop_map(unique)),
        prop::option::of(prop::collection::vec(text.prop_map(Value::from), 1..3).prop_map(unique)),
        prop::option::of(prop::collection::vec(text, 0..3)),
    )
        .prop_map(|(replicas, labels, disks, tags, args)| {
            let mut out = json!({});
            for (name, value) in [
                ("replicas", json!(replicas)),
                ("labels", json!(labels)),
                ("disks", json!(disks)),
                ("tags", json!(tags)),
                ("args", json!(args)),
            ] {
                if !value.is_null() {
                    out[name] = value;
                }
            }
            out
        })
}

fn wild() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        "[a-c.:]{0,2}".prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 48, 5, |inner| {
        let key = "(metadata|spec|managedFields|disks|tags|ports|name|labels|fieldsV1|operation|f:spec|f:a|k:\\{\"name\":\"a\"\\}|v:1|\\.)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_only_applier_gets_what_it_says(first in spec(), second in spec()) {
        let live = put(None, first, "me");
        let mut expected = put(None, second.clone(), "me");
        let mut actual = put(Some(&live), second.clone(), "me");
        prop_assert_eq!(&actual["spec"], &expected["spec"]);
        prop_assert_eq!(owned(&actual, "me"), owned(&expected, "me"));
        expected = actual.clone();
        actual = put(Some(&actual), second, "me");
        prop_assert_eq!(actual, expected);
    }

    #[test]
    fn force_always_wins(first in spec(), edit in spec(), second in spec()) {
        let live = put(None, first, "one");
        let live = update(&live, "editor", |o| o["spec"] = edit);
        let forced = apply(&schema(), Some(&live), &object(second.clone()), &manager("two"), true).unwrap();
        // What was applied is there: applying it again changes nothing and meets nobody.
        let again = apply(&schema(), Some(&forced), &object(second.clone()), &manager("two"), false).unwrap();
        prop_assert_eq!(&again, &forced);
        // And when it is withdrawn, nothing of it is owned any more.
        let gone = apply(&schema(), Some(&forced), &object(json!({})), &manager("two"), false).unwrap();
        prop_assert_eq!(owned(&gone, "two"), json!({"f:spec": {}}));
    }

    #[test]
    fn an_updater_can_always_apply_its_own_values(first in spec(), edit in spec()) {
        let live = put(None, first, "one");
        let edited = update(&live, "editor", |o| o["spec"] = edit.clone());
        prop_assert_eq!(&edited["spec"], &edit);
        prop_assert!(apply(&schema(), Some(&edited), &object(edit), &manager("two"), false).is_ok());
    }

    #[test]
    fn field_sets_survive_their_json(spec in spec()) {
        let fields = owned(&put(None, spec, "me"), "me");
        prop_assert_eq!(FieldSet::from_json(&fields).to_json(), fields);
    }

    #[test]
    fn nothing_panics(live in wild(), applied in wild(), force in any::<bool>()) {
        let _ = apply(&schema(), Some(&live), &applied, &manager("m"), force);
        let mut new = applied.clone();
        track_update(&schema(), Some(&live), &mut new, &manager("m"));
        let set = FieldSet::from_json(&applied);
        prop_assert_eq!(FieldSet::from_json(&set.to_json()), set);
    }
}

/// A new built-in object was an empty struct before: its containers are there, some of them as null.
#[test]
fn what_a_struct_has_anyway_belongs_to_nobody() {
    let before = object(json!({"disks": null, "labels": null, "args": null, "whole": {}}));
    let cases = [
        (json!({"disks": null, "labels": null, "args": null, "whole": {}}), Value::Null),
        (
            json!({"disks": [{"name": "a", "bus": "b"}], "labels": null, "args": null, "whole": {}}),
            json!({"f:spec": {"f:disks": {"k:{\"name\":\"a\"}": {".": {}, "f:bus": {}, "f:name": {}}}}}),
        ),
        (
            json!({"disks": null, "labels": {"a": "b"}, "args": ["x"], "whole": {}}),
            json!({"f:spec": {"f:args": {}, "f:labels": {"f:a": {}}}}),
        ),
        // An empty list is something else than none.
        (json!({"disks": [], "labels": null, "args": null, "whole": {}}), json!({"f:spec": {"f:disks": {}}})),
        // A set has what it has twice.
        (
            json!({"disks": null, "labels": null, "args": null, "whole": {}, "tags": ["a", "a"]}),
            json!({"f:spec": {"f:tags": {".": {}, "v:\"a\"": {}}}}),
        ),
    ];
    for (spec, expected) in cases {
        let mut after = object(spec.clone());
        track_update(&schema(), Some(&before), &mut after, &manager("m"));
        let fields = after["metadata"]["managedFields"][0]["fieldsV1"].clone();
        assert_eq!(fields, expected, "{spec}");
    }
}
