//! CPU, memory, firmware, machine and the small devices.

use ferrovirt_api::{
    quantity::Quantity,
    v1::{DomainSpec, VirtualMachineInstanceSpec},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use super::Findings;

/// The largest guest that QEMU on x86 can address.
const MAX_MEMORY: i64 = 1 << 46;
const MAX_CPUS: u64 = 710;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let domain = &spec.domain;
    memory(domain, path, found);
    hugepages(domain, path, found);
    cpu(spec, path, found);
    firmware(spec, path, found);
    devices(domain, path, found);
    if let Some(machine) = domain.machine.as_ref().filter(|machine| !machine.type_.is_empty()) {
        let known = ["q35", "pc-q35-", "pc-i440fx-", "virt", "s390-ccw-virtio", "pseries"];
        let fits =
            known.iter().any(|name| machine.type_ == *name || (name.ends_with('-') && machine.type_.starts_with(name)));
        // A container has no machine; its driver ignores the field.
        if !fits && machine.type_ != "none" {
            let field = format!("{path}.domain.machine.type");
            let message = format!(
                "{field} is not supported: {} (allowed values: [q35* pc-q35* virt* s390-ccw-virtio* pseries*])",
                machine.type_
            );
            found.invalid(field, message);
        }
    }
    if let Some(policy) = domain.io_threads_policy.as_deref() {
        if !["shared", "auto", "supplementalPool"].contains(&policy) {
            found.invalid(format!("{path}.domain.ioThreadsPolicy"), format!("Invalid IOThreadsPolicy ({policy})"));
        }
        let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
        if policy == "supplementalPool" && count.is_none_or(|count| count < 1) {
            found.invalid(
                format!("{path}.domain.ioThreads.count"),
                "the number of iothreads needs to be set and positive for the dedicated policy",
            );
        }
    }
}

fn parse(amount: &Amount) -> Option<Quantity> {
    Quantity::try_from(amount).ok()
}

fn memory(domain: &DomainSpec, path: &str, found: &mut Findings) {
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let (requests, limits) = (domain.resources.requests.get("memory"), domain.resources.limits.get("memory"));
    let guest_field = format!("{path}.domain.memory.guest");
    let requests_field = format!("{path}.domain.resources.requests.memory");
    let limits_field = format!("{path}.domain.resources.limits.memory");
    let hugepages = domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
    if guest.is_none() && requests.is_none() && limits.is_none() && !hugepages {
        let message = format!(
            "{guest_field}: no memory requested. A guest needs memory: set it here or in resources.requests.memory"
        );
        found.required(guest_field.clone(), message);
    }
    for (field, amount) in [(&guest_field, guest), (&requests_field, requests), (&limits_field, limits)] {
        let Some(amount) = amount else { continue };
        match parse(amount) {
            None => found.invalid(field.clone(), format!("{field} '{}': is not a quantity", amount.0)),
            Some(quantity) if quantity.is_negative() => {
                found.invalid(field.clone(), format!("{field} '{}': must be greater than or equal to 0.", amount.0));
            }
            Some(quantity) if quantity.value() < 1_000_000 => {
                found.invalid(field.clone(), format!("{field} '{}': must be greater than or equal to 1M.", amount.0));
            }
            Some(quantity) if quantity.value() > MAX_MEMORY => {
                found.invalid(field.clone(), format!("{field} '{}': is larger than any machine (64Ti)", amount.0));
            }
            Some(_) => {}
        }
    }
    let value = |amount: Option<&Amount>| amount.and_then(parse).map(Quantity::value);
    if let (Some(request), Some(limit)) = (value(requests), value(limits))
        && limit > 0
        && request > limit
    {
        let (request, limit) = (requests.map_or("", |a| &a.0), limits.map_or("", |a| &a.0));
        let message = format!("{requests_field} '{request}' is greater than {limits_field} '{limit}'");
        found.invalid(requests_field.clone(), message);
    }
    if let (Some(size), Some(limit)) = (value(guest), value(limits))
        && limit > 0
        && size > limit
    {
        let (size, limit) = (guest.map_or("", |a| &a.0), limits.map_or("", |a| &a.0));
        let message =
            format!("{guest_field} '{size}' must be equal to or less than the memory limit {limits_field} '{limit}'");
        found.invalid(guest_field, message);
    }
}

