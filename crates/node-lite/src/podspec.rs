//! From a pod's spec to what pod-init does. Pure; volumes and references have been resolved before.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::config::DEVICE_RESOURCES;
use crate::makers::{NotAllowed, Trust};
use crate::programs::Image;
use crate::records::{InitPlan, MountPlan, SidecarPlan};
use crate::{resources, sidecar};

/// KubeVirt's user, the default of every launcher.
const DEFAULT_ID: i64 = 107;
/// Ids that no user and no group of a host has: what OpenShift gives to pods, and what nobody gives to people or services.
const FREE_IDS: std::ops::RangeInclusive<i64> = 1_000_000_000..=2_147_352_575;
/// Variables of a container, and the bytes of all of them and of its command: about what the kernel takes. A variable may name others,
/// twice as well, so few words can stand for any number of bytes.
const MOST_VARIABLES: usize = 1024;
pub(crate) const MOST_TEXT: usize = 1 << 20;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the node adds to the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The file of the image's program.
    pub program: &'a Path,
    pub staging: &'a Path,
    pub netns: &'a Path,
    pub cgroup_procs: Vec<PathBuf>,
    pub pod_ips: &'a [IpAddr],
    /// The host's, to start from.
    pub resolv_conf: &'a str,
    pub cluster_dns: IpAddr,
    /// See [`crate::Config`].
    pub image_mounts: &'a [(PathBuf, PathBuf)],
    pub image_env: &'a [(String, String)],
    /// Environment of the container with every reference resolved, in order.
    pub env: Vec<(String, String)>,
    /// Host directory (or file) of each volume.
    pub volumes: &'a BTreeMap<String, VolumeSource>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSource {
    pub path: PathBuf,
    pub read_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub fs_group: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    #[error(
        "embedded mode runs only Ferrovirt's own images, each known by its digest (ferrovirt-launcher@sha256:…), and {0:?} is \
         none of this host; run other workloads on a Kubernetes cluster"
    )]
    ForeignImage(String),
    #[error("embedded mode runs pods with one container; this one has {0}")]
    Containers(usize),
    #[error("embedded mode does not support {0} in a pod")]
    Unsupported(&'static str),
    #[error("containers run as root in embedded mode only where they are privileged, and privileged only as root")]
    Root,
    #[error("privileged containers are for Ferrovirt's own pods; set securityContext.privileged to false")]
    Privileged,
    #[error(
        "{field} is {id}, which may be somebody on this host; use {DEFAULT_ID}, or an id from {} to {}",
        FREE_IDS.start(),
        FREE_IDS.end()
    )]
    Id { field: &'static str, id: i64 },
    #[error("the volume {0:?} is a hostPath, which is for Ferrovirt's own pods; use an emptyDir or a claim")]
    HostPath(String),
    #[error("{0:?} is not a name of small letters, digits and '-'")]
    Name(String),
    #[error("two volumes have the name {0:?}")]
    TwoVolumes(String),
    #[error("the volume mount {0:?} names no volume of the pod")]
    UnknownVolume(String),
    #[error("{0:?} is not an absolute path without '..'")]
    Path(String),
    #[error("the command and the environment have more than {} KiB", MOST_TEXT >> 10)]
    TooLong,
    #[error("the sysctl {0:?} is not one of a network namespace")]
    Sysctl(String),
}

