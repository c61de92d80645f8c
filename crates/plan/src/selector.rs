//! Label selectors of workloads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether labels fit a selector. An empty selector fits everything.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let mut expressions = selector.match_expressions.iter().flatten();
    exact
        && expressions.all(|wanted| {
            let value = labels.get(&wanted.key);
            let listed = value.is_some_and(|value| wanted.values.iter().flatten().any(|one| one == value));
            match wanted.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// The selector as the scale subresource and list requests spell it.
pub fn to_text(selector: &LabelSelector) -> String {
    let exact = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|wanted| {
        let (key, values) = (&wanted.key, wanted.values.clone().unwrap_or_default().join(","));
        match wanted.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    exact.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_match_and_are_spelled() {
        let labels: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
        for (selector, text, expected) in [
            (json!({}), "", true),
            (json!({ "matchLabels": { "a": "1" } }), "a=1", true),
            (json!({ "matchLabels": { "a": "2" } }), "a=2", false),
            (
                json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["1", "2"] }] }),
                "a in (1,2)",
                true,
            ),
            (
                json!({ "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": ["1"] }] }),
                "a notin (1)",
                false,
            ),
            (json!({ "matchExpressions": [{ "key": "b", "operator": "DoesNotExist" }] }), "!b", true),
            (json!({ "matchExpressions": [{ "key": "b", "operator": "Exists" }] }), "b", false),
        ] {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(matches(&selector, &labels), expected, "{text}");
            assert_eq!(to_text(&selector), text);
        }
    }
}
