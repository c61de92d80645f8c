//! VirtualMachineInstancePresets: settings that instances with certain labels get where they have none.
//!
//! They are deprecated upstream, and applied as there: once, when an instance is created. An instance keeps what it says
//! itself. Presets that contradict each other stop the instance.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{DomainSpec, VirtualMachineInstance, VirtualMachineInstancePreset};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::selector;

/// An instance that carries this as `"true"` gets none.
const EXCLUDED: &str = "virtualmachineinstancepresets.admission.kubevirt.io/exclude";
/// Before the name of a preset in the annotation that tells that it was applied.
const APPLIED: &str = "virtualmachinepreset.kubevirt.io/";
pub const DEPRECATED: &str =
    "kubevirt.io/v1 VirtualMachineInstancePresets is now deprecated and will be removed in v2.";

/// Why presets cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("VirtualMachinePresets cannot be applied due to conflicts: {0}")]
    Conflicts(String),
    #[error("preset '{0}': {1}")]
    Selector(String, String),
}

/// What was done with the presets of an instance's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Names of those that are in the instance now.
    pub applied: Vec<String>,
    /// What instances kept against a preset, for people.
    pub overridden: Vec<String>,
}

/// Applies all presets of the namespace that select the instance.
pub fn apply(vmi: &mut VirtualMachineInstance, presets: &[VirtualMachineInstancePreset]) -> Result<Outcome, Refused> {
    let annotations = vmi.metadata.annotations.as_ref();
    if annotations.and_then(|all| all.get(EXCLUDED)).is_some_and(|value| value == "true") {
        return Ok(Outcome::default());
    }
    let labels = vmi.metadata.labels.clone().unwrap_or_default();
    let mut chosen = vec![];
    for preset in presets {
        if let Some(problem) = broken(&preset.spec.selector) {
            return Err(Refused::Selector(name(preset).into(), problem));
        }
        if selector::matches(&preset.spec.selector, &labels) {
            chosen.push(preset);
        }
    }
    among(&chosen)?;
    let mut outcome = Outcome::default();
    for preset in chosen {
        let Some(domain) = &preset.spec.domain else { continue };
        let conflicts = conflicts(domain, &vmi.spec.domain);
        let name = name(preset);
        let applied = merge(domain, &mut vmi.spec.domain);
        if applied {
            let annotations = vmi.metadata.annotations.get_or_insert_default();
            annotations.insert(format!("{APPLIED}{name}"), "kubevirt.io/v1".into());
            outcome.applied.push(name.into());
        }
        if !conflicts.is_empty() {
            let what = if applied { "Some settings were not applied for" } else { "Unable to apply" };
            outcome.overridden.push(format!("{what} VirtualMachineInstancePreset '{name}': {}", list(&conflicts)));
        }
    }
    Ok(outcome)
}

fn name(preset: &VirtualMachineInstancePreset) -> &str {
    preset.metadata.name.as_deref().unwrap_or_default()
}

/// What makes a selector one that selects nothing that anybody could mean.
fn broken(selector: &LabelSelector) -> Option<String> {
    let mut expressions = selector.match_expressions.iter().flatten();
    expressions.find_map(|wanted| {
        let values = wanted.values.as_ref().is_some_and(|values| !values.is_empty());
        match (wanted.operator.as_str(), values) {
            ("In" | "NotIn", false) => Some("for 'in', 'notin' operators, values set can't be empty".into()),
            ("Exists" | "DoesNotExist", true) => Some("values set must be empty for exists and does not exist".into()),
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => None,
            (other, _) => Some(format!("{other:?} is not a valid label selector operator")),
        }
    })
}

