//! Label selectors. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Labels;

/// Whether labels are selected. A selector without requirements selects everything; one that is not understood, nothing.
pub(super) fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let value = labels.get(&requirement.key);
            let listed =
                || value.is_some_and(|value| requirement.values.iter().flatten().any(|wanted| wanted == value));
            match requirement.operator.as_str() {
                "In" => listed(),
                // A label that is not there has none of the values.
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select_as_upstream_says() {
        let labels: Labels = [("app".to_owned(), "web".to_owned()), ("tier".to_owned(), String::new())].into();
        let expression = |key: &str, operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (selector, expected) in [
            (json!({}), true),
            (json!({ "matchLabels": { "app": "web" } }), true),
            (json!({ "matchLabels": { "app": "web", "x": "y" } }), false),
            (json!({ "matchLabels": { "tier": "" } }), true),
            (expression("app", "In", &["a", "web"]), true),
            (expression("app", "In", &["a"]), false),
            (expression("app", "NotIn", &["a"]), true),
            (expression("app", "NotIn", &["web"]), false),
            (expression("none", "NotIn", &["web"]), true),
            (expression("none", "In", &["web"]), false),
            (expression("tier", "Exists", &[]), true),
            (expression("none", "Exists", &[]), false),
            (expression("none", "DoesNotExist", &[]), true),
            (expression("app", "DoesNotExist", &[]), false),
            (expression("app", "Gt", &["1"]), false),
        ] {
            let parsed: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(matches(&parsed, &labels), expected, "{selector}");
        }
    }
}