/// The pod's one container, if this runtime can run the pod at all and may, as far as the pod is trusted.
pub fn container(pod: &Pod, trust: Trust) -> Result<&Container, SpecError> {
    let spec = pod.spec.as_ref().ok_or(SpecError::Containers(0))?;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let image = container.image.as_deref().unwrap_or_default();
        if Image::parse(image).is_none() {
            return Err(SpecError::ForeignImage(image.to_owned()));
        }
    }
    let [container] = spec.containers.as_slice() else {
        return Err(SpecError::Containers(spec.containers.len()));
    };
    let refusals = [
        (
            spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()) && !has_sidecar(spec, container),
            "initContainers other than one of the first container's image with restartPolicy Always",
        ),
        (spec.host_network == Some(true), "hostNetwork"),
        (spec.host_pid == Some(true), "hostPID"),
        (spec.host_ipc == Some(true), "hostIPC"),
        (container.env.as_ref().is_some_and(|list| list.len() > MOST_VARIABLES), "more than 1024 variables"),
        (container.env_from.as_ref().is_some_and(|list| !list.is_empty()), "envFrom"),
        (asks_for_another_filter(spec, container), "seccompProfile other than RuntimeDefault"),
    ];
    if let Some((_, what)) = refusals.iter().find(|(refused, _)| *refused) {
        return Err(SpecError::Unsupported(what));
    }
    // They become names of files here.
    let mut volumes = std::collections::BTreeSet::new();
    let containers = [Some(container), sidecar::of(spec)].into_iter().flatten().map(|container| &container.name);
    for name in spec.volumes.iter().flatten().map(|volume| &volume.name).chain(containers) {
        if !is_label(name) {
            return Err(SpecError::Name(name.clone()));
        }
    }
    for volume in spec.volumes.iter().flatten() {
        if !volumes.insert(&volume.name) {
            return Err(SpecError::TwoVolumes(volume.name.clone()));
        }
        if volume.host_path.is_some() && trust == Trust::Tenant {
            return Err(SpecError::HostPath(volume.name.clone()));
        }
    }
    if is_privileged(container) && trust == Trust::Tenant {
        return Err(SpecError::Privileged);
    }
    identity(spec, container)?;
    ids_are_free(spec, container)?;
    Ok(container)
}

/// A container beside the first is one more process in its place, so it can be nothing that the first is not.
fn has_sidecar(spec: &PodSpec, container: &Container) -> bool {
    sidecar::of(spec).is_some_and(|beside| {
        let asks = beside.env_from.is_some() || beside.env.is_some() || beside.volume_devices.is_some();
        let command = beside.command.as_ref().is_some_and(|command| !command.is_empty());
        beside.image == container.image
            && beside.name != container.name
            && command
            && !asks
            && !is_privileged(beside)
            && ids_are_free(spec, beside).is_ok()
            && identity(spec, beside).is_ok()
    })
}

