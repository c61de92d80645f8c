//! Whether a launcher's pod may be evicted. Who drains a node asks for that again and again until the pod is gone, so a machine
//! that is to be moved first is refused with upstream's words and code, and marked for those who move it.

use ferrovirt_api::{
    names,
    v1::{
        KubeVirtConfiguration, VirtualMachineInstance,
        values::{eviction_strategy as strategy, virtual_machine_instance_condition_type as condition},
    },
};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::VirtApi;

/// The name of the webhook's path.
pub(crate) const HOOK: &str = "pod-eviction-validate";
/// An eviction's annotation that says who asked for it, and its value if it was the descheduler.
const REQUESTED_BY: &str = "requested-by";
const DESCHEDULER: &str = "sigs.k8s.io/descheduler";

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Allow,
    Refuse(String),
    /// Refuse, and write down that the machine is to leave its node.
    Mark {
        node: String,
    },
}

/// Answers a review of an eviction. What cannot be found out is refused: whoever asks tries again, and a machine that was
/// ended does not come back by that.
pub(crate) async fn review(api: &VirtApi, review: &Value, configuration: &KubeVirtConfiguration) -> Value {
    match judge(api, review, configuration).await {
        Ok(None) => json!({ "allowed": true }),
        Ok(Some(message)) => refuse(&message),
        Err(message) => refuse(&message),
    }
}

async fn judge(api: &VirtApi, review: &Value, configuration: &KubeVirtConfiguration) -> Result<Option<String>, String> {
    let request = &review["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&request["namespace"]), text(&request["name"]));
    let pods = Api::<Pod>::namespaced(api.client.clone(), &namespace);
    let pod = pods.get_opt(&name).await.map_err(|error| format!("kubevirt failed getting the pod: {error}"))?;
    let Some((pod, instance)) = pod.and_then(|pod| instance_of(&pod).map(|name| (pod, name))) else { return Ok(None) };
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), &namespace);
    let vmi = vmis.get_opt(&instance).await.map_err(|error| format!("kubevirt failed getting the vmi: {error}"))?;
    let Some(vmi) = vmi else { return Ok(None) };
    let node = match decide(&vmi, &pod, configuration) {
        Decision::Allow => return Ok(None),
        Decision::Refuse(message) => return Ok(Some(message)),
        Decision::Mark { node } => node,
    };
    let eviction = &request["object"];
    let params = PatchParams { dry_run: is_dry_run(request), ..PatchParams::default() };
    vmis.patch(&instance, &params, &Patch::Merge(mark(eviction, &node)))
        .await
        .map_err(|error| format!("kubevirt failed marking the vmi for eviction: {error}"))?;
    Ok(Some(evacuation(&vmi)))
}

/// The instance whose launcher a pod says that it is.
fn instance_of(pod: &Pod) -> Option<String> {
    let named = pod.annotations().get(names::DOMAIN_ANNOTATION).cloned();
    let owner = pod.owner_references().iter().find(|owner| owner.kind == "VirtualMachineInstance");
    named.or_else(|| owner.map(|owner| owner.name.clone()))
}

