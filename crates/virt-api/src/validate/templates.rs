//! A VM's own data volumes. Their path is upstream's: `dataVolumeTemplate`, without an s.

use ferrovirt_api::v1::VirtualMachine;
use serde_json::Value;

use super::Findings;

pub(super) fn check(vm: &VirtualMachine, found: &mut Findings) {
    let volumes = vm.spec.template.as_ref().map(|template| template.spec.volumes.as_slice()).unwrap_or_default();
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    for (index, template) in vm.spec.data_volume_templates.iter().enumerate() {
        let field = format!("spec.dataVolumeTemplate[{index}]");
        let name = template.metadata.name.as_deref().unwrap_or_default();
        if let Some((field, message)) = broken(name, &template.spec, &field) {
            match name.is_empty() {
                true => found.required(field, message),
                false => found.invalid(field, message),
            }
            continue;
        }
        let used = volumes.iter().any(|volume| {
            volume.data_volume.as_ref().is_some_and(|data| data.name == name)
                || volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name == name)
        });
        if !used {
            let message =
                format!("DataVolumeTemplate entry {field} must be referenced in the VMI template's 'volumes' list");
            found.required(field, message);
        }
        let own = template.metadata.namespace.as_deref().unwrap_or_default();
        if !own.is_empty() && !namespace.is_empty() && own != namespace {
            let message = format!("Embedded DataVolume namespace {own} differs from VM namespace {namespace}");
            found.invalid(format!("spec.dataVolumeTemplates[{index}]"), message);
        }
    }
}

/// The first thing that is wrong with a template, and where.
fn broken(name: &str, spec: &Value, field: &str) -> Option<(String, String)> {
    let there = |value: &Value| !value.is_null();
    let problem = |below: &str, message: &str| Some((format!("{field}.{below}"), message.to_owned()));
    if name.is_empty() {
        let message = format!("'name' field must not be empty for DataVolumeTemplate entry {field}.name.");
        return Some((format!("{field}.name"), message));
    }
    let storage = match (there(&spec["pvc"]), there(&spec["storage"])) {
        (false, false) => return problem("PVC.Storage", "Missing Data volume PVC or Storage"),
        (true, true) => {
            let message = "Duplicate storage definition, both target storage and target pvc defined";
            return problem("PVC.Storage", message);
        }
        (true, false) => &spec["pvc"],
        (false, true) => &spec["storage"],
    };
    let outside = there(&storage["dataSource"]) || there(&storage["dataSourceRef"]);
    let inside = there(&spec["source"]) || there(&spec["sourceRef"]);
    if outside && inside {
        return problem("source", "External population is incompatible with Source and SourceRef");
    }
    if !outside && !inside {
        let message = "Data volume should have either Source, SourceRef, or be externally populated";
        return problem("source.sourceRef", message);
    }
    match spec["source"].as_object().map(|sources| sources.values().filter(|source| there(source)).count()) {
        Some(0) => problem("source", "Missing dataVolume valid source"),
        Some(2..) => problem("source", "Multiple dataVolume sources"),
        _ => None,
    }
}
