//! What of a pod leads to its node, and the right that each takes. A label on a namespace loosens Pod Security for everybody who
//! may make pods there; it gives nobody the node.
//!
//! Each right is `create` on a subresource of pods that nobody can call: cluster administrators have it by their `*`, and whom
//! they give it to. The makers of the system's own pods have all of them.

use serde_json::Value;

use super::maker;
use super::pod_security::{Pod, beyond_baseline, host_paths, listed};
use crate::authz::{Attributes, On};
use crate::object::{at, name, text};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;

/// A right, what asks for it, and what it would give.
struct Right {
    name: &'static str,
    asked_by: fn(&Pod<'_>) -> Option<String>,
    gives: &'static str,
}

const RIGHTS: &[Right] = &[
    Right {
        name: "privileged",
        asked_by: privilege,
        gives: "that leads to root on its node. Machines with a privileged hypervisor are made by their VirtualMachine",
    },
    Right {
        name: "hostpath",
        asked_by: |pod| host_paths(pod).map(|found| found.detail),
        gives: "a hostPath volume reaches files of the node. Use a PersistentVolumeClaim",
    },
    Right {
        name: "ids",
        asked_by: chosen_ids,
        gives: "files of the node and of others belong to ids. Leave them out, and the pod runs as its image says",
    },
];

/// Refuses what the caller has no right to, in a new pod or in one that changes.
pub fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let unchanged = old.is_some_and(|old| old.get("spec") == object.get("spec"));
    if call.resource.special != Special::Pod || unchanged || maker::is_ours(call, &call.user.name) {
        return Ok(());
    }
    let pod = Pod { metadata: &object["metadata"], spec: &object["spec"] };
    for right in RIGHTS {
        let Some(asked) = (right.asked_by)(&pod) else { continue };
        if !has(call, right.name, name(object)) {
            let Right { name: right, gives, .. } = right;
            let why = format!("{asked}: {gives}; it takes the right to create pods/{right}");
            return Err(ApiError::forbidden(call.resource.subject(name(object)), &why));
        }
    }
    Ok(())
}

/// Whether the caller has the right to create `pods/<what>` where the call goes.
pub fn has(call: &Call, what: &str, pod: &str) -> bool {
    let on = On::Resource {
        group: "",
        resource: "pods",
        subresource: what,
        namespace: call.namespace().unwrap_or_default(),
        name: pod,
    };
    call.server.rbac.allowed(&call.server.store, Attributes { user: &call.user, verb: "create", on })
}

fn privilege(pod: &Pod<'_>) -> Option<String> {
    let found: Vec<String> = beyond_baseline(pod).iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// Users and groups that a pod chooses, wherever it may.
fn chosen_ids(pod: &Pod<'_>) -> Option<String> {
    let set = |holder: &Value, key: &str| at(holder, &["securityContext", key]).is_some_and(|id| !id.is_null());
    for key in ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"] {
        if set(pod.spec, key) {
            return Some(format!("spec.securityContext.{key}"));
        }
    }
    for key in ["runAsUser", "runAsGroup"] {
        let who = pod.containers_that(|container| set(container, key));
        if !who.is_empty() {
            return Some(format!("securityContext.{key} of {}", listed("container", &who)));
        }
    }
    let named = |holder: &Value| !text(holder, &["securityContext", "windowsOptions", "runAsUserName"]).is_empty();
    named(pod.spec).then(|| "spec.securityContext.windowsOptions.runAsUserName".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_way_to_the_node_has_its_right() {
        let plain = json!({"name": "c"});
        let with = |context: Value| json!({"name": "x", "securityContext": context});
        for (spec, expected) in [
            (json!({"containers": [plain]}), vec![]),
            (json!({"containers": [plain], "securityContext": {"runAsNonRoot": true}}), vec![]),
            (json!({"containers": [with(json!({"privileged": false}))]}), vec![]),
            (json!({"containers": [plain, with(json!({"privileged": true}))]}), vec!["privileged"]),
            (json!({"containers": [plain], "initContainers": [with(json!({"privileged": true}))]}), vec!["privileged"]),
            (
                json!({"containers": [plain], "ephemeralContainers": [with(json!({"privileged": true}))]}),
                vec!["privileged"],
            ),
            (json!({"containers": [plain], "hostNetwork": true}), vec!["privileged"]),
            (json!({"containers": [plain], "hostPID": true}), vec!["privileged"]),
            (json!({"containers": [with(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))]}), vec!["privileged"]),
            (json!({"containers": [with(json!({"seccompProfile": {"type": "Unconfined"}}))]}), vec!["privileged"]),
            (json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}), vec!["privileged"]),
            (json!({"containers": [plain], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), vec!["hostpath"]),
            (json!({"containers": [plain], "securityContext": {"runAsUser": 107}}), vec!["ids"]),
            (json!({"containers": [plain], "securityContext": {"supplementalGroups": [42]}}), vec!["ids"]),
            (json!({"containers": [plain], "securityContext": {"fsGroup": 42}}), vec!["ids"]),
            (json!({"containers": [with(json!({"runAsGroup": 42}))]}), vec!["ids"]),
            (json!({"containers": [plain], "initContainers": [with(json!({"runAsUser": 0}))]}), vec!["ids"]),
        ] {
            let pod = Pod { metadata: &Value::Null, spec: &spec };
            let asked: Vec<&str> = RIGHTS.iter().filter(|r| (r.asked_by)(&pod).is_some()).map(|r| r.name).collect();
            assert_eq!(asked, expected, "{spec}");
        }
    }
}
