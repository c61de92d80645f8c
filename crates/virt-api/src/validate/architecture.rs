//! What one kind of machine cannot have, memory encryption, and which enlightenments need which.

use ferrovirt_api::v1::{FeatureState, VirtualMachineInstanceSpec, Watchdog};

use super::{Cluster, FORBIDDEN, Findings};

/// Rules of the instance's architecture, which is filled in before.
pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let architecture = spec.architecture.as_str();
    let i6300esb = |dog: &Watchdog| dog.i6300esb.is_some() && dog.diag288.is_none();
    let diag288 = |dog: &Watchdog| dog.diag288.is_some() && dog.i6300esb.is_none();
    let watchdog = spec.domain.devices.watchdog.as_ref();
    let field = format!("{path}.domain.devices.watchdog");
    match architecture {
        "amd64" => {
            if watchdog.is_some_and(|dog| !i6300esb(dog)) {
                found.unsupported(field, "amd64 only supports I6300ESB watchdog device");
            }
            video(spec, path, architecture, &["vga", "cirrus", "virtio", "ramfb", "bochs"], found);
        }
        "s390x" => {
            if watchdog.is_some_and(|dog| !diag288(dog)) {
                found.unsupported(field, "s390x only supports Diag288 watchdog device");
            }
            video(spec, path, architecture, &["virtio"], found);
        }
        "arm64" => arm64(spec, path, found),
        other => found.invalid(format!("{path}.architecture"), format!("unsupported architecture: {other}")),
    }
}

fn video(spec: &VirtualMachineInstanceSpec, path: &str, architecture: &str, known: &[&str], found: &mut Findings) {
    let Some(video) = &spec.domain.devices.video else { return };
    if !known.contains(&video.type_.as_str()) {
        let message = format!("video model '{}' is not supported on {architecture} architecture", video.type_);
        found.unsupported(format!("{path}.domain.devices.video.type"), message);
    }
}

fn arm64(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let domain = &spec.domain;
    let bootloader = domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    if bootloader.is_some_and(|bootloader| bootloader.bios.is_some()) {
        found.unsupported(
            format!("{path}.domain.firmware.bootloader.bios"),
            "Arm64 does not support bios boot, please change to uefi boot",
        );
    }
    if domain.cpu.as_ref().is_some_and(|cpu| !["", "host-passthrough"].contains(&cpu.model.as_str())) {
        found.unsupported(
            format!("{path}.domain.cpu.model"),
            "currently, host-passthrough is the only model supported on Arm64",
        );
    }
    for (index, disk) in domain.devices.disks.iter().enumerate() {
        let targets = [
            ("disk", disk.disk.as_ref().map(|target| &target.bus)),
            ("cdrom", disk.cdrom.as_ref().map(|target| &target.bus)),
            ("lun", disk.lun.as_ref().map(|target| &target.bus)),
        ];
        for (kind, bus) in targets {
            if bus.is_some_and(|bus| !["", "virtio", "scsi"].contains(&bus.as_str())) {
                found.unsupported(
                    format!("{path}.domain.devices.disks[{index}].{kind}.bus"),
                    "Arm64 not support this disk bus type, please use virtio or scsi",
                );
            }
        }
    }
    if domain.devices.watchdog.is_some() {
        found.unsupported(format!("{path}.domain.devices.watchdog"), "Arm64 not support Watchdog device");
    }
    if domain.devices.sound.is_some() {
        found.unsupported(format!("{path}.domain.devices.sound"), "Arm64 not support sound device");
    }
    video(spec, path, "arm64", &["virtio", "ramfb"], found);
}

