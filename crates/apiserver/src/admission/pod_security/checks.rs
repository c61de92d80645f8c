//! What the levels of the Pod Security Standards forbid, in the words of upstream.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Level;
use super::pod::{Pod, Violation, join, listed, setters};
use crate::object::{at, strings, text};

type Look = fn(&Pod<'_>) -> Option<Violation>;

/// One rule, and since which minor version of the policy it looks like this.
struct Check {
    id: &'static str,
    level: Level,
    versions: &'static [(u32, Look)],
    /// Weaker rules that this one stands for.
    instead_of: Option<&'static str>,
}

const fn baseline(id: &'static str, versions: &'static [(u32, Look)]) -> Check {
    Check { id, level: Level::Baseline, versions, instead_of: None }
}

const fn restricted(id: &'static str, versions: &'static [(u32, Look)], instead_of: Option<&'static str>) -> Check {
    Check { id, level: Level::Restricted, versions, instead_of }
}

/// In the order in which violations are told.
///
/// Upstream's lets pods with users of their own (`hostUsers: false`) be root in them since 1.35. The nodes behind this API give no
/// pod users of its own, so nobody is excused by asking for them.
const CHECKS: &[Check] = &[
    baseline("appArmorProfile", &[(0, app_armor)]),
    baseline("capabilities_baseline", &[(0, capabilities)]),
    baseline("hostNamespaces", &[(0, host_namespaces)]),
    baseline("hostPathVolumes", &[(0, host_paths)]),
    baseline("hostPorts", &[(0, host_ports)]),
    baseline("hostProbesAndHostLifecycle", &[(34, probe_hosts)]),
    baseline("privileged", &[(0, privileged)]),
    baseline("procMount", &[(0, proc_mount)]),
    baseline(
        "seLinuxOptions",
        &[(0, |pod| selinux(pod, &SELINUX_TYPES[..4])), (31, |pod| selinux(pod, SELINUX_TYPES))],
    ),
    baseline("seccompProfile_baseline", &[(0, seccomp_annotations), (19, seccomp)]),
    baseline(
        "sysctls",
        &[
            (0, |pod| sysctls(pod, &SYSCTLS[..5])),
            (27, |pod| sysctls(pod, &SYSCTLS[..6])),
            (29, |pod| sysctls(pod, &SYSCTLS[..10])),
            (32, |pod| sysctls(pod, SYSCTLS)),
        ],
    ),
    baseline("windowsHostProcess", &[(0, host_process)]),
    restricted(
        "allowPrivilegeEscalation",
        &[(8, escalation), (25, |pod| if pod.is_windows() { None } else { escalation(pod) })],
        None,
    ),
    restricted(
        "capabilities_restricted",
        &[(22, dropped_capabilities), (25, |pod| if pod.is_windows() { None } else { dropped_capabilities(pod) })],
        Some("capabilities_baseline"),
    ),
    restricted("procMount_restricted", &[(35, proc_mount)], Some("procMount")),
    restricted("restrictedVolumes", &[(0, volumes)], Some("hostPathVolumes")),
    restricted("runAsNonRoot", &[(0, non_root)], None),
    restricted("runAsUser", &[(23, root)], None),
    restricted(
        "seccompProfile_restricted",
        &[(19, required_seccomp), (25, |pod| if pod.is_windows() { None } else { required_seccomp(pod) })],
        Some("seccompProfile_baseline"),
    ),
];

/// Everything in a pod that a level forbids.
pub fn violations(level: Level, minor: u32, pod: &Pod<'_>) -> Vec<Violation> {
    let active = |check: &&Check| check.level <= level && check.versions.iter().any(|(since, _)| *since <= minor);
    let replaced: Vec<&str> = CHECKS.iter().filter(active).filter_map(|check| check.instead_of).collect();
    let checks = CHECKS.iter().filter(active).filter(|check| !replaced.contains(&check.id));
    let looks = checks.filter_map(|check| check.versions.iter().rfind(|(since, _)| *since <= minor));
    looks.filter_map(|(_, look)| look(pod)).collect()
}

const SELINUX_TYPES: &[&str] = &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let (mut who, values) = pod.profiles("appArmorProfile");
    let mut values: Vec<String> = values.into_iter().collect();
    let allowed = |value: &str| value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
    let annotations: BTreeSet<String> = pod
        .annotations()
        .filter(|(key, value)| key.starts_with(APP_ARMOR_PREFIX) && !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !annotations.is_empty() {
        who.push(if annotations.len() == 1 { "annotation".into() } else { "annotations".into() });
        values.extend(annotations);
    }
    let reason = if values.len() == 1 { "forbidden AppArmor profile" } else { "forbidden AppArmor profiles" };
    let detail = || format!("{} must not set AppArmor profile type to {}", who.join(" and "), join(&values));
    (!who.is_empty()).then(|| Violation::new(reason, detail()))
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let (who, added) = pod.added_capabilities(CAPABILITIES);
    let detail = || {
        format!("{} must not include {} in securityContext.capabilities.add", listed("container", &who), join(&added))
    };
    (!who.is_empty()).then(|| Violation::new("non-default capabilities", detail()))
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|key| pod.spec[**key] == true)
        .map(|key| format!("{key}=true"))
        .collect();
    (!shared.is_empty()).then(|| Violation::new("host namespaces", shared.join(", ")))
}