/// Whether presets that are to be applied together agree.
fn among(presets: &[&VirtualMachineInstancePreset]) -> Result<(), Refused> {
    let mut problems = vec![];
    for (index, preset) in presets.iter().enumerate() {
        for earlier in presets.iter().take(index) {
            let (Some(one), Some(other)) = (&preset.spec.domain, &earlier.spec.domain) else { continue };
            let found = conflicts(one, other);
            if !found.is_empty() {
                let (one, other) = (name(preset), name(earlier));
                problems.push(format!("presets '{one}' and '{other}' conflict: {}", list(&found)));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Refused::Conflicts(list(&problems))) }
}

/// Several problems in a row, as Go prints them.
fn list(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// The settings that both have and that differ.
fn conflicts(preset: &DomainSpec, own: &DomainSpec) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    for (key, wanted) in &preset.resources.requests {
        if let Some(own) = own.resources.requests.get(key).filter(|own| *own != wanted) {
            found.push(format!("spec.resources.requests[{key}]: {} != {}", wanted.0, own.0));
        }
    }
    fn differ<T: PartialEq + serde::Serialize>(field: &str, a: Option<&T>, b: Option<&T>, found: &mut Vec<String>) {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            let text = |value: &T| serde_json::to_string(value).unwrap_or_default();
            found.push(format!("{field}: {} != {}", text(a), text(b)));
        }
    }
    differ("spec.cpu", preset.cpu.as_ref(), own.cpu.as_ref(), &mut found);
    differ("spec.firmware", preset.firmware.as_ref(), own.firmware.as_ref(), &mut found);
    if let (Some(wanted), Some(own)) = (&preset.clock, &own.clock) {
        let offset = |clock: &ferrovirt_api::v1::Clock| (clock.utc.clone(), clock.timezone.clone());
        differ("spec.clock.clockoffset", Some(&offset(wanted)), Some(&offset(own)), &mut found);
        differ("spec.clock.timer", wanted.timer.as_ref(), own.timer.as_ref(), &mut found);
    }
    differ("spec.features", preset.features.as_ref(), own.features.as_ref(), &mut found);
    let (wanted, watchdog) = (preset.devices.watchdog.as_ref(), own.devices.watchdog.as_ref());
    differ("spec.devices.watchdog", wanted, watchdog, &mut found);
    let (wanted, policy) = (preset.io_threads_policy.as_ref(), own.io_threads_policy.as_ref());
    differ("spec.ioThreadsPolicy", wanted, policy, &mut found);
    found
}

