//! DataVolumes that a VM brings along: made from its templates, owned by it, waited for before it starts.

use ferrovirt_api::{
    names,
    v1::{DataVolumeTemplateSpec, VirtualMachine},
};
use serde_json::{Value, json};

use crate::{
    storage::{Storage, Waiting},
    vm_instance::owner_reference,
};

/// The templates whose DataVolumes do not exist and should.
pub(crate) fn missing(vm: &VirtualMachine, storage: &Storage, wants_start: bool) -> Vec<Value> {
    let annotations = vm.metadata.annotations.as_ref();
    let wait = annotations.and_then(|a| a.get(names::IMMEDIATE_DATA_VOLUME_CREATION)).is_some_and(|v| v == "false");
    if wait && !wants_start {
        return vec![];
    }
    let templates = vm.spec.data_volume_templates.iter().filter(|template| {
        let name = template.metadata.name.as_deref().unwrap_or_default();
        // A claim of the name without a DataVolume was made by other means, or its DataVolume was tidied away.
        !storage.data_volumes.contains_key(name) && !storage.claims.contains_key(name)
    });
    templates.map(|template| build(vm, template)).collect()
}

/// True if volumes of the templates' names are on their way out, and those of this VM cannot be made before they are gone.
pub(crate) fn outlived(vm: &VirtualMachine, storage: &Storage) -> bool {
    let mut names = vm.spec.data_volume_templates.iter().filter_map(|template| template.metadata.name.as_deref());
    names.any(|name| storage.is_going(name))
}

/// Why the templates' DataVolumes keep the VM from starting.
pub(crate) fn obstacle(vm: &VirtualMachine, storage: &Storage) -> Option<Waiting> {
    let spec = &vm.spec.template.as_ref()?.spec;
    match storage.waiting(spec) {
        // The instance itself says which claim it misses, as upstream's does.
        Some(Waiting::Missing(name)) if is_template(vm, &name) => {
            Some(Waiting::Provisioning(format!("DataVolume {name} is being made")))
        }
        Some(Waiting::Missing(_)) | None => None,
        other => other,
    }
}

fn is_template(vm: &VirtualMachine, name: &str) -> bool {
    vm.spec.data_volume_templates.iter().any(|template| template.metadata.name.as_deref() == Some(name))
}

fn build(vm: &VirtualMachine, template: &DataVolumeTemplateSpec) -> Value {
    let mut labels = template.metadata.labels.clone().unwrap_or_default();
    labels.insert(names::CREATED_BY_LABEL.into(), vm.metadata.uid.clone().unwrap_or_default());
    let mut annotations = template.metadata.annotations.clone().unwrap_or_default();
    annotations.insert("cdi.kubevirt.io/allowClaimAdoption".into(), "true".into());
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {
            "name": template.metadata.name,
            "namespace": vm.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(vm)],
        },
        "spec": template.spec,
    })
}
