//! Name, labels and annotations of a launcher pod.

use std::collections::BTreeMap;

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha1::{Digest, Sha1};

use super::{Config, is_privileged};

/// What a label and a host name hold.
const LABEL_LENGTH: usize = 63;
/// Wants a sidecar of Istio's, which reads a label on pods and the pod's account.
const ISTIO: &str = "sidecar.istio.io/inject";
/// Says to a descheduler that it is to ask and not to end the pod.
const EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";

/// How the name of a pod ends that has root on its node. A cluster's admission policy for `exec` sees nothing of a pod but its name.
const PRIVILEGED_SUFFIX: &str = "-root";

/// The pod's name. It follows from the instance, so that creating it twice creates one.
pub fn name(vmi: &VirtualMachineInstance) -> String {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let mut state: u32 = 0x811c_9dc5;
    for byte in uid.bytes() {
        state = (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut suffix = String::new();
    for _ in 0..5 {
        suffix.push(ALPHABET[(state % ALPHABET.len() as u32) as usize] as char);
        state /= ALPHABET.len() as u32;
    }
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let privileged = if is_privileged(vmi) { PRIVILEGED_SUFFIX } else { "" };
    // A name has at most 253 characters, and "virt-launcher-" and the suffix need 20 of them.
    let longest = 233 - privileged.len();
    let name = cut(name, longest).trim_end_matches(['-', '.']);
    format!("virt-launcher-{name}-{suffix}{privileged}")
}

/// What Services select an instance's pod by: its name, or where that is too long for a label, its beginning and a hash of it.
pub fn instance_id(name: &str) -> String {
    const HASH_LENGTH: usize = 8;
    if name.len() <= LABEL_LENGTH {
        return name.into();
    }
    let hash: String = Sha1::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}", cut(name, LABEL_LENGTH - HASH_LENGTH - 1), cut(&hash, HASH_LENGTH))
}

/// The guest's own host name, or the first part of its VM's.
pub(super) fn hostname(vmi: &VirtualMachineInstance) -> String {
    let name = match vmi.spec.hostname.as_str() {
        "" => vmi.metadata.name.as_deref().unwrap_or_default(),
        name => name,
    };
    let label = name.split('.').next().unwrap_or_default();
    cut(label, LABEL_LENGTH).trim_end_matches('-').into()
}

fn cut(text: &str, length: usize) -> &str {
    text.get(..text.len().min(length)).unwrap_or(text)
}

/// Annotations of an instance that would say something else on its pod, which is ours and not its owner's: who made it, on which networks it
/// is, and how container runtimes confine it. What its owner may choose of that is in the instance's spec. And those that are only of
/// interest on the instance.
const NOT_COPIED: [&str; 12] = [
    "kubectl.kubernetes.io",
    names::CONTROLLER_API_STORAGE_VERSION_OBSERVED_ANNOTATION,
    names::CONTROLLER_API_LATEST_VERSION_OBSERVED_ANNOTATION,
    "ferrovirt.io/",
    crate::network::NETWORKS_ANNOTATION,
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "io.kubernetes.cri",
    "io.containerd.",
    "io.katacontainers.",
    "run.oci.",
];

pub(super) fn metadata(vmi: &VirtualMachineInstance, config: &Config) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(vmi)),
        namespace: vmi.metadata.namespace.clone(),
        labels: Some(labels(vmi)),
        annotations: Some(annotations(vmi, config)),
        owner_references: Some(vec![OwnerReference {
            api_version: "kubevirt.io/v1".into(),
            kind: "VirtualMachineInstance".into(),
            name: vmi.metadata.name.clone().unwrap_or_default(),
            uid: vmi.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..Default::default()
    }
}

fn labels(vmi: &VirtualMachineInstance) -> BTreeMap<String, String> {
    let mut labels = vmi.metadata.labels.clone().unwrap_or_default();
    labels.remove(names::NODE_NAME_LABEL);
    labels.insert(names::APP_LABEL.into(), names::LAUNCHER_APP.into());
    labels.insert(names::CREATED_BY_LABEL.into(), vmi.metadata.uid.clone().unwrap_or_default());
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    labels.insert(names::VIRTUAL_MACHINE_INSTANCE_ID_LABEL.into(), instance_id(name));
    labels.insert(names::DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL.into(), hostname(vmi));
    if let Some(wish) = istio(vmi) {
        labels.insert(ISTIO.into(), wish.into());
    }
    labels
}

fn annotations(vmi: &VirtualMachineInstance, config: &Config) -> BTreeMap<String, String> {
    let mut annotations = vmi.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !NOT_COPIED.iter().any(|prefix| name.starts_with(prefix)));
    // Its networks are those of the spec, each of which was judged by what its writer may use.
    annotations.retain(|name, _| !crate::network::ASKING_ANNOTATIONS.contains(&name.as_str()));
    let overhead = crate::resources::overhead(vmi, config);
    let ours = [
        (names::DOMAIN_ANNOTATION, vmi.metadata.name.clone().unwrap_or_default()),
        ("kubectl.kubernetes.io/default-container", names::COMPUTE_CONTAINER.into()),
        (names::MIGRATION_TRANSPORT_UNIX_ANNOTATION, "true".into()),
        (names::MEMORY_OVERHEAD_ANNOTATION_BYTES, overhead.to_string()),
        (EVICT_ONLY, String::new()),
    ];
    annotations.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    if let Some(networks) = crate::network::annotation(vmi) {
        annotations.insert(crate::network::NETWORKS_ANNOTATION.into(), networks);
    }
    annotations
}

