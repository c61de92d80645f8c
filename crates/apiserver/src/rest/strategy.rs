//! What Kubernetes does to the kinds it treats specially, around the generic path.

use base64::Engine as _;
use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::service_numbers::Taken;
use super::{Call, services};
use crate::object::{self, at, default, default_in, field_map, items_mut, metadata, text};
use crate::registry::{Resource, Special};
use crate::status::ApiError;
use crate::{authz, crd};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Before a new object is validated. Runs after mutating admission. What is returned is kept until the object is stored.
pub async fn prepare_create(call: &Call, object: &mut Value) -> Result<Option<Taken>, ApiError> {
    if call.version().status
        && let Some(map) = object.as_object_mut()
    {
        map.remove("status");
    }
    match call.resource.special {
        Special::Namespace => {
            field_map(object, "spec").insert("finalizers".into(), json!(["kubernetes"]));
            field_map(object, "status").insert("phase".into(), "Active".into());
        }
        Special::Pod => {
            let qos = qos_class(object);
            *field_map(object, "status") = json_map(json!({"phase": "Pending", "qosClass": qos}));
        }
        Special::Service => {
            *field_map(object, "status") = json_map(json!({"loadBalancer": {}}));
            return services::allocate(call, None, object);
        }
        Special::Claim => {
            field_map(object, "status").insert("phase".into(), "Pending".into());
        }
        Special::Secret => fold_string_data(object),
        Special::Crd => crd::prepare(call, object, None)?,
        Special::Rbac => authz::check_escalation(call, object, None)?,
        Special::ApiService => call.server.aggregation.set_condition(&call.server, object),
        Special::SigningRequest => {
            let user = call.user.to_json();
            let spec = field_map(object, "spec");
            for key in ["username", "uid", "groups", "extra"] {
                match user.get(key) {
                    Some(value) => spec.insert(key.to_owned(), value.clone()),
                    None => spec.remove(key),
                };
            }
        }
        _ => {
            super::workloads::prepare(&call.resource, object);
            super::workloads::warn(call);
        }
    }
    Ok(None)
}

/// Before a changed object is validated.
pub async fn prepare_update(call: &Call, old: &Value, new: &mut Value) -> Result<Option<Taken>, ApiError> {
    match call.resource.special {
        Special::Namespace => {
            if call.subresource() != "finalize" {
                let finalizers = at(old, &["spec", "finalizers"]).cloned().unwrap_or_else(|| json!([]));
                field_map(new, "spec").insert("finalizers".into(), finalizers);
            }
            label_namespace(new);
        }
        Special::Secret => fold_string_data(new),
        Special::Service if call.subresource().is_empty() => return services::allocate(call, Some(old), new),
        Special::Crd if call.subresource().is_empty() => crd::prepare(call, new, Some(old))?,
        Special::Rbac => authz::check_escalation(call, new, Some(old))?,
        Special::ApiService if call.subresource().is_empty() => {
            call.server.aggregation.set_condition(&call.server, new)
        }
        Special::None if call.subresource().is_empty() => super::workloads::warn(call),
        _ => {}
    }
    Ok(None)
}

/// Rules of special kinds beyond their schema.
pub fn validate(call: &Call, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    match call.resource.special {
        Special::Crd if call.subresource().is_empty() => causes.extend(crd::validate(object, old)),
        Special::Service => causes.extend(services::validate(object, old)),
        Special::Webhook => causes.extend(crate::admission::check_webhooks(object)),
        Special::Policy => causes.extend(crate::admission::policy::check(object)),
        Special::Rbac => {
            if let Some(old) = old
                && old.get("roleRef") != object.get("roleRef")
            {
                causes.push(Cause::invalid("roleRef", &object["roleRef"], "cannot change roleRef"));
            }
        }
        Special::Pod => causes.extend(super::pods::validate(object, old)),
        Special::Secret => {
            for (key, value) in object["data"].as_object().into_iter().flatten() {
                let decodes =
                    value.as_str().is_some_and(|v| base64::engine::general_purpose::STANDARD.decode(v).is_ok());
                if !decodes && !value.is_null() {
                    causes.push(Cause::invalid(format!("data[{key}]"), &json!("<secret>"), "must be base64"));
                }
            }
        }
        _ => {}
    }
    if !call.resource.custom {
        causes.extend(super::checks::validate(&call.resource, object, old));
        causes.extend(super::workloads::validate(&call.resource, object, old));
    }
    let immutable = |kind: &Value| kind["immutable"] == true;
    if let Some(old) = old.filter(|o| immutable(o)) {
        for key in ["immutable", "data", "binaryData"] {
            if old.get(key) != object.get(key) {
                causes.push(Cause::forbidden(key, "field is immutable when `immutable` is set"));
            }
        }
    }
    causes
}