fn decide(vmi: &VirtualMachineInstance, pod: &Pod, configuration: &KubeVirtConfiguration) -> Decision {
    // Anyone can make a pod that says so of itself; only the controller's are on record.
    let ours = pod.metadata.uid.as_ref().is_some_and(|uid| vmi.status.active_pods.contains_key(uid));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if !ours || matches!(phase, Some("Succeeded" | "Failed")) {
        return Decision::Allow;
    }
    let chosen = vmi.spec.eviction_strategy.as_deref().or(configuration.eviction_strategy.as_deref());
    let migratable = ferrovirt_plan::conditions::is_true(&vmi.status.conditions, condition::LIVE_MIGRATABLE);
    match chosen {
        Some(strategy::LIVE_MIGRATE) if !migratable => {
            return Decision::Refuse(format!(
                "VMI {} is configured with an eviction strategy but is not live-migratable",
                vmi.name_any()
            ));
        }
        Some(strategy::LIVE_MIGRATE | strategy::EXTERNAL) => {}
        Some(strategy::LIVE_MIGRATE_IF_POSSIBLE) if migratable => {}
        _ => return Decision::Allow,
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    if !vmi.status.evacuation_node_name.is_empty() {
        return Decision::Refuse(format!("Evacuation in progress: {}", evacuation(vmi)));
    }
    if vmi.status.node_name != node {
        return Decision::Refuse("Eviction request for target Pod".into());
    }
    Decision::Mark { node }
}

/// The descheduler looks for these words.
fn evacuation(vmi: &VirtualMachineInstance) -> String {
    format!("Eviction triggered evacuation of VMI \"{}/{}\"", vmi.namespace().unwrap_or_default(), vmi.name_any())
}

fn mark(eviction: &Value, node: &str) -> Value {
    let mut patch = json!({ "status": { "evacuationNodeName": node } });
    if eviction["metadata"]["annotations"][REQUESTED_BY] == DESCHEDULER {
        patch["metadata"]["annotations"][names::EVICTION_SOURCE_ANNOTATION] = "descheduler".into();
    }
    patch
}

fn is_dry_run(request: &Value) -> bool {
    request["dryRun"] == true || request["object"]["deleteOptions"]["dryRun"][0] == "All"
}

fn refuse(message: &str) -> Value {
    let code = StatusCode::TOO_MANY_REQUESTS.as_u16();
    json!({
        "allowed": false,
        "status": { "status": "Failure", "reason": "TooManyRequests", "message": message, "code": code },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(strategy: &str, migratable: bool, changes: Value) -> VirtualMachineInstance {
        let mut vmi = json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": { "evictionStrategy": strategy, "domain": {} },
            "status": {
                "nodeName": "one", "activePods": { "p": "one" },
                "conditions": [{ "type": "LiveMigratable", "status": if migratable { "True" } else { "False" } }],
            },
        });
        if strategy.is_empty() {
            vmi["spec"].as_object_mut().unwrap().remove("evictionStrategy");
        }
        for (key, value) in changes.as_object().unwrap() {
            vmi["status"][key] = value.clone();
        }
        serde_json::from_value(vmi).unwrap()
    }

    fn pod(uid: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "uid": uid }, "spec": { "nodeName": "one", "containers": [] }, "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn strategies_protect_as_upstreams_do() {
        let marked = || Decision::Mark { node: "one".into() };
        let refused = |text: &str| Decision::Refuse(text.into());
        let stuck = "VMI a is configured with an eviction strategy but is not live-migratable";
        let again = "Evacuation in progress: Eviction triggered evacuation of VMI \"n/a\"";
        let none = json!({});
        let ours = || pod("p", "Running");
        let cases = [
            (vmi("", true, none.clone()), ours(), Decision::Allow),
            (vmi("None", true, none.clone()), ours(), Decision::Allow),
            (vmi("LiveMigrate", true, none.clone()), ours(), marked()),
            (vmi("LiveMigrate", false, none.clone()), ours(), refused(stuck)),
            (vmi("LiveMigrateIfPossible", true, none.clone()), ours(), marked()),
            (vmi("LiveMigrateIfPossible", false, none.clone()), ours(), Decision::Allow),
            (vmi("External", false, none.clone()), ours(), marked()),
            (vmi("External", true, json!({ "evacuationNodeName": "one" })), ours(), refused(again)),
            (vmi("External", true, json!({ "nodeName": "two" })), ours(), refused("Eviction request for target Pod")),
            // What has ended, or was never ours, protects nobody.
            (vmi("External", true, none.clone()), pod("p", "Succeeded"), Decision::Allow),
            (vmi("External", true, none.clone()), pod("p", "Failed"), Decision::Allow),
            (vmi("External", true, none.clone()), pod("planted", "Running"), Decision::Allow),
        ];
        let plain = KubeVirtConfiguration::default();
        for (number, (vmi, pod, expected)) in cases.into_iter().enumerate() {
            assert_eq!(decide(&vmi, &pod, &plain), expected, "case {number}");
        }
        let everyone = KubeVirtConfiguration { eviction_strategy: Some("External".into()), ..Default::default() };
        assert_eq!(decide(&vmi("", false, none.clone()), &ours(), &everyone), marked());
        assert_eq!(decide(&vmi("None", false, none), &ours(), &everyone), Decision::Allow);
    }

    #[test]
    fn the_mark_says_who_asked_and_a_dry_run_is_one_wherever_it_is_said() {
        let source = json!({ "kubevirt.io/eviction-source": "descheduler" });
        let eviction = |by: &str| json!({ "metadata": { "name": "a", "annotations": { "requested-by": by } } });
        assert_eq!(mark(&eviction("sigs.k8s.io/descheduler"), "one")["metadata"]["annotations"], source);
        assert_eq!(mark(&eviction("me"), "one"), json!({ "status": { "evacuationNodeName": "one" } }));
        assert!(is_dry_run(&json!({ "dryRun": true, "object": {} })));
        assert!(is_dry_run(&json!({ "dryRun": false, "object": { "deleteOptions": { "dryRun": ["All"] } } })));
        assert!(!is_dry_run(&json!({ "object": {} })));
    }
}
