//! Volumes that a VM is asked to get or to lose while it runs (`status.volumeRequests`), and what may not change while a VM is
//! copied or put back. Nothing is plugged in yet; what is stored has to make sense all the same.

use std::collections::BTreeSet;

use ferrovirt_api::v1::{
    Disk, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineVolumeRequest, Volume,
};

use super::{Cause, Cluster, Findings, INVALID, NOT_SUPPORTED, instance_spec};

const FIELD: &str = "Status.volumeRequests";
const PATH: &str = "spec.template.spec";

/// The first thing that is wrong with the requests of a VM, whose instance is given if it runs.
pub fn volume_requests(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, cluster: &Cluster<'_>) -> Vec<Cause> {
    let requests = &vm.status.volume_requests;
    let Some(template) = vm.spec.template.as_ref().filter(|_| !requests.is_empty()) else { return vec![] };
    let mut changed = template.spec.clone();
    let mut running = vmi.map(|vmi| vmi.spec.clone());
    let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
    for request in requests {
        let cause = match (&request.add_volume_options, &request.remove_volume_options) {
            (Some(_), Some(_)) => {
                Some(told("VolumeRequests require either addVolumeOptions or removeVolumeOptions to be set, not both"))
            }
            (None, None) => {
                Some(told("VolumeRequests require one of either addVolumeOptions or removeVolumeOptions to be set"))
            }
            (Some(options), None) if !added.insert(options.name.as_str()) => {
                Some(told(&format!("AddVolume request for [{}] aleady exists", options.name)))
            }
            (Some(options), None) => plugged(options.disk.as_ref(), &options.name)
                .or_else(|| conflict(request, &template.spec.volumes, "on the vmi template."))
                .or_else(|| vmi.and_then(|vmi| conflict(request, &vmi.spec.volumes, "on currently running vmi"))),
            (None, Some(options)) => (!removed.insert(options.name.as_str()))
                .then(|| told(&format!("RemoveVolume request for [{}] aleady exists", options.name))),
        };
        if let Some(cause) = cause {
            return vec![cause];
        }
        apply(request, &mut changed);
        if let Some(running) = &mut running {
            apply(request, running);
        }
    }
    for spec in std::iter::once(&changed).chain(&running) {
        let mut found = Findings::default();
        instance_spec(spec, PATH, cluster, &mut found);
        if !found.0.is_empty() {
            return found.0;
        }
    }
    let moving = vmi.and_then(|vmi| vmi.status.migration_state.as_ref()).is_some_and(|state| !state.completed);
    if moving {
        let message = "Cannot handle volume requests while VMI migration is in progress";
        return vec![Cause { reason: NOT_SUPPORTED, field: "spec".into(), message: message.into() }];
    }
    vec![]
}

fn told(message: &str) -> Cause {
    Cause { reason: INVALID, field: FIELD.into(), message: message.into() }
}

/// Whether a disk is one that can be plugged in.
fn plugged(disk: Option<&Disk>, name: &str) -> Option<Cause> {
    let Some(disk) = disk else {
        return Some(told(&format!("AddVolume request for [{name}] requires the disk field to be set.")));
    };
    let threads = disk.dedicated_io_thread == Some(true);
    let bus = match (&disk.disk, &disk.lun) {
        (Some(target), _) if !["scsi", "virtio"].contains(&target.bus.as_str()) => {
            let bus = &target.bus;
            return Some(told(&format!(
                "AddVolume request for disk [{name}] requires bus to be 'scsi' or 'virtio'. [{bus}] is not permitted."
            )));
        }
        (Some(target), _) => &target.bus,
        (None, Some(lun)) if lun.bus != "scsi" => {
            let bus = &lun.bus;
            return Some(told(&format!(
                "AddVolume request for LUN [{name}] requires bus to be 'scsi'. [{bus}] is not permitted."
            )));
        }
        (None, Some(lun)) => &lun.bus,
        (None, None) => {
            let message =
                format!("AddVolume request for [{name}] requires diskDevice of type 'disk' or 'lun' to be used.");
            return Some(told(&message));
        }
    };
    if threads && bus != "virtio" {
        return Some(told(&format!("AddVolume request for [{name}] requires virtio bus for IOThreads.")));
    }
    (disk.boot_order == Some(0)).then(|| Cause {
        reason: INVALID,
        field: "spec.domain.devices.disks[1].bootOrder".into(),
        message: "spec.domain.devices.disks[1] must have a boot order > 0, if supplied".into(),
    })
}

/// The volume that a request asks for.
fn wanted(request: &VirtualMachineVolumeRequest) -> Option<Volume> {
    let options = request.add_volume_options.as_ref()?;
    let source = options.volume_source.clone().unwrap_or_default();
    let data_volume = source.data_volume.filter(|_| source.persistent_volume_claim.is_none());
    Some(Volume {
        name: options.name.clone(),
        persistent_volume_claim: source.persistent_volume_claim,
        data_volume,
        ..Volume::default()
    })
}

fn conflict(request: &VirtualMachineVolumeRequest, volumes: &[Volume], place: &str) -> Option<Cause> {
    let wanted = wanted(request)?;
    let other = volumes.iter().any(|volume| volume.name == wanted.name && *volume != wanted);
    other.then(|| {
        told(&format!(
            "AddVolume request for [{}] conflicts with an existing volume of the same name {place}",
            wanted.name
        ))
    })
}

/// The specification as it would be afterwards.
fn apply(request: &VirtualMachineVolumeRequest, spec: &mut VirtualMachineInstanceSpec) {
    if let (Some(volume), Some(options)) = (wanted(request), &request.add_volume_options) {
        if spec.volumes.iter().any(|known| known.name == volume.name) {
            return;
        }
        spec.volumes.push(volume);
        if let Some(disk) = &options.disk {
            spec.domain.devices.disks.push(Disk { name: options.name.clone(), ..disk.clone() });
        }
    } else if let Some(options) = &request.remove_volume_options {
        spec.volumes.retain(|volume| volume.name != options.name);
        spec.domain.devices.disks.retain(|disk| disk.name != options.name);
    }
}

