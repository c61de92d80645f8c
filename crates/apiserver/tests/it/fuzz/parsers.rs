//! Every parser of foreign bytes, called directly: thousands of mutated inputs a second.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ferrovirt_apiserver::StaticTokens;
use ferrovirt_schema::apply::{FieldSet, Manager, apply, track_update};
use ferrovirt_schema::{FieldSelector, LabelSelector, ProtoTable, Quantity, Schema, duration, patch, proto, rfc3339};
use ferrovirt_schema::{structural, table};
use serde_json::{Value, json};

use super::mutation::{Random, mutate, rounds};

struct Target {
    name: &'static str,
    seeds: &'static [&'static str],
    run: fn(&[u8]),
}

const TARGETS: &[Target] = &[
    Target {
        name: "label selectors",
        seeds: &["a in (b,c),!d,e!=f,g>5,h", "x notin (y), z==1", "a.example.com/b-c_d=e"],
        run: |bytes| {
            if let Ok(selector) = LabelSelector::parse(&text(bytes)) {
                let labels = BTreeMap::from([("a".to_owned(), "b".to_owned()), ("g".to_owned(), "7".to_owned())]);
                selector.matches(&labels);
            }
        },
    },
    Target {
        name: "label selectors in objects",
        seeds: &[
            r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"In","values":["d"]},{"key":"e","operator":"Exists"}]}"#,
        ],
        run: |bytes| {
            if let Some(value) = json_of(bytes)
                && let Ok(selector) = LabelSelector::from_json(&value)
            {
                selector.matches(&BTreeMap::new());
            }
        },
    },
    Target {
        name: "field selectors",
        seeds: &["metadata.name=a,spec.nodeName!=b\\,c", "status.phase==Running"],
        run: |bytes| {
            if let Ok(selector) = FieldSelector::parse(&text(bytes)) {
                selector.matches(|path| Some(path.to_owned()));
            }
        },
    },
    Target {
        name: "columns",
        seeds: &[
            ".spec.a[?(@.type==\"Ready\")].status",
            "{.metadata.name}",
            ".a['b.c'][0:3:2]..d",
            ".status.conditions[?(@.x>5 && @.y)].z[*]",
        ],
        run: |bytes| {
            if let Ok(path) = table::JsonPath::parse(&text(bytes)) {
                path.find(
                    &json!({"spec": {"a": [{"type": "Ready", "status": 1}]}, "status": {"conditions": [{"x": 9}]}}),
                );
            }
        },
    },
    Target {
        name: "quantities",
        seeds: &["1", "-1.5Gi", "100m", "1e3", "1E", "0.000000001", "9223372036854775807", "12Ki"],
        run: |bytes| {
            if let Ok(quantity) = Quantity::parse(&text(bytes)) {
                let again = Quantity::parse(&quantity.to_string()).unwrap();
                assert_eq!(again.to_string(), quantity.to_string(), "{:?}", text(bytes));
                let _ = quantity.plus(again).minus(quantity).as_f64();
            }
        },
    },
    Target {
        name: "durations",
        seeds: &["1h2m3.5s", "-1.5ms", "100ns", "0"],
        run: |bytes| {
            if let Some(nanos) = duration::parse(&text(bytes)) {
                assert_eq!(duration::parse(&duration::format(nanos)), Some(nanos), "{:?}", text(bytes));
            }
        },
    },
    Target {
        name: "times",
        seeds: &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678901234+05:30", "0001-01-01T00:00:00Z"],
        run: |bytes| {
            if let Some((seconds, nanos)) = rfc3339::parse(&text(bytes)) {
                let _ = (rfc3339::format(seconds), rfc3339::format_micros(seconds, nanos));
            }
        },
    },
    Target {
        name: "JSON patches",
        seeds: &[
            r#"[{"op":"add","path":"/spec/ports/-","value":1},{"op":"move","from":"/spec","path":"/a"},{"op":"copy","from":"/a","path":"/b"},{"op":"test","path":"/b~1c","value":null},{"op":"remove","path":"/a"}]"#,
        ],
        run: |bytes| on_document(bytes, |document, value| patch::json_patch(document, value).is_ok()),
    },
    Target {
        name: "merge patches",
        seeds: &[r#"{"spec":{"ports":null,"a":{"b":[1]}},"metadata":{"labels":{"x":null}}}"#],
        run: |bytes| on_document(bytes, |document, value| patch::merge_patch(document, value).is_ok()),
    },
    Target {
        name: "strategic patches",
        seeds: &[
            r#"{"spec":{"ports":[{"port":80,"$patch":"delete"},{"port":81,"name":"n"}],"$setElementOrder/ports":[{"port":81}],"$retainKeys":["ports"]},"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}"#,
            r#"{"spec":{"$patch":"replace","ports":[]}}"#,
        ],
        run: |bytes| on_document(bytes, |document, value| patch::strategic_merge(schema(), document, value).is_ok()),
    },
    Target {
        name: "apply",
        seeds: &[
            r#"{"apiVersion":"v1","kind":"X","metadata":{"name":"a"},"spec":{"ports":[{"port":80},{"port":81,"name":"b"}],"set":["a","b"],"map":{"k":"v"}}}"#,
        ],
        run: |bytes| {
            let Some(value) = json_of(bytes) else { return };
            if let Ok(live) = apply(schema(), Some(&document()), &value, &manager("a"), true) {
                let _ = apply(schema(), Some(&live), &document(), &manager("b"), false);
            }
            let mut new = value;
            track_update(schema(), Some(&document()), &mut new, &manager("c"));
        },
    },
    Target {
        name: "managed fields",
        seeds: &[
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:ports":{"k:{\"port\":80}":{".":{},"f:name":{}}},"f:set":{"v:\"a\"":{}},"i:0":{}}}"#,
        ],
        run: |bytes| {
            if let Some(value) = json_of(bytes) {
                let set = FieldSet::from_json(&value);
                assert_eq!(FieldSet::from_json(&set.to_json()), set, "{value}");
                let mut live = document();
                live["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": value}]);
                let _ = apply(schema(), Some(&live), &document(), &manager("b"), false);
                let _ = apply(schema(), Some(&live), &json!({"metadata": {"name": "a"}}), &manager("x"), false);
            }
        },
    },
    Target {
        name: "schemas",
        seeds: &[
            r#"{"type":"object","required":["a"],"properties":{"a":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer","default":1,"multipleOf":2}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"]},"b":{"type":"string","pattern":"^a+$","format":"date-time","enum":["x"]},"c":{"x-kubernetes-int-or-string":true},"d":{"oneOf":[{"type":"string"}],"not":{"type":"null"}}},"additionalProperties":false}"#,
        ],
        run: |bytes| {
            if let Some(value) = json_of(bytes)
                && let Ok(schema) = Schema::parse(&value)
            {
                let mut document = json!({"a": [{"n": 2}, {"n": 2}, {}], "b": "aaa", "c": "1", "d": null, "e": value});
                structural::validate(&schema, &document);
                structural::prune(&schema, &mut document);
                structural::default(&schema, &mut document);
            }
        },
    },
    Target {
        name: "documents",
        seeds: &[
            r#"{"apiVersion":"v1","kind":"X","metadata":{"name":"a","labels":{"a":"b"},"ownerReferences":[{"uid":"u"}]},"spec":{"ports":[{"port":80}],"set":["a"],"map":{"a":"b"},"amount":"5Gi"}}"#,
        ],
        run: |bytes| {
            if let Some(mut value) = json_of(bytes) {
                structural::validate_update(schema(), &value, &document());
                structural::prune(schema(), &mut value);
                structural::default(schema(), &mut value);
            }
        },
    },
    Target {
        name: "token files",
        seeds: &["secret,alice,u1,\"ops,dev\"\n# a comment\nother,bob,,\n"],
        run: |bytes| {
            let _ = StaticTokens::parse(&text(bytes));
        },
    },
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json_of(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn document() -> Value {
    json!({
        "apiVersion": "v1", "kind": "X", "metadata": {"name": "a", "finalizers": ["a", "b"]},
        "spec": {"ports": [{"port": 80, "name": "web"}, {"port": 81}], "set": ["a"], "map": {"a": "b"}},
    })
}

fn on_document(bytes: &[u8], change: fn(&mut Value, &Value) -> bool) {
    if let Some(value) = json_of(bytes) {
        let mut document = document();
        change(&mut document, &value);
    }
}

fn manager(name: &str) -> Manager {
    Manager {
        name: name.to_owned(),
        api_version: "v1".to_owned(),
        subresource: None,
        time: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let ports = json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port",
            "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}},
        });
        Schema::parse(&json!({"type": "object", "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": {
                "ports": ports, "amount": {"x-kubernetes-int-or-string": true},
                "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "map": {"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "granular"},
            }},
        }}))
        .unwrap()
    })
}

