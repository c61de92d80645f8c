//! What the fields of a pod may say. The rules that people meet: names, kinds, references between its parts, amounts.

use std::collections::HashSet;

use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use super::amount_rules;
use crate::object::{at, text};

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value.get(key).and_then(Value::as_array).into_iter().flatten().enumerate()
}

/// A field with one of a few values.
fn one_of(field: String, value: &str, known: &[&str]) -> Option<Cause> {
    let known_values: Vec<Value> = known.iter().map(|k| json!(k)).collect();
    (!value.is_empty() && !known.contains(&value)).then(|| Cause::not_supported(field, &json!(value), &known_values))
}

/// What is wrong with the spec of a new pod.
pub fn validate(pod: &Value) -> Vec<Cause> {
    let spec = &pod["spec"];
    let mut causes = Vec::new();
    causes.extend(one_of(
        "spec.restartPolicy".into(),
        text(spec, &["restartPolicy"]),
        &["Always", "OnFailure", "Never"],
    ));
    causes.extend(one_of(
        "spec.dnsPolicy".into(),
        text(spec, &["dnsPolicy"]),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    ));
    let mut volumes: HashSet<&str> = HashSet::new();
    for (index, volume) in items(spec, "volumes") {
        let name = text(volume, &["name"]);
        let field = format!("spec.volumes[{index}].name");
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
        } else if let Some(fault) = names::dns_label(name).first() {
            causes.push(Cause::invalid(field, &json!(name), fault));
        } else if !volumes.insert(name) {
            causes.push(Cause::duplicate(field, &json!(name)));
        }
        let mut sources = volume.as_object().into_iter().flatten().filter(|(key, v)| *key != "name" && !v.is_null());
        if let (Some(_), Some((second, _))) = (sources.next(), sources.next()) {
            let field = format!("spec.volumes[{index}].{second}");
            causes.push(Cause::forbidden(field, "may not specify more than 1 volume type"));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, list) {
            causes.extend(container_faults(&format!("spec.{list}[{index}]"), container, &volumes));
        }
    }
    if at(spec, &["activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|n| n < 1) {
        let fault = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid("spec.activeDeadlineSeconds", &spec["activeDeadlineSeconds"], fault));
    }
    let host = text(spec, &["hostname"]);
    if let Some(fault) = names::dns_label(host).first().filter(|_| !host.is_empty()) {
        causes.push(Cause::invalid("spec.hostname", &json!(host), fault));
    }
    for (key, value) in at(spec, &["nodeSelector"]).and_then(Value::as_object).into_iter().flatten() {
        if let Some(fault) = names::label_key(key).first() {
            causes.push(Cause::invalid("spec.nodeSelector", &json!(key), fault));
        } else if let Some(fault) = names::label_value(value.as_str().unwrap_or_default()).first() {
            causes.push(Cause::invalid("spec.nodeSelector", value, fault));
        }
    }
    for (index, toleration) in items(spec, "tolerations") {
        causes.extend(toleration_faults(&format!("spec.tolerations[{index}]"), toleration));
    }
    if items(spec, "schedulingGates").next().is_some() && !text(spec, &["nodeName"]).is_empty() {
        causes.push(Cause::forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"));
    }
    causes
}

fn toleration_faults(field: &str, toleration: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (key, operator, effect) =
        (text(toleration, &["key"]), text(toleration, &["operator"]), text(toleration, &["effect"]));
    if let Some(fault) = names::label_key(key).first().filter(|_| !key.is_empty()) {
        causes.push(Cause::invalid(format!("{field}.key"), &json!(key), fault));
    }
    if key.is_empty() && operator != "Exists" {
        let fault = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        causes.push(Cause::invalid(format!("{field}.operator"), &json!(operator), fault));
    }
    if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
        let fault = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(format!("{field}.effect"), &json!(effect), fault));
    }
    if operator == "Exists" && !text(toleration, &["value"]).is_empty() {
        let fault = "value must be empty when `operator` is 'Exists'";
        causes.push(Cause::invalid(format!("{field}.operator"), &toleration["value"], fault));
    }
    causes.extend(one_of(format!("{field}.operator"), operator, &["Equal", "Exists"]));
    causes.extend(one_of(format!("{field}.effect"), effect, &["NoExecute", "NoSchedule", "PreferNoSchedule"]));
    causes
}

