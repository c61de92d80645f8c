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
            if text(spec, &["updateStrategy", "type"]).is_empty() {
                spec["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
            }
            default(
                spec,
                "persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            );
        }
        ("apps", "DaemonSet") => {
            default(spec, "revisionHistoryLimit", 10);
            let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
            let strategy = text(spec, &["updateStrategy", "type"]).is_empty();
            if strategy {
                spec["updateStrategy"] = rolling;
            }
            default(&mut object["metadata"], "annotations", json!({}));
            default(&mut object["metadata"]["annotations"], "deprecated.daemonset.template.generation", "1");
        }
        ("batch", "Job") => {
            for (key, value) in [("parallelism", 1), ("completions", 1), ("backoffLimit", 6)] {
                default(spec, key, value);
            }
            default(spec, "completionMode", "NonIndexed");
            default(spec, "suspend", false);
            default(spec, "manualSelector", false);
            default(spec, "podReplacementPolicy", "TerminatingOrFailed");
            let labels = at(spec, &["template", "metadata", "labels"]).filter(|labels| labels.is_object()).cloned();
            if let Some(labels) = labels {
                default(&mut object["metadata"], "labels", labels);
            }
        }
        ("batch", "CronJob") => {
            default(spec, "concurrencyPolicy", "Allow");
            default(spec, "suspend", false);
            default(spec, "successfulJobsHistoryLimit", 3);
            default(spec, "failedJobsHistoryLimit", 1);
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            default(spec, "minReplicas", 1);
            if resource.storage_version == "v2" {
                let target = json!({"type": "Utilization", "averageUtilization": 80});
                default(spec, "metrics", json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
            }
        }
        _ => {}
    }
}

/// What a new job is known by: the labels of its pods, by its uid.
pub fn prepare(resource: &Resource, object: &mut Value) {
    if (resource.group.as_str(), resource.kind.as_str()) != ("batch", "Job") || object["spec"]["manualSelector"] == true
    {
        return;
    }
    let (uid, name) = (object["metadata"]["uid"].clone(), object["metadata"]["name"].clone());
    let template = at(object, &["spec", "template", "metadata", "labels"]).cloned();
    // Labels that were taken over from the template are the template's.
    let shared = template.is_some() && template.as_ref() == object["metadata"].get("labels");
    let mut add = |path: &str| {
        let Some(meta) = object.pointer_mut(path).filter(|meta| meta.is_object()) else { return };
        default(meta, "labels", json!({}));
        for prefix in ["", "batch.kubernetes.io/"] {
            meta["labels"][format!("{prefix}controller-uid")] = uid.clone();
            meta["labels"][format!("{prefix}job-name")] = name.clone();
        }
    };
    add("/spec/template/metadata");
    if shared {
        add("/metadata");
    }
    object["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

/// Kinds whose pods outlive them unless somebody says otherwise.
pub fn orphans(resource: &Resource) -> bool {
    matches!((resource.group.as_str(), resource.kind.as_str()), ("", "ReplicationController") | ("batch", "Job"))
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
            None => {
                if resource.kind != "DaemonSet" {
                    causes.push(Cause::required("spec.selector", ""));
                }
                let why = "`selector` does not match template `labels`";
                causes.push(Cause::invalid("spec.template.metadata.labels", &Value::Null, why));
            }
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
            causes.push(match resource.kind.as_str() {
                "StatefulSet" => Cause::forbidden("spec", "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"),
                _ => Cause::invalid("spec.selector", &value, "field is immutable"),
            });
        }
    }
    if (resource.group.as_str(), resource.kind.as_str()) == ("", "ReplicationController") {
        if at(object, &["spec", "selector"]).and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
            causes.push(Cause::required("spec.selector", ""));
        }
        if at(object, &["spec", "template"]).is_none_or(Value::is_null) {
            causes.push(Cause::required("spec.template", ""));
        }
    }
    let made = template(resource, object).filter(|template| template.is_object());
    if let (Some(path), Some(template)) = (template_path(resource), made)
        && at(template, &["spec", "containers"]).and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        causes.push(Cause::required(format!("{}.spec.containers", path.join(".")), ""));
    }
    if resource.group == "batch"
        && let Some(path) = template_path(resource)
    {
        let policy = template(resource, object).map_or("", |template| text(template, &["spec", "restartPolicy"]));
        if !matches!(policy, "OnFailure" | "Never") {
            let field = format!("{}.spec.restartPolicy", path.join("."));
            causes.push(Cause::required(field, "valid values: \"OnFailure\", \"Never\""));
        }
    }
    if at(object, &["spec", "replicas"]).and_then(Value::as_i64).is_some_and(|r| r < 0) {
        causes.push(Cause::invalid("spec.replicas", &object["spec"]["replicas"], "must be greater than or equal to 0"));
    }
    causes
}