#[test]
fn no_bytes_make_a_parser_stumble() {
    for target in TARGETS {
        for seed in target.seeds {
            (target.run)(seed.as_bytes());
        }
        for round in 0..rounds(1500, 300_000) {
            let mut random = Random(round);
            let seed = random.pick(target.seeds);
            let bytes = mutate(&mut random, seed.as_bytes());
            let outcome = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(outcome.is_ok(), "{}: round {round}: {:?}", target.name, text(&bytes));
        }
    }
}

/// A parser whose work grows faster than its input would not come back from these.
#[test]
fn much_of_the_same_takes_its_time_and_no_more() {
    for target in TARGETS {
        for seed in target.seeds {
            let whole = seed.as_bytes();
            for piece in [
                whole,
                &whole[..whole.len() / 2],
                b"(",
                b"[",
                b"{\"a\":",
                b",a=b",
                b"/a",
                b"9",
                b".",
                b"\\",
                b"%",
                b"!",
            ] {
                (target.run)(&piece.repeat(100_000 / piece.len().max(1)));
            }
            // As many members, items and operations as a body may hold.
            if let Some(Value::Array(items)) = json_of(whole) {
                let many: Vec<&Value> = items.iter().cycle().take(20_000).collect();
                (target.run)(json!(many).to_string().as_bytes());
            }
        }
    }
}

