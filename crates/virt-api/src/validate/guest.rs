//! What concerns the guest and its pod: names, probes, credentials, DNS.

use std::net::IpAddr;

use ferrovirt_api::v1::{Probe, VirtualMachineInstanceSpec};

use super::Findings;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LIST: usize = 2048;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let field = format!("{path}.terminationGracePeriodSeconds");
        let message = format!("{field} must not be negative.");
        found.invalid(field, message);
    }
    if !spec.hostname.is_empty() && !is_label(&spec.hostname) {
        let field = format!("{path}.hostname");
        let message = format!("{field} does not conform to the kubernetes DNS_LABEL rules : {LABEL}");
        found.invalid(field, message);
    }
    if !spec.subdomain.is_empty() && !is_subdomain(&spec.subdomain) {
        let field = format!("{path}.subdomain");
        let message = format!("{field} does not conform to the kubernetes DNS_SUBDOMAIN rules : {SUBDOMAIN}");
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
    let strategies = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];
    if let Some(strategy) = spec.eviction_strategy.as_deref().filter(|strategy| !strategies.contains(strategy)) {
        let field = format!("{path}.evictionStrategy");
        let message = format!("{field} is set with an unrecognized option: {strategy}");
        found.invalid(field, message);
    }
    let pod_network = spec.networks.iter().any(|network| network.pod.is_some());
    for (probe, key) in [(&spec.readiness_probe, "readinessProbe"), (&spec.liveness_probe, "livenessProbe")] {
        if let Some(probe) = probe {
            self::probe(probe, &format!("{path}.{key}"), pod_network, found);
        }
    }
    credentials(spec, path, found);
    dns(spec, path, found);
}

fn probe(probe: &Probe, field: &str, pod_network: bool, found: &mut Findings) {
    let kinds =
        [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some(), probe.guest_agent_ping.is_some()];
    match kinds.iter().filter(|set| **set).count() {
        0 => {
            let message = format!(
                "either {field}.tcpSocket, {field}.exec or {field}.httpGet must be set if a {field} is specified"
            );
            found.required(field.to_owned(), message);
        }
        1 => {}
        _ => found.invalid(field.to_owned(), format!("{field} must have exactly one probe type set")),
    }
    if !pod_network {
        for (set, key) in [(probe.http_get.is_some(), "httpGet"), (probe.tcp_socket.is_some(), "tcpSocket")] {
            if set {
                let field = format!("{field}.{key}");
                let message = format!("{field} is only allowed if the Pod Network is attached");
                found.invalid(field, message);
            }
        }
    }
}

fn credentials(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let no_cloud = spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some());
    let config_drive = spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some());
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let field = format!("{path}.accessCredentials[{index}]");
        if usize::from(credential.ssh_public_key.is_some()) + usize::from(credential.user_password.is_some()) != 1 {
            found.invalid(field.clone(), format!("{field} must have exactly one access credential type set"));
        }
        let one = |found: &mut Findings, key: &str, part: &str, count: usize| {
            if count != 1 {
                found.invalid(format!("{field}.{key}.{part}"), format!("{field} must have exactly one {part} set"));
            }
        };
        if let Some(key) = &credential.ssh_public_key {
            let method = &key.propagation_method;
            one(found, "sshPublicKey", "source", usize::from(key.source.secret.is_some()));
            let methods = [method.no_cloud.is_some(), method.config_drive.is_some(), method.qemu_guest_agent.is_some()];
            one(found, "sshPublicKey", "propagationMethod", methods.iter().filter(|set| **set).count());
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
        }
        if let Some(password) = &credential.user_password {
            one(found, "userPassword", "source", usize::from(password.source.secret.is_some()));
            let method = usize::from(password.propagation_method.qemu_guest_agent.is_some());
            one(found, "userPassword", "propagationMethod", method);
        }
    }
}

fn dns(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    if !spec.dns_policy.is_empty() && !policies.contains(&spec.dns_policy.as_str()) {
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
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if none && servers.is_empty() {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        found.required(format!("{field}.nameservers"), message);
    }
    if servers.len() > MAX_NAMESERVERS {
        let message = format!("must not have more than {MAX_NAMESERVERS} nameservers: [{}]", servers.join(" "));
        found.invalid(format!("{field}.nameservers"), message);
    }
    for server in servers.iter().filter(|server| server.parse::<IpAddr>().is_err()) {
        found.invalid(format!("{field}.nameservers"), format!("must be valid IP address: {server}"));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        found.invalid(format!("{field}.searches"), format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    if searches.join(" ").len() > MAX_SEARCH_LIST {
        let message =
            format!("must not have more than {MAX_SEARCH_LIST} characters (including spaces) in the search list");
        found.invalid(format!("{field}.searches"), message);
    }
    for search in searches.iter().filter(|search| !is_subdomain(search.trim_end_matches('.'))) {
        found.invalid(format!("{field}.searches"), format!("{search:?}: {SUBDOMAIN}"));
    }
    if config.options.iter().flatten().any(|option| option.name.as_deref().unwrap_or_default().is_empty()) {
        found.invalid(format!("{field}.options"), "Option.Name must not be empty");
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";

pub(super) fn is_label(text: &str) -> bool {
    text.len() <= 63 && label_characters(text)
}

fn label_characters(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(label_characters)
}
