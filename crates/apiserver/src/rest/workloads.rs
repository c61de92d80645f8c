//! Defaults and rules of kinds that carry a pod template. Nothing here acts on them: no workload controller runs.

use std::collections::BTreeMap;

use ferrovirt_schema::{Cause, LabelSelector};
use serde_json::{Value, json};

use super::Call;
use super::strategy::pod_spec_defaults;
use crate::object::{at, default, default_in, text};
use crate::registry::{self, Resource};

/// Whoever writes a workload relies on somebody to run it; silence would be a lie.
pub fn warn(call: &Call) {
    let resource = &call.resource;
    if !resource.custom && registry::is_workload(&resource.group, &resource.plural) {
        call.warn(format!(
            "this host runs virtual machines, not workload controllers: the {} is stored and nothing acts on it",
            resource.kind
        ));
    }
}

/// Defaults of a built-in kind with a pod template; other kinds stay as they are.
pub fn defaults(resource: &Resource, object: &mut Value) {
    if let Some(template) = template_mut(resource, object).and_then(|t| t.get_mut("spec")) {
        pod_spec_defaults(template);
    }
    let Some(spec) = object.get_mut("spec") else { return };
    let share = json!("25%");
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "ReplicationController") => {
            default(spec, "replicas", 1);
            let labels = at(spec, &["template", "metadata", "labels"]).cloned().unwrap_or_default();
            if spec["selector"].as_object().is_none_or(serde_json::Map::is_empty) && labels.is_object() {
                spec["selector"] = labels.clone();
            }
            if labels.is_object() {
                default(&mut object["metadata"], "labels", labels);
            }
        }
        ("apps", "ReplicaSet") => default(spec, "replicas", 1),
        ("apps", "Deployment") => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "progressDeadlineSeconds", 600);
            default(spec, "strategy", json!({}));
            default_in(spec, "strategy", "type", "RollingUpdate");
            if text(spec, &["strategy", "type"]) == "RollingUpdate" {
                default_in(spec, "strategy", "rollingUpdate", json!({}));
                for key in ["maxUnavailable", "maxSurge"] {
                    default_in(&mut spec["strategy"], "rollingUpdate", key, share.clone());
                }
            }
        }
        ("apps", "StatefulSet") => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "podManagementPolicy", "OrderedReady");
            default(spec, "updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
            default(
                spec,
                "persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            );
        }
        ("apps", "DaemonSet") => {
            default(spec, "revisionHistoryLimit", 10);
            let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
            default(spec, "updateStrategy", rolling);
        }
        ("batch", "Job") => {
            for (key, value) in [("parallelism", 1), ("completions", 1), ("backoffLimit", 6)] {
                default(spec, key, value);
            }
            default(spec, "completionMode", "NonIndexed");
            default(spec, "suspend", false);
            default(spec, "podReplacementPolicy", "TerminatingOrFailed");
        }
        ("batch", "CronJob") => {
            default(spec, "concurrencyPolicy", "Allow");
            default(spec, "suspend", false);
            default(spec, "successfulJobsHistoryLimit", 3);
            default(spec, "failedJobsHistoryLimit", 1);
        }
        ("autoscaling", "HorizontalPodAutoscaler") => default(spec, "minReplicas", 1),
        _ => {}
    }
}

/// Where a kind that makes pods says what they are like.
fn template_path(resource: &Resource) -> Option<&'static [&'static str]> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "PodTemplate") => Some(&["template"]),
        ("batch", "CronJob") => Some(&["spec", "jobTemplate", "spec", "template"]),
        ("", "ReplicationController") | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => {
            Some(&["spec", "template"])
        }
        ("batch", "Job") => Some(&["spec", "template"]),
        _ => None,
    }
}

fn template_mut<'a>(resource: &Resource, object: &'a mut Value) -> Option<&'a mut Value> {
    template_path(resource)?.iter().try_fold(object, |value, key| value.get_mut(*key))
}

/// The pods that an object makes, if it makes any.
pub fn template<'a>(resource: &Resource, object: &'a Value) -> Option<&'a Value> {
    at(object, template_path(resource)?)
}

/// The selector has to select what the template makes, and stays what it was.
pub fn validate(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if resource.group == "apps"
        && matches!(resource.kind.as_str(), "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
    {
        match at(object, &["spec", "selector"]).filter(|s| s.is_object()) {
            None => causes.push(Cause::required("spec.selector", "")),
            Some(selector) => {
                let labels = at(object, &["spec", "template", "metadata", "labels"]);
                let labels: BTreeMap<String, String> =
                    labels.and_then(|l| serde_json::from_value(l.clone()).ok()).unwrap_or_default();
                let fits = LabelSelector::from_json(selector).is_ok_and(|s| s.matches(&labels));
                if !fits {
                    causes.push(Cause::invalid(
                        "spec.template.metadata.labels",
                        &json!(labels),
                        "`selector` does not match template `labels`",
                    ));
                }
            }
        }
        if let Some(old) = old
            && at(old, &["spec", "selector"]) != at(object, &["spec", "selector"])
        {
            let value = at(object, &["spec", "selector"]).cloned().unwrap_or_default();
            causes.push(Cause::invalid("spec.selector", &value, "field is immutable"));
        }
    }
    if at(object, &["spec", "replicas"]).and_then(Value::as_i64).is_some_and(|r| r < 0) {
        causes.push(Cause::invalid("spec.replicas", &object["spec"]["replicas"], "must be greater than or equal to 0"));
    }
    causes
}
