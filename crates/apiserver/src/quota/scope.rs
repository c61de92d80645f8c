//! Which objects a quota is about.

use std::collections::BTreeMap;

use ferrovirt_schema::LabelSelector;
use serde_json::{Value, json};

use crate::object::{at, strings, text};
use crate::registry::Resource;

/// Conditions that all have to hold. None: every object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scopes(Vec<Scope>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    name: String,
    operator: String,
    values: Value,
}

impl Scopes {
    pub fn of(quota: &Value) -> Self {
        let plain = strings(at(quota, &["spec", "scopes"])).into_iter().map(|name| Scope {
            name,
            operator: "Exists".to_owned(),
            values: Value::Null,
        });
        let expressions = at(quota, &["spec", "scopeSelector", "matchExpressions"]).and_then(Value::as_array);
        let selected = expressions.into_iter().flatten().map(|expression| Scope {
            name: text(expression, &["scopeName"]).to_owned(),
            operator: text(expression, &["operator"]).to_owned(),
            values: expression["values"].clone(),
        });
        Self(plain.chain(selected).collect())
    }

    pub fn hold(&self, resource: &Resource, object: &Value) -> bool {
        let kind = if resource.group.is_empty() { resource.plural.as_str() } else { "" };
        self.0.iter().all(|scope| match kind {
            "pods" => scope.holds_for_pod(object),
            "persistentvolumeclaims" => scope.holds_for_claim(object),
            _ => false,
        })
    }
}

impl Scope {
    fn holds_for_pod(&self, pod: &Value) -> bool {
        match self.name.as_str() {
            "Terminating" => is_terminating(pod),
            "NotTerminating" => !is_terminating(pod),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => self.selects(&[text(pod, &["spec", "priorityClassName"])]),
            "CrossNamespacePodAffinity" => looks_into_other_namespaces(pod),
            _ => false,
        }
    }

    fn holds_for_claim(&self, claim: &Value) -> bool {
        let paths: [&[&str]; 3] = [
            &["spec", "volumeAttributesClassName"],
            &["status", "currentVolumeAttributesClassName"],
            &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
        ];
        self.name == "VolumeAttributesClass" && self.selects(&paths.map(|path| text(claim, path)))
    }

    /// Whether one of the names is selected. Empty ones are none; an object without any has only the absence of one.
    fn selects(&self, names: &[&str]) -> bool {
        let mut names: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
        if self.operator == "Exists" {
            return !names.is_empty();
        }
        if names.is_empty() {
            names.push("");
        }
        let expression =
            json!({"matchExpressions": [{"key": "scope", "operator": self.operator, "values": self.values}]});
        let Ok(selector) = LabelSelector::from_json(&expression) else { return false };
        names.into_iter().any(|name| {
            let labels: BTreeMap<String, String> = Some(name)
                .filter(|name| !name.is_empty())
                .map(|name| ("scope".to_owned(), name.to_owned()))
                .into_iter()
                .collect();
            selector.matches(&labels)
        })
    }
}

/// Has a deadline, and so an end.
pub fn is_terminating(pod: &Value) -> bool {
    at(pod, &["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    text(pod, &["status", "qosClass"]) == "BestEffort"
}

/// Whether where it runs depends on pods of other namespaces.
fn looks_into_other_namespaces(pod: &Value) -> bool {
    let abroad = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|list| !list.is_empty())
            || term.get("namespaceSelector").is_some_and(|selector| !selector.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().filter_map(|kind| at(pod, &["spec", "affinity", kind])).any(|affinity| {
        let list = |key: &str| affinity[key].as_array().into_iter().flatten();
        list("requiredDuringSchedulingIgnoredDuringExecution").any(abroad)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .any(|weighted| abroad(&weighted["podAffinityTerm"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn scopes_are_read_as_upstream_reads_them() {
        let snapshot = Registry::new().snapshot();
        let find = |plural: &str| snapshot.find("", plural).unwrap().clone();
        let (pods, claims, maps) = (find("pods"), find("persistentvolumeclaims"), find("configmaps"));
        let select = |name: &str, operator: &str, values: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": name, "operator": operator, "values": values}]}});
        let urgent = json!({"spec": {"priorityClassName": "urgent"}});
        let class = json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {"currentVolumeAttributesClassName": "silver"}});
        let abroad = |kind: &str, term: Value| json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
        let none = json!({});
        for (spec, resource, object, expected) in [
            (json!({}), &pods, none.clone(), true),
            (json!({}), &maps, none.clone(), true),
            (json!({"scopes": ["NotTerminating"]}), &pods, none.clone(), true),
            (json!({"scopes": ["NotTerminating"]}), &maps, none.clone(), false),
            (json!({"scopes": ["Terminating"]}), &pods, json!({"spec": {"activeDeadlineSeconds": 0}}), true),
            (json!({"scopes": ["Terminating"]}), &pods, json!({"spec": {"activeDeadlineSeconds": null}}), false),
            (json!({"scopes": ["BestEffort"]}), &pods, json!({"status": {"qosClass": "BestEffort"}}), true),
            (
                json!({"scopes": ["BestEffort", "Terminating"]}),
                &pods,
                json!({"status": {"qosClass": "BestEffort"}}),
                false,
            ),
            (json!({"scopes": ["PriorityClass"]}), &pods, urgent.clone(), true),
            (json!({"scopes": ["PriorityClass"]}), &pods, none.clone(), false),
            (select("PriorityClass", "In", json!(["urgent", "x"])), &pods, urgent.clone(), true),
            (select("PriorityClass", "In", json!(["x"])), &pods, urgent.clone(), false),
            (select("PriorityClass", "NotIn", json!(["x"])), &pods, urgent.clone(), true),
            (select("PriorityClass", "NotIn", json!(["x"])), &pods, none.clone(), true),
            (select("PriorityClass", "DoesNotExist", Value::Null), &pods, none.clone(), true),
            (select("PriorityClass", "DoesNotExist", Value::Null), &pods, urgent.clone(), false),
            (select("PriorityClass", "Nonsense", Value::Null), &pods, urgent, false),
            (
                json!({"scopes": ["CrossNamespacePodAffinity"]}),
                &pods,
                abroad("podAffinity", json!({"namespaces": ["b"]})),
                true,
            ),
            (
                json!({"scopes": ["CrossNamespacePodAffinity"]}),
                &pods,
                abroad("podAntiAffinity", json!({"namespaceSelector": {}})),
                true,
            ),
            (
                json!({"scopes": ["CrossNamespacePodAffinity"]}),
                &pods,
                abroad("podAffinity", json!({"topologyKey": "z"})),
                false,
            ),
            (select("VolumeAttributesClass", "In", json!(["silver"])), &claims, class.clone(), true),
            (select("VolumeAttributesClass", "In", json!(["tin"])), &claims, class.clone(), false),
            (select("VolumeAttributesClass", "Exists", Value::Null), &claims, none.clone(), false),
            (json!({"scopes": ["Terminating"]}), &claims, class, false),
        ] {
            let scopes = Scopes::of(&json!({"spec": spec}));
            assert_eq!(scopes.hold(resource, &object), expected, "{spec} {object}");
        }
    }
}
