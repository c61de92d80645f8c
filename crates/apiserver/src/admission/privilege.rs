//! Privileged pods. Whoever makes one has root on its node, so it takes more than the right to make pods.
//!
//! A container driver needs such a pod, and its VM's owner must not have one. The right is `create` on `pods/privileged`,
//! which is no resource anybody can call: cluster administrators have it by their `*`, and the controllers of the system.

use serde_json::Value;

use crate::object::at;
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;

pub fn check(call: &Call, object: &Value) -> Result<(), ApiError> {
    if call.resource.special != Special::Pod || !is_privileged(object) {
        return Ok(());
    }
    if super::rights::has(call, "privileged", crate::object::name(object)) {
        return Ok(());
    }
    let why = "a privileged container has root on its node; that takes the right to create pods/privileged. \
               Machines with a privileged hypervisor are made by their VirtualMachine";
    Err(ApiError::forbidden(call.resource.subject(crate::object::name(object)), why))
}

/// True if any container says so.
fn is_privileged(pod: &Value) -> bool {
    let mut containers = ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .filter_map(|list| at(pod, &["spec", list])?.as_array())
        .flatten();
    containers.any(|container| at(container, &["securityContext", "privileged"]) == Some(&Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn any_container_counts() {
        let privileged = json!({"name": "c", "securityContext": {"privileged": true}});
        for (spec, expected) in [
            (json!({"containers": [{"name": "c"}]}), false),
            (json!({"containers": [{"name": "a"}, privileged]}), true),
            (json!({"containers": [{"name": "a"}], "initContainers": [privileged]}), true),
            (json!({"containers": [{"name": "a", "securityContext": {"privileged": false}}]}), false),
            (json!({}), false),
        ] {
            assert_eq!(is_privileged(&json!({"spec": spec})), expected, "{spec}");
        }
    }
}