/// What may not change of a VM that is being copied or put back.
pub fn while_kept(old: &VirtualMachine, new: &VirtualMachine) -> Vec<Cause> {
    let cause = |message: String| vec![Cause { reason: NOT_SUPPORTED, field: "spec".into(), message }];
    let volumes = |vm: &VirtualMachine| vm.spec.template.as_ref().map(|template| template.spec.volumes.clone());
    if let Some(snapshot) = &new.status.snapshot_in_progress {
        if volumes(old) != volumes(new) {
            return cause(format!("Cannot update vm disks or volumes until snapshot {snapshot:?} completes"));
        }
        let same = match (old.spec.running, new.spec.running) {
            (Some(old), Some(new)) => old == new,
            _ => old.spec.run_strategy.is_some() && old.spec.run_strategy == new.spec.run_strategy,
        };
        if !same {
            return cause(format!("Cannot update vm running state until snapshot {snapshot:?} completes"));
        }
    }
    let strategy = |vm: &VirtualMachine| match (vm.spec.running, vm.spec.run_strategy.as_deref()) {
        (Some(true), _) => "Always".to_owned(),
        (Some(false), _) => "Halted".to_owned(),
        (None, strategy) => strategy.unwrap_or_default().to_owned(),
    };
    match &new.status.restore_in_progress {
        Some(restore) if strategy(old) != strategy(new) => {
            cause(format!("Cannot update VM runStrategy until restore {restore:?} completes"))
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrovirt_api::v1::KubeVirtConfiguration;
    use serde_json::{Value, json};

    fn vm(requests: Value, status: Value) -> VirtualMachine {
        let mut status = status;
        status["volumeRequests"] = requests;
        serde_json::from_value(json!({ "spec": { "runStrategy": "Always", "template": { "spec": {
            "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "root", "disk": {} }] } },
            "volumes": [{ "name": "root", "persistentVolumeClaim": { "claimName": "c" } }],
        } } }, "status": status }))
        .unwrap()
    }

    fn add(name: &str, disk: Value) -> Value {
        let source = json!({ "persistentVolumeClaim": { "claimName": "more" } });
        json!({ "addVolumeOptions": { "name": name, "disk": disk, "volumeSource": source } })
    }

    #[test]
    fn requests_make_sense_by_themselves_and_with_what_is_there() {
        let scsi = || json!({ "name": "x", "disk": { "bus": "scsi" } });
        let remove = || json!({ "removeVolumeOptions": { "name": "root" } });
        let mut both = add("x", scsi());
        both["removeVolumeOptions"] = json!({ "name": "x" });
        let mut same = add("root", scsi());
        same["addVolumeOptions"]["volumeSource"]["persistentVolumeClaim"]["claimName"] = json!("c");
        for (requests, words) in [
            (json!([add("x", scsi())]), ""),
            (json!([add("x", json!({ "name": "x", "disk": { "bus": "virtio" }, "dedicatedIOThread": true }))]), ""),
            (json!([add("x", json!({ "name": "x", "lun": { "bus": "scsi" } }))]), ""),
            (json!([remove()]), ""),
            (json!([same]), ""),
            (json!([add("x", scsi()), add("x", scsi())]), "AddVolume request for [x] aleady exists"),
            (json!([remove(), remove()]), "RemoveVolume request for [root] aleady exists"),
            (json!([add("root", scsi())]), "conflicts with an existing volume of the same name on the vmi template."),
            (json!([{}]), "require one of either"),
            (json!([both]), "not both"),
            (
                json!([add("x", json!({ "name": "x", "disk": { "bus": "sata" } }))]),
                "requires bus to be 'scsi' or 'virtio'",
            ),
            (
                json!([add("x", json!({ "name": "x", "lun": { "bus": "virtio" } }))]),
                "requires bus to be 'scsi'. [virtio]",
            ),
            (json!([add("x", json!({ "name": "x", "cdrom": { "bus": "sata" } }))]), "'disk' or 'lun'"),
            (
                json!([add("x", json!({ "name": "x", "disk": { "bus": "scsi" }, "dedicatedIOThread": true }))]),
                "requires virtio bus for IOThreads",
            ),
        ] {
            let configuration = KubeVirtConfiguration::default();
            let found = volume_requests(&vm(requests.clone(), json!({})), None, &Cluster(&configuration));
            assert_eq!(found.is_empty(), words.is_empty(), "{requests}: {found:?}");
            assert!(words.is_empty() || found[0].message.contains(words), "{requests}: {found:?}");
        }
    }

    #[test]
    fn a_vm_that_is_copied_or_put_back_keeps_still() {
        let old = vm(json!([]), json!({ "snapshotInProgress": "s" }));
        assert!(while_kept(&old, &old).is_empty());
        let mut changed = old.clone();
        changed.spec.template.as_mut().unwrap().spec.volumes.clear();
        assert!(while_kept(&old, &changed)[0].message.contains("until snapshot \"s\" completes"));
        let mut stopped = old.clone();
        stopped.spec.run_strategy = Some("Halted".into());
        assert!(while_kept(&old, &stopped)[0].message.contains("running state until snapshot"));
        stopped.status.snapshot_in_progress = None;
        assert!(while_kept(&old, &stopped).is_empty());
        stopped.status.restore_in_progress = Some("r".into());
        assert!(while_kept(&old, &stopped)[0].message.contains("until restore \"r\" completes"));
    }
}