/// Nobody in a pod has an id that means something on the host: a volume, or a mistake in a boundary, would give it more than the pod.
fn ids_are_free(spec: &PodSpec, container: &Container) -> Result<(), SpecError> {
    let (uid, gid) = user_and_group(spec, container);
    let pod = spec.security_context.as_ref();
    let root = is_privileged(container).then_some(0);
    let own = [("runAsUser", Some(uid)), ("runAsGroup", Some(gid)), ("fsGroup", pod.and_then(|pod| pod.fs_group))];
    let more = pod.and_then(|pod| pod.supplemental_groups.as_ref()).into_iter().flatten();
    let more = more.map(|group| ("supplementalGroups", Some(*group)));
    for (field, id) in own.into_iter().chain(more) {
        match id {
            Some(id) if id != DEFAULT_ID && !FREE_IDS.contains(&id) && Some(id) != root => {
                // Root has a message of its own.
                return Err(if id == 0 { SpecError::Root } else { SpecError::Id { field, id } });
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

pub fn identity(spec: &PodSpec, container: &Container) -> Result<Identity, SpecError> {
    let (uid, gid) = user_and_group(spec, container);
    let fs_group =
        spec.security_context.as_ref().and_then(|context| context.fs_group).and_then(|group| u32::try_from(group).ok());
    let privileged = is_privileged(container);
    let valid = |id: i64| u32::try_from(id).ok().filter(|id| (*id == 0) == privileged).ok_or(SpecError::Root);
    Ok(Identity { uid: valid(uid)?, gid: valid(gid)?, fs_group })
}

fn user_and_group(spec: &PodSpec, container: &Container) -> (i64, i64) {
    let pod = spec.security_context.as_ref();
    let own = container.security_context.as_ref();
    let uid = own.and_then(|c| c.run_as_user).or(pod.and_then(|c| c.run_as_user)).unwrap_or(DEFAULT_ID);
    let gid = own.and_then(|c| c.run_as_group).or(pod.and_then(|c| c.run_as_group)).unwrap_or(uid);
    (uid, gid)
}

/// The API server lets only those make such a pod who are trusted with the node: see its `admission::privilege`.
pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
}

/// Every pod has the filter, whether it asks or not. One that asks to go without is told so rather than run with it.
fn asks_for_another_filter(spec: &PodSpec, container: &Container) -> bool {
    let own = container.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    let pod = spec.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    own.or(pod).is_some_and(|profile| profile.type_ != "RuntimeDefault")
}

fn adds(container: &Container, capability: &str) -> bool {
    let capabilities = container.security_context.as_ref().and_then(|context| context.capabilities.as_ref());
    capabilities.and_then(|all| all.add.as_ref()).is_some_and(|added| added.iter().any(|name| name == capability))
}

pub fn hostname(pod: &Pod) -> String {
    let chosen = pod.spec.as_ref().and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty());
    let mut name = chosen.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.truncate(63);
    name.trim_end_matches(['-', '.']).to_owned()
}

pub fn plan(pod: &Pod, trust: Trust, resolved: &Resolved<'_>) -> Result<InitPlan, SpecError> {
    let container = container(pod, trust)?;
    let image = container.image.as_deref().unwrap_or_default();
    let kind = Image::parse(image).ok_or_else(|| SpecError::ForeignImage(image.to_owned()))?.kind;
    let spec = pod.spec.clone().unwrap_or_default();
    let identity = identity(&spec, container)?;
    let hostname = hostname(pod);
    let uid = pod.metadata.uid.clone().unwrap_or_default();

    let mut env = vec![
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ("HOSTNAME".to_owned(), hostname.clone()),
        ("HOME".to_owned(), "/home/qemu".to_owned()),
    ];
    let mut room = MOST_TEXT;
    let image_env = resolved.image_env.iter().map(|pair| (pair, false));
    for ((name, value), expands) in image_env.chain(resolved.env.iter().map(|pair| (pair, true))) {
        let value = if expands { expand(value, &env, &mut room)? } else { value.clone() };
        match env.iter_mut().find(|(known, _)| known == name) {
            Some(slot) => slot.1 = value,
            None => env.push((name.clone(), value)),
        }
    }
    let command = container.command.iter().flatten().chain(container.args.iter().flatten());
    let mut command = command.map(|word| expand(word, &env, &mut room)).collect::<Result<Vec<String>, _>>()?;
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        // The image's entry point.
        command.insert(0, kind.path_inside().to_owned());
    }
    let security = spec.security_context.clone().unwrap_or_default();
    let mut sysctls = Vec::new();
    for sysctl in security.sysctls.iter().flatten() {
        if !sysctl.name.starts_with("net.") || sysctl.name.contains(['/', '\0']) || sysctl.name.contains("..") {
            return Err(SpecError::Sysctl(sysctl.name.clone()));
        }
        sysctls.push((sysctl.name.clone(), sysctl.value.clone()));
    }
    let groups = security.supplemental_groups.iter().flatten().filter_map(|group| u32::try_from(*group).ok());
    let devices = DEVICE_RESOURCES.iter().filter(|(resource, _)| resources::asks_for(&spec, resource));
    Ok(InitPlan {
        container: container.name.clone(),
        netns: resolved.netns.to_owned(),
        cgroup_procs: resolved.cgroup_procs.clone(),
        staging: resolved.staging.to_owned(),
        launcher: resolved.program.to_owned(),
        program_path: Some(PathBuf::from(kind.path_inside())),
        command,
        working_dir: container.working_dir.as_deref().filter(|dir| !dir.is_empty()).unwrap_or("/").into(),
        env,
        uid: identity.uid,
        gid: identity.gid,
        privileged: is_privileged(container),
        memory_placement: adds(container, "SYS_NICE"),
        groups: identity.fs_group.into_iter().chain(groups).filter(|group| *group != 0).collect(),
        devices: devices.map(|(_, path)| PathBuf::from(path)).collect(),
        mounts: mounts(container, resolved)?,
        first_id: None,
        sysctls,
        files: files(pod, &spec, &identity, &hostname, resolved),
        sidecar: sidecar_plan(&spec)?,
        pod_uid: uid,
        hostname,
    })
}

fn sidecar_plan(spec: &PodSpec) -> Result<Option<SidecarPlan>, SpecError> {
    let Some(beside) = sidecar::of(spec) else { return Ok(None) };
    let Identity { uid, gid, .. } = identity(spec, beside)?;
    let command = beside.command.iter().flatten().chain(beside.args.iter().flatten()).cloned().collect();
    Ok(Some(SidecarPlan { container: beside.name.clone(), command, uid, gid }))
}

/// Kubernetes' `$(NAME)` with `$$` as the escape; unknown names stay as they are. Takes what it makes from `room`.
pub fn expand(text: &str, env: &[(String, String)], room: &mut usize) -> Result<String, SpecError> {
    let mut out = String::new();
    let mut push = |part: &str| -> Result<(), SpecError> {
        *room = room.checked_sub(part.len()).ok_or(SpecError::TooLong)?;
        out.push_str(part);
        Ok(())
    };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        push(rest.get(..at).unwrap_or_default())?;
        let tail = rest.get(at + 1..).unwrap_or_default();
        if let Some(after) = tail.strip_prefix('$') {
            push("$")?;
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|tail| tail.split_once(')')) {
            match env.iter().find(|(known, _)| known == name) {
                Some((_, value)) => push(value)?,
                None => ["$(", name, ")"].into_iter().try_for_each(&mut push)?,
            }
            rest = after;
        } else {
            push("$")?;
            rest = tail;
        }
    }
    push(rest)?;
    Ok(out)
}

