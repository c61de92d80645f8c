//! CPU, memory, firmware, machine and the small devices.

use ferrovirt_api::{
    quantity::Quantity,
    v1::{DomainSpec, VirtualMachineInstanceSpec},
};
use ferrovirt_plan::defaults;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use super::{Cluster, Findings, cluster::matches};

const MAX_CPUS: u64 = 710;
const FORMAT: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let domain = &spec.domain;
    memory(domain, path, cluster, found);
    machine(spec, path, cluster, found);
    super::firmware::tables(spec, path, found);
    processors(spec, path, cluster, found);
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

fn value(amount: Option<&Amount>) -> i64 {
    amount.and_then(parse).map_or(0, Quantity::value)
}

/// An amount as Kubernetes prints it.
fn shown(amount: Option<&Amount>) -> String {
    match amount {
        None => "0".into(),
        Some(amount) => parse(amount).map_or_else(|| amount.0.clone(), |quantity| quantity.to_string()),
    }
}

fn memory(domain: &DomainSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let (requests, limits) = (domain.resources.requests.get("memory"), domain.resources.limits.get("memory"));
    let guest_field = format!("{path}.domain.memory.guest");
    let requests_field = format!("{path}.domain.resources.requests.memory");
    let limits_field = format!("{path}.domain.resources.limits.memory");
    for (field, amount) in [(&requests_field, requests), (&limits_field, limits), (&guest_field, guest)] {
        let Some(amount) = amount else { continue };
        // Requests and limits of nothing are none; a guest of nothing is a mistake.
        let least = if field == &guest_field { 0 } else { 1 };
        let small = field != &limits_field;
        match parse(amount) {
            None => found.invalid(field.clone(), format!("{field} '{}': {FORMAT}", amount.0)),
            Some(quantity) if quantity.is_negative() => {
                found.invalid(field.clone(), format!("{field} '{quantity}': must be greater than or equal to 0."));
            }
            Some(quantity) if small && (least..1_000_000).contains(&quantity.value()) => {
                found.invalid(field.clone(), format!("{field} '{quantity}': must be greater than or equal to 1M."));
            }
            Some(_) => {}
        }
    }
    if value(limits) > 0 && value(requests) > value(limits) {
        let message =
            format!("{requests_field} '{}' is greater than {limits_field} '{}'", shown(requests), shown(limits));
        found.invalid(requests_field, message);
    }
    hugepages(domain, path, found);
    // Where changes reach the running instance, its pod's limits follow the guest's size.
    if !cluster.live_update() && guest.is_some() && value(limits) != 0 && value(limits) < value(guest) {
        let message = format!(
            "{guest_field} '{}' must be equal to or less than the memory limit {limits_field} '{}'",
            shown(guest),
            shown(limits)
        );
        found.invalid(guest_field, message);
    }
}

fn hugepages(domain: &DomainSpec, path: &str, found: &mut Findings) {
    let Some(memory) = &domain.memory else { return };
    let Some(hugepages) = &memory.hugepages else { return };
    let (size_field, page_size) = (format!("{path}.domain.memory.hugepages.pageSize"), &hugepages.page_size);
    let Some(page) = Quantity::parse(page_size).ok().map(Quantity::value).filter(|size| *size > 0) else {
        return found.invalid(size_field.clone(), format!("{size_field} '{page_size}': {FORMAT}"));
    };
    let requests = domain.resources.requests.get("memory");
    let sizes = [value(requests), value(memory.guest.as_ref()), value(domain.resources.limits.get("memory"))];
    let Some(size) = sizes.into_iter().find(|size| *size != 0) else { return };
    let field = format!("{path}.domain.resources.requests.memory");
    let amount = shown(requests);
    if size < page {
        let message =
            format!("{field} '{amount}' must be equal to or larger than page size {size_field} '{page_size}'");
        found.invalid(field, message);
    } else if size % page != 0 {
        let message = format!("{field} '{amount}' is not a multiple of the page size {size_field} '{page_size}'");
        found.invalid(field, message);
    }
}

