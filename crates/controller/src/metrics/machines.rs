//! Families about VirtualMachines.

use ferrovirt_api::{Quantity, v1::VirtualMachine};
use ferrovirt_metrics::Family;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use kube::ResourceExt;

use super::{cards, system_info};

/// Groups of `printableStatus`, each with the metric that tells when it was entered.
const GROUPS: [(&str, &str, &[&str]); 5] = [
    (
        "starting",
        "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
        &["Provisioning", "Starting", "WaitingForVolumeBinding"],
    ),
    ("running", "kubevirt_vm_running_status_last_transition_timestamp_seconds", &["Running"]),
    ("migrating", "kubevirt_vm_migrating_status_last_transition_timestamp_seconds", &["Migrating"]),
    (
        "non_running",
        "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
        &["Stopped", "Paused", "Stopping", "Terminating"],
    ),
    (
        "error",
        "kubevirt_vm_error_status_last_transition_timestamp_seconds",
        &[
            "CrashLoopBackOff",
            "Unknown",
            "ErrorUnschedulable",
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrorPvcNotFound",
            "DataVolumeError",
        ],
    ),
];

pub(super) fn families(vms: impl Iterator<Item = VirtualMachine>) -> Vec<Family> {
    let mut info = Family::gauge("kubevirt_vm_info", "Information about Virtual Machines.");
    let mut created = Family::gauge("kubevirt_vm_create_date_timestamp_seconds", "When a Virtual Machine was created.");
    let mut cards_family = Family::gauge("kubevirt_vm_vnic_info", "The virtual network cards of a Virtual Machine.");
    let mut requests = Family::gauge("kubevirt_vm_resource_requests", "Resources that a Virtual Machine asks for.");
    let mut limits = Family::gauge("kubevirt_vm_resource_limits", "Resource limits of a Virtual Machine.");
    let mut count: std::collections::BTreeMap<String, f64> = Default::default();
    let mut entered =
        GROUPS.map(|(_, name, _)| Family::counter(name, "When a Virtual Machine last entered this group of statuses."));
    for vm in vms {
        let identity = || [("name", vm.name_any()), ("namespace", vm.namespace().unwrap_or_default())];
        *count.entry(vm.namespace().unwrap_or_default()).or_default() += 1.0;
        let group = GROUPS.iter().position(|(_, _, members)| members.contains(&vm.status.printable_status.as_str()));
        info.add(identity().into_iter().chain(describe(&vm, group)), 1.0);
        if let Some(time) = &vm.metadata.creation_timestamp {
            created.add(identity(), time.0.as_second() as f64);
        }
        if let Some(family) = group.and_then(|group| entered.get_mut(group)) {
            family.add(identity(), last_transition(&vm));
        }
        let Some(template) = &vm.spec.template else { continue };
        for card in cards(&template.spec) {
            cards_family.add(identity().into_iter().chain(card), 1.0);
        }
        let domain = &template.spec.domain;
        let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).map(|guest| ("guest", guest));
        let asked = domain.resources.requests.get("memory").map(|amount| ("domain", amount));
        for (source, amount) in guest.into_iter().chain(asked) {
            let labels = [("resource", "memory".into()), ("unit", "bytes".into()), ("source", source.to_owned())];
            requests.add(identity().into_iter().chain(labels), bytes(amount));
        }
        if let Some(cpu) = &domain.cpu {
            for (source, value) in [("cores", cpu.cores), ("sockets", cpu.sockets), ("threads", cpu.threads)] {
                if value > 0 {
                    let labels =
                        [("resource", "cpu".into()), ("unit", source.to_owned()), ("source", "domain".to_owned())];
                    requests.add(identity().into_iter().chain(labels), f64::from(value));
                }
            }
        }
        if let Some(amount) = domain.resources.limits.get("memory") {
            let labels = [("resource", "memory".to_owned()), ("unit", "bytes".to_owned())];
            limits.add(identity().into_iter().chain(labels), bytes(amount));
        }
    }
    let mut number = Family::gauge("kubevirt_number_of_vms", "The number of Virtual Machines by namespace.");
    for (namespace, vms) in count {
        number.add([("namespace", namespace)], vms);
    }
    let mut families = vec![info, created, cards_family, requests, limits, number];
    families.extend(entered);
    families
}

fn describe(vm: &VirtualMachine, group: Option<usize>) -> impl Iterator<Item = (&'static str, String)> {
    let template = vm.spec.template.as_ref();
    let machine = template.and_then(|t| t.spec.domain.machine.as_ref()).map(|m| m.type_.clone());
    let group = group.and_then(|group| GROUPS.get(group)).map_or("<unknown>", |(name, _, _)| name);
    let more = [
        ("machine_type", machine.unwrap_or_default()),
        ("instance_type", vm.spec.instancetype.as_ref().map(|i| i.name.clone()).unwrap_or_default()),
        ("preference", vm.spec.preference.as_ref().map(|p| p.name.clone()).unwrap_or_default()),
        ("status", vm.status.printable_status.to_lowercase()),
        ("status_group", group.to_owned()),
    ];
    system_info(template.and_then(|t| t.metadata.annotations.as_ref())).into_iter().chain(more)
}

/// The latest time at which one of the conditions changed, as upstream takes it.
fn last_transition(vm: &VirtualMachine) -> f64 {
    let times = vm.status.conditions.iter().filter_map(|c| c.last_transition_time.as_ref());
    times.map(|time| time.0.as_second()).max().unwrap_or_default() as f64
}

fn bytes(amount: &Amount) -> f64 {
    Quantity::try_from(amount).map(|amount| amount.value() as f64).unwrap_or_default()
}
