//! The status of the `KubeVirt` object: whether what was installed is there and works.
//!
//! On a cluster the components are pods, and their Deployments and DaemonSet say how they are. Where none of those exists the
//! components are not pods but parts of the process that asks, and they work if it does.

use ferrovirt_api::v1::{KubeVirt, KubeVirtCondition, KubeVirtStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::cluster_defaults;

/// What an installation consists of where it consists of pods.
pub const DEPLOYMENTS: [&str; 2] = ["virt-api", "virt-controller"];
pub const DAEMON_SETS: [&str; 1] = ["virt-handler"];

const READY: (&str, &str) = ("AllComponentsReady", "All components are ready.");
const CREATED: (&str, &str) = ("AllResourcesCreated", "All resources were created.");

/// A component as its Deployment or DaemonSet counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    pub name: &'static str,
    /// None if it does not exist.
    pub pods: Option<Pods>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pods {
    pub wanted: i32,
    pub ready: i32,
    /// The newest description was seen by whoever makes the pods, and all of them are of it.
    pub settled: bool,
}

/// The status to write.
pub fn status(kubevirt: &KubeVirt, components: &[Component], version: &str, now: &Time) -> KubeVirtStatus {
    let mut status = kubevirt.status.clone();
    let problem = problem(components);
    let settled = components.iter().all(|one| one.pods.is_none_or(|pods| pods.settled));
    let missing = components.iter().any(|one| one.pods.is_none()) && components.iter().any(|one| one.pods.is_some());
    if kubevirt.metadata.deletion_timestamp.is_some() {
        status.phase = "Deleting".into();
    } else if problem.is_none() {
        status.phase = "Deployed".into();
        status.observed_kube_virt_version = version.into();
    } else if status.phase.is_empty() {
        status.phase = "Deploying".into();
    }
    status.operator_version = version.into();
    status.target_kube_virt_version = version.into();
    status.observed_generation = kubevirt.metadata.generation;
    status.default_architecture = cluster_defaults::architecture(&kubevirt.spec.configuration).into();
    let mut set = |type_: &str, holds: bool, (reason, message): (&str, &str)| {
        condition(&mut status.conditions, now, type_, holds, reason, message);
    };
    let words = problem.as_deref().map_or(READY, |problem| ("ComponentsNotReady", problem));
    set("Created", !missing, if missing { words } else { CREATED });
    set("Available", problem.is_none(), words);
    set("Progressing", !settled, if settled { READY } else { ("DeploymentInProgress", "pods are being replaced") });
    set("Degraded", problem.is_some(), words);
    status
}

/// Why the installation does not work, for people.
fn problem(components: &[Component]) -> Option<String> {
    if components.iter().all(|one| one.pods.is_none()) {
        return None;
    }
    let told = components.iter().filter_map(|Component { name, pods }| match pods {
        None => Some(format!("{name} is not installed")),
        Some(pods) if pods.ready < pods.wanted => {
            Some(format!("{name}: {} of {} pods are ready", pods.ready, pods.wanted))
        }
        Some(_) => None,
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn condition(
    conditions: &mut Vec<KubeVirtCondition>,
    now: &Time,
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
) {
    let status = if holds { "True" } else { "False" };
    let index = conditions.iter().position(|one| one.type_ == type_).unwrap_or_else(|| {
        conditions.push(KubeVirtCondition { type_: type_.into(), ..KubeVirtCondition::default() });
        conditions.len() - 1
    });
    let Some(one) = conditions.get_mut(index) else { return };
    if one.status != status {
        one.last_transition_time = Some(now.clone());
    }
    // When it was looked at is not written: a status that stays the same needs no write.
    one.status = status.into();
    one.reason = reason.into();
    one.message = message.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    fn component(name: &'static str, pods: Option<(i32, i32)>) -> Component {
        let pods = pods.map(|(ready, wanted)| Pods { wanted, ready, settled: ready == wanted });
        Component { name, pods }
    }

    /// Phase, and the status of each condition.
    fn told(components: &[Component]) -> Value {
        let kubevirt: KubeVirt = serde_json::from_value(json!({ "metadata": { "generation": 3 } })).unwrap();
        let status = status(&kubevirt, components, "v1", &Time(Timestamp::UNIX_EPOCH));
        assert_eq!(status.observed_generation, Some(3));
        let of = |type_: &str| status.conditions.iter().find(|one| one.type_ == type_).unwrap().status.clone();
        json!([
            status.phase,
            of("Available"),
            of("Created"),
            of("Progressing"),
            of("Degraded"),
            status.observed_kube_virt_version
        ])
    }

    #[test]
    fn it_is_available_if_every_component_is() {
        let well = json!(["Deployed", "True", "True", "False", "False", "v1"]);
        let all = |api: Option<(i32, i32)>| {
            [
                component("virt-api", api),
                component("virt-controller", Some((2, 2))),
                component("virt-handler", Some((0, 0))),
            ]
        };
        assert_eq!(told(&all(Some((2, 2)))), well);
        // Parts of one process.
        assert_eq!(told(&[component("virt-api", None), component("virt-handler", None)]), well);
        assert_eq!(told(&all(Some((1, 2)))), json!(["Deploying", "False", "True", "True", "True", ""]));
        assert_eq!(told(&all(None)), json!(["Deploying", "False", "False", "False", "True", ""]));
    }

    #[test]
    fn a_status_that_stays_the_same_is_the_same() {
        let now = |second: i64| Time(Timestamp::from_second(second).unwrap());
        let mut kubevirt = KubeVirt::default();
        kubevirt.status = status(&kubevirt, &[component("virt-api", Some((1, 1)))], "v1", &now(1));
        let later = status(&kubevirt, &[component("virt-api", Some((1, 1)))], "v1", &now(2));
        assert_eq!(kubevirt.status, later);
        let broken = status(&kubevirt, &[component("virt-api", Some((0, 1)))], "v1", &now(3));
        let available = broken.conditions.iter().find(|one| one.type_ == "Available").unwrap();
        assert_eq!((available.last_transition_time.clone(), broken.phase.as_str()), (Some(now(3)), "Deployed"));
        assert_eq!(available.message, "virt-api: 0 of 1 pods are ready");
    }
}
