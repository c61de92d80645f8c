//! How much memory, and from where.

use ferrovirt_api::{Quantity, names, v1::VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

use super::{Conversion, arch};
use crate::spec::{MaxMemory, Memory, MemoryBacking};

pub(super) fn convert(c: &mut Conversion<'_>) -> Memory {
    let memory = c.vmi.spec.domain.memory.as_ref();
    let max = memory.and_then(|memory| memory.max_guest.clone());
    let guest = memory.and_then(|memory| memory.guest.clone());
    let bytes = guest_memory(c);
    let max = max.filter(|max| guest.as_ref().is_none_or(|guest| !same(guest, max)));
    let max = max.map(|max| MaxMemory { bytes: to_bytes(c, "spec.domain.memory.maxGuest", &max), slots: 0 });
    if bytes == 0 {
        c.refuse("spec.domain.memory.guest", "no memory is requested");
    }
    Memory { bytes, max, backing: backing(c) }
}

/// Guest memory in bytes: what is asked for explicitly, else the pod's request, else its limit.
pub(super) fn guest_memory(c: &mut Conversion<'_>) -> u64 {
    let domain = &c.vmi.spec.domain;
    let (field, quantity) = match domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()) {
        Some(guest) => ("spec.domain.memory.guest", guest),
        None => match (domain.resources.requests.get("memory"), domain.resources.limits.get("memory")) {
            (Some(request), _) => ("spec.domain.resources.requests.memory", request),
            (None, Some(limit)) => ("spec.domain.resources.limits.memory", limit),
            (None, None) => return 0,
        },
    };
    let quantity = quantity.clone();
    to_bytes(c, field, &quantity)
}

/// True if the memory has to be a file descriptor: huge pages, virtiofs, passt.
pub(super) fn needs_memfd(vmi: &VirtualMachineInstance) -> bool {
    let forbidden = vmi
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(names::MEMFD_MEMORY_BACKEND))
        .is_some_and(|value| value == "false");
    (has_hugepages(vmi) && !forbidden) || needs_sharing(vmi)
}

fn backing(c: &Conversion<'_>) -> Option<MemoryBacking> {
    let hugepages = has_hugepages(c.vmi);
    let shared = needs_sharing(c.vmi);
    if !hugepages && !shared {
        return None;
    }
    let memfd = arch::has_memfd(c.ctx.arch) && needs_memfd(c.vmi);
    Some(MemoryBacking { hugepages, shared, source: memfd.then(|| "memfd".into()), ..MemoryBacking::default() })
}

fn has_hugepages(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some())
}

fn needs_sharing(vmi: &VirtualMachineInstance) -> bool {
    let devices = &vmi.spec.domain.devices;
    devices.filesystems.iter().any(|filesystem| filesystem.virtiofs.is_some())
        || devices.interfaces.iter().any(|interface| interface.passt_binding.is_some())
}

fn to_bytes(c: &mut Conversion<'_>, field: &str, wire: &WireQuantity) -> u64 {
    match Quantity::try_from(wire) {
        Ok(quantity) if quantity.is_negative() => {
            c.refuse(field, "must not be negative");
            0
        }
        // A fraction of a byte is cut, as upstream does.
        Ok(quantity) if !quantity.is_integer() => quantity.as_bytes().saturating_sub(1),
        Ok(quantity) => quantity.as_bytes(),
        Err(error) => {
            c.refuse(field, error.to_string());
            0
        }
    }
}

fn same(a: &WireQuantity, b: &WireQuantity) -> bool {
    matches!((Quantity::try_from(a), Quantity::try_from(b)), (Ok(a), Ok(b)) if a == b)
}
