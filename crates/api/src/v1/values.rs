//! The values of the string-typed fields, one module per type.
//!
//! The fields themselves are `String`: an object with a value that this build does not know still decodes.

pub mod changed_block_tracking_state {
    pub const UNSET: &str = "";
    pub const PENDING_RESTART: &str = "PendingRestart";
    pub const INITIALIZING: &str = "Initializing";
    pub const ENABLED: &str = "Enabled";
    pub const DISABLED: &str = "Disabled";
    pub const INCREMENTAL_BACKUP_FEATURE_GATE_DISABLED: &str = "IncrementalBackupFeatureGateDisabled";
}

pub mod disk_bus {
    pub const SCSI: &str = "scsi";
    pub const SATA: &str = "sata";
    pub const USB: &str = "usb";
}

pub mod disk_error_policy {
    pub const STOP: &str = "stop";
    pub const IGNORE: &str = "ignore";
    pub const REPORT: &str = "report";
    pub const ENOSPACE: &str = "enospace";
}

pub mod domain_attachment_type {
    pub const TAP: &str = "tap";
    pub const MANAGED_TAP: &str = "managedTap";
}

pub mod driver_cache {
    pub const NONE: &str = "none";
    pub const WRITETHROUGH: &str = "writethrough";
    pub const WRITEBACK: &str = "writeback";
}

pub mod driver_io {
    pub const THREADS: &str = "threads";
    pub const NATIVE: &str = "native";
}

pub mod eviction_strategy {
    pub const NONE: &str = "None";
    pub const LIVE_MIGRATE: &str = "LiveMigrate";
    pub const LIVE_MIGRATE_IF_POSSIBLE: &str = "LiveMigrateIfPossible";
    pub const EXTERNAL: &str = "External";
}

pub mod hpet_tick_policy {
    pub const DELAY: &str = "delay";
    pub const CATCHUP: &str = "catchup";
    pub const MERGE: &str = "merge";
    pub const DISCARD: &str = "discard";
}

pub mod host_disk_type {
    pub const DISK_OR_CREATE: &str = "DiskOrCreate";
    pub const DISK: &str = "Disk";
}

pub mod io_threads_policy {
    pub const SHARED: &str = "shared";
    pub const AUTO: &str = "auto";
    pub const SUPPLEMENTAL_POOL: &str = "supplementalPool";
}

pub mod infer_from_volume_failure_policy {
    pub const REJECT: &str = "Reject";
    pub const IGNORE: &str = "Ignore";
}

pub mod input_bus {
    pub const USB: &str = "usb";
    pub const VIRTIO: &str = "virtio";
}

pub mod input_type {
    pub const TABLET: &str = "tablet";
    pub const KEYBOARD: &str = "keyboard";
}

pub mod instancetype_reference_policy {
    pub const REFERENCE: &str = "reference";
    pub const EXPAND: &str = "expand";
    pub const EXPAND_ALL: &str = "expandAll";
}

pub mod interface_state {
    pub const ABSENT: &str = "absent";
    pub const UP: &str = "up";
    pub const DOWN: &str = "down";
}

pub mod kube_virt_condition_type {
    pub const SYNCHRONIZED: &str = "Synchronized";
    pub const CREATED: &str = "Created";
    pub const AVAILABLE: &str = "Available";
    pub const PROGRESSING: &str = "Progressing";
    pub const DEGRADED: &str = "Degraded";
}

pub mod kube_virt_phase {
    pub const DEPLOYING: &str = "Deploying";
    pub const DEPLOYED: &str = "Deployed";
    pub const DELETING: &str = "Deleting";
    pub const DELETED: &str = "Deleted";
}

pub mod kube_virt_uninstall_strategy {
    pub const REMOVE_WORKLOADS: &str = "RemoveWorkloads";
    pub const BLOCK_UNINSTALL_IF_WORKLOADS_EXIST: &str = "BlockUninstallIfWorkloadsExist";
}

pub mod memory_dump_phase {
    pub const ASSOCIATING: &str = "Associating";
    pub const IN_PROGRESS: &str = "InProgress";
    pub const UNMOUNTING: &str = "Unmounting";
    pub const COMPLETED: &str = "Completed";
    pub const DISSOCIATING: &str = "Dissociating";
    pub const FAILED: &str = "Failed";
}

pub mod migration_abort_status {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const ABORTING: &str = "Aborting";
}

pub mod migration_compression {
    pub const NONE: &str = "none";
    pub const ZSTD: &str = "zstd";
}

pub mod migration_method {
    pub const LINK_REFRESH: &str = "link-refresh";
}

pub mod migration_mode {
    pub const PRE_COPY: &str = "PreCopy";
    pub const POST_COPY: &str = "PostCopy";
    pub const PAUSED: &str = "Paused";
}

pub mod migration_network_type {
    pub const POD: &str = "Pod";
    pub const MIGRATION: &str = "Migration";
}

pub mod migration_priority {
    pub const SYSTEM_CRITICAL: &str = "system-critical";
    pub const USER_TRIGGERED: &str = "user-triggered";
    pub const SYSTEM_MAINTENANCE: &str = "system-maintenance";
}

