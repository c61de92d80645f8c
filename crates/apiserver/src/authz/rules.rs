//! PolicyRules and what they match.

use ferrovirt_schema::LabelSelector;
use serde_json::{Value, json};

use super::On;
use crate::object::{at, strings};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    urls: Vec<String>,
}

impl Rule {
    pub fn everything() -> Self {
        let all = || vec!["*".to_owned()];
        Self { verbs: all(), groups: all(), resources: all(), names: Vec::new(), urls: all() }
    }

    pub fn parse_all(rules: &Value) -> Vec<Self> {
        let list = |rule: &Value, key: &str| strings(rule.get(key));
        rules
            .as_array()
            .into_iter()
            .flatten()
            .map(|rule| Self {
                verbs: list(rule, "verbs"),
                groups: list(rule, "apiGroups"),
                resources: list(rule, "resources"),
                names: list(rule, "resourceNames"),
                urls: list(rule, "nonResourceURLs"),
            })
            .collect()
    }

    pub fn allows(&self, verb: &str, on: &On<'_>) -> bool {
        if !contains(&self.verbs, verb) {
            return false;
        }
        match *on {
            On::Path(path) => self.urls.iter().any(|url| match url.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => url == path,
            }),
            On::Resource { group, resource, subresource, name, .. } => {
                contains(&self.groups, group)
                    && self.resources.iter().any(|r| resource_matches(r, resource, subresource))
                    && (self.names.is_empty() || (!name.is_empty() && self.names.iter().any(|n| n == name)))
            }
        }
    }

    /// True if every single thing this rule grants is already allowed.
    pub fn covered(&self, namespace: &str, allowed: &impl Fn(&str, &On<'_>) -> bool) -> bool {
        let unnamed = [String::new()];
        let names: &[String] = if self.names.is_empty() { &unnamed } else { &self.names };
        self.verbs.iter().all(|verb| {
            let urls = self.urls.iter().all(|url| allowed(verb, &On::Path(url)));
            let resources = self.groups.iter().all(|group| {
                self.resources.iter().all(|full| {
                    let (resource, subresource) = full.split_once('/').unwrap_or((full, ""));
                    names
                        .iter()
                        .all(|name| allowed(verb, &On::Resource { group, resource, subresource, namespace, name }))
                })
            });
            urls && resources
        })
    }

    pub fn to_resource_rule(&self) -> Option<Value> {
        (!self.resources.is_empty()).then(|| {
            let mut rule = json!({"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources});
            if !self.names.is_empty() {
                rule["resourceNames"] = json!(self.names);
            }
            rule
        })
    }

    pub fn to_url_rule(&self) -> Option<Value> {
        (!self.urls.is_empty()).then(|| json!({"verbs": self.verbs, "nonResourceURLs": self.urls}))
    }
}

fn contains(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == "*" || item == value)
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some(("*", sub)) => sub == subresource,
        Some((res, sub)) => res == resource && sub == subresource,
    }
}

/// The union of the rules of all cluster roles that an `aggregationRule` selects.
pub fn aggregated_rules(aggregation: &Value, cluster_roles: &[Value]) -> Vec<Value> {
    let selectors: Vec<LabelSelector> = aggregation["clusterRoleSelectors"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|s| LabelSelector::from_json(s).ok())
        .collect();
    let mut rules: Vec<Value> = Vec::new();
    for role in cluster_roles.iter().filter(|r| r.get("aggregationRule").is_none_or(Value::is_null)) {
        let labels =
            at(role, &["metadata", "labels"]).and_then(|l| serde_json::from_value(l.clone()).ok()).unwrap_or_default();
        if selectors.iter().any(|s| s.matches(&labels)) {
            for rule in role["rules"].as_array().into_iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_as_rbac_documents() {
        let rules = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log", "*/scale"], "resourceNames": []},
            {"verbs": ["update"], "apiGroups": ["x"], "resources": ["*"], "resourceNames": ["one"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz/*", "/metrics"]}]);
        let rules = Rule::parse_all(&rules);
        let on =
            |group, resource, subresource, name| On::Resource { group, resource, subresource, namespace: "", name };
        let cases = [
            ("get", on("", "pods", "", "a"), true),
            ("get", on("", "pods", "log", "a"), true),
            ("get", on("", "pods", "exec", "a"), false),
            ("get", on("", "anything", "scale", "a"), true),
            ("delete", on("", "pods", "", "a"), false),
            ("get", on("apps", "pods", "", ""), false),
            ("update", on("x", "y", "z", "one"), true),
            ("update", on("x", "y", "z", "two"), false),
            ("update", on("x", "y", "", ""), false),
            ("get", On::Path("/healthz/ping"), true),
            ("get", On::Path("/metrics"), true),
            ("get", On::Path("/metrics/x"), false),
        ];
        for (verb, on, expected) in cases {
            assert_eq!(rules.iter().any(|r| r.allows(verb, &on)), expected, "{verb} {on:?}");
        }
    }
}
