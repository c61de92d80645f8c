//! What `kubectl get` shows of built-in kinds.

use serde_json::{Value, json};

use crate::object::{at, text};

/// One column of a built-in kind.
#[derive(Debug)]
pub struct Printer {
    pub name: &'static str,
    pub kind: &'static str,
    pub priority: i64,
    pub cell: fn(&Value) -> Value,
}

const fn col(name: &'static str, cell: fn(&Value) -> Value) -> Printer {
    Printer { name, kind: "string", priority: 0, cell }
}

const fn wide(name: &'static str, cell: fn(&Value) -> Value) -> Printer {
    Printer { name, kind: "string", priority: 1, cell }
}

const fn int(name: &'static str, cell: fn(&Value) -> Value) -> Printer {
    Printer { name, kind: "integer", priority: 0, cell }
}

const NAME: Printer = col("Name", |o| o["metadata"]["name"].clone());
const AGE: Printer = col("Age", age);

/// The columns of a plural; name and creation time if nothing else is known.
pub fn columns(plural: &str) -> &'static [Printer] {
    match plural {
        "namespaces" => const { &[NAME, col("Status", |o| text(o, &["status", "phase"]).into()), AGE] },
        "configmaps" => const { &[NAME, int("Data", |o| (count(&o["data"]) + count(&o["binaryData"])).into()), AGE] },
        "secrets" => {
            const { &[NAME, col("Type", |o| text(o, &["type"]).into()), int("Data", |o| count(&o["data"]).into()), AGE] }
        }
        "serviceaccounts" => const { &[NAME, int("Secrets", |o| count(&o["secrets"]).into()), AGE] },
        "pods" => {
            const {
                &[
                    NAME,
                    col("Ready", pod_ready),
                    col("Status", pod_status),
                    col("Restarts", pod_restarts),
                    AGE,
                    wide("IP", |o| or_none(text(o, &["status", "podIP"]))),
                    wide("Node", |o| or_none(text(o, &["spec", "nodeName"]))),
                    wide("Nominated Node", |o| or_none(text(o, &["status", "nominatedNodeName"]))),
                    wide("Readiness Gates", |_| "<none>".into()),
                ]
            }
        }
        "nodes" => {
            const {
                &[
                    NAME,
                    col("Status", node_status),
                    col("Roles", node_roles),
                    AGE,
                    col("Version", |o| text(o, &["status", "nodeInfo", "kubeletVersion"]).into()),
                    wide("Internal-IP", |o| node_address(o, "InternalIP")),
                    wide("External-IP", |o| node_address(o, "ExternalIP")),
                    wide("OS-Image", |o| or_unknown(text(o, &["status", "nodeInfo", "osImage"]))),
                    wide("Kernel-Version", |o| or_unknown(text(o, &["status", "nodeInfo", "kernelVersion"]))),
                    wide("Container-Runtime", |o| {
                        or_unknown(text(o, &["status", "nodeInfo", "containerRuntimeVersion"]))
                    }),
                ]
            }
        }
        "services" => {
            const {
                &[
                    NAME,
                    col("Type", |o| text(o, &["spec", "type"]).into()),
                    col("Cluster-IP", |o| or_none(text(o, &["spec", "clusterIP"]))),
                    col("External-IP", |o| or_none(text(o, &["spec", "externalName"]))),
                    col("Port(s)", service_ports),
                    AGE,
                    wide("Selector", |o| selector(&o["spec"]["selector"])),
                ]
            }
        }
        "events" => {
            const {
                &[
                    col("Last Seen", event_time),
                    col("Type", |o| text(o, &["type"]).into()),
                    col("Reason", |o| text(o, &["reason"]).into()),
                    col("Object", event_object),
                    wide("Source", |o| text(o, &["source", "component"]).into()),
                    col("Message", |o| {
                        o.get("message").or(o.get("note")).and_then(Value::as_str).unwrap_or_default().trim().into()
                    }),
                    wide("Count", |o| o["count"].as_i64().unwrap_or(1).to_string().into()),
                    wide("Name", |o| o["metadata"]["name"].clone()),
                ]
            }
        }
        "persistentvolumes" => {
            const {
                &[
                    NAME,
                    col("Capacity", |o| text(o, &["spec", "capacity", "storage"]).into()),
                    col("Access Modes", |o| access_modes(&o["spec"]["accessModes"])),
                    col("Reclaim Policy", |o| text(o, &["spec", "persistentVolumeReclaimPolicy"]).into()),
                    col("Status", |o| text(o, &["status", "phase"]).into()),
                    col("Claim", |o| {
                        match (text(o, &["spec", "claimRef", "namespace"]), text(o, &["spec", "claimRef", "name"])) {
                            ("", "") => "".into(),
                            (namespace, name) => format!("{namespace}/{name}").into(),
                        }
                    }),
                    col("StorageClass", |o| text(o, &["spec", "storageClassName"]).into()),
                    col("Reason", |o| text(o, &["status", "reason"]).into()),
                    AGE,
                    wide("VolumeMode", |o| text(o, &["spec", "volumeMode"]).into()),
                ]
            }
        }
        "persistentvolumeclaims" => {
            const {
                &[
                    NAME,
                    col("Status", |o| {
                        if deleting(o) { "Terminating".into() } else { text(o, &["status", "phase"]).into() }
                    }),
                    col("Volume", |o| text(o, &["spec", "volumeName"]).into()),
                    col("Capacity", |o| text(o, &["status", "capacity", "storage"]).into()),
                    col("Access Modes", |o| access_modes(&o["status"]["accessModes"])),
                    col("StorageClass", |o| text(o, &["spec", "storageClassName"]).into()),
                    AGE,
                    wide("VolumeMode", |o| text(o, &["spec", "volumeMode"]).into()),
                ]
            }
        }
        "storageclasses" => {
            const {
                &[
                    NAME,
                    col("Provisioner", |o| text(o, &["provisioner"]).into()),
                    col("ReclaimPolicy", |o| text(o, &["reclaimPolicy"]).into()),
                    col("VolumeBindingMode", |o| text(o, &["volumeBindingMode"]).into()),
                    col("AllowVolumeExpansion", |o| {
                        o["allowVolumeExpansion"].as_bool().unwrap_or(false).to_string().into()
                    }),
                    AGE,
                ]
            }
        }
        "leases" => const { &[NAME, col("Holder", |o| text(o, &["spec", "holderIdentity"]).into()), AGE] },
        "priorityclasses" => {
            const {
                &[
                    NAME,
                    int("Value", |o| o["value"].clone()),
                    col("Global-Default", |o| o["globalDefault"].as_bool().unwrap_or(false).to_string().into()),
                    AGE,
                ]
            }
        }
        "endpointslices" => {
            const {
                &[
                    NAME,
                    col("AddressType", |o| text(o, &["addressType"]).into()),
                    col("Ports", |o| join(&o["ports"], |p| p["port"].as_i64().map(|n| n.to_string()))),
                    col("Endpoints", |o| join(&o["endpoints"], |e| e["addresses"][0].as_str().map(str::to_owned))),
                    AGE,
                ]
            }
        }
        "controllerrevisions" => const { &[NAME, int("Revision", |o| o["revision"].clone()), AGE] },
        "customresourcedefinitions" => {
            const { &[NAME, Printer { kind: "date", ..col("Created At", |o| o["metadata"]["creationTimestamp"].clone()) }] }
        }
        "roles" | "clusterroles" => {
            const { &[NAME, col("Created At", |o| o["metadata"]["creationTimestamp"].clone())] }
        }
        "rolebindings" | "clusterrolebindings" => {
            const {
                &[
                    NAME,
                    col("Role", |o| {
                        format!("{}/{}", text(o, &["roleRef", "kind"]), text(o, &["roleRef", "name"])).into()
                    }),
                    AGE,
                ]
            }
        }
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            const { &[NAME, int("Webhooks", |o| count(&o["webhooks"]).into()), AGE] }
        }
        "apiservices" => {
            const {
                &[
                    NAME,
                    col("Service", |o| match o["spec"]["service"].as_object() {
                        None => "Local".into(),
                        Some(s) => format!(
                            "{}/{}",
                            s.get("namespace").and_then(Value::as_str).unwrap_or_default(),
                            s.get("name").and_then(Value::as_str).unwrap_or_default()
                        )
                        .into(),
                    }),
                    col("Available", |o| {
                        crate::object::condition(o, "Available").map_or("Unknown", |c| text(c, &["status"])).into()
                    }),
                    AGE,
                ]
            }
        }
        "poddisruptionbudgets" => {
            const {
                &[
                    NAME,
                    col("Min Available", |o| or_na(&o["spec"]["minAvailable"])),
                    col("Max Unavailable", |o| or_na(&o["spec"]["maxUnavailable"])),
                    int("Allowed Disruptions", |o| o["status"]["disruptionsAllowed"].as_i64().unwrap_or(0).into()),
                    AGE,
                ]
            }
        }
        "resourcequotas" => {
            const {
                &[
                    NAME,
                    col("Request", |o| quota_use(o, |name| !name.starts_with("limits."))),
                    col("Limit", |o| quota_use(o, |name| name.starts_with("limits."))),
                    AGE,
                ]
            }
        }
        _ => workload_columns(plural),
    }
}

