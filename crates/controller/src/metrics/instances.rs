//! Families about VirtualMachineInstances.

use std::collections::BTreeMap;

use ferrovirt_api::{
    names,
    v1::{VirtualMachineInstance, values::virtual_machine_instance_condition_type as condition},
};
use ferrovirt_metrics::Family;
use ferrovirt_plan::{conditions, pod};
use kube::ResourceExt;

use super::{cards, system_info};

pub(super) fn families(vmis: impl Iterator<Item = VirtualMachineInstance>, emulation: bool) -> Vec<Family> {
    let mut info = Family::gauge("kubevirt_vmi_info", "Information about VirtualMachineInstances.");
    let mut stuck =
        Family::gauge("kubevirt_vmi_non_evictable", "Whether an instance must migrate on eviction and cannot.");
    let mut addresses = Family::gauge("kubevirt_vmi_status_addresses", "The addresses of an instance.");
    let mut cards_family = Family::gauge("kubevirt_vmi_vnic_info", "The virtual network cards of an instance.");
    let mut overhead =
        Family::gauge("kubevirt_vmi_launcher_memory_overhead_bytes", "Memory that the processes around a guest need.");
    let mut outdated = 0.0;
    let mut phases: BTreeMap<(String, String), f64> = BTreeMap::new();
    for vmi in vmis {
        let (name, namespace) = (vmi.name_any(), vmi.namespace().unwrap_or_default());
        let place =
            || [("node", vmi.status.node_name.clone()), ("namespace", namespace.clone()), ("name", name.clone())];
        let phase = vmi.status.phase.to_lowercase();
        *phases.entry((vmi.status.node_name.clone(), phase.clone())).or_default() += 1.0;
        let old = vmi.labels().contains_key(names::OUTDATED_LAUNCHER_IMAGE_LABEL);
        outdated += if old { 1.0 } else { 0.0 };
        let evictable = is_evictable(&vmi);
        let labels = place().into_iter().chain([("phase", phase)]).chain(describe(&vmi, evictable, old));
        info.add(labels, 1.0);
        stuck.add(place(), if evictable { 0.0 } else { 1.0 });
        for interface in &vmi.status.interfaces {
            let kind = if interface.ip_address.is_empty() { "SystemInterface" } else { "ExternalInterface" };
            let more = [
                ("vnic_name", interface.name.clone()),
                ("interface_name", interface.interface_name.clone()),
                ("address", interface.ip_address.clone()),
                ("type", kind.to_owned()),
            ];
            addresses.add(place().into_iter().chain(more), 1.0);
        }
        let identity = || [("name", name.clone()), ("namespace", namespace.clone())];
        for card in cards(&vmi.spec) {
            cards_family.add(identity().into_iter().chain(card), 1.0);
        }
        overhead.add(
            [("namespace", namespace.clone()), ("name", name.clone())],
            pod::memory_overhead(&vmi, emulation) as f64,
        );
    }
    let mut counts = Family::gauge("kubevirt_vmi_phase_count", "The number of instances by phase and node.");
    for ((node, phase), count) in phases {
        counts.add([("node", node), ("phase", phase)], count);
    }
    let number = Family::gauge("kubevirt_vmi_number_of_outdated", "The number of instances with an old launcher.")
        .with([], outdated);
    vec![info, stuck, addresses, cards_family, overhead, counts, number]
}

fn describe(
    vmi: &VirtualMachineInstance,
    evictable: bool,
    outdated: bool,
) -> impl Iterator<Item = (&'static str, String)> {
    let guest = &vmi.status.guest_os_info;
    let annotation = |names: [&str; 2]| names.iter().find_map(|name| vmi.annotations().get(*name).cloned());
    let pod = if vmi.status.phase == "Running" { pod::name(vmi) } else { String::new() };
    let instancetype = annotation([names::INSTANCETYPE_ANNOTATION, names::CLUSTER_INSTANCETYPE_ANNOTATION]);
    let preference = annotation([names::PREFERENCE_ANNOTATION, names::CLUSTER_PREFERENCE_ANNOTATION]);
    let more = [
        ("instance_type", instancetype.unwrap_or_default()),
        ("preference", preference.unwrap_or_default()),
        ("guest_os_kernel_release", guest.kernel_release.clone()),
        ("guest_os_machine", vmi.status.machine.as_ref().map(|m| m.type_.clone()).unwrap_or_default()),
        ("guest_os_arch", guest.machine.clone()),
        ("guest_os_name", guest.name.clone()),
        ("guest_os_version_id", guest.version_id.clone()),
        ("evictable", evictable.to_string()),
        ("outdated", outdated.to_string()),
        ("vmi_pod", pod),
    ];
    system_info(vmi.metadata.annotations.as_ref()).into_iter().chain(more)
}

/// False for one that must migrate on eviction and does not say that it can.
fn is_evictable(vmi: &VirtualMachineInstance) -> bool {
    let must = vmi.spec.eviction_strategy.as_deref() == Some("LiveMigrate");
    !must || conditions::is_true(&vmi.status.conditions, condition::LIVE_MIGRATABLE)
}