fn mounts(container: &Container, resolved: &Resolved<'_>) -> Result<Vec<MountPlan>, SpecError> {
    let volumes = resolved.volumes;
    let mut out = Vec::new();
    for (source, target) in resolved.image_mounts {
        out.push(MountPlan {
            source: source.clone(),
            sub_path: None,
            target: target.clone(),
            read_only: true,
            follow_host: false,
        });
    }
    for mount in container.volume_mounts.iter().flatten() {
        let volume = volumes.get(&mount.name).ok_or_else(|| SpecError::UnknownVolume(mount.name.clone()))?;
        let target = PathBuf::from(&mount.mount_path);
        let plain = target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !target.is_absolute() || !plain {
            return Err(SpecError::Path(mount.mount_path.clone()));
        }
        if mount.sub_path_expr.is_some() {
            return Err(SpecError::Unsupported("subPathExpr"));
        }
        out.push(MountPlan {
            source: volume.path.clone(),
            sub_path: mount.sub_path.clone().filter(|path| !path.is_empty()).map(PathBuf::from),
            target,
            read_only: volume.read_only || mount.read_only == Some(true),
            follow_host: mount.mount_propagation.as_deref().is_some_and(|kind| kind != "None"),
        });
    }
    // A volume in block mode is a file here, and stands where the device would.
    for device in container.volume_devices.iter().flatten() {
        let volume = volumes.get(&device.name).ok_or_else(|| SpecError::UnknownVolume(device.name.clone()))?;
        let target = PathBuf::from(&device.device_path);
        let plain = target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !target.is_absolute() || !plain {
            return Err(SpecError::Path(device.device_path.clone()));
        }
        out.push(MountPlan {
            source: volume.path.clone(),
            sub_path: None,
            target,
            read_only: volume.read_only,
            follow_host: false,
        });
    }
    // A directory before what is mounted inside it; mounts at the same depth keep their order.
    out.sort_by_key(|mount| mount.target.components().count());
    Ok(out)
}