fn hugepages(domain: &DomainSpec, path: &str, found: &mut Findings) {
    let Some(memory) = &domain.memory else { return };
    let Some(hugepages) = &memory.hugepages else { return };
    let size_field = format!("{path}.domain.memory.hugepages.pageSize");
    let Some(page) = Quantity::parse(&hugepages.page_size).ok().map(Quantity::value).filter(|size| *size > 0) else {
        let message = format!("{size_field} '{}': is not a quantity", hugepages.page_size);
        return found.invalid(size_field, message);
    };
    let amount = domain.resources.requests.get("memory").or(memory.guest.as_ref());
    let Some(size) = amount.and_then(parse).map(Quantity::value) else { return };
    let field = format!("{path}.domain.resources.requests.memory");
    let (amount, page_size) = (amount.map_or("", |a| &a.0), &hugepages.page_size);
    if size < page {
        let message =
            format!("{field} '{amount}' must be equal to or larger than page size {size_field} '{page_size}'");
        found.invalid(field, message);
    } else if size % page != 0 {
        let message = format!("{field} '{amount}' is not a multiple of the page size {size_field} '{page_size}'");
        found.invalid(field, message);
    }
}

fn cpu(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let resources = &spec.domain.resources;
    let (requests, limits) = (resources.requests.get("cpu"), resources.limits.get("cpu"));
    let requests_field = format!("{path}.domain.resources.requests.cpu");
    let limits_field = format!("{path}.domain.resources.limits.cpu");
    for (field, amount) in [(&requests_field, requests), (&limits_field, limits)] {
        let Some(amount) = amount else { continue };
        match parse(amount) {
            None => found.invalid(field.clone(), format!("{field} '{}': is not a quantity", amount.0)),
            Some(quantity) if quantity.is_negative() => {
                found.invalid(field.clone(), format!("{field} '{}': must be greater than or equal to 0.", amount.0));
            }
            Some(_) => {}
        }
    }
    let milli = |amount: Option<&Amount>| amount.and_then(parse).map(Quantity::as_milli);
    if let (Some(request), Some(limit)) = (milli(requests), milli(limits))
        && limit > 0
        && request > limit
    {
        let (request, limit) = (requests.map_or("", |a| &a.0), limits.map_or("", |a| &a.0));
        let message = format!("{requests_field} '{request}' is greater than {limits_field} '{limit}'");
        found.invalid(requests_field.clone(), message);
    }
    let Some(cpu) = &spec.domain.cpu else { return };
    let field = format!("{path}.domain.cpu");
    let count = u64::from(cpu.cores.max(1)) * u64::from(cpu.sockets.max(1)) * u64::from(cpu.threads.max(1));
    if count > MAX_CPUS {
        found.invalid(
            field.clone(),
            format!("{field}: {count} virtual CPUs are more than a guest can have ({MAX_CPUS})"),
        );
    }
    if cpu.max_sockets != 0 && cpu.sockets > cpu.max_sockets {
        found.invalid(
            format!("{field}.sockets"),
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        );
    }
    for (index, feature) in cpu.features.iter().enumerate() {
        if !["", "force", "require", "optional", "disable", "forbid"].contains(&feature.policy.as_str()) {
            let message = format!("CPU feature {} uses policy {} that is not supported.", feature.name, feature.policy);
            found.unsupported(format!("{field}.features[{index}].policy"), message);
        }
    }
    if cpu.isolate_emulator_thread && !cpu.dedicated_cpu_placement {
        found.invalid(
            format!("{field}.isolateEmulatorThread"),
            "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement",
        );
    }
    if spec.architecture == "arm64" && cpu.threads > 1 {
        let message = format!(
            "threads must not be greater than 1 at {field}.threads (got {}) when {path}.architecture is arm64",
            cpu.threads
        );
        found.invalid(format!("{path}.architecture"), message);
    }
    if cpu.dedicated_cpu_placement {
        dedicated(spec, path, found);
    }
    if cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some()) {
        let numa = format!("{field}.numa.guestMappingPassthrough");
        if !cpu.dedicated_cpu_placement {
            let message = format!(
                "{field}.dedicatedCpuPlacement must be set to true when NUMA topology strategy is set in {numa}"
            );
            found.invalid(numa.clone(), message);
        }
        if spec.domain.memory.as_ref().is_none_or(|memory| memory.hugepages.is_none()) {
            let message = format!(
                "{path}.domain.memory.hugepages must be requested when NUMA topology strategy is set in {numa}"
            );
            found.invalid(numa, message);
        }
    }
}

