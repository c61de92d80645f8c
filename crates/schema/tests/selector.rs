//! Selector tables: what is selected, what is refused and in which words.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeMap;

use ferrovirt_schema::selector::{FieldOp, FieldSelector, LabelSelector};
use proptest::prelude::*;
use serde_json::json;

fn labels(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter(|p| !p.is_empty())
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.into(), v.into()))
        .collect()
}

#[test]
fn label_selectors_match() {
    for (selector, on, expected) in [
        ("", "a=b", true),
        ("a=b", "a=b", true),
        ("a==b", "a=b", true),
        ("a=b", "a=c", false),
        ("a=b", "", false),
        ("a!=b", "", true),
        ("a!=b", "a=b", false),
        ("a!=b", "a=c", true),
        ("a in (x,y)", "a=y", true),
        ("a in (x, y )", "a=z", false),
        ("a in (x,y)", "", false),
        ("a notin (x,y)", "", true),
        ("a notin (x,y)", "a=x", false),
        ("a", "a=", true),
        ("a", "b=", false),
        ("!a", "b=", true),
        ("!a", "a=1", false),
        ("a>1", "a=2", true),
        ("a>1", "a=1", false),
        ("a<1", "a=0", true),
        ("a<1", "a=x", false),
        ("a=", "a=", true),
        ("a=,b", "a=,b=1", true),
        ("a in (,x)", "a=", true),
        ("a=b, c!=d, e in (x,y), f notin (z), g, !h", "a=b,e=x,g=1", true),
        ("a=b, c!=d, e in (x,y), f notin (z), g, !h", "a=b,e=x,g=1,h=1", false),
        ("kubevirt.io/domain=vm1", "kubevirt.io/domain=vm1", true),
        ("x in (in)", "x=in", true),
        ("in=x", "in=x", true),
    ] {
        let parsed = LabelSelector::parse(selector).unwrap_or_else(|e| panic!("{selector}: {e}"));
        assert_eq!(parsed.matches(&labels(on)), expected, "{selector} on {on}");
    }
}

#[test]
fn label_selectors_refuse() {
    for (selector, why) in [
        ("x=a||y=b", "unable to parse requirement: values[0][x]: Invalid value: \"a||y\": a valid label must be"),
        ("x==a==b", "found '==', expected: ',' or 'end of string'"),
        ("!x=a", "found '=', expected: ',' or 'end of string'"),
        ("x<a", "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators"),
        ("a,", "found '', expected: identifier after ','"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a in x", "unable to parse requirement: found 'x', expected: '('"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a/b/c=d", "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key"),
        ("/b=d", "unable to parse requirement: <nil>: Invalid value: \"/b\": prefix part must be non-empty"),
        ("-b=d", "unable to parse requirement: <nil>: Invalid value: \"-b\": name part must consist of"),
        ("a in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
    ] {
        let error = LabelSelector::parse(selector).expect_err(selector).to_string();
        assert!(error.starts_with(why), "{selector}: {error}");
    }
}

#[test]
fn json_selectors() {
    let yes = labels("app=web,tier=a");
    for (selector, expected) in [
        (json!({}), true),
        (json!(null), false),
        (json!({"matchLabels": {"app": "web"}}), true),
        (json!({"matchLabels": {"app": "db"}}), false),
        (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}), true),
        (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}), false),
        (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
        (json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}), true),
    ] {
        let parsed = LabelSelector::from_json(&selector).unwrap_or_else(|e| panic!("{selector}: {e}"));
        assert_eq!(parsed.matches(&yes), expected, "{selector}");
    }
    for bad in [
        json!([]),
        json!({"matchLabels": {"app": 1}}),
        json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
    ] {
        assert!(LabelSelector::from_json(&bad).is_err(), "{bad}");
    }
}

#[test]
fn field_selectors() {
    let field = |path: &str| match path {
        "metadata.name" => Some("x".to_owned()),
        "odd" => Some("a,b=c\\".to_owned()),
        _ => None,
    };
    for (selector, expected) in [
        ("", true),
        ("metadata.name=x", true),
        ("metadata.name==x,status.phase!=Running", true),
        ("metadata.name!=x", false),
        ("status.phase=", true),
        (",metadata.name=x,", true),
        (r"odd=a\,b\=c\\", true),
    ] {
        let parsed = FieldSelector::parse(selector).unwrap_or_else(|e| panic!("{selector}: {e}"));
        assert_eq!(parsed.matches(field), expected, "{selector}");
    }
    for (selector, why) in [
        ("abc", "invalid selector: 'abc'; can't understand 'abc'"),
        (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
        ("a=b=c", "invalid field selector: unescaped character in value: ="),
    ] {
        assert_eq!(FieldSelector::parse(selector).expect_err(selector).to_string(), why);
    }
    let parsed = FieldSelector::parse("a!=1").expect("parses");
    assert_eq!((parsed.terms()[0].op, parsed.required("a")), (FieldOp::NotEquals, None));
}

proptest! {
    #[test]
    fn parsers_never_panic(text in "[a-c=!(),<>\\\\ in\\PC]{0,40}") {
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
    }
}
