//! The built-in kinds whose structure we carry. What they refer to comes along by itself.

/// A Go package that defines kinds. Its path is also the prefix of its protobuf messages (`/` becomes `.`) and, apart
/// from the reversed host, of its OpenAPI definitions.
pub struct Package {
    pub path: &'static str,
    /// Kinds with a list kind of their own.
    pub listed: &'static [&'static str],
    pub others: &'static [&'static str],
}

pub const PACKAGES: &[Package] = &[
    Package {
        path: "k8s.io/api/core/v1",
        listed: &[
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
        others: &["Binding"],
    },
    Package {
        path: "k8s.io/api/admissionregistration/v1",
        listed: &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
        others: &[],
    },
    Package {
        path: "k8s.io/api/apps/v1",
        listed: &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"],
        others: &[],
    },
    Package {
        path: "k8s.io/api/authentication/v1",
        listed: &[],
        others: &["SelfSubjectReview", "TokenRequest", "TokenReview"],
    },
    Package {
        path: "k8s.io/api/authorization/v1",
        listed: &[],
        others: &[
            "LocalSubjectAccessReview",
            "SelfSubjectAccessReview",
            "SelfSubjectRulesReview",
            "SubjectAccessReview",
        ],
    },
    Package { path: "k8s.io/api/autoscaling/v1", listed: &["HorizontalPodAutoscaler"], others: &["Scale"] },
    Package { path: "k8s.io/api/autoscaling/v2", listed: &["HorizontalPodAutoscaler"], others: &[] },
    Package { path: "k8s.io/api/batch/v1", listed: &["CronJob", "Job"], others: &[] },
    Package { path: "k8s.io/api/certificates/v1", listed: &["CertificateSigningRequest"], others: &[] },
    Package { path: "k8s.io/api/coordination/v1", listed: &["Lease"], others: &[] },
    Package { path: "k8s.io/api/discovery/v1", listed: &["EndpointSlice"], others: &[] },
    Package { path: "k8s.io/api/events/v1", listed: &["Event"], others: &[] },
    Package { path: "k8s.io/api/flowcontrol/v1", listed: &["FlowSchema", "PriorityLevelConfiguration"], others: &[] },
    Package {
        path: "k8s.io/api/networking/v1",
        listed: &["IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR"],
        others: &[],
    },
    Package { path: "k8s.io/api/node/v1", listed: &["RuntimeClass"], others: &[] },
    Package { path: "k8s.io/api/policy/v1", listed: &["PodDisruptionBudget"], others: &["Eviction"] },
    Package {
        path: "k8s.io/api/rbac/v1",
        listed: &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
        others: &[],
    },
    Package {
        path: "k8s.io/api/resource/v1",
        listed: &["DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"],
        others: &[],
    },
    Package { path: "k8s.io/api/scheduling/v1", listed: &["PriorityClass"], others: &[] },
    Package {
        path: "k8s.io/api/storage/v1",
        listed: &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttributesClass",
        ],
        others: &[],
    },
    Package {
        path: "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
        listed: &["CustomResourceDefinition"],
        others: &[],
    },
    Package { path: "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1", listed: &["APIService"], others: &[] },
    Package {
        path: "k8s.io/apimachinery/pkg/apis/meta/v1",
        listed: &[],
        others: &["DeleteOptions", "Status", "WatchEvent"],
    },
];

impl Package {
    /// Every kind of the package, lists included.
    pub fn kinds(&self) -> impl Iterator<Item = String> {
        let lists = self.listed.iter().map(|kind| format!("{kind}List"));
        let kinds = self.listed.iter().chain(self.others).map(|kind| (*kind).to_owned());
        kinds.chain(lists)
    }
}
