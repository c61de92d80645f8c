//! What libvirt's daemon shall log, as an annotation of the instance says.

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::api::core::v1::{EnvVar, PodSpec};

/// What the launcher reads.
const VARIABLE: &str = "FERROVIRT_LIBVIRT_LOG_FILTERS";
const LONGEST: usize = 1024;

/// Tells the launcher. What is not a list of filters such as `3:remote 1:qemu` is left out: it would become a part of the daemon's
/// configuration.
pub(crate) fn add(vmi: &VirtualMachineInstance, pod: &mut PodSpec) {
    let annotations = vmi.metadata.annotations.as_ref();
    let filters = annotations.and_then(|all| all.get(names::CUSTOM_LIBVIRT_LOG_FILTERS_ANNOTATION));
    let Some(filters) = filters.filter(|filters| are_filters(filters)) else { return };
    for container in pod.containers.iter_mut().filter(|container| container.name == names::COMPUTE_CONTAINER) {
        let variable = EnvVar { name: VARIABLE.into(), value: Some(filters.clone()), ..Default::default() };
        container.env.get_or_insert_default().push(variable);
    }
}

/// A level from 1 to 4 and part of a module's name each, with a `+` for a stack trace.
fn are_filters(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-*".contains(&byte))
    };
    let is_filter = |word: &str| {
        let parts = word.split_once(':');
        parts.is_some_and(|(level, name)| {
            matches!(level, "1" | "2" | "3" | "4") && is_name(name.strip_prefix('+').unwrap_or(name))
        })
    };
    text.len() <= LONGEST && !text.trim().is_empty() && text.split(' ').filter(|word| !word.is_empty()).all(is_filter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod;

    #[test]
    fn filters_reach_the_launcher_and_nothing_else_does() {
        for (text, taken) in [
            ("3:remote 4:event 3:util.json 3:util.object 1:+qemu 1:*", true),
            ("1:qemu", true),
            ("", false),
            ("5:qemu", false),
            ("qemu", false),
            ("1:qemu\"\nauth_unix_rw = \"none", false),
            ("1:$(HOME)", false),
            (&format!("1:{}", "x".repeat(LONGEST)), false),
        ] {
            let vmi = serde_json::from_value(json!({
                "metadata": { "name": "a", "uid": "u", "annotations": { "kubevirt.io/libvirt-log-filters": text } },
                "spec": { "domain": {} },
            }))
            .unwrap();
            let pod = pod::render(&vmi, &pod::Config::default()).spec.unwrap();
            let env = pod.containers[0].env.clone().unwrap();
            let found = env.into_iter().find(|variable| variable.name == VARIABLE).and_then(|variable| variable.value);
            assert_eq!(found.as_deref(), taken.then_some(text), "{text:?}");
        }
    }
}
