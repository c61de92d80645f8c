//! The built-in kinds, as a table.

use std::sync::{Arc, LazyLock};

use ferrovirt_schema::Definitions;
use ferrovirt_schema::proto::ProtoTable;

use super::autoscaler;
use super::columns::Columns;
use super::go_form::GoForm;
use super::last_line::LastLine;
use super::printers;
use super::resource::{NameRule, ReadDefaults, Resource, Scale, SchemaSource, Special, Version};

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];

/// Swagger definitions of the built-in kinds, without descriptions. Generated.
pub const OPENAPI: &[u8] = include_bytes!("../../data/openapi.json");
/// Protobuf field numbers of the built-in kinds. Generated.
const PROTO: &[u8] = include_bytes!("../../data/proto.json");

/// Group, version, package of the OpenAPI definition. In the order of discovery; the first version of a group is stored.
const GROUPS: &[(&str, &str, &str)] = &[
    ("", "v1", "io.k8s.api.core.v1"),
    ("apiregistration.k8s.io", "v1", "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1"),
    ("apps", "v1", "io.k8s.api.apps.v1"),
    ("events.k8s.io", "v1", "io.k8s.api.events.v1"),
    ("authentication.k8s.io", "v1", "io.k8s.api.authentication.v1"),
    ("authorization.k8s.io", "v1", "io.k8s.api.authorization.v1"),
    ("policy", "v1", "io.k8s.api.policy.v1"),
    ("rbac.authorization.k8s.io", "v1", "io.k8s.api.rbac.v1"),
    ("storage.k8s.io", "v1", "io.k8s.api.storage.v1"),
    ("admissionregistration.k8s.io", "v1", "io.k8s.api.admissionregistration.v1"),
    ("apiextensions.k8s.io", "v1", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"),
    ("scheduling.k8s.io", "v1", "io.k8s.api.scheduling.v1"),
    ("coordination.k8s.io", "v1", "io.k8s.api.coordination.v1"),
    ("discovery.k8s.io", "v1", "io.k8s.api.discovery.v1"),
    ("autoscaling", "v2", "io.k8s.api.autoscaling.v2"),
    ("autoscaling", "v1", "io.k8s.api.autoscaling.v1"),
    ("batch", "v1", "io.k8s.api.batch.v1"),
    ("certificates.k8s.io", "v1", "io.k8s.api.certificates.v1"),
    ("networking.k8s.io", "v1", "io.k8s.api.networking.v1"),
    ("node.k8s.io", "v1", "io.k8s.api.node.v1"),
    ("flowcontrol.apiserver.k8s.io", "v1", "io.k8s.api.flowcontrol.v1"),
    ("resource.k8s.io", "v1", "io.k8s.api.resource.v1"),
];

struct Row {
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    /// `n` namespaced, `s` status, `g` generation, `c` PUT needs a resourceVersion, `p` any name, `l` label name, `r` relaxed durability,
    /// `S` scale subresource.
    flags: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    subresources: &'static [&'static str],
    special: Special,
}

const fn row(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    flags: &'static str,
    short: &'static [&'static str],
) -> Row {
    Row { group, plural, kind, flags, short, categories: &[], subresources: &[], special: Special::None }
}

const fn special(mut row: Row, special: Special) -> Row {
    row.special = special;
    row
}

const fn with(mut row: Row, subresources: &'static [&'static str]) -> Row {
    row.subresources = subresources;
    row
}

const fn in_all(mut row: Row) -> Row {
    row.categories = &["all"];
    row
}

const fn in_extensions(mut row: Row) -> Row {
    row.categories = &["api-extensions"];
    row
}

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";
const AUTHN: &str = "authentication.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";