/// True when nothing keeps an object that is being deleted.
pub fn finished_deletion(resource: &Resource, object: &Value) -> bool {
    let deleting = at(object, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string);
    let has = |path: &[&str]| at(object, path).and_then(Value::as_array).is_some_and(|a| !a.is_empty());
    let graceful = at(object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(0) > 0;
    let held = graceful
        || has(&["metadata", "finalizers"])
        || (resource.special == Special::Namespace && has(&["spec", "finalizers"]));
    deleting && !held
}

/// Defaults of built-in kinds that their published schemas do not carry.
pub fn defaults(resource: &Resource, object: &mut Value) {
    match resource.special {
        Special::Namespace => label_namespace(object),
        Special::Pod => {
            if let Some(spec) = object.get_mut("spec") {
                default(spec, "serviceAccountName", "default");
                default(spec, "enableServiceLinks", true);
                pod_spec_defaults(spec);
                // What was once taken for a grace period without an end.
                if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
                    spec["terminationGracePeriodSeconds"] = 1.into();
                }
            }
            // One address is a list of one.
            let ip = text(object, &["status", "podIP"]).to_owned();
            if !ip.is_empty() {
                default_in(object, "status", "podIPs", json!([{"ip": ip}]));
            }
        }
        Special::Service => {
            if let Some(spec) = object.get_mut("spec") {
                service_defaults(spec);
            }
            if text(object, &["spec", "type"]) == "LoadBalancer"
                && let Some(balancer) = object.pointer_mut("/status/loadBalancer")
            {
                let reached = items_mut(balancer, "ingress").filter(|one| !text(one, &["ip"]).is_empty());
                reached.for_each(|one| default(one, "ipMode", "VIP"));
            }
        }
        Special::Secret => default(object, "type", "Opaque"),
        Special::Claim => {
            default_in(object, "spec", "volumeMode", "Filesystem");
            if resource.kind == "PersistentVolume" {
                default_in(object, "spec", "persistentVolumeReclaimPolicy", "Retain");
                if let Some(spec) = object.get_mut("spec") {
                    default_in(spec, "hostPath", "type", "");
                }
            }
        }
        Special::PriorityClass => default(object, "preemptionPolicy", "PreemptLowerPriority"),
        Special::Crd => crd::defaults(object),
        Special::Webhook => crate::admission::defaults(object),
        Special::Rbac => {
            default_in(object, "roleRef", "apiGroup", RBAC);
            for subject in items_mut(object, "subjects").filter(|s| matches!(text(s, &["kind"]), "User" | "Group")) {
                default(subject, "apiGroup", RBAC);
            }
        }
        Special::Policy => crate::admission::policy::defaults(object),
        Special::ApiService => {
            if let Some(spec) = object.get_mut("spec") {
                default_in(spec, "service", "port", 443);
            }
        }
        _ if resource.custom => {}
        _ => {
            plain_defaults(resource, object);
            super::workloads::defaults(resource, object);
        }
    }
}

/// Defaults of kinds that are otherwise like any other.
fn plain_defaults(resource: &Resource, object: &mut Value) {
    match resource.kind.as_str() {
        "LimitRange" => crate::admission::limits::defaults(object),
        "StorageClass" => {
            default(object, "reclaimPolicy", "Delete");
            default(object, "volumeBindingMode", "Immediate");
        }
        "CSIDriver" => {
            for (key, value) in [
                ("attachRequired", json!(true)),
                ("podInfoOnMount", json!(false)),
                ("storageCapacity", json!(false)),
                ("requiresRepublish", json!(false)),
                ("seLinuxMount", json!(false)),
                ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
                ("volumeLifecycleModes", json!(["Persistent"])),
            ] {
                default_in(object, "spec", key, value);
            }
        }
        "NetworkPolicy" => {
            let egress = at(object, &["spec", "egress"]).and_then(Value::as_array).is_some_and(|e| !e.is_empty());
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            default_in(object, "spec", "policyTypes", types);
            for list in ["ingress", "egress"] {
                let Some(spec) = object.get_mut("spec") else { break };
                let ports = items_mut(spec, list).flat_map(|rule| items_mut(rule, "ports"));
                ports.for_each(|port| default(port, "protocol", "TCP"));
            }
        }
        "ResourceClaim" => {
            let Some(devices) = object.pointer_mut("/spec/devices") else { return };
            for request in items_mut(devices, "requests") {
                default_in(request, "exactly", "allocationMode", "ExactCount");
                if text(request, &["exactly", "allocationMode"]) == "ExactCount" {
                    default_in(request, "exactly", "count", 1);
                }
            }
        }
        "FlowSchema" => default_in(object, "spec", "matchingPrecedence", 1000),
        "PriorityLevelConfiguration" => priority_level_defaults(object),
        "EndpointSlice" => {
            for port in items_mut(object, "ports") {
                default(port, "name", "");
                default(port, "protocol", "TCP");
            }
        }
        "Endpoints" => {
            for subset in items_mut(object, "subsets") {
                items_mut(subset, "ports").for_each(|port| default(port, "protocol", "TCP"));
            }
        }
        _ => {}
    }
}