fn dedicated(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let Some(cpu) = &spec.domain.cpu else { return };
    let field = format!("{path}.domain.cpu.dedicatedCpuPlacement");
    let resources = &spec.domain.resources;
    for (kind, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        if amounts.get("cpu").and_then(parse).is_some_and(|quantity| !quantity.is_integer()) {
            let message = format!("provided resources CPU {kind} must be an interger");
            found.invalid(format!("{path}.domain.resources.{kind}.cpu"), message);
        }
    }
    let value = |amount: Option<&Amount>| amount.and_then(parse).map(Quantity::value).unwrap_or(0);
    let (request, limit) = (value(resources.requests.get("cpu")), value(resources.limits.get("cpu")));
    let names = (
        format!("{path}.domain.resources.requests.cpu"),
        format!("{path}.domain.resources.limits.cpu"),
        format!("{path}.domain.cpu.cores"),
    );
    let cpus = cpu.cores != 0 || cpu.sockets != 0 || cpu.threads != 0;
    if request == 0 && limit == 0 && !cpus {
        let message = format!(
            "either {} or {} or {} must be provided when DedicatedCPUPlacement is true ",
            names.0, names.1, names.2
        );
        found.invalid(field.clone(), message);
    }
    if request > 0 && limit > 0 && request != limit {
        let message = format!("{} or {} must be equal when DedicatedCPUPlacement is true ", names.0, names.1);
        found.invalid(field.clone(), message);
    }
    if cpu.threads > 2 {
        let message = format!(
            "Not more than two threads must be provided at {path}.domain.cpu.threads (got {}) when DedicatedCPUPlacement is true",
            cpu.threads
        );
        found.invalid(field, message);
    }
}

fn firmware(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let Some(firmware) = &spec.domain.firmware else { return };
    let field = format!("{path}.domain.firmware");
    if let Some(bootloader) = &firmware.bootloader {
        let loader = format!("{field}.bootloader");
        if bootloader.efi.is_some() && bootloader.bios.is_some() {
            let message = format!("{loader} has both EFI and BIOS configured, but they are mutually exclusive.");
            found.invalid(loader, message);
        }
        // Secure boot is on unless it is refused, and needs system management mode.
        let secure = bootloader.efi.as_ref().is_some_and(|efi| efi.secure_boot != Some(false));
        let smm = spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
        if secure && smm.is_none_or(|smm| smm.enabled == Some(false)) {
            let domain = format!("{path}.domain");
            let message =
                format!("{domain} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.");
            found.invalid(domain, message);
        }
    }
    if let Some(boot) = &firmware.kernel_boot {
        let field = format!("{field}.kernelBoot");
        match &boot.container {
            None if !boot.kernel_args.is_empty() => found.invalid(
                format!("{field}.kernelArgs"),
                "kernel arguments cannot be provided without an external kernel",
            ),
            None => {}
            Some(container) => {
                let field = format!("{field}.container");
                if container.image.is_empty() {
                    found.required(format!("{field}.image"), format!("{field} must be defined with an image"));
                }
                if container.kernel_path.is_empty() && container.initrd_path.is_empty() {
                    let message =
                        format!("{field} must be defined with at least one of the following: kernelPath, initrdPath");
                    found.required(field, message);
                }
            }
        }
    }
    if let Some(acpi) = &firmware.acpi {
        let field = format!("{field}.acpi");
        if acpi.slic_name_ref.is_empty() && acpi.msdm_name_ref.is_empty() {
            found.invalid(field.clone(), "ACPI was set but no SLIC nor MSDM volume reference was set");
        }
        for (name, key) in [(&acpi.slic_name_ref, "slicNameRef"), (&acpi.msdm_name_ref, "msdmNameRef")] {
            if name.is_empty() {
                continue;
            }
            match spec.volumes.iter().find(|volume| volume.name == *name) {
                None => found.invalid(format!("{field}.{key}"), format!("{field} does not have a matching Volume.")),
                Some(volume) if volume.secret.is_none() => {
                    found.invalid(format!("{field}.{key}"), format!("{field} refers to Volume of unsupported type."));
                }
                Some(_) => {}
            }
        }
    }
}

fn devices(domain: &DomainSpec, path: &str, found: &mut Findings) {
    let devices = &domain.devices;
    for (index, input) in devices.inputs.iter().enumerate() {
        let field = format!("{path}.domain.devices.inputs[{index}]");
        if !["", "virtio", "usb"].contains(&input.bus.as_str()) {
            found.invalid(format!("{field}.bus"), "Input device can have only virtio or usb bus.");
        }
        if input.type_ != "tablet" {
            found.invalid(format!("{field}.type"), "Input device can have only tablet type.");
        }
    }
    if let Some(sound) = &devices.sound {
        let field = format!("{path}.Sound");
        if !["", "ich9", "ac97"].contains(&sound.model.as_str()) {
            found.invalid(field.clone(), "Sound device type is not supported. Options: 'ich9' or 'ac97'");
        }
        if sound.name.is_empty() {
            found.invalid(field, "Sound device requires a name field.");
        }
    }
}
