//! Rules of built-in kinds that say everything about their objects, so that what their schemas require is not said again.

use base64::Engine as _;
use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use crate::object::{at, strings, text};

/// Kinds for which a missing field is what these rules, or nobody, make of it.
pub fn complete(kind: &str) -> bool {
    matches!(
        kind,
        "APIService"
            | "CertificateSigningRequest"
            | "CSIDriver"
            | "CSINode"
            | "CSIStorageCapacity"
            | "DeviceClass"
            | "HorizontalPodAutoscaler"
            | "ResourceClaim"
            | "VolumeAttachment"
    )
}

pub fn validate(kind: &str, object: &Value) -> Vec<Cause> {
    match kind {
        "APIService" => api_service(object),
        "CertificateSigningRequest" => signing_request(object),
        "HorizontalPodAutoscaler" => autoscaler(object),
        "VolumeAttachment" => attachment(object),
        "CSIStorageCapacity" => {
            let class = text(object, &["storageClassName"]);
            let faults = names::dns_subdomain(class).into_iter();
            faults.take(1).map(|fault| Cause::invalid("storageClassName", &json!(class), fault)).collect()
        }
        _ => Vec::new(),
    }
}

fn api_service(service: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = crate::object::name(service);
    let (group, version) = (text(service, &["spec", "group"]), text(service, &["spec", "version"]));
    let wanted = format!("{version}.{group}");
    if name != wanted {
        let why = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
    if group.is_empty() && version != "v1" {
        causes.push(Cause::required("spec.group", "only v1 may have an empty group and it better be legacy kube"));
    } else if !group.is_empty() {
        let faults = names::dns_subdomain(group).into_iter();
        causes.extend(faults.map(|fault| Cause::invalid("spec.group", &json!(group), fault)));
    }
    let faults = names::dns_label_1035(version).into_iter();
    causes.extend(faults.map(|fault| Cause::invalid("spec.version", &json!(version), fault)));
    for (key, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = at(service, &["spec", key]).and_then(Value::as_i64).unwrap_or(0);
        if priority <= 0 || priority > most {
            let why = format!("must be positive and less than {most}");
            causes.push(Cause::invalid(format!("spec.{key}"), &json!(priority), why));
        }
    }
    causes
}

fn signing_request(request: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let content = text(request, &["spec", "request"]);
    let decoded = base64::engine::general_purpose::STANDARD.decode(content).unwrap_or_default();
    let begins = b"-----BEGIN CERTIFICATE REQUEST-----";
    if !decoded.windows(begins.len()).any(|part| part == begins) {
        let why = "PEM block type must be CERTIFICATE REQUEST";
        causes.push(Cause::invalid("spec.request", &json!(content), why));
    }
    if strings(request["spec"].get("usages")).is_empty() {
        causes.push(Cause::required("spec.usages", ""));
    }
    if text(request, &["spec", "signerName"]).is_empty() {
        causes.push(Cause::required("spec.signerName", ""));
    }
    causes
}

fn autoscaler(autoscaler: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let number = |key: &str| at(autoscaler, &["spec", key]).and_then(Value::as_i64);
    let most = number("maxReplicas").unwrap_or(0);
    if most < 1 {
        causes.push(Cause::required("spec.maxReplicas", "must be greater than 0"));
    }
    if number("minReplicas").is_some_and(|least| most < least) {
        let why = "must be greater than or equal to `minReplicas`";
        causes.push(Cause::invalid("spec.maxReplicas", &json!(most), why));
    }
    for key in ["kind", "name"] {
        if text(autoscaler, &["spec", "scaleTargetRef", key]).is_empty() {
            causes.push(Cause::required(format!("spec.scaleTargetRef.{key}"), ""));
        }
    }
    let version = text(autoscaler, &["spec", "scaleTargetRef", "apiVersion"]);
    if !version.contains('/') {
        let why = "apiVersion must specify API group";
        causes.push(Cause::invalid("spec.scaleTargetRef.apiVersion", &json!(version), why));
    }
    causes
}

fn attachment(attachment: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if text(attachment, &["spec", "attacher"]).is_empty() {
        causes.push(Cause::required("spec.attacher", ""));
    }
    let source = &attachment["spec"]["source"];
    let given = ["inlineVolumeSpec", "persistentVolumeName"].iter().filter(|key| !source[**key].is_null()).count();
    if given == 0 {
        let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        causes.push(Cause::required("spec.source", why));
    }
    let node = text(attachment, &["spec", "nodeName"]);
    let faults = names::dns_subdomain(node).into_iter();
    causes.extend(faults.take(1).map(|fault| Cause::invalid("spec.nodeName", &json!(node), fault)));
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (kind, object, fields that are refused), in upstream's order.
    #[test]
    fn rarer_kinds_are_held_to_their_rules() {
        let pem = base64::engine::general_purpose::STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nMA==\n");
        let target = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "name": "x"});
        let service = json!({"metadata": {"name": "v1.a.example.com"}, "spec": {"group": "a.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}});
        let cases: [(&str, Value, &[&str]); 10] = [
            (
                "CertificateSigningRequest",
                json!({"spec": {"request": pem, "signerName": "a/b", "usages": ["client auth"]}}),
                &[],
            ),
            ("CertificateSigningRequest", json!({"spec": {}}), &["spec.request", "spec.usages", "spec.signerName"]),
            (
                "HorizontalPodAutoscaler",
                json!({"spec": {"minReplicas": 1, "maxReplicas": 3, "scaleTargetRef": target}}),
                &[],
            ),
            (
                "HorizontalPodAutoscaler",
                json!({"spec": {"minReplicas": 5, "maxReplicas": 3, "scaleTargetRef": target}}),
                &["spec.maxReplicas"],
            ),
            (
                "HorizontalPodAutoscaler",
                json!({"spec": {"minReplicas": 1, "scaleTargetRef": {}}}),
                &[
                    "spec.maxReplicas",
                    "spec.maxReplicas",
                    "spec.scaleTargetRef.kind",
                    "spec.scaleTargetRef.name",
                    "spec.scaleTargetRef.apiVersion",
                ],
            ),
            ("APIService", service, &[]),
            (
                "APIService",
                json!({"metadata": {"name": "x"}, "spec": {}}),
                &["metadata.name", "spec.group", "spec.version", "spec.groupPriorityMinimum", "spec.versionPriority"],
            ),
            (
                "VolumeAttachment",
                json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "p"}}}),
                &[],
            ),
            ("VolumeAttachment", json!({"spec": {"source": {}}}), &["spec.attacher", "spec.source", "spec.nodeName"]),
            ("ConfigMap", json!({}), &[]),
        ];
        for (kind, object, expected) in cases {
            let fields: Vec<String> = validate(kind, &object).into_iter().map(|cause| cause.field).collect();
            assert_eq!(fields, expected, "{kind} {object}");
        }
    }
}
