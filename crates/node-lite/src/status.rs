//! A pod's status from what its sandbox shows. Conditions of others stay as they are.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::records::ExitRecord;
use crate::resources;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Not started, for this reason (`ContainerCreating`, `ErrImagePull`, …).
    Waiting {
        reason: String,
        message: Option<String>,
    },
    Running {
        started_at: Timestamp,
        /// As its readiness probe says.
        ready: bool,
    },
    Ended {
        started_at: Option<Timestamp>,
        exit: ExitRecord,
    },
}

/// What the node knows beside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    pub node_ip: IpAddr,
    pub pod_ips: Vec<IpAddr>,
    pub now: Timestamp,
}

pub fn compute(pod: &Pod, observed: &Observed, around: &Surroundings) -> PodStatus {
    let mut status = pod.status.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let ended = matches!(observed, Observed::Ended { .. });
    let running = matches!(observed, Observed::Running { .. });
    let containers_ready = matches!(observed, Observed::Running { ready: true, .. });

    let (phase, reason, message) = match observed {
        Observed::Waiting { .. } => ("Pending", None, None),
        Observed::Running { .. } => ("Running", None, None),
        Observed::Ended { exit, .. } if exit.exit_code == 0 => ("Succeeded", None, None),
        Observed::Ended { exit, .. } if exit.reason == "NodeReboot" => {
            ("Failed", Some(exit.reason.clone()), exit.message.clone())
        }
        Observed::Ended { .. } => ("Failed", None, None),
    };
    status.phase = Some(phase.to_owned());
    status.reason = reason;
    status.message = message;
    status.host_ip = Some(around.node_ip.to_string());
    status.host_ips = Some(vec![HostIP { ip: around.node_ip.to_string() }]);
    if !around.pod_ips.is_empty() {
        status.pod_ip = around.pod_ips.first().map(ToString::to_string);
        status.pod_ips = Some(around.pod_ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
    }
    status.start_time = status.start_time.or(Some(time(around.now)));
    status.qos_class = Some(resources::qos_class(&spec).to_owned());
    status.observed_generation = pod.metadata.generation.or(status.observed_generation);

    let of = |containers: &[Container], previous: Option<Vec<ContainerStatus>>, ready: bool| -> Vec<ContainerStatus> {
        let previous = previous.unwrap_or_default();
        let known = |name: &str| previous.iter().find(|old| old.name == name).map_or(0, |old| old.restart_count);
        let statuses = containers.iter().map(|container| ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: container.image.clone().unwrap_or_default(),
            container_id: (running || ended)
                .then(|| format!("ferrovirt://{}", pod.metadata.uid.as_deref().unwrap_or_default())),
            ready,
            started: Some(running),
            restart_count: known(&container.name),
            state: Some(container_state(observed, pod)),
            ..Default::default()
        });
        statuses.collect()
    };
    status.container_statuses = Some(of(&spec.containers, status.container_statuses.take(), containers_ready));
    // One that runs beside the others begins and ends with them, and nobody probes it.
    let beside = spec.init_containers.as_deref().unwrap_or_default();
    let statuses = of(beside, status.init_container_statuses.take(), running);
    status.init_container_statuses = Some(statuses).filter(|statuses| !statuses.is_empty());

    let mut conditions = status.conditions.take().unwrap_or_default();
    let not_ready = if phase == "Succeeded" { "PodCompleted" } else { "ContainersNotReady" };
    let names: Vec<&str> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    let unready = (!containers_ready).then(|| format!("containers with unready status: [{}]", names.join(" ")));
    let gate = spec.readiness_gates.iter().flatten().find(|gate| {
        !conditions.iter().any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let (ready, ready_reason, ready_message) = match (&unready, gate) {
        (Some(message), _) => (false, Some(not_ready), Some(message.clone())),
        (None, Some(gate)) => (
            false,
            Some("ReadinessGatesNotReady"),
            Some(format!("the status of pod readiness gate \"{}\" is not \"True\"", gate.condition_type)),
        ),
        (None, None) => (true, None, None),
    };
    let mut set = |type_: &str, on: bool, reason: Option<&str>, message: Option<String>| {
        set_condition(&mut conditions, type_, on, reason, message, around.now);
    };
    set("PodReadyToStartContainers", running, None, None);
    set("Initialized", true, None, None);
    set("Ready", ready, ready_reason, ready_message);
    set("ContainersReady", containers_ready, (!containers_ready).then_some(not_ready), unready);
    set("PodScheduled", true, None, None);
    status.conditions = Some(conditions);
    status
}

/// Sets a condition; its transition time changes only with its status.
pub fn set_condition(
    conditions: &mut Vec<PodCondition>,
    type_: &str,
    on: bool,
    reason: Option<&str>,
    message: Option<String>,
    now: Timestamp,
) {
    let status = if on { "True" } else { "False" };
    let old = conditions.iter().position(|condition| condition.type_ == type_);
    let kept = old.and_then(|index| conditions.get(index)).filter(|condition| condition.status == status);
    let new = PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        last_transition_time: kept.and_then(|old| old.last_transition_time.clone()).or(Some(time(now))),
        ..Default::default()
    };
    match old.and_then(|index| conditions.get_mut(index)) {
        Some(slot) => *slot = new,
        None => conditions.push(new),
    }
}

/// API times have whole seconds; more would come back different from what was written.
pub fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn container_state(observed: &Observed, pod: &Pod) -> ContainerState {
    match observed {
        Observed::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.clone()), message: message.clone() }),
            ..Default::default()
        },
        Observed::Running { started_at, .. } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(time(*started_at)) }),
            ..Default::default()
        },
        Observed::Ended { started_at, exit } => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: exit.exit_code,
                signal: exit.signal,
                reason: Some(exit.reason.clone()),
                message: exit.message.clone(),
                started_at: started_at.map(time),
                finished_at: Some(time(exit.finished_at)),
                container_id: Some(format!("ferrovirt://{}", pod.metadata.uid.as_deref().unwrap_or_default())),
            }),
            ..Default::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pod(gates: Value, conditions: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u1"},
            "spec": {"containers": [{"name": "compute", "image": "i"}], "readinessGates": gates},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn exit(exit_code: i32, reason: &str) -> Observed {
        let exit = ExitRecord { exit_code, signal: None, finished_at: at(5), reason: reason.into(), message: None };
        Observed::Ended { started_at: Some(at(1)), exit }
    }

    fn summary(status: &PodStatus) -> String {
        let conditions: String = status
            .conditions
            .iter()
            .flatten()
            .map(|c| {
                format!(" {}={}{}", c.type_, c.status, c.reason.as_ref().map(|r| format!("({r})")).unwrap_or_default())
            })
            .collect();
        let state = &status.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap();
        let state = match (&state.waiting, &state.running, &state.terminated) {
            (Some(waiting), ..) => format!("waiting {}", waiting.reason.as_ref().unwrap()),
            (_, Some(_), _) => "running".to_owned(),
            (.., Some(ended)) => format!("ended {} {}", ended.exit_code, ended.reason.as_ref().unwrap()),
            _ => "none".to_owned(),
        };
        format!("{} [{state}]{conditions}", status.phase.as_deref().unwrap())
    }

    #[test]
    fn phases_states_and_conditions() {
        let gate = json!([{"conditionType": "kubevirt.io/virtual-machine-unpaused"}]);
        let unpaused = json!([{"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"}]);
        let running = Observed::Running { started_at: at(1), ready: true };
        let cases = [
            (
                pod(json!([]), json!([])),
                Observed::Waiting { reason: "ErrImagePull".into(), message: None },
                "Pending [waiting ErrImagePull] PodReadyToStartContainers=False Initialized=True \
                 Ready=False(ContainersNotReady) ContainersReady=False(ContainersNotReady) PodScheduled=True",
            ),
            (
                pod(json!([]), json!([])),
                running.clone(),
                "Running [running] PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True \
                 PodScheduled=True",
            ),
            (
                pod(json!([]), json!([])),
                Observed::Running { started_at: at(1), ready: false },
                "Running [running] PodReadyToStartContainers=True Initialized=True Ready=False(ContainersNotReady) \
                 ContainersReady=False(ContainersNotReady) PodScheduled=True",
            ),
            (
                pod(gate.clone(), json!([])),
                running.clone(),
                "Running [running] PodReadyToStartContainers=True Initialized=True Ready=False(ReadinessGatesNotReady) \
                 ContainersReady=True PodScheduled=True",
            ),
            (
                pod(gate, unpaused),
                running,
                "Running [running] kubevirt.io/virtual-machine-unpaused=True PodReadyToStartContainers=True \
                 Initialized=True Ready=True ContainersReady=True PodScheduled=True",
            ),
            (
                pod(json!([]), json!([])),
                exit(0, "Completed"),
                "Succeeded [ended 0 Completed] PodReadyToStartContainers=False Initialized=True Ready=False(PodCompleted) \
                 ContainersReady=False(PodCompleted) PodScheduled=True",
            ),
            (
                pod(json!([]), json!([])),
                exit(137, "NodeReboot"),
                "Failed [ended 137 NodeReboot] PodReadyToStartContainers=False Initialized=True \
                 Ready=False(ContainersNotReady) ContainersReady=False(ContainersNotReady) PodScheduled=True",
            ),
        ];
        let around = Surroundings { node_ip: [192, 0, 2, 1].into(), pod_ips: vec![[10, 42, 0, 2].into()], now: at(9) };
        for (pod, observed, expected) in cases {
            let status = compute(&pod, &observed, &around);
            assert_eq!(summary(&status), expected);
            // Reporting the same again later changes nothing, so it costs no write.
            let again = Pod { status: Some(status.clone()), ..pod };
            assert_eq!(compute(&again, &observed, &Surroundings { now: at(60), ..around.clone() }), status);
        }
    }
}
