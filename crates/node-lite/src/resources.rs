//! What pods ask for and what a node has, in numbers. CPU in thousandths, everything else in whole units.

use std::collections::BTreeMap;

use ferrovirt_api::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

use crate::cgroup::Limits;
use crate::cpus;

pub type Amounts = BTreeMap<String, i64>;

/// Not a resource of Kubernetes: a pod of one node only has them, see [`crate::cpus`].
pub const OWN_CPUS: &str = "exclusive cpu, of which one is always shared";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Limits,
}

/// An unreadable quantity counts as nothing: the API server refuses them, so none is expected.
pub fn amounts(list: Option<&BTreeMap<String, WireQuantity>>) -> Amounts {
    list.into_iter()
        .flatten()
        .map(|(name, wire)| {
            let quantity = Quantity::try_from(wire).ok();
            let amount =
                quantity.map_or(0, |quantity| if name == "cpu" { quantity.as_milli() } else { quantity.value() });
            (name.clone(), amount)
        })
        .collect()
}

/// What the scheduler counts: the containers together with those that run beside them, or the largest other init container, and the
/// pod's overhead.
pub fn requests(spec: &PodSpec) -> Amounts {
    let mut total = sum(together(spec), Side::Requests);
    for init in spec.init_containers.iter().flatten().filter(|init| !is_beside(init)) {
        for (name, amount) in of(init, Side::Requests) {
            let entry = total.entry(name).or_default();
            *entry = (*entry).max(amount);
        }
    }
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

/// What one container asks for.
pub(crate) fn container_requests(container: &Container) -> Amounts {
    of(container, Side::Requests)
}

/// Resources in use by pods that are on the node and have not ended.
pub fn used<'a>(pods: impl Iterator<Item = &'a Pod>) -> Amounts {
    let mut total = Amounts::new();
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if let (Some(spec), false) = (&pod.spec, matches!(phase, Some("Succeeded" | "Failed"))) {
            add(&mut total, &requests(spec));
            add(&mut total, &own_cpus(spec));
            *total.entry("pods".to_owned()).or_default() += 1;
        }
    }
    total
}

/// CPUs that are the pod's alone, counted beside those that it asks for.
pub fn own_cpus(spec: &PodSpec) -> Amounts {
    let count = cpus::wanted(spec).and_then(|(_, count)| i64::try_from(count).ok());
    count.map(|count| (OWN_CPUS.to_owned(), count)).into_iter().collect()
}

/// The cgroup's settings. A limit holds for the pod only if every container has one.
pub fn limits(spec: &PodSpec) -> Limits {
    let requests = requests(spec);
    let limits = sum(together(spec), Side::Limits);
    let all_have = |name: &str| together(spec).all(|container| of(container, Side::Limits).contains_key(name));
    let overhead = amounts(spec.overhead.as_ref());
    let limit = |name: &str| {
        let extra = overhead.get(name).copied().unwrap_or(0);
        limits.get(name).filter(|_| all_have(name)).map(|amount| amount + extra)
    };
    // A pod with CPUs of its own is bounded by them, and a quota would only stop it in between.
    let quota = limit("cpu").filter(|_| cpus::wanted(spec).is_none());
    Limits {
        cpu_request_milli: requests.get("cpu").copied().unwrap_or(0),
        cpu_limit_milli: quota,
        memory_limit_bytes: limit("memory"),
    }
}

pub fn qos_class(spec: &PodSpec) -> &'static str {
    let compute = ["cpu", "memory"];
    let all = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let asks = |side| all().any(|container| compute.iter().any(|name| of(container, side).contains_key(*name)));
    if !asks(Side::Requests) && !asks(Side::Limits) {
        return "BestEffort";
    }
    let guaranteed = all().all(|container| {
        let (requests, limits) = (of(container, Side::Requests), of(container, Side::Limits));
        compute.iter().all(|name| limits.contains_key(*name) && requests.get(*name) == limits.get(*name))
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}

/// True if a container of the pod asks for this extended resource.
pub fn asks_for(spec: &PodSpec, resource: &str) -> bool {
    requests(spec).get(resource).is_some_and(|amount| *amount > 0)
}

fn of(container: &Container, side: Side) -> Amounts {
    let Some(resources) = &container.resources else {
        return Amounts::new();
    };
    let limits = amounts(resources.limits.as_ref());
    match side {
        Side::Limits => limits,
        Side::Requests => {
            // Where only a limit is given, it is the request too.
            let mut out = limits;
            out.extend(amounts(resources.requests.as_ref()));
            out
        }
    }
}

/// An init container that goes on while the others run.
fn is_beside(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn together(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|container| is_beside(container)))
}

fn sum<'a>(containers: impl Iterator<Item = &'a Container>, side: Side) -> Amounts {
    let mut total = Amounts::new();
    for container in containers {
        add(&mut total, &of(container, side));
    }
    total
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = total.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(containers: serde_json::Value, more: serde_json::Value) -> PodSpec {
        let mut value = json!({ "containers": containers });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn requests_limits_and_class_follow_kubernetes() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let mut beside = container(json!({}), json!({"cpu": "15m", "memory": "60M"}));
        beside["restartPolicy"] = json!("Always");
        let cases = [
            (spec(json!([{"name": "c"}]), json!({})), "", (0, None, None), "BestEffort"),
            (
                spec(json!([container(json!({}), both.clone())]), json!({})),
                "cpu=1000 memory=1073741824 ",
                (1000, Some(1000), Some(1 << 30)),
                "Guaranteed",
            ),
            (
                spec(
                    json!([container(
                        json!({"cpu": "100m"}),
                        json!({"memory": "64Mi", "devices.kubevirt.io/kvm": "1"})
                    )]),
                    json!({"overhead": {"memory": "1Mi"}}),
                ),
                "cpu=100 devices.kubevirt.io/kvm=1 memory=68157440 ",
                (100, None, Some(65 << 20)),
                "Burstable",
            ),
            (
                spec(
                    json!([
                        container(json!({"cpu": "100m"}), json!({})),
                        container(json!({}), json!({"memory": "1Ki"}))
                    ]),
                    json!({"initContainers": [container(json!({"cpu": "2"}), json!({}))]}),
                ),
                "cpu=2000 memory=1024 ",
                (2000, None, None),
                "Burstable",
            ),
            // One that runs beside the others is counted with them.
            (
                spec(json!([container(json!({}), both.clone())]), json!({"initContainers": [beside]})),
                "cpu=1015 memory=1133741824 ",
                (1015, Some(1015), Some((1 << 30) + 60_000_000)),
                "Guaranteed",
            ),
        ];
        for (spec, expected, (cpu, cpu_limit, memory), class) in cases {
            let shown: String = requests(&spec).iter().map(|(name, amount)| format!("{name}={amount} ")).collect();
            assert_eq!(shown, expected);
            let found = limits(&spec);
            assert_eq!(
                (found.cpu_request_milli, found.cpu_limit_milli, found.memory_limit_bytes),
                (cpu, cpu_limit, memory),
                "{shown}"
            );
            assert_eq!(qos_class(&spec), class, "{shown}");
        }
    }

    #[test]
    fn ended_pods_use_nothing() {
        let pod = |phase: &str| -> Pod {
            let spec = json!({"containers": [container(json!({"cpu": "1"}), json!({}))]});
            serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).unwrap()
        };
        let pods = [pod("Running"), pod("Succeeded"), pod("Failed"), pod("Pending")];
        assert_eq!(used(pods.iter()), Amounts::from([("cpu".into(), 2000), ("pods".into(), 2)]));
    }
}
