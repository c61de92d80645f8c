//! Which hypervisors a cluster admits: those that its `KubeVirt` object lists, the default alone if it lists none.
//!
//! A driver may need rights on its node that the default does not. Listing it is the cluster's consent to that.

use ferrovirt_api::v1::KubeVirtConfiguration;
use ferrovirt_machine::hypervisor;
use serde_json::Value;

use crate::validate::Cause;

/// What stands against the hypervisor of the object under review, if it names one with a driver.
pub(crate) fn not_admitted(configuration: &KubeVirtConfiguration, object: &Value) -> Option<Cause> {
    let (path, spec) = match object["kind"].as_str() {
        Some("VirtualMachineInstance") => ("spec", &object["spec"]),
        _ => ("spec.template.spec", &object["spec"]["template"]["spec"]),
    };
    let name = spec["hypervisor"].as_str().unwrap_or(hypervisor::DEFAULT);
    // One that does not exist is the feature table's to refuse.
    hypervisor::hypervisor(name)?;
    let listed: Vec<String> = configuration.hypervisors.iter().map(|entry| entry.name.clone()).collect();
    judge(name, &listed).map(|message| Cause {
        reason: "FieldValueNotSupported",
        field: format!("{path}.hypervisor"),
        message,
    })
}

fn judge(name: &str, listed: &[String]) -> Option<String> {
    if hypervisor::is_admitted(listed.iter().map(String::as_str), name) {
        return None;
    }
    let default = [hypervisor::DEFAULT.to_owned()];
    let admitted = if listed.is_empty() { &default[..] } else { listed };
    Some(format!(
        "hypervisor {name:?} is not admitted in this cluster; admitted: {}. An administrator admits it in the KubeVirt \
         object, with spec.configuration.hypervisors: [{}, {{name: {name}}}]",
        admitted.join(", "),
        admitted.iter().map(|entry| format!("{{name: {entry}}}")).collect::<Vec<_>>().join(", "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_admitted_and_the_default_if_nothing_is() {
        let listed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(judge("qemu-kvm", &[]), None);
        assert_eq!(judge("qemu-kvm", &listed(&["kvm"])), None);
        assert_eq!(judge("lxc", &listed(&["qemu-kvm", "lxc"])), None);
        assert!(judge("qemu-kvm", &listed(&["lxc"])).is_some());
        let message = judge("lxc", &[]).unwrap();
        assert!(
            message.contains("admitted: qemu-kvm.") && message.contains("[{name: qemu-kvm}, {name: lxc}]"),
            "{message}"
        );
    }
}
