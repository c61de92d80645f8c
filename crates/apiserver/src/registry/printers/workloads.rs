//! Columns of the kinds that are stored here for others, and of the rarer ones.

use serde_json::Value;

use super::{AGE, NAME, Printer, age_of, boolean, col, count, flag, int, join, or_none, or_unset, selector, wide};
use crate::object::{at, text};

const CONTAINERS: Printer = wide("Containers", |o| containers(&o["spec"]["template"], "name"));
const IMAGES: Printer = wide("Images", |o| containers(&o["spec"]["template"], "image"));
const SELECTOR: Printer = wide("Selector", |o| label_selector(&o["spec"]["selector"]));

pub fn columns(plural: &str) -> &'static [Printer] {
    match plural {
        "podtemplates" => {
            const {
                &[
                    NAME,
                    col("Containers", |o| containers(&o["template"], "name")),
                    col("Images", |o| containers(&o["template"], "image")),
                    col("Pod Labels", |o| selector(&o["template"]["metadata"]["labels"])),
                ]
            }
        }
        "deployments" => {
            const {
                &[
                    NAME,
                    col("Ready", |o| share(o, "readyReplicas")),
                    col("Up-to-date", |o| number(o, &["status", "updatedReplicas"])),
                    col("Available", |o| number(o, &["status", "availableReplicas"])),
                    AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            }
        }
        "statefulsets" => const { &[NAME, col("Ready", |o| share(o, "readyReplicas")), AGE, CONTAINERS, IMAGES] },
        "replicasets" | "replicationcontrollers" => {
            const {
                &[
                    NAME,
                    int("Desired", |o| number(o, &["spec", "replicas"])),
                    int("Current", |o| number(o, &["status", "replicas"])),
                    int("Ready", |o| number(o, &["status", "readyReplicas"])),
                    AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            }
        }
        "daemonsets" => {
            const {
                &[
                    NAME,
                    int("Desired", |o| number(o, &["status", "desiredNumberScheduled"])),
                    int("Current", |o| number(o, &["status", "currentNumberScheduled"])),
                    int("Ready", |o| number(o, &["status", "numberReady"])),
                    int("Up-to-date", |o| number(o, &["status", "updatedNumberScheduled"])),
                    int("Available", |o| number(o, &["status", "numberAvailable"])),
                    col("Node Selector", |o| selector(&o["spec"]["template"]["spec"]["nodeSelector"])),
                    AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            }
        }
        "controllerrevisions" => {
            const { &[NAME, col("Controller", controller), col("Revision", |o| number(o, &["revision"])), AGE] }
        }
        "jobs" => {
            const {
                &[
                    NAME,
                    col("Status", job_status),
                    col("Completions", |o| {
                        let done = number(o, &["status", "succeeded"]);
                        let wanted = at(o, &["spec", "completions"]).and_then(Value::as_i64);
                        match (wanted, at(o, &["spec", "parallelism"]).and_then(Value::as_i64)) {
                            (Some(wanted), _) => format!("{done}/{wanted}").into(),
                            (None, Some(side)) if side > 1 => format!("{done}/1 of {side}").into(),
                            (None, _) => format!("{done}/1").into(),
                        }
                    }),
                    col("Duration", |_| "".into()),
                    AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            }
        }
        "cronjobs" => {
            const {
                &[
                    NAME,
                    col("Schedule", |o| text(o, &["spec", "schedule"]).into()),
                    col("Timezone", |o| or_none(text(o, &["spec", "timeZone"]))),
                    boolean("Suspend", |o| if o["spec"]["suspend"] == true { "True".into() } else { "False".into() }),
                    int("Active", |o| count(&o["status"]["active"]).into()),
                    col("Last Schedule", |o| match text(o, &["status", "lastScheduleTime"]) {
                        "" => "<none>".into(),
                        time => age_of(time).into(),
                    }),
                    AGE,
                    wide("Containers", |o| containers(&o["spec"]["jobTemplate"]["spec"]["template"], "name")),
                    wide("Images", |o| containers(&o["spec"]["jobTemplate"]["spec"]["template"], "image")),
                    wide("Selector", |o| label_selector(&o["spec"]["jobTemplate"]["spec"]["selector"])),
                ]
            }
        }
        "ingresses" => {
            const {
                &[
                    NAME,
                    col("Class", |o| or_none(text(o, &["spec", "ingressClassName"]))),
                    col("Hosts", hosts),
                    col("Address", |o| {
                        let all = at(o, &["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
                        let one = |i: &Value| match text(i, &["ip"]) {
                            "" => text(i, &["hostname"]).to_owned(),
                            ip => ip.to_owned(),
                        };
                        all.into_iter().flatten().map(one).collect::<Vec<_>>().join(",").into()
                    }),
                    col("Ports", |o| if count(&o["spec"]["tls"]) > 0 { "80, 443".into() } else { "80".into() }),
                    AGE,
                ]
            }
        }
        "networkpolicies" => const { &[NAME, col("Pod-Selector", |o| label_selector(&o["spec"]["podSelector"])), AGE] },
        "ingressclasses" => {
            const {
                &[
                    NAME,
                    col("Controller", |o| text(o, &["spec", "controller"]).into()),
                    col("Parameters", |o| match o["spec"]["parameters"].as_object() {
                        None => "<none>".into(),
                        Some(_) => {
                            let of = |key: &str| text(o, &["spec", "parameters", key]);
                            let kind = match of("apiGroup") {
                                "" => of("kind").to_owned(),
                                group => format!("{}.{group}", of("kind")),
                            };
                            format!("{kind}/{}", of("name")).into()
                        }
                    }),
                    AGE,
                ]
            }
        }
        "runtimeclasses" => const { &[NAME, col("Handler", |o| text(o, &["handler"]).into()), AGE] },
        "csidrivers" => {
            const {
                &[
                    NAME,
                    boolean("AttachRequired", |o| o["spec"]["attachRequired"].as_bool().unwrap_or(true).into()),
                    boolean("PodInfoOnMount", |o| flag(&o["spec"]["podInfoOnMount"])),
                    boolean("StorageCapacity", |o| flag(&o["spec"]["storageCapacity"])),
                    col("TokenRequests", |o| {
                        let audiences =
                            join(&o["spec"]["tokenRequests"], |t| t["audience"].as_str().map(str::to_owned));
                        if audiences == "<none>" { "<unset>".into() } else { audiences }
                    }),
                    boolean("RequiresRepublish", |o| flag(&o["spec"]["requiresRepublish"])),
                    col("Modes", |o| join(&o["spec"]["volumeLifecycleModes"], |m| m.as_str().map(str::to_owned))),
                    AGE,
                ]
            }
        }
        "csinodes" => const { &[NAME, int("Drivers", |o| count(&o["spec"]["drivers"]).into()), AGE] },
        "volumeattachments" => {
            const {
                &[
                    NAME,
                    col("Attacher", |o| text(o, &["spec", "attacher"]).into()),
                    col("PV", |o| text(o, &["spec", "source", "persistentVolumeName"]).into()),
                    col("Node", |o| text(o, &["spec", "nodeName"]).into()),
                    boolean("Attached", |o| flag(&o["status"]["attached"])),
                    AGE,
                ]
            }
        }
        "certificatesigningrequests" => {
            const {
                &[
                    NAME,
                    AGE,
                    col("SignerName", |o| text(o, &["spec", "signerName"]).into()),
                    col("Requestor", |o| text(o, &["spec", "username"]).into()),
                    col("RequestedDuration", |o| match o["spec"]["expirationSeconds"].as_i64() {
                        None => "<none>".into(),
                        Some(seconds) => super::human_duration(seconds).into(),
                    }),
                    col("Condition", signing_status),
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
                    col("ParamRef", |o| {
                        match (text(o, &["spec", "paramRef", "namespace"]), text(o, &["spec", "paramRef", "name"])) {
                            (_, "") => "<unset>".into(),
                            ("", name) => format!("*/{name}").into(),
                            (namespace, name) => format!("{namespace}/{name}").into(),
                        }
                    }),
                    AGE,
                ]
            }
        }
        "resourceclaims" => {
            const {
                &[
                    NAME,
                    col("State", |o| {
                        let mut states = Vec::new();
                        let going = super::deleting(o);
                        states.extend(going.then_some("deleted"));
                        match (o["status"]["allocation"].is_object(), count(&o["status"]["reservedFor"])) {
                            (false, _) if going => {}
                            (false, _) => states.push("pending"),
                            (true, 0) => states.push("allocated"),
                            (true, _) => states.extend(["allocated", "reserved"]),
                        }
                        states.join(",").into()
                    }),
                    AGE,
                ]
            }
        }
        "flowschemas" => {
            const {
                &[
                    NAME,
                    col("PriorityLevel", |o| text(o, &["spec", "priorityLevelConfiguration", "name"]).into()),
                    col("MatchingPrecedence", |o| number(o, &["spec", "matchingPrecedence"])),
                    col("DistinguisherMethod", |o| or_none(text(o, &["spec", "distinguisherMethod", "type"]))),
                    AGE,
                    col("MissingPL", |o| {
                        crate::object::condition(o, "Dangling").map_or("?", |found| text(found, &["status"])).into()
                    }),
                ]
            }
        }
        "prioritylevelconfigurations" => {
            const {
                &[
                    NAME,
                    col("Type", |o| text(o, &["spec", "type"]).into()),
                    col("NominalConcurrencyShares", |o| given(o, &["spec", "limited", "nominalConcurrencyShares"])),
                    col("Queues", |o| given(o, &["spec", "limited", "limitResponse", "queuing", "queues"])),
                    col("HandSize", |o| given(o, &["spec", "limited", "limitResponse", "queuing", "handSize"])),
                    col("QueueLengthLimit", |o| {
                        given(o, &["spec", "limited", "limitResponse", "queuing", "queueLengthLimit"])
                    }),
                    AGE,
                ]
            }
        }
        "servicecidrs" => {
            const { &[NAME, col("CIDRs", |o| crate::object::strings(o["spec"].get("cidrs")).join(",").into()), AGE] }
        }
        "volumeattributesclasses" => const { &[NAME, col("DriverName", |o| text(o, &["driverName"]).into()), AGE] },
        "resourceslices" => {
            const {
                &[
                    NAME,
                    col("Node", |o| text(o, &["spec", "nodeName"]).into()),
                    col("Driver", |o| text(o, &["spec", "driver"]).into()),
                    col("Pool", |o| text(o, &["spec", "pool", "name"]).into()),
                    AGE,
                ]
            }
        }
        "horizontalpodautoscalers" => {
            const {
                &[
                    NAME,
                    col("Reference", |o| {
                        let of = |key: &str| text(o, &["spec", "scaleTargetRef", key]);
                        format!("{}/{}", of("kind"), of("name")).into()
                    }),
                    col("Targets", targets),
                    col("MinPods", |o| match at(o, &["spec", "minReplicas"]).and_then(Value::as_i64) {
                        Some(least) => least.to_string().into(),
                        None => "<unset>".into(),
                    }),
                    col("MaxPods", |o| number(o, &["spec", "maxReplicas"])),
                    col("Replicas", |o| number(o, &["status", "currentReplicas"])),
                    AGE,
                ]
            }
        }
        _ => const { &[NAME, AGE] },
    }
}

fn given(object: &Value, path: &[&str]) -> Value {
    at(object, path).filter(|value| !value.is_null()).cloned().unwrap_or_else(|| "<none>".into())
}

fn signing_status(request: &Value) -> Value {
    let has = |kind: &str| crate::object::condition(request, kind).is_some();
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text(request, &["status", "certificate"]).is_empty() {
        status.push_str(",Issued");
    }
    status.into()
}

/// What an autoscaler aims at. Nobody measures here, so what there is is unknown.
fn targets(autoscaler: &Value) -> Value {
    let one = |metric: &Value| {
        let kind = text(metric, &["type"]);
        let mut member = kind.to_owned();
        if let Some(first) = member.get_mut(0..1) {
            first.make_ascii_lowercase();
        }
        let target = &metric[&member]["target"];
        let name = match kind {
            "Resource" | "ContainerResource" => format!("{}: ", text(metric, &[&member, "name"])),
            _ => String::new(),
        };
        let aim = match (target["averageValue"].as_str(), target["averageUtilization"].as_i64()) {
            (Some(each), _) if matches!(kind, "External" | "Object") => format!("{each} (avg)"),
            (Some(each), _) => each.to_owned(),
            (None, Some(share)) => format!("{share}%"),
            (None, None) => target["value"].as_str().unwrap_or("<auto>").to_owned(),
        };
        format!("{name}<unknown>/{aim}")
    };
    let metrics = autoscaler["spec"]["metrics"].as_array().map_or(&[][..], Vec::as_slice);
    let shown: Vec<String> = metrics.iter().take(2).map(one).collect();
    match metrics.len() {
        0 => "<none>".into(),
        1 | 2 => shown.join(", ").into(),
        more => format!("{} + {} more...", shown.join(", "), more - 2).into(),
    }
}

fn number(object: &Value, path: &[&str]) -> Value {
    at(object, path).and_then(Value::as_i64).unwrap_or(0).into()
}

/// `1/3`: of the replicas that are wanted, those that are.
fn share(object: &Value, key: &str) -> Value {
    format!("{}/{}", number(object, &["status", key]), number(object, &["spec", "replicas"])).into()
}

fn containers(template: &Value, key: &str) -> Value {
    let all = template["spec"]["containers"].as_array().into_iter().flatten();
    all.map(|container| text(container, &[key])).collect::<Vec<_>>().join(",").into()
}

/// A selector as it is typed. That of a replication controller is labels and nothing else.
fn label_selector(value: &Value) -> Value {
    let structured = value.get("matchLabels").is_some() || value.get("matchExpressions").is_some();
    if !structured {
        return selector(value);
    }
    let labels = value["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<String> = labels.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    for expression in value["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(expression, &["key"]);
        let values = crate::object::strings(expression.get("values")).join(",");
        parts.push(match text(expression, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    or_none(&parts.join(","))
}

fn controller(object: &Value) -> Value {
    let owners = at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array).into_iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner["controller"] == true) else {
        return "<none>".into();
    };
    let kind = text(owner, &["kind"]).to_lowercase();
    let kind = match text(owner, &["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}"),
        None => kind,
    };
    format!("{kind}/{}", text(owner, &["name"])).into()
}

fn job_status(job: &Value) -> Value {
    let is = |kind: &str| crate::object::condition(job, kind).is_some_and(|c| text(c, &["status"]) == "True");
    let known = [
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
    ];
    let status = known.into_iter().find(|(kind, _)| is(kind)).map(|(_, status)| status);
    let deleting = at(job, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string);
    status.unwrap_or(if deleting { "Terminating" } else { "Running" }).into()
}

/// The hosts of an ingress; those of all others are `*`.
fn hosts(ingress: &Value) -> Value {
    let rules = ingress["spec"]["rules"].as_array().into_iter().flatten();
    let named: Vec<&str> = rules.map(|rule| text(rule, &["host"])).filter(|host| !host.is_empty()).collect();
    if named.is_empty() { "*".into() } else { named.join(",").into() }
}
