//! What concerns the guest and its pod: names, credentials, DNS.

use std::net::IpAddr;

use ferrovirt_api::v1::VirtualMachineInstanceSpec;
use ferrovirt_schema::names;

use super::{Cluster, Findings};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 6;
const MAX_SEARCH_LIST: usize = 256;

/// What the guest is called.
pub(super) fn host(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let problems = names::dns_label(&spec.hostname);
    if !spec.hostname.is_empty() && !problems.is_empty() {
        let field = format!("{path}.hostname");
        let message = format!("{field} does not conform to the kubernetes DNS_LABEL rules : {}", problems.join(", "));
        found.invalid(field, message);
    }
    let problems = names::dns_subdomain(&spec.subdomain);
    if !spec.subdomain.is_empty() && !problems.is_empty() {
        let field = format!("{path}.subdomain");
        let message =
            format!("{field} does not conform to the kubernetes DNS_SUBDOMAIN rules : {}", problems.join(", "));
        found.invalid(field, message);
    }
}

/// The account that the guest acts as in the cluster.
pub(super) fn account(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let name = &spec.service_account_name;
    if name.is_empty() {
        return;
    }
    let field = format!("{path}.serviceAccountName");
    let problems = names::dns_subdomain(name);
    if !problems.is_empty() {
        let message = format!("{field} is not a valid service account name: {}", problems.join("; "));
        found.invalid(field.clone(), message);
    }
    let mounted = spec.volumes.iter().filter_map(|volume| volume.service_account.as_ref());
    if let Some(other) = mounted.map(|account| &account.service_account_name).find(|other| *other != name) {
        let message = format!(
            "spec.serviceAccountName {name:?} and serviceAccount volume {other:?} must reference the same service account"
        );
        found.invalid(field, message);
    }
}

pub(super) fn start(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let field = format!("{path}.terminationGracePeriodSeconds");
        let message = format!("{field} must not be negative.");
        found.invalid(field, message);
    }
    if let Some(strategy) = spec.start_strategy.as_deref() {
        let field = format!("{path}.startStrategy");
        if strategy != "Paused" {
            let message = format!("{field} is set with an unrecognized option: {strategy}");
            found.invalid(field, message);
        } else if spec.liveness_probe.is_some() {
            let message = format!(
                "either {field} or {path}.livenessProbe should be provided.Pausing VMI with LivenessProbe is not supported"
            );
            found.invalid(field, message);
        }
    }
}

pub(super) fn eviction(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let strategies = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];
    let chosen = spec.eviction_strategy.as_deref().or(cluster.0.eviction_strategy.as_deref());
    if let Some(strategy) = chosen.filter(|strategy| !strategies.contains(strategy)) {
        let field = format!("{path}.evictionStrategy");
        let message = format!("{field} is set with an unrecognized option: {strategy}");
        found.invalid(field, message);
    }
}

pub(super) fn credentials(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let no_cloud = spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some());
    let config_drive = spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some());
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let field = format!("{path}.accessCredentials[{index}]");
        let one = |found: &mut Findings, key: &str, part: &str, count: usize| {
            if count != 1 {
                found.invalid(format!("{field}.{key}.{part}"), format!("{field} must have exactly one {part} set"));
            }
        };
        if let Some(key) = &credential.ssh_public_key {
            let method = &key.propagation_method;
            let below = format!("{field}.sshPublicKey.propagationMethod");
            for (set, there, name) in [
                (method.no_cloud.is_some(), no_cloud, "noCloud"),
                (method.config_drive.is_some(), config_drive, "configDrive"),
            ] {
                if set && !there {
                    let message = format!(
                        "{field} requires a {name} volume to exist when the {name} propagationMethod is in use."
                    );
                    found.invalid(below.clone(), message);
                }
            }
            if method.qemu_guest_agent.as_ref().is_some_and(|agent| agent.users.is_empty()) {
                let message = format!("{field} requires at least one user to be present in the users list");
                found.invalid(format!("{below}.qemuGuestAgent.users"), message);
            }
            one(found, "sshPublicKey", "source", usize::from(key.source.secret.is_some()));
            let methods = [method.no_cloud.is_some(), method.config_drive.is_some(), method.qemu_guest_agent.is_some()];
            one(found, "sshPublicKey", "propagationMethod", methods.iter().filter(|set| **set).count());
        }
        if let Some(password) = &credential.user_password {
            one(found, "userPassword", "source", usize::from(password.source.secret.is_some()));
            let method = usize::from(password.propagation_method.qemu_guest_agent.is_some());
            one(found, "userPassword", "propagationMethod", method);
        }
        if usize::from(credential.ssh_public_key.is_some()) + usize::from(credential.user_password.is_some()) != 1 {
            found.invalid(field.clone(), format!("{field} must have exactly one access credential type set"));
        }
    }
}

pub(super) fn dns(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None", ""];
    if !policies.contains(&spec.dns_policy.as_str()) {
        let message =
            format!("DNSPolicy: {} is not supported, valid values: [{}]", spec.dns_policy, policies.join(" "));
        found.unsupported(format!("{path}.dnsPolicy"), message);
    }
    let field = format!("{path}.dnsConfig");
    let none = spec.dns_policy == "None";
    let Some(config) = &spec.dns_config else {
        if none {
            found.required(field, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    // From here on upstream names the parts without their place.
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if none && servers.is_empty() {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return found.required("nameservers".into(), message);
    }
    if servers.len() > MAX_NAMESERVERS {
        let message = format!("must not have more than {MAX_NAMESERVERS} nameservers: [{}]", servers.join(" "));
        found.invalid("nameservers".into(), message);
    }
    for server in servers.iter().filter(|server| server.parse::<IpAddr>().is_err()) {
        found.invalid("nameservers".into(), format!("must be valid IP address: {server}"));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        found.invalid("searchDomains".into(), format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    if searches.join(" ").len() > MAX_SEARCH_LIST {
        let message =
            format!("must not have more than {MAX_SEARCH_LIST} characters (including spaces) in the search list");
        found.invalid("searchDomains".into(), message);
    }
    for problem in searches.iter().flat_map(|search| names::dns_subdomain(search)) {
        found.invalid("searchDomains".into(), problem);
    }
    if config.options.iter().flatten().any(|option| option.name.as_deref().unwrap_or_default().is_empty()) {
        found.invalid("options".into(), "Option.Name must not be empty");
    }
}