fn priority_level_defaults(object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else { return };
    default_in(spec, "exempt", "nominalConcurrencyShares", 0);
    default_in(spec, "exempt", "lendablePercent", 0);
    if let Some(limited) = spec.get_mut("limited") {
        default(limited, "nominalConcurrencyShares", 30);
        default(limited, "lendablePercent", 0);
        if let Some(response) = limited.get_mut("limitResponse") {
            for (key, value) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
                default_in(response, "queuing", key, value);
            }
        }
    }
}

fn json_map(value: Value) -> serde_json::Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => serde_json::Map::new(),
    }
}

/// Selectors find a namespace by its name. One whose name is not known yet is labelled when it is.
pub fn label_namespace(namespace: &mut Value) {
    let name = object::name(namespace).to_owned();
    if name.is_empty() {
        return;
    }
    let labels = metadata(namespace).entry("labels").or_insert_with(|| json!({}));
    if labels.is_null() {
        *labels = json!({});
    }
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
}

/// What decoding does upstream, before anybody looks at the object.
pub fn fold(resource: &Resource, object: &mut Value) {
    if resource.special == Special::Secret {
        fold_string_data(object);
    }
}

/// `stringData` is write-only: it becomes base64 in `data`.
fn fold_string_data(secret: &mut Value) {
    let Some(plain) = secret.as_object_mut().and_then(|m| m.remove("stringData")) else {
        return;
    };
    let Value::Object(plain) = plain else { return };
    let data = field_map(secret, "data");
    for (key, value) in plain {
        let text = value.as_str().unwrap_or_default();
        data.insert(key, base64::engine::general_purpose::STANDARD.encode(text).into());
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let containers: Vec<&Value> =
        ["containers", "initContainers"].iter().filter_map(|k| pod["spec"][*k].as_array()).flatten().collect();
    let amount = |c: &Value, kind: &str, resource: &str| at(c, &["resources", kind, resource]).cloned();
    let any = containers.iter().any(|c| {
        ["requests", "limits"].iter().any(|kind| ["cpu", "memory"].iter().any(|r| amount(c, kind, r).is_some()))
    });
    let all_limited = containers.iter().all(|c| {
        ["cpu", "memory"].iter().all(|r| {
            let limit = amount(c, "limits", r);
            limit.is_some() && amount(c, "requests", r).is_none_or(|request| Some(request) == limit)
        })
    });
    match (any, all_limited) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Defaults of a pod's spec, also in a template.
pub fn pod_spec_defaults(spec: &mut Value) {
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
    ] {
        default(spec, key, value);
    }
    let account = text(spec, &["serviceAccountName"]).to_owned();
    if !account.is_empty() {
        default(spec, "serviceAccount", account);
    }
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers"] {
        items_mut(spec, list).for_each(container_defaults);
        for port in items_mut(spec, list).filter(|_| host_network).flat_map(|c| items_mut(c, "ports")) {
            let number = port["containerPort"].clone();
            default(port, "hostPort", number);
        }
    }
    for volume in items_mut(spec, "volumes") {
        default_in(volume, "hostPath", "type", "");
        for kind in ["secret", "configMap", "projected", "downwardAPI"] {
            default_in(volume, kind, "defaultMode", 420);
        }
        if volume.as_object().is_some_and(|v| v.len() == 1) {
            default(volume, "emptyDir", json!({}));
        }
    }
}

fn container_defaults(container: &mut Value) {
    let image = text(container, &["image"]).to_owned();
    let tag = image.rsplit('/').next().unwrap_or_default();
    let floating = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    for (key, value) in [
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("imagePullPolicy", json!(if floating { "Always" } else { "IfNotPresent" })),
        ("resources", json!({})),
    ] {
        default(container, key, value);
    }
    for port in items_mut(container, "ports") {
        default(port, "protocol", "TCP");
    }
    // A limit without a request is also the request.
    let limits = at(container, &["resources", "limits"]).and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(resources) = container.get_mut("resources").filter(|_| !limits.is_empty()) {
        default(resources, "requests", json!({}));
        for (name, amount) in limits {
            default_in(resources, "requests", &name, amount);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for (key, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            default_in(container, probe, key, value);
        }
        if let Some(probe) = container.get_mut(probe) {
            default_in(probe, "httpGet", "path", "/");
            default_in(probe, "httpGet", "scheme", "HTTP");
            default_in(probe, "grpc", "service", "");
        }
    }
    for source in items_mut(container, "env").filter_map(|e| e.get_mut("valueFrom")) {
        default_in(source, "fieldRef", "apiVersion", "v1");
    }
}

fn service_defaults(spec: &mut Value) {
    default(spec, "type", "ClusterIP");
    default(spec, "sessionAffinity", "None");
    let kind = text(spec, &["type"]).to_owned();
    if kind != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    if text(spec, &["sessionAffinity"]) == "ClientIP" {
        default(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
    }
    for port in items_mut(spec, "ports") {
        default(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        default(port, "targetPort", number);
    }
}