/// Labels and annotations of an instance that its pod follows, as upstream's: where it runs, and what a descheduler may do. All others
/// are as they were when the pod was made.
const FOLLOWED_LABELS: [&str; 2] = [names::NODE_NAME_LABEL, names::OUTDATED_LAUNCHER_IMAGE_LABEL];
const FOLLOWED_ANNOTATIONS: [&str; 2] =
    ["descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"];

/// What is to change of a map: values to write, and keys to remove.
pub type Changes = BTreeMap<String, Option<String>>;

/// Labels and annotations of a pod that are not as its instance has them now.
pub(crate) fn outdated(vmi: &ObjectMeta, pod: &ObjectMeta) -> (Changes, Changes) {
    (differing(FOLLOWED_LABELS, &vmi.labels, &pod.labels), outdated_annotations(vmi, pod))
}

/// Those of an instance follow its VM's template as those of a pod follow its instance.
pub(crate) fn outdated_annotations(wanted: &ObjectMeta, found: &ObjectMeta) -> Changes {
    differing(FOLLOWED_ANNOTATIONS, &wanted.annotations, &found.annotations)
}

type Map = Option<BTreeMap<String, String>>;

fn differing(keys: [&str; 2], wanted: &Map, found: &Map) -> Changes {
    let value = |map: &Map, key: &str| map.as_ref().and_then(|map| map.get(key)).cloned();
    let all = keys.into_iter().map(|key| (key.to_owned(), value(wanted, key), value(found, key)));
    all.filter(|(_, wanted, found)| wanted != found).map(|(key, wanted, _)| (key, wanted)).collect()
}

fn istio(vmi: &VirtualMachineInstance) -> Option<&str> {
    vmi.metadata.annotations.as_ref()?.get(ISTIO).map(String::as_str)
}

