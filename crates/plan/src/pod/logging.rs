//! How much a launcher says in its pod's log, by the labels that upstream has for it.

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

use super::Config;

/// What is said where nobody asks for more, and from when on libvirt's daemon talks as well.
pub(super) const VERBOSITY: u64 = 2;
const TALKATIVE: u64 = 5;
/// All that libvirt does, without what it does all the time.
const LIBVIRT_FILTERS: &str =
    "3:remote 4:event 3:util.json 3:util.object 3:util.dbus 3:util.netlink 3:node_device 3:rpc 3:access 1:*";

/// The variables of the launcher's container.
pub(super) fn env(vmi: &VirtualMachineInstance, config: &Config) -> Vec<EnvVar> {
    let label = |name: &str| vmi.metadata.labels.as_ref().and_then(|labels| labels.get(name));
    let own = label("logVerbosity").and_then(|text| text.parse::<u64>().ok());
    let verbosity = own.unwrap_or(config.log_verbosity);
    let talks = |name: &str| verbosity > TALKATIVE || label(name).is_some_and(|wish| wish.eq_ignore_ascii_case("true"));
    let variable = |name: &str, value: String| EnvVar { name: name.into(), value: Some(value), ..Default::default() };
    let mut env = vec![];
    if own.is_some() || verbosity != VERBOSITY {
        env.push(variable("VIRT_LAUNCHER_LOG_VERBOSITY", verbosity.to_string()));
    }
    if talks("debugLogs") {
        env.push(variable("LIBVIRT_DEBUG_LOGS", "1".into()));
        let annotations = vmi.metadata.annotations.as_ref();
        if annotations.is_none_or(|all| !all.contains_key(names::CUSTOM_LIBVIRT_LOG_FILTERS_ANNOTATION)) {
            env.push(variable("FERROVIRT_LIBVIRT_LOG_FILTERS", LIBVIRT_FILTERS.into()));
        }
    }
    if talks("virtiofsdDebugLogs") {
        env.push(variable("VIRTIOFSD_DEBUG_LOGS", "1".into()));
    }
    let field_ref = ObjectFieldSelector { field_path: "metadata.name".into(), ..Default::default() };
    env.push(EnvVar {
        name: "POD_NAME".into(),
        value_from: Some(EnvVarSource { field_ref: Some(field_ref), ..Default::default() }),
        ..Default::default()
    });
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_of_a_vm_make_its_launcher_talk() {
        for (label, value, cluster, expected) in [
            ("x", "y", 2, ""),
            ("debugLogs", "TRuE", 2, "LIBVIRT_DEBUG_LOGS=1"),
            ("debugLogs", "false", 2, ""),
            ("virtiofsdDebugLogs", "true", 2, "VIRTIOFSD_DEBUG_LOGS=1"),
            ("logVerbosity", "2", 2, "VIRT_LAUNCHER_LOG_VERBOSITY=2"),
            ("logVerbosity", "a lot", 4, "VIRT_LAUNCHER_LOG_VERBOSITY=4"),
            ("logVerbosity", "7", 2, "VIRT_LAUNCHER_LOG_VERBOSITY=7 LIBVIRT_DEBUG_LOGS=1 VIRTIOFSD_DEBUG_LOGS=1"),
        ] {
            let vmi =
                serde_json::from_value(json!({ "metadata": { "labels": { label: value } }, "spec": { "domain": {} } }));
            let found = env(&vmi.unwrap(), &Config { log_verbosity: cluster, ..Config::default() });
            let shown = found.iter().filter(|one| one.name != "FERROVIRT_LIBVIRT_LOG_FILTERS");
            let shown = shown.filter_map(|one| Some(format!("{}={}", one.name, one.value.as_ref()?)));
            assert_eq!(shown.collect::<Vec<_>>().join(" "), expected, "{label}={value}");
            assert_eq!(found.last().unwrap().name, "POD_NAME");
        }
    }
}
