//! Which requests a webhook wants to see.

use std::collections::BTreeMap;

use ferrovirt_schema::selector::LabelSelector;
use serde_json::Value;

use super::Operation;
use super::webhook::Webhook;
use crate::object::at;
use crate::rest::Call;

#[derive(Debug, Default)]
pub struct Rule {
    pub operations: Vec<String>,
    pub groups: Vec<String>,
    pub versions: Vec<String>,
    pub resources: Vec<String>,
    pub scope: String,
}

/// The version in which the webhook wants the object, or None if it does not want it.
pub fn matches(
    call: &Call,
    hook: &Webhook,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Option<String> {
    let requested = call.version().name.as_str();
    let others = call.resource.versions.iter().map(|v| v.name.as_str()).filter(|v| hook.equivalent && *v != requested);
    let version = std::iter::once(requested)
        .chain(others)
        .find(|version| hook.rules.iter().any(|rule| rule.matches(call, version, operation)))?;
    if !hook.namespace_selector.is_everything() {
        // Cluster-scoped objects are not in a namespace that a selector could exclude.
        let selected =
            super::namespace_labels(call, object.or(old)).is_none_or(|labels| hook.namespace_selector.matches(&labels));
        if !selected {
            return None;
        }
    }
    if !hook.object_selector.is_everything()
        && ![object, old].into_iter().flatten().any(|o| selects(&hook.object_selector, o))
    {
        return None;
    }
    Some(version.to_owned())
}

fn selects(selector: &LabelSelector, object: &Value) -> bool {
    let labels: BTreeMap<String, String> =
        at(object, &["metadata", "labels"]).and_then(|l| serde_json::from_value(l.clone()).ok()).unwrap_or_default();
    selector.matches(&labels)
}

impl Rule {
    fn matches(&self, call: &Call, version: &str, operation: Operation) -> bool {
        let any = |list: &[String], value: &str| list.iter().any(|item| item == "*" || item == value);
        let scope = match self.scope.as_str() {
            "Cluster" => !call.resource.namespaced,
            "Namespaced" => call.resource.namespaced,
            _ => true,
        };
        scope
            && any(&self.operations, operation.as_str())
            && any(&self.groups, &call.resource.group)
            && any(&self.versions, version)
            && self.resources.iter().any(|r| resource_matches(r, &call.resource.plural, call.subresource()))
    }
}

/// `pods`, `pods/status`, `pods/*`, `*`, `*/*`, `*/scale`. A rule without a slash is about the object itself.
fn resource_matches(rule: &str, plural: &str, subresource: &str) -> bool {
    let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    match rule.split_once('/') {
        None => fits(rule, plural) && subresource.is_empty(),
        Some((resource, sub)) => fits(resource, plural) && fits(sub, subresource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_match_with_subresources() {
        let cases = [
            ("pods", "pods", "", true),
            ("pods", "pods", "status", false),
            ("pods/*", "pods", "status", true),
            ("*", "pods", "", true),
            ("*", "pods", "status", false),
            ("*/*", "pods", "", true),
            ("*/scale", "vms", "scale", true),
            ("*/scale", "vms", "", false),
        ];
        for (rule, plural, sub, expected) in cases {
            assert_eq!(resource_matches(rule, plural, sub), expected, "{rule} {plural}/{sub}");
        }
    }
}
