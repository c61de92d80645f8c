//! The instance that a VirtualMachine starts, and the revision that remembers what it was made from.

use ferrovirt_api::{
    names,
    v1::{KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance, VirtualMachineSpec},
};
use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        runtime::RawExtension,
    },
};
use serde_json::json;

use crate::{
    defaults,
    identity::{stable_mac, stable_uuid},
};

/// Key of a start request's data that asks for a guest that waits.
const PAUSED: &str = "paused";

pub(crate) fn build(
    vm: &VirtualMachine,
    configuration: &KubeVirtConfiguration,
    start_paused: bool,
) -> VirtualMachineInstance {
    let name = vm.metadata.name.clone().unwrap_or_default();
    let vm_uid = vm.metadata.uid.clone().unwrap_or_default();
    let template = vm.spec.template.clone().unwrap_or_default();
    let mut vmi = VirtualMachineInstance { spec: template.spec, ..Default::default() };
    let metadata = &mut vmi.metadata;
    metadata.name = Some(name.clone());
    metadata.namespace = vm.metadata.namespace.clone();
    let mut labels = template.metadata.labels.unwrap_or_default();
    labels.insert(names::DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL.into(), name);
    metadata.labels = Some(labels);
    let mut annotations = template.metadata.annotations.unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    annotations.insert(names::VIRTUAL_MACHINE_GENERATION_ANNOTATION.into(), generation.to_string());
    metadata.annotations = Some(annotations);
    metadata.finalizers = Some(vec![names::VIRTUAL_MACHINE_INSTANCE_FINALIZER.into()]);
    metadata.owner_references = Some(vec![owner_reference(vm)]);
    vmi.status.virtual_machine_revision_name = revision_name(vm);
    if start_paused {
        vmi.spec.start_strategy = Some("Paused".into());
    }

    // Licences bind to these: they must stay the same over restarts without the owner having to write them down.
    let firmware = vmi.spec.domain.firmware.get_or_insert_default();
    if firmware.uuid.is_empty() {
        firmware.uuid = stable_uuid(&vm_uid, "firmware");
    }
    defaults::attach_input(&mut vmi.spec);
    // A default that cannot be is refused with its reason when the instance is created.
    let _ = defaults::spec(&mut vmi.spec, configuration);
    for interface in &mut vmi.spec.domain.devices.interfaces {
        if interface.mac_address.is_empty() {
            interface.mac_address = stable_mac(&vm_uid, &interface.name);
        }
    }
    vmi
}

/// True if a start request asks for a guest that waits to be unpaused.
pub(crate) fn asks_for_paused(data: &std::collections::BTreeMap<String, String>) -> bool {
    data.get(PAUSED).is_some_and(|value| value == "true")
}

fn revision_prefix(vm: &VirtualMachine) -> String {
    format!("revision-start-vm-{}-", vm.metadata.uid.as_deref().unwrap_or_default())
}

/// The name under which the VM's present specification is remembered.
pub fn revision_name(vm: &VirtualMachine) -> String {
    format!("{}{}", revision_prefix(vm), vm.metadata.generation.unwrap_or_default())
}

/// True for a revision of this VM other than its present one.
pub fn is_older_revision(vm: &VirtualMachine, name: &str) -> bool {
    name.starts_with(&revision_prefix(vm)) && name != revision_name(vm)
}

/// What the instance of this start is made from, so that a later change can be told from it.
pub fn revision(vm: &VirtualMachine) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision_name(vm)),
            namespace: vm.metadata.namespace.clone(),
            owner_references: Some(vec![owner_reference(vm)]),
            ..Default::default()
        },
        data: Some(RawExtension(json!({ "spec": vm.spec }))),
        revision: vm.metadata.generation.unwrap_or_default(),
    }
}

/// The specification in a revision.
pub fn revision_spec(revision: &ControllerRevision) -> Option<VirtualMachineSpec> {
    let data = &revision.data.as_ref()?.0;
    serde_json::from_value(data.get("spec")?.clone()).ok()
}

pub(crate) fn owner_reference(vm: &VirtualMachine) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: vm.metadata.name.clone().unwrap_or_default(),
        uid: vm.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
