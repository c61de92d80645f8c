//! What the `KubeVirt` object says, and what holds where it says nothing.
//!
//! Read anew for every object, so that a change counts from the next one on.

use ferrovirt_api::v1::KubeVirtConfiguration;
use ferrovirt_machine::{convert::default_machine_type, spec::Arch};

/// Where the service that vouches for encrypted guests listens on a node.
const ATTESTATION_SOCKET: &str = "/var/run/tdx-qgs/qgs.socket";

/// How far a feature is, in upstream's words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Closed unless it is opened.
    Alpha,
    /// Open unless it is closed.
    Beta,
    /// Always open; its gate is of no use any more.
    Done,
    /// On its way out: the gate still counts.
    Deprecated(&'static str),
    /// Gone.
    Discontinued(&'static str),
}

/// The gates that upstream's v1.9 knows, sorted.
pub const GATES: &[(&str, Stage)] = {
    use Stage::{Alpha, Beta, Deprecated, Discontinued, Done};
    &[
        ("AlignCPUs", Alpha),
        ("AutoResourceLimitsGate", Done),
        ("BochsDisplayForEFIGuests", Done),
        ("CPUManager", Alpha),
        ("CPUNodeDiscovery", Done),
        ("ClusterProfiler", Done),
        ("CommonInstancetypesDeploymentGate", Done),
        ("ConfigurableHypervisor", Alpha),
        ("ContainerPathVolumes", Alpha),
        ("CrossArchitectureVirtualization", Alpha),
        ("DecentralizedLiveMigration", Alpha),
        ("DeclarativeHotplugVolumes", Beta),
        ("DisableCustomSELinuxPolicy", Done),
        ("DisableMDEVConfiguration", Deprecated("DisableMDEVConfiguration has been deprecated since v1.8.0")),
        ("DockerSELinuxMCSWorkaround", Deprecated("DockerSELinuxMCSWorkaround has been deprecated since v1.4.")),
        ("DownwardMetrics", Alpha),
        ("DynamicPodInterfaceNaming", Done),
        ("EnableVirtioFsConfigVolumes", Done),
        ("EnableVirtioFsStorageVolumes", Alpha),
        ("ExpandDisks", Done),
        ("ExperimentalIgnitionSupport", Alpha),
        (
            "ExperimentalVirtiofsSupport",
            Discontinued(
                "Virtiofs ExperimentalVirtiofsSupport feature gate is discontinued since v1.7. Please use EnableVirtioFsConfigVolumes or EnableVirtioFsPVC feature gates instead",
            ),
        ),
        ("ExternalNetResourceInjection", Beta),
        ("FirmwareAutoSelection", Alpha),
        ("GPU", Done),
        ("GPUsWithDRA", Beta),
        ("GraceIOVirtualization", Alpha),
        ("HostDevices", Alpha),
        ("HostDevicesWithDRA", Beta),
        ("HostDisk", Alpha),
        ("HotplugNICs", Done),
        (
            "HotplugVolumes",
            Deprecated(
                "HotplugVolumes has been deprecated since v1.9.0 and has been replaced by DeclarativeHotplugVolumes",
            ),
        ),
        ("HypervStrictCheck", Alpha),
        ("IOMMUFD", Alpha),
        ("ImageVolume", Beta),
        ("IncrementalBackup", Alpha),
        ("InstancetypeReferencePolicy", Done),
        ("KubevirtSeccompProfile", Beta),
        ("LibvirtHooksServerAndClient", Beta),
        ("LiveMigration", Done),
        ("LiveUpdateNADRef", Done),
        (
            "Macvtap",
            Discontinued(
                "Macvtap network binding is discontinued since v1.3. Please refer to Kubevirt user guide for alternatives.",
            ),
        ),
        ("MigrationPriorityQueue", Done),
        ("MigrationStallDetection", Alpha),
        ("MultiArchitecture", Deprecated("MultiArchitecture has been deprecated since v1.8.0")),
        ("NUMA", Done),
        ("NetworkBindingPlugins", Done),
        ("NetworkDevicesWithDRA", Alpha),
        ("NodeRestriction", Beta),
        ("NonRoot", Done),
        ("OCIExport", Alpha),
        ("ObjectGraph", Alpha),
        ("OptOutRoleAggregation", Beta),
        ("PCINUMAAwareTopology", Alpha),
        ("PSA", Done),
        ("PanicDevices", Done),
        (
            "Passt",
            Discontinued(
                "Passt network binding is discontinued since v1.3. Please refer to Kubevirt user guide for alternatives.",
            ),
        ),
        ("PasstBinding", Beta),
        (
            "PasstIPStackMigration",
            Discontinued(
                "Seamless migration with passt network binding plugin is no longer supported since KubeVirt v1.8. Please use the passt core binding instead.",
            ),
        ),
        ("PersistentReservation", Done),
        ("Plugins", Alpha),
        ("PodSecondaryInterfaceNamingUpgrade", Beta),
        ("PortRangesSpec", Alpha),
        ("RebootPolicy", Beta),
        ("ReservedOverheadMemlock", Alpha),
        ("Root", Alpha),
        ("SRIOVLiveMigration", Done),
        ("SecureExecution", Done),
        ("Sidecar", Alpha),
        ("Snapshot", Beta),
        ("Template", Beta),
        ("UtilityVolumes", Alpha),
        ("VGPULiveMigration", Alpha),
        ("VMExport", Done),
        ("VMLiveUpdateFeatures", Done),
        ("VMPersistentState", Done),
        ("VMStatsCollector", Alpha),
        ("VSOCK", Alpha),
        ("VideoConfig", Done),
        ("VmiMemoryOverheadReport", Beta),
        ("VolumeMigration", Done),
        ("VolumesUpdateStrategy", Done),
        ("WorkloadEncryptionSEV", Beta),
        ("WorkloadEncryptionTDX", Alpha),
    ]
};

fn stage(name: &str) -> Option<Stage> {
    GATES.iter().find(|(gate, _)| *gate == name).map(|(_, stage)| *stage)
}

/// True if a feature gate is open. One that is listed is, even if it is closed at the same time. One that nobody knows counts
/// as listed, too: our own may come before upstream's.
pub fn feature_gate(configuration: &KubeVirtConfiguration, name: &str) -> bool {
    let developer = configuration.developer_configuration.as_ref();
    let listed = |gates: &[String]| gates.iter().any(|gate| gate == name);
    let stage = stage(name);
    match developer {
        // Persistent reservations have a setting of their own, and the gate is what there was before it.
        _ if stage == Some(Stage::Done) && name != "PersistentReservation" => true,
        Some(developer) if listed(&developer.feature_gates) => true,
        Some(developer) if listed(&developer.disabled_feature_gates) => false,
        _ => stage == Some(Stage::Beta),
    }
}

/// What there is to say about a gate that somebody lists and that is of no use any more.
pub fn outdated_gate(name: &str) -> Option<String> {
    match stage(name)? {
        Stage::Alpha | Stage::Beta => None,
        Stage::Deprecated(message) | Stage::Discontinued(message) => Some(message.into()),
        Stage::Done => Some(format!(
            "feature gate {name} is deprecated (feature state is \"General Availability\"), therefore it can be safely removed and is redundant. For more info, please look at: https://github.com/kubevirt/kubevirt/blob/main/docs/deprecation.md"
        )),
    }
}

/// Of instances that name none: the configured one, else this program's own.
pub fn architecture(configuration: &KubeVirtConfiguration) -> &str {
    let configured = configuration.architecture_configuration.as_ref().map(|all| all.default_architecture.as_str());
    match configured {
        Some(name) if !name.is_empty() => name,
        _ => Arch::parse(std::env::consts::ARCH).unwrap_or_default().go_name(),
    }
}

/// The machine type of an architecture, unless there is one for all.
pub fn machine_type<'a>(configuration: &'a KubeVirtConfiguration, architecture: &str) -> &'a str {
    if !configuration.machine_type.is_empty() {
        return &configuration.machine_type;
    }
    let own = configuration.architecture_configuration.as_ref().and_then(|all| match architecture {
        "arm64" => all.arm64.as_ref(),
        "s390x" => all.s390x.as_ref(),
        _ => all.amd64.as_ref(),
    });
    match own.map(|own| own.machine_type.as_str()) {
        Some(own) if !own.is_empty() => own,
        _ => default_machine_type(Arch::parse(architecture).unwrap_or_default()),
    }
}