fn workload_columns(plural: &str) -> &'static [Printer] {
    match plural {
        "deployments" | "statefulsets" => const { &[NAME, col("Ready", |o| share(o, "readyReplicas")), AGE] },
        "replicasets" | "replicationcontrollers" => {
            const {
                &[
                    NAME,
                    int("Desired", |o| number(o, &["spec", "replicas"])),
                    int("Current", |o| number(o, &["status", "replicas"])),
                    int("Ready", |o| number(o, &["status", "readyReplicas"])),
                    AGE,
                ]
            }
        }
        "daemonsets" => {
            const {
                &[
                    NAME,
                    int("Desired", |o| number(o, &["status", "desiredNumberScheduled"])),
                    int("Ready", |o| number(o, &["status", "numberReady"])),
                    AGE,
                ]
            }
        }
        "jobs" => {
            const {
                &[
                    NAME,
                    col("Completions", |o| {
                        let done = at(o, &["status", "succeeded"]).and_then(Value::as_i64).unwrap_or(0);
                        format!("{done}/{}", at(o, &["spec", "completions"]).and_then(Value::as_i64).unwrap_or(1))
                            .into()
                    }),
                    AGE,
                ]
            }
        }
        "cronjobs" => {
            const {
                &[
                    NAME,
                    col("Schedule", |o| text(o, &["spec", "schedule"]).into()),
                    col("Suspend", |o| (at(o, &["spec", "suspend"]) == Some(&Value::Bool(true))).to_string().into()),
                    AGE,
                ]
            }
        }
        "ingressclasses" => const { &[NAME, col("Controller", |o| text(o, &["spec", "controller"]).into()), AGE] },
        "runtimeclasses" => const { &[NAME, col("Handler", |o| text(o, &["handler"]).into()), AGE] },
        "certificatesigningrequests" => {
            const {
                &[
                    NAME,
                    AGE,
                    col("SignerName", |o| text(o, &["spec", "signerName"]).into()),
                    col("Requestor", |o| text(o, &["spec", "username"]).into()),
                    col("Condition", |o| join(&o["status"]["conditions"], |c| c["type"].as_str().map(str::to_owned))),
                ]
            }
        }
        "validatingadmissionpolicies" => {
            const {
                &[
                    NAME,
                    int("Validations", |o| count(&o["spec"]["validations"]).into()),
                    col("ParamKind", |o| or_unset(text(o, &["spec", "paramKind", "kind"]))),
                    AGE,
                ]
            }
        }
        "mutatingadmissionpolicies" => {
            const {
                &[
                    NAME,
                    int("Mutations", |o| count(&o["spec"]["mutations"]).into()),
                    col("ParamKind", |o| or_unset(text(o, &["spec", "paramKind", "kind"]))),
                    AGE,
                ]
            }
        }
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            const {
                &[
                    NAME,
                    col("PolicyName", |o| text(o, &["spec", "policyName"]).into()),
                    col("ParamRef", |o| or_unset(text(o, &["spec", "paramRef", "name"]))),
                    AGE,
                ]
            }
        }
        _ => const { &[NAME, AGE] },
    }
}