const ROWS: &[Row] = &[
    special(with(row("", "namespaces", "Namespace", "sl", &["ns"]), &["finalize"]), Special::Namespace),
    special(row("", "nodes", "Node", "s", &["no"]), Special::Node),
    special(
        in_all(with(
            row("", "pods", "Pod", "nsg", &["po"]),
            &["binding", "eviction", "log", "exec", "attach", "portforward"],
        )),
        Special::Pod,
    ),
    row("", "configmaps", "ConfigMap", "n", &["cm"]),
    special(row("", "secrets", "Secret", "n", &[]), Special::Secret),
    with(row("", "serviceaccounts", "ServiceAccount", "n", &["sa"]), &["token"]),
    special(in_all(row("", "services", "Service", "nsl", &["svc"])), Special::Service),
    row("", "endpoints", "Endpoints", "n", &["ep"]),
    special(row("", "events", "Event", "nr", &["ev"]), Special::Event),
    special(row("", "persistentvolumes", "PersistentVolume", "s", &["pv"]), Special::Claim),
    special(row("", "persistentvolumeclaims", "PersistentVolumeClaim", "ns", &["pvc"]), Special::Claim),
    row("", "resourcequotas", "ResourceQuota", "ns", &["quota"]),
    row("", "limitranges", "LimitRange", "n", &["limits"]),
    row("", "podtemplates", "PodTemplate", "ng", &[]),
    in_all(row("", "replicationcontrollers", "ReplicationController", "nsgS", &["rc"])),
    row("apps", "controllerrevisions", "ControllerRevision", "n", &[]),
    in_all(row("apps", "deployments", "Deployment", "nsgS", &["deploy"])),
    in_all(row("apps", "replicasets", "ReplicaSet", "nsgS", &["rs"])),
    in_all(row("apps", "statefulsets", "StatefulSet", "nsgS", &["sts"])),
    in_all(row("apps", "daemonsets", "DaemonSet", "nsg", &["ds"])),
    in_all(row("batch", "jobs", "Job", "nsg", &[])),
    in_all(row("batch", "cronjobs", "CronJob", "nsg", &["cj"])),
    in_all(row("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "ns", &["hpa"])),
    special(
        with(
            row("certificates.k8s.io", "certificatesigningrequests", "CertificateSigningRequest", "s", &["csr"]),
            &["approval"],
        ),
        Special::SigningRequest,
    ),
    row(NETWORKING, "ingresses", "Ingress", "nsg", &["ing"]),
    row(NETWORKING, "ingressclasses", "IngressClass", "g", &[]),
    row(NETWORKING, "networkpolicies", "NetworkPolicy", "ng", &["netpol"]),
    row(NETWORKING, "servicecidrs", "ServiceCIDR", "sc", &[]),
    row(NETWORKING, "ipaddresses", "IPAddress", "cp", &["ip"]),
    row("node.k8s.io", "runtimeclasses", "RuntimeClass", "c", &[]),
    row(FLOW, "flowschemas", "FlowSchema", "sgc", &[]),
    row(FLOW, "prioritylevelconfigurations", "PriorityLevelConfiguration", "sgc", &[]),
    row("resource.k8s.io", "deviceclasses", "DeviceClass", "g", &[]),
    row("resource.k8s.io", "resourceclaims", "ResourceClaim", "ns", &[]),
    row("resource.k8s.io", "resourceclaimtemplates", "ResourceClaimTemplate", "n", &[]),
    row("resource.k8s.io", "resourceslices", "ResourceSlice", "g", &[]),
    special(row("events.k8s.io", "events", "Event", "nr", &["ev"]), Special::Event),
    row("discovery.k8s.io", "endpointslices", "EndpointSlice", "ng", &[]),
    row("coordination.k8s.io", "leases", "Lease", "nr", &[]),
    special(row("scheduling.k8s.io", "priorityclasses", "PriorityClass", "g", &["pc"]), Special::PriorityClass),
    row("storage.k8s.io", "storageclasses", "StorageClass", "", &["sc"]),
    row("storage.k8s.io", "csidrivers", "CSIDriver", "c", &[]),
    row("storage.k8s.io", "csinodes", "CSINode", "c", &[]),
    row("storage.k8s.io", "csistoragecapacities", "CSIStorageCapacity", "nc", &[]),
    row("storage.k8s.io", "volumeattachments", "VolumeAttachment", "sc", &[]),
    row("storage.k8s.io", "volumeattributesclasses", "VolumeAttributesClass", "", &["vac"]),
    row("policy", "poddisruptionbudgets", "PodDisruptionBudget", "nsg", &["pdb"]),
    special(row(RBAC, "roles", "Role", "np", &[]), Special::Rbac),
    special(row(RBAC, "rolebindings", "RoleBinding", "np", &[]), Special::Rbac),
    special(row(RBAC, "clusterroles", "ClusterRole", "p", &[]), Special::Rbac),
    special(row(RBAC, "clusterrolebindings", "ClusterRoleBinding", "p", &[]), Special::Rbac),
    special(
        in_extensions(row(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", "gc", &[])),
        Special::Webhook,
    ),
    special(
        in_extensions(row(ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "gc", &[])),
        Special::Webhook,
    ),
    special(
        in_extensions(row(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", "sgc", &[])),
        Special::Policy,
    ),
    special(
        in_extensions(row(
            ADMISSION,
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            "gc",
            &[],
        )),
        Special::Policy,
    ),
    special(
        in_extensions(row(ADMISSION, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", "gc", &[])),
        Special::Policy,
    ),
    special(
        in_extensions(row(ADMISSION, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", "gc", &[])),
        Special::Policy,
    ),
    special(
        in_extensions(row(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            "sgc",
            &["crd", "crds"],
        )),
        Special::Crd,
    ),
    special(in_extensions(row("apiregistration.k8s.io", "apiservices", "APIService", "scp", &[])), Special::ApiService),
    special(row(AUTHZ, "subjectaccessreviews", "SubjectAccessReview", "", &[]), Special::SubjectAccessReview),
    special(
        row(AUTHZ, "selfsubjectaccessreviews", "SelfSubjectAccessReview", "", &[]),
        Special::SelfSubjectAccessReview,
    ),
    special(
        row(AUTHZ, "localsubjectaccessreviews", "LocalSubjectAccessReview", "n", &[]),
        Special::LocalSubjectAccessReview,
    ),
    special(row(AUTHZ, "selfsubjectrulesreviews", "SelfSubjectRulesReview", "", &[]), Special::SelfSubjectRulesReview),
    special(row(AUTHN, "tokenreviews", "TokenReview", "", &[]), Special::TokenReview),
    special(row(AUTHN, "selfsubjectreviews", "SelfSubjectReview", "", &[]), Special::SelfSubjectReview),
];

/// events.k8s.io has its own names for the fields of core events.
const EVENT_RENAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Paths that field selectors may use beyond name and namespace.
const SELECTABLE: &[(&str, &[&str])] = &[
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
    ),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("secrets", &["type"]),
    ("namespaces", &["status.phase"]),
    ("nodes", &["spec.unschedulable"]),
    ("services", &["spec.clusterIP", "spec.type"]),
    ("replicasets", &["status.replicas"]),
    ("replicationcontrollers", &["status.replicas"]),
    ("jobs", &["status.successful"]),
    ("certificatesigningrequests", &["spec.signerName"]),
    ("resourceslices", &["spec.nodeName", "spec.driver"]),
    ("ipaddresses", &["spec.parentRef.name"]),
];

pub fn resources() -> impl Iterator<Item = Resource> {
    ROWS.iter().map(resource)
}

fn resource(row: &Row) -> Resource {
    let flag = |c: char| row.flags.contains(c);
    let (_, version, package) =
        GROUPS.iter().find(|(g, _, _)| *g == row.group).copied().unwrap_or((row.group, "v1", ""));
    let shared = row.group == "events.k8s.io";
    let storage_group = if shared { "" } else { row.group };
    let storage =
        if storage_group.is_empty() { row.plural.to_owned() } else { format!("{storage_group}/{}", row.plural) };
    // Other versions of the group that have the kind too.
    let others = GROUPS.iter().filter(|(g, v, _)| *g == row.group && *v != version);
    let versions = std::iter::once((version, package)).chain(others.map(|(_, v, p)| (*v, *p)));
    let mut resource = Resource {
        group: row.group.to_owned(),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        namespaced: flag('n'),
        short_names: row.short.iter().map(|s| (*s).to_owned()).collect(),
        categories: row.categories.iter().map(|s| (*s).to_owned()).collect(),
        verbs: ALL,
        versions: versions.map(|(version, package)| builtin_version(row, version, package)).collect(),
        storage_version: version.to_owned(),
        storage: Arc::from(storage),
        storage_group: storage_group.to_owned(),
        special: row.special,
        custom: false,
        conversion: None,
        generation: flag('g'),
        unconditional_update: !flag('c'),
        name_rule: match () {
            () if flag('p') => NameRule::PathSegment,
            () if flag('l') => NameRule::Label,
            () if flag('5') => NameRule::Label1035,
            () => NameRule::Subdomain,
        },
        schema_revision: 0,
        relaxed: flag('r'),
    };
    if resource.is_virtual() {
        resource.verbs = CREATE;
    }
    resource
}

fn builtin_version(row: &Row, version: &str, package: &str) -> Version {
    let flag = |c: char| row.flags.contains(c);
    Version {
        name: version.to_owned(),
        status: flag('s'),
        scale: flag('S').then(|| Scale {
            spec_replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: Some(".spec.selector".to_owned()),
        }),
        subresources: row.subresources,
        schema: SchemaSource::Builtin,
        columns: Columns::Builtin(printers::columns(row.plural)),
        definition: format!("{package}.{}", row.kind),
        renames: if row.group == "events.k8s.io" { EVENT_RENAMES } else { &[] },
        reshape: (row.group == "autoscaling" && version == "v1").then_some(autoscaler::reshape),
        deprecation: (row.group.is_empty() && row.plural == "endpoints")
            .then(|| "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()),
        selectable: SELECTABLE
            .iter()
            .filter(|(plural, _)| *plural == row.plural)
            .flat_map(|(_, paths)| paths.iter().map(|p| selectable_name(row, p)))
            .collect(),
        rules: None,
        read_defaults: ReadDefaults::None,
        last_line: LastLine::default(),
        go_form: GoForm::default(),
    }
}

/// The name of a selectable path in the row's own group.
fn selectable_name(row: &Row, path: &str) -> String {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let renamed = EVENT_RENAMES.iter().filter(|_| row.group == "events.k8s.io").find(|(stored, _)| *stored == first);
    let first = renamed.map_or(first, |(_, here)| *here);
    rest.map_or_else(|| first.to_owned(), |rest| format!("{first}.{rest}"))
}

/// Where a group stands in discovery; groups not in the table follow.
pub fn group_order(group: &str) -> usize {
    GROUPS.iter().position(|(g, _, _)| *g == group).unwrap_or(GROUPS.len())
}

/// The OpenAPI definition of a built-in kind.
pub fn definition_name(group: &str, version: &str, kind: &str) -> Option<String> {
    let (_, _, package) = GROUPS.iter().find(|(g, v, _)| *g == group && *v == version)?;
    Some(format!("{package}.{kind}"))
}

/// Takes away requirements that only say how Go writes a field: empty lists and maps may be absent, and a status is what
/// its controller makes of it.
fn relax(name: &str, definition: &mut serde_json::Value) {
    let properties = definition["properties"].clone();
    let free = name.ends_with("Condition") || name.ends_with("Status");
    if let Some(required) = definition.get_mut("required").and_then(serde_json::Value::as_array_mut) {
        required.retain(|field| {
            let schema = &properties[field.as_str().unwrap_or_default()];
            !free && schema["type"] != "array" && schema["additionalProperties"].is_null()
        });
    }
}

/// Schemas of the built-in kinds, compiled once.
pub fn builtin_definitions() -> &'static Definitions {
    static DEFINITIONS: LazyLock<Definitions> = LazyLock::new(|| {
        let mut parsed: serde_json::Value = serde_json::from_slice(OPENAPI).unwrap_or_default();
        parsed["definitions"].as_object_mut().into_iter().flatten().for_each(|(name, d)| relax(name, d));
        Definitions::parse(&parsed["definitions"]).unwrap_or_else(|causes| {
            tracing::error!(
                causes = causes.len(),
                "the embedded definitions do not compile; built-in kinds are not checked"
            );
            Definitions::default()
        })
    });
    &DEFINITIONS
}

/// The definitions as they are published. Large, and seldom needed in this form: not kept.
pub fn definitions_json() -> serde_json::Value {
    let mut parsed: serde_json::Value = serde_json::from_slice(OPENAPI).unwrap_or_default();
    parsed["definitions"].take()
}

/// The protobuf transcoder of the built-in kinds.
pub fn proto_table() -> Option<&'static ProtoTable> {
    static TABLE: LazyLock<Option<ProtoTable>> = LazyLock::new(|| ProtoTable::parse(PROTO).ok());
    TABLE.as_ref()
}