/// Fills in what the instance leaves open. True if any setting of the preset holds afterwards.
fn merge(preset: &DomainSpec, own: &mut DomainSpec) -> bool {
    fn fill<T: Clone + PartialEq>(preset: Option<&T>, own: &mut Option<T>) -> bool {
        preset.is_some_and(|preset| own.get_or_insert_with(|| preset.clone()) == preset)
    }
    let mut applied = false;
    let requests: &BTreeMap<_, _> = &preset.resources.requests;
    if !requests.is_empty() {
        if own.resources.requests.is_empty() {
            own.resources.requests.clone_from(requests);
        }
        applied |= own.resources.requests == *requests;
    }
    applied |= fill(preset.cpu.as_ref(), &mut own.cpu);
    applied |= fill(preset.firmware.as_ref(), &mut own.firmware);
    if let Some(clock) = &preset.clock {
        let (utc, timezone) = (clock.utc.clone(), clock.timezone.clone());
        let mine = own.clock.get_or_insert(ferrovirt_api::v1::Clock { utc, timezone, timer: None });
        applied |= mine == clock;
        applied |= fill(clock.timer.as_ref(), &mut mine.timer);
    }
    applied |= fill(preset.features.as_ref(), &mut own.features);
    applied |= fill(preset.devices.watchdog.as_ref(), &mut own.devices.watchdog);
    applied |= fill(preset.io_threads_policy.as_ref(), &mut own.io_threads_policy);
    applied
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn preset(name: &str, domain: Value) -> VirtualMachineInstancePreset {
        let spec = json!({ "selector": { "matchLabels": { "flavor": "small" } }, "domain": domain });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    fn instance(domain: Value) -> VirtualMachineInstance {
        let metadata = json!({ "name": "a", "labels": { "flavor": "small" } });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "domain": domain } })).unwrap()
    }

    /// Of one preset and one instance: what the instance has afterwards, and whether the preset counts as applied.
    fn applied(wanted: Value, own: Value) -> (Value, bool) {
        let mut vmi = instance(own);
        let outcome = apply(&mut vmi, &[preset("p", wanted)]).unwrap();
        let marked = vmi.metadata.annotations.unwrap_or_default().contains_key("virtualmachinepreset.kubevirt.io/p");
        assert_eq!(marked, outcome.applied == ["p"]);
        (serde_json::to_value(vmi.spec.domain).unwrap(), marked)
    }

    #[test]
    fn every_setting_fills_a_gap_and_nothing_else() {
        for (pointer, setting, other) in [
            ("/cpu", json!({ "cpu": { "cores": 4 } }), json!({ "cpu": { "cores": 6 } })),
            ("/firmware/uuid", json!({ "firmware": { "uuid": "a" } }), json!({ "firmware": { "uuid": "b" } })),
            ("/clock/utc", json!({ "clock": { "utc": {} } }), json!({ "clock": { "utc": { "offsetSeconds": 1 } } })),
            (
                "/clock/timer",
                json!({ "clock": { "timer": { "rtc": {} } } }),
                json!({ "clock": { "timer": { "hpet": {} } } }),
            ),
            (
                "/features/acpi",
                json!({ "features": { "acpi": { "enabled": true } } }),
                json!({ "features": { "acpi": { "enabled": false } } }),
            ),
            (
                "/devices/watchdog/name",
                json!({ "devices": { "watchdog": { "name": "a" } } }),
                json!({ "devices": { "watchdog": { "name": "b" } } }),
            ),
            ("/ioThreadsPolicy", json!({ "ioThreadsPolicy": "shared" }), json!({ "ioThreadsPolicy": "auto" })),
            (
                "/resources/requests",
                json!({ "resources": { "requests": { "memory": "64M" } } }),
                json!({ "resources": { "requests": { "memory": "128M" } } }),
            ),
        ] {
            let at = |value: &Value| value.pointer(pointer).cloned();
            let (filled, marked) = applied(setting.clone(), json!({}));
            assert!(marked && at(&filled) == at(&setting), "{pointer}: {filled}");
            let (same, marked) = applied(setting.clone(), setting.clone());
            assert!(marked && at(&same) == at(&setting), "{pointer}: {same}");
            let (kept, _) = applied(setting.clone(), other.clone());
            assert_eq!(at(&kept), at(&other), "{pointer}");
            let mut vmi = instance(other);
            let outcome = apply(&mut vmi, &[preset("p", setting)]).unwrap();
            assert_eq!(outcome.overridden.len(), 1, "{pointer}: {outcome:?}");
        }
    }

    #[test]
    fn presets_that_contradict_each_other_stop_the_instance() {
        let mut vmi = instance(json!({}));
        let before = vmi.clone();
        let presets = [preset("a", json!({ "cpu": { "cores": 4 } })), preset("b", json!({ "cpu": { "cores": 6 } }))];
        let error = apply(&mut vmi, &presets).unwrap_err().to_string();
        assert!(
            error.starts_with("VirtualMachinePresets cannot be applied due to conflicts: presets 'b' and 'a' conflict")
        );
        assert_eq!(vmi, before);
        let agreeing = [preset("a", json!({ "cpu": { "cores": 4 } })), preset("b", json!({ "cpu": { "cores": 4 } }))];
        assert_eq!(apply(&mut vmi, &agreeing).unwrap().applied, ["a", "b"]);
    }

    #[test]
    fn only_those_that_select_the_instance_count_and_none_if_it_is_excluded() {
        let wanted = json!({ "cpu": { "cores": 4 } });
        let mut vmi = instance(json!({}));
        let mut other = preset("p", wanted.clone());
        other.spec.selector.match_labels = Some([("flavor".to_owned(), "large".to_owned())].into());
        assert_eq!(apply(&mut vmi, &[other]).unwrap(), Outcome::default());
        vmi.metadata.annotations = Some([(EXCLUDED.to_owned(), "true".to_owned())].into());
        assert_eq!(apply(&mut vmi, &[preset("p", wanted.clone())]).unwrap(), Outcome::default());
        assert_eq!(vmi.spec.domain.cpu, None);
        let mut odd = preset("p", wanted);
        odd.spec.selector =
            serde_json::from_value(json!({ "matchExpressions": [{ "key": "a", "operator": "!" }] })).unwrap();
        vmi.metadata.annotations = None;
        assert!(matches!(apply(&mut vmi, &[odd]), Err(Refused::Selector(..))));
    }
}