fn number(object: &Value, path: &[&str]) -> Value {
    at(object, path).and_then(Value::as_i64).unwrap_or(0).into()
}

/// `1/3`: of the replicas that are wanted, those that are.
fn share(object: &Value, key: &str) -> Value {
    format!("{}/{}", number(object, &["status", key]), number(object, &["spec", "replicas"])).into()
}

fn or_unset(text: &str) -> Value {
    if text.is_empty() { "<unset>".into() } else { text.into() }
}

/// `2026-01-01T00:00:00Z` as `5d`, the way kubectl prints ages.
pub fn age_of(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => human_duration(jiff::Timestamp::now().as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let pair = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(hours / 24, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{}d", hours / 24),
        63_072_000..252_288_000 => pair(hours / 24 / 365, 'y', hours / 24 % 365, 'd'),
        _ => format!("{}y", hours / 24 / 365),
    }
}

fn age(object: &Value) -> Value {
    match text(object, &["metadata", "creationTimestamp"]) {
        "" => "<unknown>".into(),
        time => age_of(time).into(),
    }
}

fn deleting(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string)
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn or_unknown(text: &str) -> Value {
    if text.is_empty() { "<unknown>".into() } else { text.into() }
}

fn join(list: &Value, one: impl Fn(&Value) -> Option<String>) -> Value {
    let parts: Vec<String> = list.as_array().into_iter().flatten().filter_map(one).collect();
    or_none(&parts.join(","))
}

fn selector(value: &Value) -> Value {
    let parts: Vec<String> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    or_none(&parts.join(","))
}

fn statuses(pod: &Value) -> &[Value] {
    at(pod, &["status", "containerStatuses"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn pod_ready(pod: &Value) -> Value {
    let ready = statuses(pod).iter().filter(|s| s["ready"] == true).count();
    format!("{ready}/{}", count(&pod["spec"]["containers"])).into()
}

fn pod_restarts(pod: &Value) -> Value {
    statuses(pod).iter().filter_map(|s| s["restartCount"].as_i64()).sum::<i64>().to_string().into()
}

fn pod_status(pod: &Value) -> Value {
    let mut status = match text(pod, &["status", "reason"]) {
        "" => text(pod, &["status", "phase"]),
        reason => reason,
    };
    for container in statuses(pod) {
        let waiting = text(container, &["state", "waiting", "reason"]);
        let terminated = text(container, &["state", "terminated", "reason"]);
        if let Some(reason) = [waiting, terminated].into_iter().find(|r| !r.is_empty()) {
            status = reason;
        }
    }
    if deleting(pod) && !matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        status = "Terminating";
    }
    status.into()
}

fn node_status(node: &Value) -> Value {
    let ready = crate::object::condition(node, "Ready").map_or("Unknown", |c| match text(c, &["status"]) {
        "True" => "Ready",
        _ => "NotReady",
    });
    if node["spec"]["unschedulable"] == true { format!("{ready},SchedulingDisabled").into() } else { ready.into() }
}

fn node_roles(node: &Value) -> Value {
    let labels = at(node, &["metadata", "labels"]).and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flat_map(|l| l.keys())
        .filter_map(|k| k.strip_prefix("node-role.kubernetes.io/"))
        .filter(|r| !r.is_empty())
        .collect();
    or_none(&roles.join(","))
}

fn node_address(node: &Value, kind: &str) -> Value {
    let address = at(node, &["status", "addresses"])
        .and_then(Value::as_array)
        .and_then(|a| a.iter().find(|a| a["type"] == kind))
        .map(|a| text(a, &["address"]))
        .unwrap_or_default();
    or_none(address)
}

fn service_ports(service: &Value) -> Value {
    join(&service["spec"]["ports"], |p| {
        let protocol = p["protocol"].as_str().unwrap_or("TCP");
        let port = p["port"].as_i64()?;
        Some(match p["nodePort"].as_i64() {
            Some(node) if node > 0 => format!("{port}:{node}/{protocol}"),
            _ => format!("{port}/{protocol}"),
        })
    })
}

fn access_modes(modes: &Value) -> Value {
    let short: Vec<&str> = modes
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|m| match m.as_str()? {
            "ReadWriteOnce" => Some("RWO"),
            "ReadOnlyMany" => Some("ROX"),
            "ReadWriteMany" => Some("RWX"),
            "ReadWriteOncePod" => Some("RWOP"),
            _ => None,
        })
        .collect();
    json!(short.join(","))
}

fn event_time(event: &Value) -> Value {
    ["lastTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp"]
        .iter()
        .find_map(|key| event[*key].as_str())
        .or_else(|| event["metadata"]["creationTimestamp"].as_str())
        .map_or_else(|| "<unknown>".into(), |t| age_of(t).into())
}

fn event_object(event: &Value) -> Value {
    let object = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
    format!("{}/{}", text(object, &["kind"]).to_lowercase(), text(object, &["name"])).into()
}

fn or_na(value: &Value) -> Value {
    match value {
        Value::Null => "N/A".into(),
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

/// `pods: 1/2, services: 0/5`.
fn quota_use(quota: &Value, wanted: fn(&str) -> bool) -> Value {
    let hard = at(quota, &["status", "hard"]).and_then(Value::as_object).into_iter().flatten();
    let each = hard.filter(|(name, _)| wanted(name)).map(|(name, limit)| {
        let used = text(quota, &["status", "used", name]);
        format!("{name}: {used}/{}", limit.as_str().unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(", ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (305, "5m5s"),
            (700, "11m"),
            (11_000, "3h3m"),
            (30_000, "8h"),
            (200_000, "2d7h"),
            (1_000_000, "11d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(human_duration(seconds), expected);
        }
    }
}
