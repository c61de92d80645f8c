//! Names that KubeVirt gave to labels, annotations and finalizers. They are contracts with every client; never invent a variant.

pub const GROUP: &str = "kubevirt.io";
pub const VERSION: &str = "v1";
pub const SUBRESOURCE_GROUP: &str = "subresources.kubevirt.io";

/// How the last words of a launcher begin, by how its machine ended.
pub const ENDED_WELL: &str = "Succeeded: ";
pub const ENDED_BADLY: &str = "Failed: ";

/// Annotation that the embedded API server puts on every pod: the user that created it. Nobody else can set or change it.
pub const CREATED_BY: &str = "ferrovirt.io/created-by";
/// Who makes launchers and importers, on a cluster and embedded.
pub const CONTROLLER_USER: &str = "system:serviceaccount:kubevirt:kubevirt-controller";
/// `ferrovirt up` itself, which makes the pods that try hypervisors.
pub const UP_USER: &str = "system:ferrovirt:up";

/// Value of [`APP_LABEL`] on every launcher pod.
pub const LAUNCHER_APP: &str = "virt-launcher";
/// Label on a VMI and its pod: the name of the owning VirtualMachine.
pub const VM_LABEL: &str = "kubevirt.io/vm";
/// Device resource of nodes with hardware virtualization.
pub const KVM_DEVICE: &str = "devices.kubevirt.io/kvm";
pub const MSHV_DEVICE: &str = "devices.kubevirt.io/mshv";
pub const VHOST_VSOCK_DEVICE: &str = "devices.kubevirt.io/vhost-vsock";
pub const TUN_DEVICE: &str = "devices.kubevirt.io/tun";
pub const VHOST_NET_DEVICE: &str = "devices.kubevirt.io/vhost-net";
/// Name of the main container of a launcher pod.
pub const COMPUTE_CONTAINER: &str = "compute";
/// Label with which an administrator lets an embedded host run the pods that users make in a namespace: `"true"`.
pub const RUN_PODS_LABEL: &str = "ferrovirt.io/run-pods";

