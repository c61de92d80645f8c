//! Which requests a webhook or a policy wants to see.

use std::collections::BTreeMap;

use ferrovirt_schema::selector::LabelSelector;
use serde_json::Value;

use super::Operation;
use crate::object::{at, strings};
use crate::rest::Call;

#[derive(Debug, Default)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    scope: String,
}

/// Rules and selectors of a webhook, a policy or a binding.
#[derive(Debug)]
pub struct Match {
    /// None: every request, as for a binding that narrows nothing down.
    rules: Option<Vec<Rule>>,
    excluded: Vec<Rule>,
    equivalent: bool,
    namespace_selector: LabelSelector,
    object_selector: LabelSelector,
}

impl Match {
    pub fn of_webhook(hook: &Value) -> Self {
        Self::read(hook, Some(rules(&hook["rules"])), Vec::new())
    }

    /// `matchConstraints` of a policy, `matchResources` of a binding.
    pub fn of_policy(resources: &Value) -> Self {
        let rules_of = |key: &str| rules(&resources[key]);
        let wanted = Some(rules_of("resourceRules")).filter(|r| !r.is_empty());
        Self::read(resources, wanted, rules_of("excludeResourceRules"))
    }

    fn read(value: &Value, rules: Option<Vec<Rule>>, excluded: Vec<Rule>) -> Self {
        let selector = |key: &str| match value.get(key) {
            Some(selector) if selector.is_object() => {
                LabelSelector::from_json(selector).unwrap_or_else(|_| LabelSelector::everything())
            }
            _ => LabelSelector::everything(),
        };
        Self {
            rules,
            excluded,
            equivalent: value["matchPolicy"] != "Exact",
            namespace_selector: selector("namespaceSelector"),
            object_selector: selector("objectSelector"),
        }
    }

    /// The version in which the object is wanted, or None if it is not.
    pub fn matches(
        &self,
        call: &Call,
        operation: Operation,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Option<String> {
        let requested = call.version().name.as_str();
        let name = match call.name() {
            "" => object.or(old).map(crate::object::name).unwrap_or_default(),
            name => name,
        };
        let any = |rules: &[Rule], version: &str| rules.iter().any(|rule| rule.matches(call, version, operation, name));
        let others =
            call.resource.versions.iter().map(|v| v.name.as_str()).filter(|v| self.equivalent && *v != requested);
        let mut versions = std::iter::once(requested).chain(others);
        if versions.clone().any(|version| any(&self.excluded, version)) {
            return None;
        }
        let version = match &self.rules {
            None => requested,
            Some(rules) => versions.find(|version| any(rules, version))?,
        };
        if !self.namespace_selector.is_everything() {
            // Cluster-scoped objects are not in a namespace that a selector could exclude.
            let selected = super::namespace_labels(call, object.or(old))
                .is_none_or(|labels| self.namespace_selector.matches(&labels));
            if !selected {
                return None;
            }
        }
        if !self.object_selector.is_everything()
            && ![object, old].into_iter().flatten().any(|o| selects(&self.object_selector, o))
        {
            return None;
        }
        Some(version.to_owned())
    }
}

fn rules(list: &Value) -> Vec<Rule> {
    let read = |rule: &Value| Rule {
        operations: strings(rule.get("operations")),
        groups: strings(rule.get("apiGroups")),
        versions: strings(rule.get("apiVersions")),
        resources: strings(rule.get("resources")),
        names: strings(rule.get("resourceNames")),
        scope: crate::object::text(rule, &["scope"]).to_owned(),
    };
    list.as_array().into_iter().flatten().map(read).collect()
}

fn selects(selector: &LabelSelector, object: &Value) -> bool {
    let labels: BTreeMap<String, String> =
        at(object, &["metadata", "labels"]).and_then(|l| serde_json::from_value(l.clone()).ok()).unwrap_or_default();
    selector.matches(&labels)
}

impl Rule {
    fn matches(&self, call: &Call, version: &str, operation: Operation, name: &str) -> bool {
        let any = |list: &[String], value: &str| list.iter().any(|item| item == "*" || item == value);
        let scope = match self.scope.as_str() {
            "Cluster" => !call.resource.namespaced,
            "Namespaced" => call.resource.namespaced,
            _ => true,
        };
        scope
            && (self.names.is_empty() || self.names.iter().any(|n| n == name))
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