pub fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    let names: Vec<&str> =
        pod.volumes().filter(|v| v.get("hostPath").is_some_and(|h| !h.is_null())).map(|v| text(v, &["name"])).collect();
    (!names.is_empty()).then(|| Violation::new("hostPath volumes", listed("volume", &names)))
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let ports = |container: &Value| -> Vec<String> {
        let ports = container["ports"].as_array().into_iter().flatten();
        ports
            .map(|p| &p["hostPort"])
            .filter(|p| !p.is_null() && p.as_f64() != Some(0.0))
            .map(Value::to_string)
            .collect()
    };
    let who = pod.containers_that(|container| !ports(container).is_empty());
    let all: BTreeSet<String> = pod.containers().flat_map(ports).collect();
    let all: Vec<String> = all.into_iter().collect();
    let uses = if who.len() == 1 { "uses" } else { "use" };
    let noun = if all.len() == 1 { "hostPort" } else { "hostPorts" };
    let detail = || format!("{} {uses} {noun} {}", listed("container", &who), all.join(", "));
    (!who.is_empty()).then(|| Violation::new("hostPort", detail()))
}

fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
    let hosts = |container: &Value| -> Vec<String> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].iter().map(|key| &container[*key]);
        let hooks = ["postStart", "preStop"].iter().map(|key| &container["lifecycle"][*key]);
        let hosts = probes.chain(hooks).flat_map(|h| [text(h, &["httpGet", "host"]), text(h, &["tcpSocket", "host"])]);
        hosts.filter(|host| !host.is_empty()).map(str::to_owned).collect()
    };
    let mut who = pod.containers_that(|container| !hosts(container).is_empty());
    who.sort_unstable();
    who.dedup();
    let all: BTreeSet<String> = pod.containers().flat_map(hosts).collect();
    let all: Vec<String> = all.into_iter().collect();
    let uses = if who.len() == 1 { "uses" } else { "use" };
    let noun = if all.len() == 1 { "probe or lifecycle host" } else { "probe or lifecycle hosts" };
    let detail = || format!("{} {uses} {noun} {}", listed("container", &who), join(&all));
    (!who.is_empty()).then(|| Violation::new("probe or lifecycle host", detail()))
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let who = pod.containers_that(|c| at(c, &["securityContext", "privileged"]) == Some(&Value::Bool(true)));
    let detail = || format!("{} must not set securityContext.privileged=true", listed("container", &who));
    (!who.is_empty()).then(|| Violation::new("privileged", detail()))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let odd = |container: &Value| {
        at(container, &["securityContext", "procMount"])
            .and_then(Value::as_str)
            .filter(|p| *p != "Default")
            .map(str::to_owned)
    };
    let who = pod.containers_that(|container| odd(container).is_some());
    let kinds: BTreeSet<String> = pod.containers().filter_map(odd).collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    let detail = || format!("{} must not set securityContext.procMount to {}", listed("container", &who), join(&kinds));
    (!who.is_empty()).then(|| Violation::new("procMount", detail()))
}

fn selinux(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let options = |holder: &Value| holder["securityContext"]["seLinuxOptions"].clone();
    let bad = |options: &Value| {
        let has = |key: &str| !text(options, &[key]).is_empty();
        !allowed.contains(&text(options, &["type"])) || has("user") || has("role")
    };
    let on_pod = bad(&options(pod.spec));
    let who = pod.containers_that(|container| bad(&options(container)));
    if !on_pod && who.is_empty() {
        return None;
    }
    let all: Vec<Value> = std::iter::once(pod.spec).chain(pod.containers()).map(options).collect();
    let types: BTreeSet<&str> = all.iter().map(|o| text(o, &["type"])).filter(|t| !allowed.contains(t)).collect();
    let types: Vec<&str> = types.into_iter().collect();
    let mut faults = Vec::new();
    if !types.is_empty() {
        faults.push(listed("type", &types));
    }
    for key in ["user", "role"] {
        if all.iter().any(|options| !text(options, &[key]).is_empty()) {
            faults.push(format!("{key} may not be set"));
        }
    }
    let who = setters(on_pod, &who).join(" and ");
    let detail = format!("{who} set forbidden securityContext.seLinuxOptions: {}", faults.join("; "));
    Some(Violation::new("seLinuxOptions", detail))
}

fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let names: Vec<String> = pod.containers().map(|c| format!("{SECCOMP_PREFIX}{}", text(c, &["name"]))).collect();
    let forbidden: BTreeSet<String> = pod
        .annotations()
        .filter(|(key, value)| (*key == SECCOMP_POD || names.contains(key)) && !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let noun = if forbidden.len() == 1 { "annotation" } else { "annotations" };
    let list: Vec<String> = forbidden.into_iter().collect();
    (!list.is_empty()).then(|| Violation::new("seccompProfile", format!("forbidden {noun} {}", list.join(", "))))
}

fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let (who, values) = pod.profiles("seccompProfile");
    let values: Vec<String> = values.into_iter().collect();
    let detail =
        || format!("{} must not set securityContext.seccompProfile.type to {}", who.join(" and "), join(&values));
    (!who.is_empty()).then(|| Violation::new("seccompProfile", detail()))
}

fn sysctls(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let all = at(pod.spec, &["securityContext", "sysctls"]).and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = all.map(|s| text(s, &["name"])).filter(|name| !allowed.contains(name)).collect();
    (!names.is_empty()).then(|| Violation::new("forbidden sysctls", names.join(", ")))
}

fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    let bad =
        |holder: &Value| at(holder, &["securityContext", "windowsOptions", "hostProcess"]) == Some(&Value::Bool(true));
    let who = setters(bad(pod.spec), &pod.containers_that(bad));
    let detail = || format!("{} must not set securityContext.windowsOptions.hostProcess=true", who.join(" and "));
    (!who.is_empty()).then(|| Violation::new("hostProcess", detail()))
}

fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let who =
        pod.containers_that(|c| at(c, &["securityContext", "allowPrivilegeEscalation"]) != Some(&Value::Bool(false)));
    let detail = || format!("{} must set securityContext.allowPrivilegeEscalation=false", listed("container", &who));
    (!who.is_empty()).then(|| Violation::new("allowPrivilegeEscalation != false", detail()))
}

fn dropped_capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let keeping = pod.containers_that(|container| {
        !strings(at(container, &["securityContext", "capabilities", "drop"])).iter().any(|c| c == "ALL")
    });
    let (adding, added) = pod.added_capabilities(&["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", listed("container", &keeping)));
    }
    if !adding.is_empty() {
        let who = listed("container", &adding);
        details.push(format!("{who} must not include {} in securityContext.capabilities.add", join(&added)));
    }
    (!details.is_empty()).then(|| Violation::new("unrestricted capabilities", details.join("; ")))
}

fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    // A volume that claims to be two things is as bad as the worse one.
    let kinds = |volume: &Value| -> Vec<String> {
        let members =
            volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
        members.map(|(key, _)| key.clone()).filter(|key| !VOLUMES.contains(&key.as_str())).collect()
    };
    let names: Vec<&str> = pod.volumes().filter(|v| !kinds(v).is_empty()).map(|v| text(v, &["name"])).collect();
    let all: BTreeSet<String> = pod.volumes().flat_map(kinds).collect();
    let all: Vec<String> = all.into_iter().collect();
    let uses = if names.len() == 1 { "uses" } else { "use" };
    let noun = if all.len() == 1 { "restricted volume type" } else { "restricted volume types" };
    let detail = || format!("{} {uses} {noun} {}", listed("volume", &names), join(&all));
    (!names.is_empty()).then(|| Violation::new("restricted volume types", detail()))
}

fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    let set = |holder: &Value| at(holder, &["securityContext", "runAsNonRoot"]).and_then(Value::as_bool);
    let reason = "runAsNonRoot != true";
    let who = setters(set(pod.spec) == Some(false), &pod.containers_that(|c| set(c) == Some(false)));
    if !who.is_empty() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", who.join(" and "));
        return Some(Violation::new(reason, detail));
    }
    let open = pod.containers_that(|c| set(c).is_none() && set(pod.spec) != Some(true));
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", listed("container", &open));
    (!open.is_empty()).then(|| Violation::new(reason, detail()))
}

fn root(pod: &Pod<'_>) -> Option<Violation> {
    let is_root = |holder: &Value| {
        at(holder, &["securityContext", "runAsUser"]).and_then(Value::as_f64).is_some_and(|id| id == 0.0)
    };
    let who = setters(is_root(pod.spec), &pod.containers_that(is_root));
    (!who.is_empty()).then(|| Violation::new("runAsUser=0", format!("{} must not set runAsUser=0", who.join(" and "))))
}

fn required_seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(bad) = seccomp(pod) {
        return Some(bad);
    }
    let set = |holder: &Value| at(holder, &["securityContext", "seccompProfile"]).is_some_and(Value::is_object);
    let open = pod.containers_that(|container| !set(container) && !set(pod.spec));
    let detail = || {
        let who = listed("container", &open);
        format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"")
    };
    (!open.is_empty()).then(|| Violation::new("seccompProfile", detail()))
}
