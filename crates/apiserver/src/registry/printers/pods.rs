//! The cells of a pod, which say more than its phase: what each container does, and why.

use serde_json::Value;

use super::{age_of, count, deleting};
use crate::object::{at, condition, text};

pub fn ready(pod: &Value) -> Value {
    format!("{}/{}", Look::at(pod).ready, count(&pod["spec"]["containers"]) + sidecars(pod).count()).into()
}

pub fn status(pod: &Value) -> Value {
    Look::at(pod).reason.into()
}

pub fn restarts(pod: &Value) -> Value {
    let look = Look::at(pod);
    match (look.restarts, look.last.as_str()) {
        (0, _) | (_, "") => look.restarts.to_string().into(),
        (restarts, last) => format!("{restarts} ({} ago)", age_of(last)).into(),
    }
}

/// How many of the conditions that others have to set are true.
pub fn gates(pod: &Value) -> Value {
    let gates = pod["spec"]["readinessGates"].as_array().map_or(&[][..], Vec::as_slice);
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates.iter().filter(|gate| is_true(pod, text(gate, &["conditionType"]))).count();
    format!("{open}/{}", gates.len()).into()
}

fn is_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|found| found["status"] == "True")
}

/// Init containers that go on beside the others.
fn sidecars(pod: &Value) -> impl Iterator<Item = &str> {
    let all = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    all.filter(|container| container["restartPolicy"] == "Always").map(|container| text(container, &["name"]))
}

struct Look {
    reason: String,
    ready: usize,
    restarts: i64,
    /// When a container last ended before it was started again.
    last: String,
}

impl Look {
    fn at(pod: &Value) -> Self {
        let phase = text(pod, &["status", "phase"]);
        let mut look = Self { reason: phase.to_owned(), ready: 0, restarts: 0, last: String::new() };
        let stated = text(pod, &["status", "reason"]);
        if !stated.is_empty() {
            look.reason = stated.to_owned();
        }
        if condition(pod, "PodScheduled").is_some_and(|found| found["reason"] == "SchedulingGated") {
            look.reason = "SchedulingGated".to_owned();
        }
        let mut beside = Self { reason: String::new(), ready: 0, restarts: 0, last: String::new() };
        let initializing = look.initialize(pod, &mut beside);
        if !initializing || is_true(pod, "Initialized") {
            (look.restarts, look.last) = (beside.restarts, beside.last);
            look.run(pod);
        }
        if deleting(pod) && stated == "NodeLost" {
            look.reason = "Unknown".to_owned();
        } else if deleting(pod) && !matches!(phase, "Succeeded" | "Failed") {
            look.reason = "Terminating".to_owned();
        }
        look
    }

    fn count(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or(0);
        let ended = text(container, &["lastState", "terminated", "finishedAt"]);
        if ended > self.last.as_str() {
            ended.clone_into(&mut self.last);
        }
    }

    /// Looks at the init containers up to the one that is not done. Says whether there is one.
    fn initialize(&mut self, pod: &Value, beside: &mut Self) -> bool {
        let statuses = at(pod, &["status", "initContainerStatuses"]).and_then(Value::as_array);
        for (index, container) in statuses.into_iter().flatten().enumerate() {
            self.count(container);
            let stays = sidecars(pod).any(|name| name == text(container, &["name"]));
            if stays {
                beside.count(container);
            }
            let (ended, waiting) =
                (&container["state"]["terminated"], text(container, &["state", "waiting", "reason"]));
            if ended.is_object() && ended["exitCode"] == 0 {
                continue;
            }
            if stays && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            self.reason = if ended.is_object() {
                format!("Init:{}", end(ended))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", count(&pod["spec"]["initContainers"]))
            };
            return true;
        }
        false
    }

    fn run(&mut self, pod: &Value) {
        let statuses = at(pod, &["status", "containerStatuses"]).and_then(Value::as_array);
        let (mut running, mut failed) = (false, None);
        for container in statuses.into_iter().flatten().rev() {
            self.count(container);
            let (ended, waiting) =
                (&container["state"]["terminated"], text(container, &["state", "waiting", "reason"]));
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if ended.is_object() {
                self.reason = end(ended);
                if ended["exitCode"].as_i64().is_some_and(|code| code != 0) {
                    failed = Some(self.reason.clone());
                }
            } else if container["ready"] == true && container["state"]["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            match (running, failed) {
                (true, _) if is_true(pod, "Ready") => self.reason = "Running".to_owned(),
                (_, Some(failed)) => self.reason = failed,
                (true, None) => self.reason = "NotReady".to_owned(),
                (false, None) => {}
            }
        }
    }
}

fn end(ended: &Value) -> String {
    match (text(ended, &["reason"]), ended["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", ended["exitCode"].as_i64().unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The status and what is ready, as `kubectl get pods` has them.
    #[test]
    fn pods_say_what_their_containers_do() {
        let pod = |init: Value, containers: Value, phase: &str| {
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
                "status": {"phase": phase, "initContainerStatuses": init, "containerStatuses": containers}})
        };
        let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
        let beside = json!({"name": "s", "started": true, "ready": true, "restartCount": 1, "state": {"running": {}}});
        let running = json!({"name": "a", "ready": true, "state": {"running": {}}});
        let crashed = json!({"name": "b", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        let completed = json!({"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
        let killed = json!({"name": "b", "state": {"terminated": {"exitCode": 137, "signal": 9}}});
        let cases = [
            (pod(json!([]), json!([]), "Pending"), "Pending", "0/3", "0"),
            (pod(json!([{"name": "i", "state": {"running": {}}}]), json!([]), "Pending"), "Init:0/2", "0/3", "0"),
            (
                pod(json!([{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]), json!([]), "Pending"),
                "Init:ErrImagePull",
                "0/3",
                "0",
            ),
            (
                pod(
                    json!([{"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 1}}}]),
                    json!([]),
                    "Pending",
                ),
                "Init:ExitCode:1",
                "0/3",
                "2",
            ),
            (pod(json!([done, beside]), json!([running, crashed]), "Running"), "CrashLoopBackOff", "2/3", "4"),
            (pod(json!([done, beside]), json!([running, completed]), "Running"), "NotReady", "2/3", "1"),
            (pod(json!([]), json!([running, killed]), "Running"), "Signal:9", "1/3", "0"),
        ];
        for (pod, expected, share, again) in cases {
            assert_eq!(
                (status(&pod), ready(&pod), restarts(&pod)),
                (expected.into(), share.into(), again.into()),
                "{pod}"
            );
        }
        let mut gone = pod(json!([]), json!([running]), "Running");
        gone["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(status(&gone), "Terminating");
        let gated = json!({"spec": {"readinessGates": [{"conditionType": "x/unpaused"}]}, "status": {"conditions": [{"type": "x/unpaused", "status": "True"}]}});
        assert_eq!((gates(&gated), gates(&gone)), ("1/1".into(), "<none>".into()));
    }
}