pub const VGA_DISPLAY_FOR_EFI_GUESTS_X86_ANNOTATION: &str = "kubevirt.io/vga-display-efi-x86";
pub const APP_LABEL: &str = "kubevirt.io";
pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
pub const MIGRATION_JOB_NAME_ANNOTATION: &str = "kubevirt.io/migrationJobName";
pub const CONTROLLER_API_LATEST_VERSION_OBSERVED_ANNOTATION: &str = "kubevirt.io/latest-observed-api-version";
pub const CONTROLLER_API_STORAGE_VERSION_OBSERVED_ANNOTATION: &str = "kubevirt.io/storage-observed-api-version";
pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
pub const OWNER_VMI_NAME_ANNOTATION: &str = "kubevirt.io/owner-vmi-name";
pub const OWNER_VMI_UID_ANNOTATION: &str = "kubevirt.io/owner-vmi-uid";
pub const IMAGE_VOLUME_SKIP_DIGEST_RESOLUTION_ANNOTATION: &str = "kubevirt.io/image-volume-skip-digest-resolution";
pub const MIGRATION_JOB_LABEL: &str = "kubevirt.io/migrationJobUID";
pub const MIGRATION_NAME_LABEL: &str = "kubevirt.io/migrationName";
pub const NODE_NAME_LABEL: &str = "kubevirt.io/nodeName";
pub const MIGRATION_TARGET_NODE_NAME_LABEL: &str = "kubevirt.io/migrationTargetNodeName";
pub const EVACUATION_MIGRATION_ANNOTATION: &str = "kubevirt.io/evacuationMigration";
pub const WORKLOAD_UPDATE_MIGRATION_ANNOTATION: &str = "kubevirt.io/workloadUpdateMigration";
pub const WORKLOAD_UPDATE_MIGRATION_ABORTION_ANNOTATION: &str = "kubevirt.io/testWorkloadUpdateMigrationAbortion";
/// With the name of a hypervisor: nodes that can run it. An annotation of the same name says why one cannot.
pub const HYPERVISOR_LABEL: &str = "hypervisor.node.kubevirt.io/";
pub const NODE_SCHEDULABLE: &str = "kubevirt.io/schedulable";
pub const VIRT_HANDLER_HEARTBEAT: &str = "kubevirt.io/heartbeat";
pub const OUTDATED_LAUNCHER_IMAGE_LABEL: &str = "kubevirt.io/outdatedLauncherImage";
pub const INSTALL_STRATEGY_VERSION_ANNOTATION: &str = "kubevirt.io/install-strategy-version";
pub const INSTALL_STRATEGY_REGISTRY_ANNOTATION: &str = "kubevirt.io/install-strategy-registry";
pub const INSTALL_STRATEGY_IDENTIFIER_ANNOTATION: &str = "kubevirt.io/install-strategy-identifier";
pub const INSTALL_STRATEGY_CONFIG_MAP_ENCODING: &str = "kubevirt.io/install-strategy-cm-encoding";
pub const KUBEVIRT_CUSTOMIZE_COMPONENT_ANNOTATION_HASH: &str = "kubevirt.io/customizer-identifier";
pub const KUBEVIRT_GENERATION_ANNOTATION: &str = "kubevirt.io/generation";
pub const EPHEMERAL_BACKUP_OBJECT: &str = "kubevirt.io/ephemeral-backup-object";
pub const EPHEMERAL_PROVISIONING_OBJECT: &str = "kubevirt.io/ephemeral-provisioning";
pub const MEMORY_OVERHEAD_ANNOTATION_BYTES: &str = "kubevirt.io/memory-overhead-bytes";
pub const INSTALL_STRATEGY_LABEL: &str = "kubevirt.io/install-strategy";
pub const VIRT_OPERATOR_COMPONENT_FINALIZER: &str = "kubevirt.io/virtOperatorFinalizer";
pub const VIRTUAL_MACHINE_INSTANCE_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
pub const DEPRECATED_VIRTUAL_MACHINE_INSTANCE_FINALIZER: &str = "foregroundDeleteVirtualMachine";
pub const VIRTUAL_MACHINE_CONTROLLER_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
pub const VIRTUAL_MACHINE_INSTANCE_MIGRATION_FINALIZER: &str = "kubevirt.io/migrationJobFinalize";
pub const CPU_MANAGER: &str = "kubevirt.io/cpumanager";
pub const DEPRECATED_CPU_MANAGER: &str = "cpumanager";
pub const IGNITION_ANNOTATION: &str = "kubevirt.io/ignitiondata";
pub const PLACE_PCI_DEVICES_ON_ROOT_COMPLEX: &str = "kubevirt.io/placePCIDevicesOnRootComplex";
pub const PCI_TOPOLOGY_VERSION_ANNOTATION: &str = "kubevirt.io/pci-topology-version";
pub const PCI_INTERFACE_SLOT_COUNT_ANNOTATION: &str = "kubevirt.io/pci-interface-slot-count";
pub const PCI_TOPOLOGY_VERSION_V2: &str = "v2";
pub const PCI_TOPOLOGY_VERSION_V3: &str = "v3";
pub const CPU_FEATURE_LABEL: &str = "cpu-feature.node.kubevirt.io/";
pub const CPU_MODEL_LABEL: &str = "cpu-model.node.kubevirt.io/";
pub const SUPPORTED_HOST_MODEL_MIGRATION_CPU: &str = "cpu-model-migration.node.kubevirt.io/";
pub const CPU_TIMER_LABEL: &str = "cpu-timer.node.kubevirt.io/";
pub const HYPERV_LABEL: &str = "hyperv.node.kubevirt.io/";
pub const CPU_MODEL_VENDOR_LABEL: &str = "cpu-vendor.node.kubevirt.io/";
pub const SUPPORTED_MACHINE_TYPE_LABEL: &str = "machine-type.node.kubevirt.io/";
pub const HOST_MODEL_CPU_LABEL: &str = "host-model-cpu.node.kubevirt.io/";
pub const HOST_MODEL_REQUIRED_FEATURES_LABEL: &str = "host-model-required-features.node.kubevirt.io/";
pub const NODE_HOST_MODEL_IS_OBSOLETE_LABEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
pub const LABELLER_SKIP_NODE_ANNOTATION: &str = "node-labeller.kubevirt.io/skip-node";
pub const MEMFD_MEMORY_BACKEND: &str = "kubevirt.io/memfd";
pub const MIGRATION_SELECTOR_LABEL: &str = "kubevirt.io/vmi-name";
pub const RESTORE_RUN_STRATEGY: &str = "kubevirt.io/restore-run-strategy";
pub const DEPRECATED_NON_ROOT_VMI_ANNOTATION: &str = "kubevirt.io/nonroot";
pub const CREATE_MIGRATION_TARGET: &str = "kubevirt.io/create-migration-target";
pub const KEEP_LAUNCHER_AFTER_FAILURE_ANNOTATION: &str = "kubevirt.io/keep-launcher-alive-after-failure";
pub const MIGRATION_TRANSPORT_UNIX_ANNOTATION: &str = "kubevirt.io/migrationTransportUnix";
pub const MIGRATION_UNSCHEDULABLE_POD_TIMEOUT_SECONDS_ANNOTATION: &str =
    "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
