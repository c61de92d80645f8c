//! What `kubectl get` shows of built-in kinds.

mod pods;
mod workloads;

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

const fn boolean(name: &'static str, cell: fn(&Value) -> Value) -> Printer {
    Printer { name, kind: "boolean", priority: 0, cell }
}

const NAME: Printer = col("Name", |o| o["metadata"]["name"].clone());
const AGE: Printer = col("Age", age);
const CREATED: Printer =
    Printer { name: "Created At", kind: "date", priority: 0, cell: |o| o["metadata"]["creationTimestamp"].clone() };
const STORED_PHASE: Printer =
    col("Status", |o| if deleting(o) { "Terminating".into() } else { text(o, &["status", "phase"]).into() });
const ATTRIBUTES_CLASS: Printer =
    col("VolumeAttributesClass", |o| or_unset(text(o, &["spec", "volumeAttributesClassName"])));

/// The columns of a plural; name and creation time if nothing else is known.
pub fn columns(plural: &str) -> &'static [Printer] {
    match plural {
        "namespaces" => const { &[NAME, col("Status", |o| text(o, &["status", "phase"]).into()), AGE] },
        "configmaps" => const { &[NAME, col("Data", |o| (count(&o["data"]) + count(&o["binaryData"])).into()), AGE] },
        "secrets" => {
            const { &[NAME, col("Type", |o| text(o, &["type"]).into()), col("Data", |o| count(&o["data"]).into()), AGE] }
        }
        "endpoints" => const { &[NAME, col("Endpoints", endpoints), AGE] },
        "pods" => {
            const {
                &[
                    NAME,
                    col("Ready", pods::ready),
                    col("Status", pods::status),
                    col("Restarts", pods::restarts),
                    AGE,
                    wide("IP", |o| or_none(text(o, &["status", "podIP"]))),
                    wide("Node", |o| or_none(text(o, &["spec", "nodeName"]))),
                    wide("Nominated Node", |o| or_none(text(o, &["status", "nominatedNodeName"]))),
                    wide("Readiness Gates", pods::gates),
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
                    wide("Kernel-Version", node_kernel),
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
                    col("External-IP", service_address),
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
                    wide("Subobject", |o| event_about(o, "fieldPath")),
                    wide("Source", event_source),
                    col("Message", |o| {
                        o.get("message").or(o.get("note")).and_then(Value::as_str).unwrap_or_default().trim().into()
                    }),
                    wide("First Seen", |o| {
                        let times = ["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"];
                        times
                            .iter()
                            .find_map(|key| o[*key].as_str())
                            .map_or_else(|| "<unknown>".into(), |t| age_of(t).into())
                    }),
                    wide("Count", |o| {
                        let series = o["series"]["count"].as_i64();
                        let counted = ["count", "deprecatedCount"].iter().find_map(|key| o[*key].as_i64());
                        series.or(counted.filter(|count| *count > 0)).unwrap_or(1).into()
                    }),
                    wide("Name", |o| o["metadata"]["name"].clone()),
                ]
            }
        }
        "persistentvolumes" => {
            const {
                &[
                    NAME,
                    col("Capacity", |o| or_zero(text(o, &["spec", "capacity", "storage"]))),
                    col("Access Modes", |o| access_modes(&o["spec"]["accessModes"])),
                    col("Reclaim Policy", |o| text(o, &["spec", "persistentVolumeReclaimPolicy"]).into()),
                    STORED_PHASE,
                    col("Claim", |o| {
                        match (text(o, &["spec", "claimRef", "namespace"]), text(o, &["spec", "claimRef", "name"])) {
                            ("", "") => "".into(),
                            (namespace, name) => format!("{namespace}/{name}").into(),
                        }
                    }),
                    col("StorageClass", |o| text(o, &["spec", "storageClassName"]).into()),
                    ATTRIBUTES_CLASS,
                    col("Reason", |o| text(o, &["status", "reason"]).into()),
                    AGE,
                    wide("VolumeMode", |o| or_unset(text(o, &["spec", "volumeMode"]))),
                ]
            }
        }
        "persistentvolumeclaims" => {
            const {
                &[
                    NAME,
                    STORED_PHASE,
                    col("Volume", |o| text(o, &["spec", "volumeName"]).into()),
                    // What a claim has it has with its volume.
                    col("Capacity", |o| match text(o, &["spec", "volumeName"]) {
                        "" => "".into(),
                        _ => or_zero(text(o, &["status", "capacity", "storage"])),
                    }),
                    col("Access Modes", |o| match text(o, &["spec", "volumeName"]) {
                        "" => "".into(),
                        _ => access_modes(&o["status"]["accessModes"]),
                    }),
                    col("StorageClass", |o| text(o, &["spec", "storageClassName"]).into()),
                    ATTRIBUTES_CLASS,
                    AGE,
                    wide("VolumeMode", |o| or_unset(text(o, &["spec", "volumeMode"]))),
                ]
            }
        }
        "storageclasses" => {
            const {
                &[
                    col("Name", class_name),
                    col("Provisioner", |o| text(o, &["provisioner"]).into()),
                    col("ReclaimPolicy", |o| text(o, &["reclaimPolicy"]).into()),
                    col("VolumeBindingMode", |o| text(o, &["volumeBindingMode"]).into()),
                    col("AllowVolumeExpansion", |o| flag(&o["allowVolumeExpansion"])),
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
                    boolean("Global-Default", |o| flag(&o["globalDefault"])),
                    AGE,
                    col("PreemptionPolicy", |o| text(o, &["preemptionPolicy"]).into()),
                ]
            }
        }
        "endpointslices" => {
            const {
                &[
                    NAME,
                    col("AddressType", |o| text(o, &["addressType"]).into()),
                    col("Ports", slice_ports),
                    col("Endpoints", slice_addresses),
                    AGE,
                ]
            }
        }
        "customresourcedefinitions" | "roles" | "clusterroles" | "limitranges" | "csistoragecapacities" => {
            const { &[NAME, CREATED] }
        }
        "rolebindings" | "clusterrolebindings" => {
            const {
                &[
                    NAME,
                    col("Role", |o| {
                        format!("{}/{}", text(o, &["roleRef", "kind"]), text(o, &["roleRef", "name"])).into()
                    }),
                    AGE,
                    wide("Users", |o| subjects(o, "User")),
                    wide("Groups", |o| subjects(o, "Group")),
                    wide("ServiceAccounts", |o| subjects(o, "ServiceAccount")),
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
                        let Some(available) = crate::object::condition(o, "Available") else {
                            return "Unknown".into();
                        };
                        match (text(available, &["status"]), text(available, &["reason"])) {
                            (status @ "True", _) | (status, "") => status.into(),
                            (status, reason) => format!("{status} ({reason})").into(),
                        }
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
        _ => workloads::columns(plural),
    }
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

/// Seconds as kubectl prints ages.
pub fn human_duration(seconds: i64) -> String {
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

fn or_zero(text: &str) -> Value {
    if text.is_empty() { "0".into() } else { text.into() }
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
        .chain([text(node, &["metadata", "labels", "kubernetes.io/role"])])
        .filter(|r| !r.is_empty())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    or_none(&roles.join(","))
}

fn node_kernel(node: &Value) -> Value {
    let info = |key: &str| text(node, &["status", "nodeInfo", key]);
    match (or_unknown(info("kernelVersion")).as_str().unwrap_or_default(), info("architecture")) {
        (kernel, "") => kernel.into(),
        (kernel, architecture) => format!("{kernel} ({architecture})").into(),
    }
}

fn node_address(node: &Value, kind: &str) -> Value {
    let address = at(node, &["status", "addresses"])
        .and_then(Value::as_array)
        .and_then(|a| a.iter().find(|a| a["type"] == kind))
        .map(|a| text(a, &["address"]))
        .unwrap_or_default();
    or_none(address)
}

/// Where a service is reached from outside.
fn service_address(service: &Value) -> Value {
    let mut given = crate::object::strings(service["spec"].get("externalIPs"));
    match text(service, &["spec", "type"]) {
        "ClusterIP" | "NodePort" => or_none(&given.join(",")),
        "ExternalName" => text(service, &["spec", "externalName"]).into(),
        "LoadBalancer" => {
            let ingress = at(service, &["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
            let of = |one: &Value| match text(one, &["ip"]) {
                "" => text(one, &["hostname"]).to_owned(),
                ip => ip.to_owned(),
            };
            let mut all: Vec<String> = ingress.into_iter().flatten().map(of).filter(|one| !one.is_empty()).collect();
            all.sort();
            all.dedup();
            all.append(&mut given);
            if all.is_empty() { "<pending>".into() } else { all.join(",").into() }
        }
        _ => "<unknown>".into(),
    }
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
    let last = ["lastTimestamp", "deprecatedLastTimestamp", "firstTimestamp", "deprecatedFirstTimestamp", "eventTime"];
    let seen = event["series"]["lastObservedTime"].as_str();
    seen.or_else(|| last.iter().find_map(|key| event[*key].as_str()))
        .map_or_else(|| "<unknown>".into(), |t| age_of(t).into())
}

fn event_source(event: &Value) -> Value {
    let first = |paths: [&[&'static str]; 3]| {
        paths.into_iter().map(|path| text(event, path).to_owned()).find(|found| !found.is_empty()).unwrap_or_default()
    };
    let component = first([&["source", "component"], &["deprecatedSource", "component"], &["reportingController"]]);
    let component = if component.is_empty() { text(event, &["reportingComponent"]).to_owned() } else { component };
    match first([&["source", "host"], &["deprecatedSource", "host"], &["reportingInstance"]]).as_str() {
        "" => component.into(),
        host => format!("{component}, {host}").into(),
    }
}

fn event_about(event: &Value, key: &str) -> Value {
    let object = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
    text(object, &[key]).into()
}

fn event_object(event: &Value) -> Value {
    match (event_about(event, "kind").as_str(), event_about(event, "name").as_str()) {
        (Some(kind), Some("")) => kind.to_lowercase().into(),
        (Some(kind), Some(name)) => format!("{}/{name}", kind.to_lowercase()).into(),
        _ => "".into(),
    }
}

/// The first three addresses with their ports, and how many more there are.
fn endpoints(endpoints: &Value) -> Value {
    let mut all = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let addresses: Vec<&str> =
            subset["addresses"].as_array().into_iter().flatten().map(|address| text(address, &["ip"])).collect();
        let ports: Vec<i64> =
            subset["ports"].as_array().into_iter().flatten().filter_map(|p| p["port"].as_i64()).collect();
        if ports.is_empty() {
            all.extend(addresses.iter().map(|address| (*address).to_owned()));
        }
        for port in ports {
            all.extend(addresses.iter().map(|address| format!("{address}:{port}")));
        }
    }
    if all.is_empty() && count(&endpoints["subsets"]) > 0 { "".into() } else { or_none(&some(all)) }
}

/// The first three, and how many more there are.
fn some(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(3);
    all.truncate(3);
    let shown = all.join(",");
    if more > 0 { format!("{shown} + {more} more...") } else { shown }
}

fn slice_ports(slice: &Value) -> Value {
    let of = |port: &Value| match (port["port"].as_i64(), port["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => "*".to_owned(),
    };
    or_unset(&some(slice["ports"].as_array().into_iter().flatten().map(of).collect()))
}

fn slice_addresses(slice: &Value) -> Value {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    or_unset(&some(endpoints.flat_map(|endpoint| crate::object::strings(endpoint.get("addresses"))).collect()))
}

/// The one that claims without a class get is told by its name.
fn class_name(class: &Value) -> Value {
    let name = text(class, &["metadata", "name"]);
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let default = marks.iter().any(|mark| text(class, &["metadata", "annotations", mark]) == "true");
    if default { format!("{name} (default)").into() } else { name.into() }
}

fn subjects(binding: &Value, kind: &str) -> Value {
    let all = binding["subjects"].as_array().into_iter().flatten().filter(|subject| subject["kind"] == kind);
    let named = all.map(|subject| match text(subject, &["namespace"]) {
        "" => text(subject, &["name"]).to_owned(),
        namespace => format!("{namespace}/{}", text(subject, &["name"])),
    });
    named.collect::<Vec<_>>().join(", ").into()
}

fn flag(value: &Value) -> Value {
    value.as_bool().unwrap_or(false).into()
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
        let used = match text(quota, &["status", "used", name]) {
            "" => "0",
            used => used,
        };
        format!("{name}: {used}/{}", limit.as_str().unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(", ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (plural, object, column, cell)
    #[test]
    fn cells_read_as_kubectl_prints_them() {
        let default = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let cases = [
            (
                "storageclasses",
                json!({"metadata": {"name": "local", "annotations": default}}),
                "Name",
                "local (default)",
            ),
            (
                "storageclasses",
                json!({"metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "false"}}}),
                "Name",
                "local",
            ),
            ("services", json!({"spec": {"type": "ClusterIP"}}), "External-IP", "<none>"),
            (
                "services",
                json!({"spec": {"type": "NodePort", "externalIPs": ["192.0.2.1", "192.0.2.2"]}}),
                "External-IP",
                "192.0.2.1,192.0.2.2",
            ),
            (
                "services",
                json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {}}}),
                "External-IP",
                "<pending>",
            ),
            (
                "services",
                json!({"spec": {"type": "LoadBalancer", "externalIPs": ["192.0.2.1"]}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"hostname": "lb.example.com"}]}}}),
                "External-IP",
                "192.0.2.9,lb.example.com,192.0.2.1",
            ),
            (
                "services",
                json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
                "External-IP",
                "example.com",
            ),
            (
                "persistentvolumes",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Bound"}}),
                "Status",
                "Terminating",
            ),
            (
                "persistentvolumeclaims",
                json!({"status": {"phase": "Pending", "capacity": {"storage": "1Gi"}}}),
                "Capacity",
                "",
            ),
            (
                "persistentvolumeclaims",
                json!({"spec": {"volumeName": "v"}, "status": {"capacity": {"storage": "1Gi"}}}),
                "Capacity",
                "1Gi",
            ),
            (
                "nodes",
                json!({"status": {"nodeInfo": {"kernelVersion": "6.1", "architecture": "amd64"}}}),
                "Kernel-Version",
                "6.1 (amd64)",
            ),
            (
                "endpointslices",
                json!({"endpoints": [{"addresses": ["a"]}, {"addresses": ["b", "c"]}, {"addresses": ["d"]}]}),
                "Endpoints",
                "a,b,c + 1 more...",
            ),
            ("endpointslices", json!({"endpoints": null}), "Ports", "<unset>"),
            (
                "events",
                json!({"involvedObject": {"kind": "Pod"}, "reportingComponent": "me", "reportingInstance": "n"}),
                "Source",
                "me, n",
            ),
        ];
        for (plural, object, column, expected) in cases {
            let printer = columns(plural).iter().find(|printer| printer.name == column).unwrap();
            assert_eq!((printer.cell)(&object), expected, "{plural} {object}");
        }
    }

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