pub mod network_binding_downward_api_type {
    pub const DEVICE_INFO: &str = "device-info";
}

pub mod network_interface_type {
    pub const BRIDGE: &str = "bridge";
    pub const SLIRP: &str = "slirp";
    pub const MASQUERADE: &str = "masquerade";
}

pub mod pit_tick_policy {
    pub const DELAY: &str = "delay";
    pub const CATCHUP: &str = "catchup";
    pub const DISCARD: &str = "discard";
}

pub mod panic_device_model {
    pub const HYPERV: &str = "hyperv";
    pub const ISA: &str = "isa";
    pub const PVPANIC: &str = "pvpanic";
}

pub mod patch_type {
    pub const JSON: &str = "json";
    pub const MERGE: &str = "merge";
    pub const STRATEGIC: &str = "strategic";
}

pub mod rtc_tick_policy {
    pub const DELAY: &str = "delay";
    pub const CATCHUP: &str = "catchup";
}

pub mod rtc_timer_track {
    pub const GUEST: &str = "guest";
    pub const WALL: &str = "wall";
}

pub mod reboot_policy {
    pub const REBOOT: &str = "Reboot";
    pub const TERMINATE: &str = "Terminate";
}

pub mod role_aggregation_strategy {
    pub const AGGREGATE_TO_DEFAULT: &str = "AggregateToDefault";
    pub const MANUAL: &str = "Manual";
}

pub mod start_strategy {
    pub const PAUSED: &str = "Paused";
}

pub mod state_change_request_action {
    pub const START: &str = "Start";
    pub const STOP: &str = "Stop";
}

pub mod support_container_type {
    pub const HOTPLUG_DISK: &str = "hotplug-disk";
    pub const CONTAINER_DISK: &str = "container-disk";
    pub const VIRTIOFS: &str = "virtiofs";
    pub const SIDECAR: &str = "sidecar";
    pub const VMEXPORT: &str = "vmexport";
    pub const GUEST_CONSOLE_LOG: &str = "guest-console-log";
}

pub mod sync_event {
    pub const CREATED: &str = "Created";
    pub const DELETED: &str = "Deleted";
    pub const PRESET_FAILED: &str = "PresetFailed";
    pub const OVERRIDE: &str = "Override";
    pub const STARTED: &str = "Started";
    pub const SHUTTING_DOWN: &str = "ShuttingDown";
    pub const STOPPED: &str = "Stopped";
    pub const PREPARING_TARGET: &str = "PreparingTarget";
    pub const MIGRATING: &str = "Migrating";
    pub const MIGRATED: &str = "Migrated";
    pub const SYNC_FAILED: &str = "SyncFailed";
    pub const RESUMED: &str = "Resumed";
    pub const ACCESS_CREDENTIALS_SYNC_FAILED: &str = "AccessCredentialsSyncFailed";
    pub const ACCESS_CREDENTIALS_SYNC_SUCCESS: &str = "AccessCredentialsSyncSuccess";
}

pub mod tls_protocol_version {
    pub const VERSION_TLS10: &str = "VersionTLS10";
    pub const VERSION_TLS11: &str = "VersionTLS11";
    pub const VERSION_TLS12: &str = "VersionTLS12";
    pub const VERSION_TLS13: &str = "VersionTLS13";
}

pub mod tray_state {
    pub const OPEN: &str = "open";
    pub const CLOSED: &str = "closed";
}

pub mod update_volumes_strategy {
    pub const MIGRATION: &str = "Migration";
    pub const REPLACEMENT: &str = "Replacement";
}

pub mod utility_volume_type {
    pub const MEMORY_DUMP: &str = "MemoryDump";
    pub const BACKUP: &str = "Backup";
}

pub mod vm_rollout_strategy {
    pub const STAGE: &str = "Stage";
    pub const LIVE_UPDATE: &str = "LiveUpdate";
}

pub mod virtual_machine_condition_type {
    pub const FAILURE: &str = "Failure";
    pub const READY: &str = "Ready";
    pub const PAUSED: &str = "Paused";
    pub const RESTART_REQUIRED: &str = "RestartRequired";
    pub const MANUAL_RECOVERY_REQUIRED: &str = "ManualRecoveryRequired";
}

pub mod virtual_machine_instance_condition_type {
    pub const PROVISIONING: &str = "Provisioning";
    pub const READY: &str = "Ready";
    pub const SYNCHRONIZED: &str = "Synchronized";
    pub const PAUSED: &str = "Paused";
    pub const AGENT_CONNECTED: &str = "AgentConnected";
    pub const ACCESS_CREDENTIALS_SYNCHRONIZED: &str = "AccessCredentialsSynchronized";
    pub const AGENT_VERSION_NOT_SUPPORTED: &str = "AgentVersionNotSupported";
    pub const LIVE_MIGRATABLE: &str = "LiveMigratable";
    pub const HOT_VCPU_CHANGE: &str = "HotVCPUChange";
    pub const HOT_MEMORY_CHANGE: &str = "HotMemoryChange";
    pub const VOLUMES_CHANGE: &str = "VolumesChange";
    pub const DATA_VOLUMES_READY: &str = "DataVolumesReady";
    pub const STORAGE_LIVE_MIGRATABLE: &str = "StorageLiveMigratable";
    pub const DECENTRALIZED_LIVE_MIGRATION_FAILURE: &str = "DecentralizedLiveMigrationFailure";
    pub const MIGRATION_REQUIRED: &str = "MigrationRequired";
    pub const EVICTION_REQUESTED: &str = "EvictionRequested";
    pub const SOFTWARE_EMULATION: &str = "SoftwareEmulation";
}