pub const MIGRATION_PENDING_POD_TIMEOUT_SECONDS_ANNOTATION: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";
pub const MIGRATION_UTILITY_VOLUMES_TIMEOUT_SECONDS_ANNOTATION: &str =
    "kubevirt.io/migrationUtilityVolumesTimeoutSeconds";
pub const CUSTOM_LIBVIRT_LOG_FILTERS_ANNOTATION: &str = "kubevirt.io/libvirt-log-filters";
pub const REALTIME_LABEL: &str = "kubevirt.io/realtime";
pub const SEV_LABEL: &str = "kubevirt.io/sev";
pub const SEV_ES_LABEL: &str = "kubevirt.io/sev-es";
pub const SECURE_EXECUTION_LABEL: &str = "kubevirt.io/s390-pv";
pub const SEV_SNP_LABEL: &str = "kubevirt.io/sev-snp";
pub const TDX_LABEL: &str = "kubevirt.io/tdx";
pub const VM_ARCH_LABEL: &str = "kubevirt.io/vm-arch-";
pub const KSM_ENABLED_LABEL: &str = "kubevirt.io/ksm-enabled";
pub const KSM_HANDLER_MANAGED_ANNOTATION: &str = "kubevirt.io/ksm-handler-managed";
pub const KSM_PAGES_BOOST_OVERRIDE: &str = "kubevirt.io/ksm-pages-boost-override";
pub const KSM_PAGES_DECAY_OVERRIDE: &str = "kubevirt.io/ksm-pages-decay-override";
pub const KSM_PAGES_MIN_OVERRIDE: &str = "kubevirt.io/ksm-pages-min-override";
pub const KSM_PAGES_MAX_OVERRIDE: &str = "kubevirt.io/ksm-pages-max-override";
pub const KSM_PAGES_INIT_OVERRIDE: &str = "kubevirt.io/ksm-pages-init-override";
pub const KSM_SLEEP_MS_BASELINE_OVERRIDE: &str = "kubevirt.io/ksm-sleep-ms-baseline-override";
pub const KSM_FREE_PERCENT_OVERRIDE: &str = "kubevirt.io/ksm-free-percent-override";
pub const INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/instancetype-name";
pub const CLUSTER_INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/cluster-instancetype-name";
pub const PREFERENCE_ANNOTATION: &str = "kubevirt.io/preference-name";
pub const CLUSTER_PREFERENCE_ANNOTATION: &str = "kubevirt.io/cluster-preference-name";
pub const VIRTUAL_MACHINE_POOL_REVISION_NAME: &str = "kubevirt.io/vm-pool-revision-name";
pub const DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL: &str = "vm.kubevirt.io/name";
pub const VIRTUAL_MACHINE_INSTANCE_ID_LABEL: &str = "vmi.kubevirt.io/id";
pub const PERSISTENT_RESERVATION_LABEL_PREFIX: &str = "pr.kubevirt.io/";
pub const PVC_MEMORY_DUMP_ANNOTATION: &str = "kubevirt.io/memory-dump";
pub const ALLOW_POD_BRIDGE_NETWORK_LIVE_MIGRATION_ANNOTATION: &str =
    "kubevirt.io/allow-pod-bridge-network-live-migration";