/// The sidecar of a service mesh proves by the pod's account who it is.
pub(super) fn is_in_mesh(vmi: &VirtualMachineInstance) -> bool {
    istio(vmi).is_some_and(|wish| wish.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(metadata: Value, spec: Value) -> VirtualMachineInstance {
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({ "spec": spec })).unwrap();
        vmi.metadata = serde_json::from_value(metadata).unwrap();
        vmi
    }

    #[test]
    fn a_long_name_is_found_by_a_short_id() {
        for (name, id) in [
            ("web", "web"),
            (
                "a-very-very-long-virtual-machine-instance-name-used-for-testing-this-logic",
                "a-very-very-long-virtual-machine-instance-name-used-fo-88ed080c",
            ),
        ] {
            assert_eq!(instance_id(name), id);
            let labels = labels(&vmi(json!({ "name": name, "uid": "1" }), json!({})));
            assert_eq!(labels[names::VIRTUAL_MACHINE_INSTANCE_ID_LABEL], id);
            assert!(labels.values().all(|value| value.len() <= LABEL_LENGTH), "{labels:?}");
        }
    }

    #[test]
    fn host_names_fit_into_a_label() {
        let long = format!("testvmi-{}", "a".repeat(63));
        for (name, spec, expected) in [
            ("web.example.com", json!({}), "web".to_owned()),
            ("web", json!({ "hostname": "other" }), "other".to_owned()),
            (long.as_str(), json!({}), long[..63].to_owned()),
        ] {
            let vmi = vmi(json!({ "name": name, "labels": { "vm.kubevirt.io/name": "random" } }), spec);
            assert_eq!(hostname(&vmi), expected);
            assert_eq!(labels(&vmi)[names::DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL], expected);
        }
    }

    #[test]
    fn a_pod_follows_where_its_instance_runs_and_what_a_descheduler_may_do() {
        const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
        let meta = |labels: Value, annotations: Value| -> ObjectMeta {
            serde_json::from_value(json!({ "labels": labels, "annotations": annotations })).unwrap()
        };
        let nothing = meta(json!(null), json!(null));
        let some = meta(json!({ names::NODE_NAME_LABEL: "n1", "mine": "x" }), json!({ EVICT: "true", "mine": "y" }));
        let (set, unset) = (|value: &str| Some(value.to_owned()), None);
        for (vmi, pod, labels, annotations) in [
            (&nothing, &nothing, vec![], vec![]),
            (&some, &some, vec![], vec![]),
            (&some, &nothing, vec![(names::NODE_NAME_LABEL, set("n1"))], vec![(EVICT, set("true"))]),
            (&nothing, &some, vec![(names::NODE_NAME_LABEL, unset.clone())], vec![(EVICT, unset)]),
        ] {
            let owned = |all: Vec<(&str, Option<String>)>| -> Changes {
                all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            };
            assert_eq!(outdated(vmi, pod), (owned(labels), owned(annotations)));
        }
    }

    #[test]
    fn a_pod_carries_what_others_look_for() {
        let metadata = json!({ "name": "a", "labels": { "mine": "kept", names::NODE_NAME_LABEL: "n1" }, "annotations": {
            "mine": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}", ISTIO: "true",
            names::CONTROLLER_API_LATEST_VERSION_OBSERVED_ANNOTATION: "v1",
        } });
        let vmi = vmi(metadata, json!({ "domain": { "memory": { "guest": "64Mi" } } }));
        let found = annotations(&vmi, &Config::default());
        let mut expected = BTreeMap::from([
            ("mine", "kept"),
            (ISTIO, "true"),
            ("kubevirt.io/domain", "a"),
            ("kubectl.kubernetes.io/default-container", "compute"),
            ("kubevirt.io/migrationTransportUnix", "true"),
            ("descheduler.alpha.kubernetes.io/request-evict-only", ""),
        ]);
        let overhead = crate::resources::overhead(&vmi, &Config::default()).to_string();
        expected.insert("kubevirt.io/memory-overhead-bytes", &overhead);
        assert_eq!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<BTreeMap<_, _>>(), expected);
        let labels = labels(&vmi);
        assert_eq!((labels["mine"].as_str(), labels[ISTIO].as_str()), ("kept", "true"));
        assert!(!labels.contains_key(names::NODE_NAME_LABEL));
        assert!(is_in_mesh(&vmi));
    }
}