/// Protobuf as every built-in kind.
#[test]
fn no_bytes_make_protobuf_stumble() {
    let table = ProtoTable::parse(include_bytes!("../../../data/proto.json")).unwrap();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "http"}}}], "tolerations": [{"tolerationSeconds": 5}]},
    });
    let whole = table.encode_object(&object).unwrap();
    let raw = proto::decode_envelope(&whole).unwrap().raw;
    let messages: Vec<String> = ["Pod", "Service", "ConfigMap", "Secret", "Event", "PersistentVolumeClaim"]
        .iter()
        .filter_map(|kind| table.message_for("v1", kind).map(str::to_owned))
        .collect();
    assert_eq!(messages.len(), 6);
    for round in 0..rounds(4000, 1_000_000) {
        let mut random = Random(round);
        let bytes = mutate(&mut random, &raw);
        let message = random.pick(&messages);
        let enveloped = mutate(&mut random, &whole);
        let outcome = std::panic::catch_unwind(|| {
            if let Ok(value) = table.decode(message, &bytes) {
                let _ = table.encode(message, &value);
            }
            if let Ok(value) = table.decode_object(&enveloped) {
                let _ = table.encode_object(&value);
            }
        });
        assert!(outcome.is_ok(), "round {round} as {message}: {bytes:02x?}");
    }
    // Messages in messages in messages, and a field that is repeated without end.
    let mut nested = Vec::new();
    for _ in 0..2000 {
        let mut outer = vec![0x0a];
        let mut length = nested.len();
        while length >= 0x80 {
            outer.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend(nested);
        nested = outer;
    }
    for message in &messages {
        let _ = table.decode(message, &nested);
        let _ = table.decode(message, &[0x12, 0x00].repeat(500_000));
    }
}
