//! The custom resources we define: names, versions, printer columns and subresources, as clients of KubeVirt know them.

pub const KINDS: &[CrdKind] = &[
    CrdKind {
        kind: "VirtualMachine",
        group: KUBEVIRT,
        plural: "virtualmachines",
        short_names: &["vm", "vms"],
        columns: &[
            AGE,
            column("Status", "string", ".status.printableStatus").about("What the machine is doing, in one word"),
            READY,
        ],
        status: true,
        vmi_specs: &["spec.template.spec"],
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "VirtualMachineInstance",
        group: KUBEVIRT,
        plural: "virtualmachineinstances",
        short_names: &["vmi", "vmis"],
        columns: &[
            AGE,
            PHASE,
            column("IP", "string", ".status.interfaces[0].ipAddress"),
            column("NodeName", "string", ".status.nodeName"),
            READY,
            column("Live-Migratable", "string", ".status.conditions[?(@.type=='LiveMigratable')].status").wide(),
            column("Paused", "string", ".status.conditions[?(@.type=='Paused')].status").wide(),
        ],
        // No status subresource: KubeVirt has none here, and its clients update spec and status in one request.
        vmi_specs: &["spec"],
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "VirtualMachineInstanceReplicaSet",
        group: KUBEVIRT,
        plural: "virtualmachineinstancereplicasets",
        short_names: &["vmirs", "vmirss"],
        columns: &[
            column("Desired", "integer", ".spec.replicas").about("Instances asked for"),
            column("Current", "integer", ".status.replicas").about("Instances that exist and have not ended"),
            column("Ready", "integer", ".status.readyReplicas").about("Instances that are ready"),
            AGE,
        ],
        status: true,
        scale: true,
        vmi_specs: &["spec.template.spec"],
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "VirtualMachineInstancePreset",
        group: KUBEVIRT,
        plural: "virtualmachineinstancepresets",
        short_names: &["vmipreset", "vmipresets"],
        deprecated: true,
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "VirtualMachineInstanceMigration",
        group: KUBEVIRT,
        plural: "virtualmachineinstancemigrations",
        short_names: &["vmim", "vmims"],
        columns: &[
            PHASE.about("How far the migration is"),
            column("VMI", "string", ".spec.vmiName").about("The instance that moves"),
        ],
        status: true,
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "KubeVirt",
        group: KUBEVIRT,
        plural: "kubevirts",
        short_names: &["kv", "kvs"],
        columns: &[AGE, PHASE],
        status: true,
        ..CrdKind::BASE
    },
    CrdKind {
        kind: "VirtualMachineInstancetype",
        plural: "virtualmachineinstancetypes",
        short_names: &["vminstancetype", "vminstancetypes", "vmf", "vmfs"],
        ..CrdKind::INSTANCETYPE
    },
    CrdKind {
        kind: "VirtualMachineClusterInstancetype",
        plural: "virtualmachineclusterinstancetypes",
        short_names: &["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"],
        cluster_scoped: true,
        ..CrdKind::INSTANCETYPE
    },
    CrdKind {
        kind: "VirtualMachinePreference",
        plural: "virtualmachinepreferences",
        short_names: &["vmpref", "vmprefs", "vmp", "vmps"],
        ..CrdKind::INSTANCETYPE
    },
    CrdKind {
        kind: "VirtualMachineClusterPreference",
        plural: "virtualmachineclusterpreferences",
        short_names: &["vmcp", "vmcps"],
        cluster_scoped: true,
        ..CrdKind::INSTANCETYPE
    },
];

pub struct CrdKind {
    pub kind: &'static str,
    pub group: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    /// The first version is the stored one.
    pub versions: &'static [Version],
    pub cluster_scoped: bool,
    pub columns: &'static [Column],
    pub status: bool,
    pub scale: bool,
    pub deprecated: bool,
    /// Where the spec of a VirtualMachineInstance is embedded in this kind.
    pub vmi_specs: &'static [&'static str],
}

pub struct Version {
    pub name: &'static str,
    pub deprecated: bool,
}

#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub path: &'static str,
    pub description: Option<&'static str>,
    /// Shown only with `-o wide`.
    pub wide: bool,
}

const KUBEVIRT: &str = "kubevirt.io";
const AGE: Column = column("Age", "date", ".metadata.creationTimestamp");
const PHASE: Column = column("Phase", "string", ".status.phase");
const READY: Column = column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status");

impl CrdKind {
    const BASE: CrdKind = CrdKind {
        kind: "",
        group: "",
        plural: "",
        short_names: &[],
        versions: &[Version { name: "v1", deprecated: false }, Version { name: "v1alpha3", deprecated: true }],
        cluster_scoped: false,
        columns: &[],
        status: false,
        scale: false,
        deprecated: false,
        vmi_specs: &[],
    };
    const INSTANCETYPE: CrdKind = CrdKind {
        group: "instancetype.kubevirt.io",
        versions: &[Version { name: "v1beta1", deprecated: false }],
        ..CrdKind::BASE
    };

    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }
}

const fn column(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column { name, kind, path, description: None, wide: false }
}

impl Column {
    const fn about(mut self, description: &'static str) -> Column {
        self.description = Some(description);
        self
    }

    const fn wide(mut self) -> Column {
        self.wide = true;
        self
    }
}