/// Where launchers find the service that vouches for encrypted guests.
pub(crate) fn attestation_socket(configuration: &KubeVirtConfiguration) -> &str {
    let tdx = configuration.confidential_compute.as_ref().and_then(|compute| compute.tdx.as_ref());
    let own =
        tdx.and_then(|tdx| tdx.attestation.as_ref()).and_then(|attestation| attestation.qgs_socket_path.as_deref());
    own.unwrap_or(ATTESTATION_SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gates_are_open_if_listed_or_far_along_and_not_closed() {
        let configuration = serde_json::from_value(json!({ "developerConfiguration": {
            "featureGates": ["A", "B"], "disabledFeatureGates": ["B", "Snapshot", "NUMA"] } }))
        .unwrap();
        let open = ["A", "B", "C", "Snapshot", "Template", "NUMA"].map(|gate| feature_gate(&configuration, gate));
        assert_eq!(open, [true, true, false, false, true, true]);
        assert!(GATES.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted");
    }

    #[test]
    fn gates_that_are_of_no_use_are_told() {
        for (gate, words) in [
            ("LiveMigration", "feature gate LiveMigration is deprecated (feature state is \"General Availability\")"),
            ("Passt", "discontinued since v1.3"),
            ("DisableMDEVConfiguration", "deprecated since v1.8.0"),
        ] {
            assert!(outdated_gate(gate).unwrap().contains(words), "{gate}");
        }
        assert_eq!(outdated_gate("HostDisk"), None);
        assert_eq!(outdated_gate("OurOwn"), None);
    }

    #[test]
    fn the_older_machine_type_is_for_all_architectures() {
        let of = |configuration: serde_json::Value, architecture: &str| {
            machine_type(&serde_json::from_value(configuration).unwrap(), architecture).to_owned()
        };
        let own = json!({ "architectureConfiguration": { "amd64": { "machineType": "pc-q35-9" } } });
        assert_eq!(of(own.clone(), "amd64"), "pc-q35-9");
        assert_eq!(of(own, "arm64"), "virt");
        let both =
            json!({ "machineType": "q35", "architectureConfiguration": { "amd64": { "machineType": "pc-q35-9" } } });
        assert_eq!(of(both, "amd64"), "q35");
        assert_eq!(of(json!({}), "s390x"), "s390-ccw-virtio");
    }
}
