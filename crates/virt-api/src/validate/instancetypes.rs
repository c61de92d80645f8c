//! Instance types and preferences, of a namespace or of the cluster. They are judged as they are written: their kinds are
//! stored, and nothing else is done with them yet.

use serde_json::Value;

use super::{Cause, Findings};

/// What creating one is answered with.
pub const NOT_APPLIED: &str =
    "instance types and preferences are stored, but not applied yet: a VM that names one is not started";

pub fn instancetype(spec: &Value) -> Vec<Cause> {
    let mut found = Findings::default();
    let memory = &spec["memory"];
    let percent = memory["overcommitPercent"].as_i64().unwrap_or_default();
    let field = "spec.memory.overcommitPercent";
    if !(0..=100).contains(&percent) {
        found.invalid(field.into(), format!("{field} '{percent}': must be in range between 0 and 100."));
    }
    if percent != 0 && !memory["hugepages"].is_null() {
        found.invalid(field.into(), format!("{field} and spec.memory.hugepages should not be requested together."));
    }
    found.0
}

pub fn instancetype_warnings(spec: &Value) -> Vec<String> {
    let outdated = !spec["launchSecurity"].is_null();
    let message = "launchSecurity is deprecated and will be removed in a future release. Use preference instead.";
    outdated.then(|| message.to_owned()).into_iter().collect()
}

/// Names of ways to lay out CPUs, the older ones with what they are called now.
const TOPOLOGIES: [(&str, Option<&str>); 10] = [
    ("sockets", None),
    ("cores", None),
    ("threads", None),
    ("spread", None),
    ("any", None),
    ("preferSockets", Some("sockets")),
    ("preferCores", Some("cores")),
    ("preferThreads", Some("threads")),
    ("preferSpread", Some("spread")),
    ("preferAny", Some("any")),
];

fn topology(spec: &Value) -> Option<&str> {
    spec["cpu"]["preferredCPUTopology"].as_str()
}

pub fn preference(spec: &Value) -> Vec<Cause> {
    let mut found = Findings::default();
    let Some(topology) = topology(spec) else { return vec![] };
    if !TOPOLOGIES.iter().any(|(known, _)| *known == topology) {
        let message = format!("unknown preferredCPUTopology {topology}");
        found.invalid("spec.cpu.preferredCPUTopology".into(), message);
    }
    if ["spread", "preferSpread"].contains(&topology) {
        let options = &spec["cpu"]["spreadOptions"];
        let across = options["across"].as_str().unwrap_or("SocketsCores");
        let older = spec["preferSpreadSocketToCoreRatio"].as_u64().filter(|ratio| *ratio != 0);
        let ratio = options["ratio"].as_u64().or(older).unwrap_or(2);
        if !["CoresThreads", "SocketsCores", "SocketsCoresThreads"].contains(&across) {
            found.invalid("spec.cpu.spreadOptions.across".into(), format!("across {across} is not supported"));
        } else if across == "CoresThreads" && ratio != 2 {
            found.invalid(
                "spec.cpu.spreadOptions.ratio".into(),
                "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads",
            );
        }
    }
    found.0
}

pub fn preference_warnings(spec: &Value) -> Vec<String> {
    let Some(topology) = topology(spec) else { return vec![] };
    let newer = TOPOLOGIES.iter().find(|(known, _)| *known == topology).and_then(|(_, newer)| *newer);
    let message = |newer: &str| {
        format!(
            "PreferredCPUTopology {topology} is deprecated for removal in a future release, please use {newer} instead"
        )
    };
    newer.map(message).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(causes: Vec<Cause>) -> Vec<String> {
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn instance_types() {
        let memory = |memory: Value| fields(instancetype(&json!({ "memory": memory })));
        for percent in [0, 1, 100] {
            assert!(memory(json!({ "guest": "1Gi", "overcommitPercent": percent })).is_empty());
        }
        for percent in [-15, 150] {
            assert_eq!(memory(json!({ "overcommitPercent": percent })), ["spec.memory.overcommitPercent"]);
        }
        let both = json!({ "overcommitPercent": 15, "hugepages": { "pageSize": "1Gi" } });
        assert_eq!(memory(both), ["spec.memory.overcommitPercent"]);
        assert_eq!(instancetype_warnings(&json!({ "launchSecurity": { "sev": {} } })).len(), 1);
        assert!(instancetype_warnings(&json!({})).is_empty());
    }

    #[test]
    fn preferences() {
        let cpu = |cpu: Value| fields(preference(&json!({ "cpu": cpu })));
        for (name, newer) in TOPOLOGIES {
            let spec = json!({ "cpu": { "preferredCPUTopology": name } });
            assert!(preference(&spec).is_empty(), "{name}");
            assert_eq!(preference_warnings(&spec).len(), usize::from(newer.is_some()), "{name}");
        }
        assert_eq!(cpu(json!({ "preferredCPUTopology": "foo" })), ["spec.cpu.preferredCPUTopology"]);
        let spread = |options: Value| cpu(json!({ "preferredCPUTopology": "spread", "spreadOptions": options }));
        assert!(spread(json!({ "across": "CoresThreads" })).is_empty());
        assert!(spread(json!({ "across": "SocketsCores", "ratio": 3 })).is_empty());
        assert_eq!(spread(json!({ "across": "CoresThreads", "ratio": 3 })), ["spec.cpu.spreadOptions.ratio"]);
        assert_eq!(spread(json!({ "across": "Planets" })), ["spec.cpu.spreadOptions.across"]);
    }
}