fn machine(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let Some(machine) = spec.domain.machine.as_ref().filter(|machine| !machine.type_.is_empty()) else { return };
    // A container has no machine; its driver says "none".
    let machines = cluster.machines(&spec.architecture);
    if machine.type_ == "none" || machines.iter().any(|pattern| matches(pattern, &machine.type_)) {
        return;
    }
    let field = format!("{path}.domain.machine.type");
    let message = format!("{field} is not supported: {} (allowed values: [{}])", machine.type_, machines.join(" "));
    found.invalid(field, message);
}

fn processors(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let resources = &spec.domain.resources;
    let (requests, limits) = (resources.requests.get("cpu"), resources.limits.get("cpu"));
    let requests_field = format!("{path}.domain.resources.requests.cpu");
    let limits_field = format!("{path}.domain.resources.limits.cpu");
    for (field, amount) in [(&requests_field, requests), (&limits_field, limits)] {
        let Some(amount) = amount else { continue };
        match parse(amount) {
            None => found.invalid(field.clone(), format!("{field} '{}': {FORMAT}", amount.0)),
            Some(quantity) if quantity.is_negative() => {
                found.invalid(field.clone(), format!("{field} '{quantity}': must be greater than or equal to 0."));
            }
            Some(_) => {}
        }
    }
    let milli = |amount: Option<&Amount>| amount.and_then(parse).map_or(0, Quantity::as_milli);
    if milli(limits) > 0 && milli(requests) > milli(limits) {
        let message =
            format!("{requests_field} '{}' is greater than {limits_field} '{}'", shown(requests), shown(limits));
        found.invalid(requests_field.clone(), message);
    }
    let Some(cpu) = &spec.domain.cpu else { return };
    if cpu.dedicated_cpu_placement {
        dedicated(spec, path, cluster, found);
    }
    topology(spec, path, found);
}

/// What a guest's processors look like.
fn topology(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let Some(cpu) = &spec.domain.cpu else { return };
    let field = format!("{path}.domain.cpu");
    let count = u64::from(cpu.cores.max(1)) * u64::from(cpu.sockets.max(1)) * u64::from(cpu.threads.max(1));
    if count > MAX_CPUS {
        let message = format!("{field}: {count} virtual CPUs are more than a guest can have ({MAX_CPUS})");
        found.invalid(field.clone(), message);
    }
    let numa = format!("{field}.numa.guestMappingPassthrough");
    let passthrough = cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    if passthrough && !cpu.dedicated_cpu_placement {
        let message =
            format!("{field}.dedicatedCpuPlacement must be set to true when NUMA topology strategy is set in {numa}");
        found.invalid(numa.clone(), message);
    }
    if passthrough && spec.domain.memory.as_ref().is_none_or(|memory| memory.hugepages.is_none()) {
        let message =
            format!("{path}.domain.memory.hugepages must be requested when NUMA topology strategy is set in {numa}");
        found.invalid(numa.clone(), message);
    }
    if cpu.isolate_emulator_thread && !cpu.dedicated_cpu_placement {
        found.invalid(
            format!("{field}.isolateEmulatorThread"),
            "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement",
        );
    }
    for (index, feature) in cpu.features.iter().enumerate() {
        if !["", "force", "require", "optional", "disable", "forbid"].contains(&feature.policy.as_str()) {
            let message = format!("CPU feature {} uses policy {} that is not supported.", feature.name, feature.policy);
            found.unsupported(format!("{field}.features[{index}].policy"), message);
        }
    }
    if cpu.max_sockets != 0 && cpu.sockets > cpu.max_sockets {
        found.invalid(
            format!("{field}.sockets"),
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        );
    }
    if cpu.realtime.is_some() {
        if !cpu.dedicated_cpu_placement {
            let placement = format!("{field}.dedicatedCpuPlacement");
            let message = format!("{placement} must be set to true when {field}.realtime is used");
            found.required(placement, message);
        }
        if !passthrough {
            let message = format!("{numa} must be defined when {field}.realtime is used");
            found.required(numa, message);
        }
    }
}