/// Encryption of the guest's memory.
pub(super) fn launch_security(
    spec: &VirtualMachineInstanceSpec,
    path: &str,
    cluster: &Cluster<'_>,
    found: &mut Findings,
) {
    let Some(security) = &spec.domain.launch_security else { return };
    match spec.architecture.as_str() {
        "amd64" => {}
        "s390x" => return,
        other => {
            let message = format!("No launchSecurity support for architecture: {other}");
            return found.invalid(format!("{path}.architecture"), message);
        }
    }
    let field = format!("{path}.launchSecurity");
    let kinds = [
        (security.sev.is_some(), "SEV", "WorkloadEncryptionSEV"),
        (security.snp.is_some(), "SNP", "WorkloadEncryptionSEV"),
        (security.tdx.is_some(), "TDX", "WorkloadEncryptionTDX"),
    ];
    let chosen: Vec<_> = kinds.iter().filter(|(set, ..)| *set).collect();
    let [(_, kind, gate)] = chosen.as_slice() else {
        return found.add(FORBIDDEN, field, "One and only one launchSecurity type can be set");
    };
    if !cluster.gate(gate) {
        return found.invalid(field, format!("{gate} feature gate is not enabled in kubevirt-config"));
    }
    let smm = spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
    if security.tdx.is_some() && on(smm) {
        found.invalid(field.clone(), "TDX does not work along with SMM");
    }
    let bootloader = spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    match bootloader.and_then(|bootloader| bootloader.efi.as_ref()) {
        None => found.invalid(field.clone(), format!("{kind} requires OVMF (UEFI)")),
        Some(efi) => {
            if security.tdx.is_none() && efi.secure_boot != Some(false) {
                found.invalid(field.clone(), format!("{kind} does not work along with SecureBoot"));
            }
            if security.sev.is_none() && efi.persistent == Some(true) {
                found.invalid(field.clone(), format!("{kind} does not work along with Persistent EFI variables"));
            }
        }
    }
    let attested = security.sev.as_ref().is_some_and(|sev| sev.attestation.is_some());
    if attested && spec.start_strategy.as_deref() != Some("Paused") {
        found.invalid(field.clone(), "SEV attestation requires VMI StartStrategy 'Paused'");
    }
    for interface in spec.domain.devices.interfaces.iter().filter(|interface| interface.boot_order.is_some()) {
        found.invalid(field.clone(), format!("{kind} does not work with bootable NICs: {}", interface.name));
    }
}

/// Which of Hyper-V's enlightenments are there without those that they build on.
pub(super) fn enlightenments(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let Some(features) = &spec.domain.features else { return };
    let Some(hyperv) = &features.hyperv else { return };
    let field = format!("{path}.domain.features.hyperv");
    // Upstream's paths name the place twice, and clients know them so.
    let below = format!("{field}.domain.features.hyperv");
    let timer = hyperv.synictimer.as_ref().map(|timer| FeatureState { enabled: timer.enabled });
    let flush = hyperv.tlbflush.as_ref().map(|flush| FeatureState { enabled: flush.enabled });
    let needs = [
        ("evmcs", hyperv.evmcs.as_ref(), "vapic", hyperv.vapic.as_ref()),
        ("ipi", hyperv.ipi.as_ref(), "vpindex", hyperv.vpindex.as_ref()),
        ("tlbflush", flush.as_ref(), "vpindex", hyperv.vpindex.as_ref()),
        ("synictimer", timer.as_ref(), "synic", hyperv.synic.as_ref()),
        ("synic", hyperv.synic.as_ref(), "vpindex", hyperv.vpindex.as_ref()),
    ];
    for (name, state, other, required) in needs {
        if on(state) && !on(required) {
            let message = format!("'{below}.{name}' requires '{below}.{other}', which was disabled.");
            found.invalid(format!("{below}.{name}"), message);
        }
    }
    if on(hyperv.evmcs.as_ref()) {
        let listed = spec.domain.cpu.as_ref().map(|cpu| cpu.features.as_slice()).unwrap_or_default();
        if listed.is_empty() {
            found.required("spec.domain.cpu.features".into(), "vmx cpu feature is required when evmcs is set");
        }
        for (index, feature) in listed.iter().enumerate() {
            if feature.name == "vmx" && feature.policy != "require" {
                found.invalid(
                    format!("spec.domain.cpu.features[{index}].policy"),
                    "vmx cpu feature has to be set to require policy",
                );
            }
        }
    }
    if features.hyperv_passthrough.is_some() {
        found.invalid(
            field,
            "Cannot explicitly set hyperV features if HypervPassthrough is being used. Please use either HyperV or HypervPassthrough.",
        );
    }
}

/// A feature that is there is on unless it is said to be off.
fn on(state: Option<&FeatureState>) -> bool {
    state.is_some_and(|state| state.enabled != Some(false))
}