fn container_faults(field: &str, container: &Value, volumes: &HashSet<&str>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(container, &["name"]);
    if let Some(fault) = names::dns_label(name).first().filter(|_| !name.is_empty()) {
        causes.push(Cause::invalid(format!("{field}.name"), &json!(name), fault));
    }
    let image = text(container, &["image"]);
    if image.is_empty() {
        causes.push(Cause::required(format!("{field}.image"), ""));
    } else if image.trim() != image {
        let fault = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(format!("{field}.image"), &json!(image), fault));
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    causes.extend(one_of(format!("{field}.imagePullPolicy"), text(container, &["imagePullPolicy"]), &policies));
    let mut taken: HashSet<&str> = HashSet::new();
    for (index, port) in items(container, "ports") {
        let place = format!("{field}.ports[{index}]");
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => causes.push(Cause::required(format!("{place}.containerPort"), "")),
            1..=65535 => {}
            _ => {
                let fault = "must be between 1 and 65535, inclusive";
                causes.push(Cause::invalid(format!("{place}.containerPort"), &port["containerPort"], fault));
            }
        }
        let name = text(port, &["name"]);
        if !name.is_empty() && !taken.insert(name) {
            causes.push(Cause::duplicate(format!("{place}.name"), &json!(name)));
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        causes.extend(one_of(format!("{place}.protocol"), text(port, &["protocol"]), &protocols));
    }
    for (index, variable) in items(container, "env") {
        let name = text(variable, &["name"]);
        let place = format!("{field}.env[{index}].name");
        if name.is_empty() {
            causes.push(Cause::required(place, ""));
        } else if !name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
            let fault =
                "a valid environment variable name must consist only of printable ASCII characters other than '='";
            causes.push(Cause::invalid(place, &json!(name), fault));
        }
    }
    for (index, mount) in items(container, "volumeMounts") {
        let name = text(mount, &["name"]);
        let place = format!("{field}.volumeMounts[{index}]");
        if name.is_empty() {
            causes.push(Cause::required(format!("{place}.name"), ""));
        } else if !volumes.contains(name) {
            causes.push(Cause::not_found(format!("{place}.name"), &json!(name)));
        }
        if text(mount, &["mountPath"]).is_empty() {
            causes.push(Cause::required(format!("{place}.mountPath"), ""));
        }
    }
    causes.extend(amount_rules::of_container(&format!("{field}.resources"), &container["resources"]));
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let handlers = ["exec", "grpc", "httpGet", "tcpSocket"];
        let probe = container.get(key).filter(|probe| probe.is_object());
        if probe.is_some_and(|probe| handlers.iter().all(|handler| probe[handler].is_null())) {
            causes.push(Cause::required(format!("{field}.{key}"), "must specify a handler type"));
        }
    }
    let security = &container["securityContext"];
    if security["allowPrivilegeEscalation"] == false && security["privileged"] == true {
        let fault = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        causes.push(Cause::invalid(format!("{field}.securityContext"), security, fault));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Value {
        let mut pod = json!({"spec": {
            "restartPolicy": "Always", "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}], "ports": [{"containerPort": 80}]}],
        }});
        change(&mut pod["spec"]);
        pod
    }

    #[test]
    fn wrong_pods_are_told_the_field() {
        assert_eq!(validate(&pod(|_| {})), []);
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 19] = [
            (|s| s["restartPolicy"] = "x".into(), "spec.restartPolicy"),
            (|s| s["dnsPolicy"] = "x".into(), "spec.dnsPolicy"),
            (|s| s["hostname"] = "A_b".into(), "spec.hostname"),
            (|s| s["activeDeadlineSeconds"] = 0.into(), "spec.activeDeadlineSeconds"),
            (|s| s["nodeSelector"] = json!({"a b": "c"}), "spec.nodeSelector"),
            (|s| s["volumes"] = json!([{"name": "v"}, {"name": "v"}]), "spec.volumes[1].name"),
            (|s| s["volumes"][0]["hostPath"] = json!({"path": "/"}), "spec.volumes[0].hostPath"),
            (|s| s["containers"][0]["name"] = "A_b".into(), "spec.containers[0].name"),
            (|s| s["containers"][0]["image"] = "".into(), "spec.containers[0].image"),
            (|s| s["containers"][0]["imagePullPolicy"] = "x".into(), "spec.containers[0].imagePullPolicy"),
            (|s| s["containers"][0]["ports"][0] = json!({}), "spec.containers[0].ports[0].containerPort"),
            (|s| s["containers"][0]["env"] = json!([{"name": "a=b"}]), "spec.containers[0].env[0].name"),
            (|s| s["containers"][0]["volumeMounts"][0]["name"] = "w".into(), "spec.containers[0].volumeMounts[0].name"),
            (
                |s| s["containers"][0]["resources"] = json!({"requests": {"cpu": 2}, "limits": {"cpu": "1"}}),
                "spec.containers[0].resources.requests",
            ),
            (|s| s["tolerations"] = json!([{"key": "a", "operator": "x"}]), "spec.tolerations[0].operator"),
            (|s| s["tolerations"] = json!([{"key": "a", "tolerationSeconds": 1}]), "spec.tolerations[0].effect"),
            (|s| s["containers"][0]["livenessProbe"] = json!({"periodSeconds": 1}), "spec.containers[0].livenessProbe"),
            (
                |s| {
                    s["containers"][0]["securityContext"] =
                        json!({"privileged": true, "allowPrivilegeEscalation": false})
                },
                "spec.containers[0].securityContext",
            ),
            (
                |s| {
                    s["schedulingGates"] = json!([{"name": "a"}]);
                    s["nodeName"] = "n".into();
                },
                "spec.nodeName",
            ),
        ];
        for (change, field) in cases {
            let fields: Vec<String> = validate(&pod(change)).into_iter().map(|c| c.field).collect();
            assert_eq!(fields, [field]);
        }
    }
}
