//! Printer column tables.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use ferrovirt_schema::table::{Column, ColumnKind, JsonPath, cells, crd_columns};
use proptest::prelude::*;
use serde_json::{Value, json};

fn machine() -> Value {
    json!({
        "metadata": {"name": "vm", "creationTimestamp": "2024-01-01T00:00:00Z", "labels": {"a.b": "dotted", "kubevirt.io/x": "slash"}},
        "spec": {"running": true, "cores": 2, "load": 1.5, "x": [{"y": 1}, {"y": 2}, {"y": 3}]},
        "status": {"phase": "Running", "conditions": [
            {"type": "Paused", "status": "False", "n": 1},
            {"type": "Ready", "status": "True", "n": 5},
        ]},
    })
}

#[test]
fn paths() {
    for (path, expected) in [
        (".status.phase", vec![json!("Running")]),
        ("{.status.phase}", vec![json!("Running")]),
        ("status.phase", vec![json!("Running")]),
        ("$.status.phase", vec![json!("Running")]),
        (".status.conditions[?(@.type=='Ready')].status", vec![json!("True")]),
        (".status.conditions[?(@.type == \"Ready\")].status", vec![json!("True")]),
        (".status.conditions[?(@.n>=5)].type", vec![json!("Ready")]),
        (".status.conditions[?(@.n<5)].type", vec![json!("Paused")]),
        (".status.conditions[?(@.absent)].type", vec![]),
        (".status.conditions[?(@.type!='Ready')].type", vec![json!("Paused")]),
        (".spec.x[0].y", vec![json!(1)]),
        (".spec.x[-1].y", vec![json!(3)]),
        (".spec.x[1:].y", vec![json!(2), json!(3)]),
        (".spec.x[*].y", vec![json!(1), json!(2), json!(3)]),
        (".spec.x[9].y", vec![]),
        (r".metadata.labels.a\.b", vec![json!("dotted")]),
        (".metadata.labels['a.b']", vec![json!("dotted")]),
        (r".metadata.labels.kubevirt\.io/x", vec![json!("slash")]),
        (".spec.running.deeper", vec![]),
    ] {
        let parsed = JsonPath::parse(path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(parsed.find(&machine()).into_iter().cloned().collect::<Vec<_>>(), expected, "{path}");
    }
    for bad in ["{.a", ".a[", ".a[x]", ".a[?(@.b=='c']", ".a[?(b)]", "..a", ".a]", ".a['b]"] {
        assert!(JsonPath::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn cells_have_the_type_of_their_column() {
    let column = |kind, path: &str| Column::new("c", kind, path).expect("parses");
    let columns = [
        column(ColumnKind::String, ".status.phase"),
        column(ColumnKind::String, ".spec.cores"),
        column(ColumnKind::String, ".spec.x[0]"),
        column(ColumnKind::Integer, ".spec.cores"),
        column(ColumnKind::Integer, ".spec.load"),
        column(ColumnKind::Integer, ".status.phase"),
        column(ColumnKind::Number, ".spec.load"),
        column(ColumnKind::Boolean, ".spec.running"),
        column(ColumnKind::Date, ".metadata.creationTimestamp"),
        column(ColumnKind::String, ".nothing"),
    ];
    assert_eq!(
        cells(&columns, &machine()),
        [
            json!("Running"),
            json!("2"),
            json!("{\"y\":1}"),
            json!(2),
            json!(1),
            json!(null),
            json!(1.5),
            json!(true),
            json!("2024-01-01T00:00:00Z"),
            json!(null)
        ]
    );
}

#[test]
fn custom_resource_columns() {
    let names =
        |entries: &[Value]| crd_columns(entries).expect("parses").into_iter().map(|c| c.name).collect::<Vec<_>>();
    assert_eq!(names(&[]), ["Name", "Age"]);
    let phase =
        json!({"name": "Phase", "type": "string", "jsonPath": ".status.phase", "priority": 1, "description": "d"});
    assert_eq!(names(std::slice::from_ref(&phase)), ["Name", "Phase"]);
    let definition = Column::from_crd(&phase).expect("parses").definition();
    assert_eq!(definition, json!({"name": "Phase", "type": "string", "format": "", "description": "d", "priority": 1}));
}

proptest! {
    #[test]
    fn paths_never_panic(text in "[.\\[\\]?@()'\"=<>!*:0-9a\\\\{}$ é-]{0,24}") {
        if let Ok(path) = JsonPath::parse(&text) {
            path.find(&machine());
        }
    }
}