pub const VIRTUAL_MACHINE_GENERATION_ANNOTATION: &str = "kubevirt.io/vm-generation";
pub const MIGRATION_TARGET_READY_TIMESTAMP: &str = "kubevirt.io/migration-target-ready-timestamp";
pub const FREE_PAGE_REPORTING_DISABLED_ANNOTATION: &str = "kubevirt.io/free-page-reporting-disabled";
pub const VIRTUAL_MACHINE_POD_CPU_LIMITS_LABEL: &str = "kubevirt.io/vmi-pod-cpu-resource-limits";
pub const VIRTUAL_MACHINE_POD_MEMORY_REQUESTS_LABEL: &str = "kubevirt.io/vmi-pod-memory-resource-requests";
pub const MEMORY_HOTPLUG_OVERHEAD_RATIO_LABEL: &str = "kubevirt.io/memory-hotplug-overhead-ratio";
pub const AUTO_MEMORY_LIMITS_RATIO_LABEL: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";
pub const EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
pub const VOLUMES_UPDATE_MIGRATION: &str = "kubevirt.io/volume-update-migration";
pub const IMMEDIATE_DATA_VOLUME_CREATION: &str = "kubevirt.io/immediate-data-volume-creation";
pub const DISABLE_PCI_HOLE64: &str = "kubevirt.io/disablePCIHole64";
pub const EVICTION_SOURCE_ANNOTATION: &str = "kubevirt.io/eviction-source";
pub const QGS_SOCKET_PATH_ANNOTATION: &str = "kubevirt.io/qgs-socket-path";
pub const PAUSE_GUEST_AGENT_PROBES_ANNOTATION: &str = "kubevirt.io/pause-guest-agent-probes";
pub const ALLOW_ACCESS_CLUSTER_SERVICES_NP_LABEL: &str = "np.kubevirt.io/allow-access-cluster-services";

/// Reasons of conditions.
pub mod reason {
    pub const DISKS_NOT_LIVE_MIGRATABLE: &str = "DisksNotLiveMigratable";
    pub const INTERFACE_NOT_LIVE_MIGRATABLE: &str = "InterfaceNotLiveMigratable";
    pub const HOTPLUG_NOT_LIVE_MIGRATABLE: &str = "HotplugNotLiveMigratable";
    pub const CPU_MODE_LIVE_MIGRATABLE: &str = "CPUModeLiveMigratable";
    pub const VIRT_IOFS_NOT_LIVE_MIGRATABLE: &str = "VirtIOFSNotLiveMigratable";
    pub const HOST_DEVICE_NOT_LIVE_MIGRATABLE: &str = "HostDeviceNotLiveMigratable";
    pub const SEV_NOT_LIVE_MIGRATABLE: &str = "SEVNotLiveMigratable";
    pub const SECURE_EXECUTION_NOT_LIVE_MIGRATABLE: &str = "SecureExecutionNotLiveMigratable";
    pub const TDX_NOT_LIVE_MIGRATABLE: &str = "TDXNotLiveMigratable";
    pub const NO_TSC_FREQUENCY_NOT_LIVE_MIGRATABLE: &str = "NoTSCFrequencyNotLiveMigratable";
    pub const HYPERV_PASSTHROUGH_NOT_LIVE_MIGRATABLE: &str = "HypervPassthroughNotLiveMigratable";
    pub const PERSISTENT_RESERVATION_NOT_LIVE_MIGRATABLE: &str = "PersistentReservationNotLiveMigratable";
    pub const DECENTRALIZED_NOT_LIVE_MIGRATABLE: &str = "DecentralizedNotLiveMigratable";
    pub const NOT_ALL_DVS_READY: &str = "NotAllDVsReady";
    pub const ALL_DVS_READY: &str = "AllDVsReady";
    pub const NOT_MIGRATABLE: &str = "NotMigratable";
    pub const VOLUMES_CHANGE_CANCELLATION: &str = "VolumesChangeCancellation";
    pub const AUTO_MIGRATION_DUE_TO_LIVE_UPDATE: &str = "AutoMigrationDueToLiveUpdate";
    pub const AUTO_MIGRATION_PENDING: &str = "AutoMigrationPending";
    pub const EVICTION_REQUESTED: &str = "EvictionRequested";
    pub const POD_TERMINATING: &str = "PodTerminating";
    pub const POD_NOT_EXISTS: &str = "PodNotExists";
    pub const POD_CONDITION_MISSING: &str = "PodConditionMissing";
    /// The cluster has not heard from the node of a running guest. Ours: upstream leaves the reason empty.
    pub const NODE_NOT_READY: &str = "NodeNotReady";
    pub const GUEST_NOT_RUNNING: &str = "GuestNotRunning";
    pub const CONTAINER_PATH_VOLUMES_DISABLED: &str = "ContainerPathVolumesDisabled";
    pub const MISSING_VIRTIOFS_CONTAINERS: &str = "MissingVirtiofsContainers";
}