/// Processors of its own need whole numbers, and memory that is reserved.
fn dedicated(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let Some(cpu) = &spec.domain.cpu else { return };
    let field = format!("{path}.domain.cpu.dedicatedCpuPlacement");
    let resources = &spec.domain.resources;
    let at = |kind: &str, what: &str| format!("{path}.domain.resources.{kind}.{what}");
    let (memory_request, memory_limit) =
        (value(resources.requests.get("memory")), value(resources.limits.get("memory")));
    let memory = spec.domain.memory.as_ref();
    let guest = memory.is_some_and(|memory| memory.hugepages.is_some() || value(memory.guest.as_ref()) != 0);
    if memory_request == 0 && memory_limit == 0 && !guest {
        let message = format!(
            "{}, {}, {path}.domain.memory.hugepages or {path}.domain.memory.guest should be provided",
            at("requests", "memory"),
            at("limits", "memory"),
        );
        found.invalid(at("limits", "memory"), message);
    }
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        let amount = amounts.get("cpu").and_then(parse);
        if amount.is_some_and(|quantity| quantity.value() > 0 && !quantity.is_integer()) {
            found.invalid(at(kind, "cpu"), format!("provided resources CPU {kind} must be an interger"));
        }
    }
    if memory_request > 0 && memory_limit > 0 && memory_request != memory_limit {
        let message = format!("{} must be equal to {}", at("requests", "memory"), at("limits", "memory"));
        found.invalid(at("requests", "memory"), message);
    }
    let (request, limit) = (value(resources.requests.get("cpu")), value(resources.limits.get("cpu")));
    let (requests, limits, cores) = (at("requests", "cpu"), at("limits", "cpu"), format!("{path}.domain.cpu.cores"));
    let asked = cpu.cores != 0 || cpu.sockets != 0 || cpu.threads != 0;
    let count = i64::from(cpu.cores.max(1)) * i64::from(cpu.sockets.max(1)) * i64::from(cpu.threads.max(1));
    if request == 0 && limit == 0 && !asked {
        let message =
            format!("either {requests} or {limits} or {cores} must be provided when DedicatedCPUPlacement is true ");
        found.invalid(field.clone(), message);
    }
    if request > 0 && limit > 0 && request != limit {
        let message = format!("{requests} or {limits} must be equal when DedicatedCPUPlacement is true ");
        found.invalid(field.clone(), message);
    }
    if (request > 0 || limit > 0) && asked && request != count && limit != count {
        let message = format!(
            "{requests} or {limits} must not be provided at the same time with {cores} when DedicatedCPUPlacement is true "
        );
        found.invalid(field.clone(), message);
    }
    if cpu.threads > 1 && cluster.architecture(&spec.architecture) == "arm64" {
        let message = format!(
            "threads must not be greater than 1 at {path}.domain.cpu.threads (got {}) when {path}.architecture is arm64",
            cpu.threads
        );
        found.invalid(format!("{path}.architecture"), message);
    }
    if cpu.threads > 2 {
        let message = format!(
            "Not more than two threads must be provided at {path}.domain.cpu.threads (got {}) when DedicatedCPUPlacement is true",
            cpu.threads
        );
        found.invalid(field, message);
    }
}

/// An instance has to say how large it is. A template need not: what it lacks may come from elsewhere.
pub(super) fn size(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let domain = &spec.domain;
    let memory = domain.memory.as_ref();
    let told = memory.is_some_and(|memory| memory.guest.is_some() || memory.hugepages.is_some());
    let resources = &domain.resources;
    if told || value(resources.requests.get("memory")) != 0 || value(resources.limits.get("memory")) != 0 {
        return;
    }
    let guest = format!("{path}.domain.memory.guest");
    let message = format!(
        "no memory requested, at least one of '{guest}', '{path}.domain.memory.hugepages.pageSize' or '{path}.domain.resources.requests.memory' must be set"
    );
    found.required(guest, message);
}

/// A guest that may grow while it runs has to begin with what can be added to.
pub(super) fn growth(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let Some(memory) = spec.domain.memory.as_ref().filter(|_| cluster.live_update()) else { return };
    let obstacle = memory.max_guest.as_ref().and_then(|most| defaults::obstacle_to_more_memory(spec, most));
    if let Some(message) = obstacle {
        found.invalid(format!("{path}.domain.memory.guest"), message);
    }
}