fn files(
    pod: &Pod,
    spec: &PodSpec,
    identity: &Identity,
    hostname: &str,
    resolved: &Resolved<'_>,
) -> Vec<(PathBuf, String)> {
    let Identity { uid, gid, .. } = identity;
    // Root has a record anyway.
    let (uid, gid) = if *uid == 0 { (&(DEFAULT_ID as u32), &(DEFAULT_ID as u32)) } else { (uid, gid) };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    let subdomain = spec.subdomain.as_deref().filter(|name| !name.is_empty());
    for ip in resolved.pod_ips {
        let full = subdomain.map(|name| format!("{hostname}.{name}.{namespace}.svc.cluster.local\t"));
        hosts.push_str(&format!("{ip}\t{}{hostname}\n", full.unwrap_or_default()));
    }
    let file = |path: &str, content: String| (PathBuf::from(path), content);
    vec![
        file(
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\nqemu:x:{uid}:{gid}:qemu:/home/qemu:/usr/sbin/nologin\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        file("/etc/group", format!("root:x:0:\ntty:x:5:\nqemu:x:{gid}:\nnogroup:x:65534:\n")),
        file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
        file("/etc/hosts", hosts),
        file("/etc/hostname", format!("{hostname}\n")),
        file("/etc/resolv.conf", resolv_conf(spec, namespace, resolved)),
        file("/etc/machine-id", format!("{}\n", pod.metadata.uid.as_deref().unwrap_or_default().replace('-', ""))),
    ]
}

/// The cluster's name server or the host's, as the pod's policy says, and what the pod adds.
fn resolv_conf(spec: &PodSpec, namespace: &str, resolved: &Resolved<'_>) -> String {
    let host = |key: &'static str| {
        resolved.resolv_conf.lines().filter_map(move |line| line.trim().strip_prefix(key)).map(|v| v.trim().to_owned())
    };
    let on_host = spec.host_network == Some(true);
    let (mut servers, mut searches, mut options): (Vec<String>, Vec<String>, Vec<String>) =
        match spec.dns_policy.as_deref() {
            Some("None") => Default::default(),
            Some("Default") => (
                host("nameserver ").collect(),
                host("search ").flat_map(words).collect(),
                host("options ").flat_map(words).collect(),
            ),
            Some("ClusterFirst") | None if on_host => (
                host("nameserver ").collect(),
                host("search ").flat_map(words).collect(),
                host("options ").flat_map(words).collect(),
            ),
            _ => {
                let own =
                    [format!("{namespace}.svc.cluster.local"), "svc.cluster.local".into(), "cluster.local".into()];
                let searches = own.into_iter().chain(host("search ").flat_map(words)).collect();
                (vec![resolved.cluster_dns.to_string()], searches, vec!["ndots:5".into()])
            }
        };
    let config = spec.dns_config.clone().unwrap_or_default();
    servers.extend(config.nameservers.into_iter().flatten());
    searches.extend(config.searches.into_iter().flatten());
    for option in config.options.into_iter().flatten() {
        let name = option.name.unwrap_or_default();
        // A later word on the same option replaces the earlier one.
        options.retain(|known| known.split(':').next() != Some(&name));
        options.push(option.value.map_or(name.clone(), |value| format!("{name}:{value}")));
    }
    let mut out: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    // Resolvers read the last line of a kind only.
    for (key, values) in [("search", searches), ("options", options)] {
        if !values.is_empty() {
            out.push_str(&format!("{key} {}\n", values.join(" ")));
        }
    }
    out
}

fn words(line: String) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "podspec_tests.rs"]
mod tests;