pub mod virtual_machine_instance_migration_condition_type {
    pub const MIGRATION_ABORT_REQUESTED: &str = "migrationAbortRequested";
    pub const MIGRATION_REJECTED_BY_RESOURCE_QUOTA: &str = "migrationRejectedByResourceQuota";
    pub const MIGRATION_BLOCKED_BY_UTILITY_VOLUMES: &str = "migrationBlockedByUtilityVolumes";
    pub const DECENTRALIZED_MIGRATION_BLOCKED: &str = "decentralizedMigrationBlocked";
    pub const MIGRATION_BLOCKED_BY_BACKUP: &str = "migrationBlockedByBackup";
}

pub mod virtual_machine_instance_migration_method {
    pub const BLOCK_MIGRATION: &str = "BlockMigration";
    pub const LIVE_MIGRATION: &str = "LiveMigration";
}

pub mod virtual_machine_instance_migration_phase {
    pub const UNSET: &str = "";
    pub const PENDING: &str = "Pending";
    pub const SCHEDULING: &str = "Scheduling";
    pub const SCHEDULED: &str = "Scheduled";
    pub const PREPARING_TARGET: &str = "PreparingTarget";
    pub const TARGET_READY: &str = "TargetReady";
    pub const RUNNING: &str = "Running";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const WAITING_FOR_SYNC: &str = "WaitingForSync";
    pub const SYNCHRONIZING: &str = "Synchronizing";
}

pub mod virtual_machine_instance_migration_transport {
    pub const UNIX: &str = "Unix";
}

pub mod virtual_machine_instance_phase {
    pub const UNSET: &str = "";
    pub const PENDING: &str = "Pending";
    pub const SCHEDULING: &str = "Scheduling";
    pub const SCHEDULED: &str = "Scheduled";
    pub const RUNNING: &str = "Running";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const WAITING_FOR_SYNC: &str = "WaitingForSync";
    pub const UNKNOWN: &str = "Unknown";
}

pub mod virtual_machine_instance_replica_set_condition_type {
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    pub const REPLICA_PAUSED: &str = "ReplicaPaused";
}

pub mod virtual_machine_printable_status {
    pub const STOPPED: &str = "Stopped";
    pub const PROVISIONING: &str = "Provisioning";
    pub const STARTING: &str = "Starting";
    pub const RUNNING: &str = "Running";
    pub const PAUSED: &str = "Paused";
    pub const STOPPING: &str = "Stopping";
    pub const TERMINATING: &str = "Terminating";
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    pub const MIGRATING: &str = "Migrating";
    pub const UNKNOWN: &str = "Unknown";
    pub const ERROR_UNSCHEDULABLE: &str = "ErrorUnschedulable";
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    pub const ERROR_PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
    pub const DATA_VOLUME_ERROR: &str = "DataVolumeError";
    pub const WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
    pub const WAITING_FOR_RECEIVER: &str = "WaitingForReceiver";
}

pub mod virtual_machine_run_strategy {
    pub const UNSET: &str = "";
    pub const ALWAYS: &str = "Always";
    pub const HALTED: &str = "Halted";
    pub const MANUAL: &str = "Manual";
    pub const RERUN_ON_FAILURE: &str = "RerunOnFailure";
    pub const ONCE: &str = "Once";
    pub const WAIT_AS_RECEIVER: &str = "WaitAsReceiver";
}

pub mod volume_phase {
    pub const PENDING: &str = "Pending";
    pub const BOUND: &str = "Bound";
    pub const ATTACHED_TO_NODE: &str = "AttachedToNode";
    pub const MOUNTED_TO_POD: &str = "MountedToPod";
    pub const READY: &str = "Ready";
    pub const DETACHING: &str = "Detaching";
    pub const UN_MOUNTED_FROM_POD: &str = "UnMountedFromPod";
    pub const MEMORY_DUMP_COMPLETED: &str = "MemoryDumpCompleted";
    pub const MEMORY_DUMP_IN_PROGRESS: &str = "MemoryDumpInProgress";
    pub const MEMORY_DUMP_FAILED: &str = "MemoryDumpFailed";
}

pub mod watchdog_action {
    pub const POWEROFF: &str = "poweroff";
    pub const RESET: &str = "reset";
    pub const SHUTDOWN: &str = "shutdown";
}

pub mod workload_update_method {
    pub const LIVE_MIGRATE: &str = "LiveMigrate";
    pub const EVICT: &str = "Evict";
}
