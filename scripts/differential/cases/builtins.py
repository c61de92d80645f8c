"""Every built-in kind: what is filled in, how it is printed, and what is refused."""

from run import MERGE, TABLE, Case, Step

from .objects import NS

# plural path, the smallest object
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
ONCE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
SELECTOR = {"matchLabels": {"a": "b"}}


def kind(group, plural, body, namespaced=True):
    base = f"/apis/{group}" if group else "/api/v1"
    return (f"{base}/namespaces/differ/{plural}" if namespaced else f"{base}/{plural}"), body


KINDS = [
    kind("", "secrets", {"stringData": {"a": "b"}}),
    kind("", "secrets", {"metadata": {"name": "tls"}, "type": "kubernetes.io/tls"}),
    kind("", "secrets", {"metadata": {"name": "dockercfg"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "x"}}),
    kind("", "secrets", {"metadata": {"name": "ssh"}, "type": "kubernetes.io/ssh-auth"}),
    kind("", "secrets", {"metadata": {"name": "basic"}, "type": "kubernetes.io/basic-auth"}),
    kind("", "secrets", {"metadata": {"name": "token"}, "type": "kubernetes.io/service-account-token"}),
    kind("", "serviceaccounts", {}),
    kind("", "podtemplates", {"template": TEMPLATE}),
    kind("", "replicationcontrollers", {"spec": {"selector": {"a": "b"}, "template": TEMPLATE}}),
    kind("", "endpoints", {"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}),
    kind("", "limitranges", {"spec": {"limits": [{"type": "Container", "max": {"cpu": "10"}}]}}),
    kind("", "resourcequotas", {"spec": {"hard": {"count/widgets.example.com": "1000"}}}),
    kind("", "persistentvolumeclaims", {"spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    kind("", "persistentvolumes", {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}, "storageClassName": "none"}}, False),
    kind("", "events", {"involvedObject": {"namespace": "differ"}, "reason": "x", "type": "Normal"}),
    kind("apps/v1", "deployments", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}),
    kind("apps/v1", "replicasets", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}),
    kind("apps/v1", "statefulsets", {"spec": {"selector": SELECTOR, "template": TEMPLATE, "serviceName": "x"}}),
    kind("apps/v1", "daemonsets", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}),
    kind("apps/v1", "controllerrevisions", {"revision": 1, "data": {"a": 1}}),
    kind("batch/v1", "jobs", {"spec": {"template": ONCE}}),
    kind("batch/v1", "cronjobs", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": ONCE}}}}),
    kind("autoscaling/v2", "horizontalpodautoscalers", {"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}}),
    kind("coordination.k8s.io/v1", "leases", {"spec": {"holderIdentity": "x"}}),
    kind("discovery.k8s.io/v1", "endpointslices", {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 80}]}),
    kind("policy/v1", "poddisruptionbudgets", {"spec": {"minAvailable": 1, "selector": SELECTOR}}),
    kind("networking.k8s.io/v1", "ingresses", {"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}}),
    kind("networking.k8s.io/v1", "networkpolicies", {"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}}),
    kind("networking.k8s.io/v1", "ingressclasses", {"spec": {"controller": "example.com/x"}}, False),
    kind("rbac.authorization.k8s.io/v1", "roles", {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
    kind("rbac.authorization.k8s.io/v1", "rolebindings", {"roleRef": {"kind": "Role", "name": "x"}, "subjects": [{"kind": "User", "name": "u"}]}),
    kind("rbac.authorization.k8s.io/v1", "clusterroles", {"rules": []}, False),
    kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", {"roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}}, False),
    kind("scheduling.k8s.io/v1", "priorityclasses", {"value": 5}, False),
    kind("storage.k8s.io/v1", "storageclasses", {"provisioner": "example.com/x"}, False),
    kind("storage.k8s.io/v1", "csidrivers", {"spec": {}}, False),
    kind("storage.k8s.io/v1", "csinodes", {"spec": {"drivers": []}}, False),
    kind("storage.k8s.io/v1", "volumeattachments", {"spec": {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "x"}}}, False),
    kind("storage.k8s.io/v1", "csistoragecapacities", {"storageClassName": "x"}),
    kind("node.k8s.io/v1", "runtimeclasses", {"handler": "x"}, False),
    kind("apiregistration.k8s.io/v1", "apiservices", {"metadata": {"name": "v1.external.example.com"}, "spec": {"group": "external.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, "service": {"namespace": "differ", "name": "none"}, "insecureSkipTLSVerify": True}}, False),
    kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", {"webhooks": [{"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1"}, "rules": [{"apiGroups": ["none.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]}]}, False),
    kind("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", {"webhooks": [{"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {"service": {"namespace": "a", "name": "b"}}, "rules": [{"apiGroups": ["none.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]}]}, False),
    kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", {"spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["none.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]}, "validations": [{"expression": "true"}]}}, False),
    kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", {"spec": {"policyName": "x", "validationActions": ["Deny"]}}, False),
    kind("certificates.k8s.io/v1", "certificatesigningrequests", {"spec": {"request": "eA==", "signerName": "example.com/x", "usages": ["client auth"]}}, False),
    kind("flowcontrol.apiserver.k8s.io/v1", "flowschemas", {"spec": {"priorityLevelConfiguration": {"name": "x"}}}, False),
    kind("resource.k8s.io/v1", "deviceclasses", {"spec": {}}, False),
    kind("resource.k8s.io/v1", "resourceclaims", {"spec": {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "y"}}]}}}),
]


def named(index, body):
    return {"metadata": {"name": f"k{index}"}, **body} if "metadata" not in body else body


def life(index, path, body):
    body = named(index, body)
    name = body["metadata"]["name"]
    # What controllers of either side write meanwhile is not the question here.
    status = ("status",)
    # Who keeps volumes that are in use is a controller's matter, and has its own way here.
    if "persistentvolume" in path:
        status += ("metadata.finalizers", "metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds")
    # Upstream finds data changed that was only read and written again.
    odd = "upstream finds its own data changed" if path.endswith("controllerrevisions") else None
    return Case(
        "kind " + path.rsplit("/", 1)[1] + f" {index}",
        [
            Step("POST", path, {"metadata": {"name": name + "-empty"}}),
            Step("POST", path, body, ignore=status),
            Step("GET", f"{path}?fieldSelector=metadata.name%3D{name}", accept=TABLE, ignore=("rows.*.object.metadata.managedFields", "rows.*.object.metadata.generation", "rows.*.object.metadata.finalizers", "rows.*.object.metadata.annotations", "metadata.remainingItemCount") + (("rows.*.cells",) if path.endswith(("persistentvolumes", "apiservices", "flowschemas", "resourcequotas")) else ())),
            Step("PATCH", f"{path}/{name}", {"metadata": {"labels": {"x": "y"}}}, MERGE, ignore=status + ("metadata.managedFields", "metadata.generation"), differs=odd),
            Step("PATCH", f"{path}/{name}/status", {"status": {"nonsense": 1}}, MERGE, ignore=status + ("metadata.managedFields",)),
            Step("PATCH", f"{path}/{name}", {"spec": None}, MERGE, ignore=status + ("metadata.managedFields", "metadata.generation"), differs=odd),
            Step("DELETE", f"{path}/{name}", ignore=status + ("metadata.managedFields", "spec", "metadata.annotations")),
        ],
    )


CASES = [life(index, path, body) for index, (path, body) in enumerate(KINDS)] + [
    Case(
        "validation",
        [
            Step("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/differ/rolebindings", {"metadata": {"name": "rb"}, "roleRef": {"kind": "Role", "name": "x", "apiGroup": "rbac.authorization.k8s.io"}}),
            Step("PATCH", "/apis/rbac.authorization.k8s.io/v1/namespaces/differ/rolebindings/rb", {"roleRef": {"name": "y"}}, MERGE),
            Step("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/differ/roles", {"metadata": {"name": "r"}, "rules": [{"verbs": ["get"]}]}),
            Step("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/differ/roles", {"metadata": {"name": "r"}, "rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]}),
            Step("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/differ/rolebindings", {"metadata": {"name": "rc"}, "roleRef": {"kind": "Role", "name": "x", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "ServiceAccount", "name": "x"}]}),
            Step("POST", "/apis/policy/v1/namespaces/differ/poddisruptionbudgets", {"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": SELECTOR}}),
            Step("POST", "/apis/policy/v1/namespaces/differ/poddisruptionbudgets", {"metadata": {"name": "p"}, "spec": {"minAvailable": "150%", "selector": SELECTOR}}),
            Step("POST", "/apis/policy/v1/namespaces/differ/poddisruptionbudgets", {"metadata": {"name": "p"}, "spec": {"minAvailable": -1, "selector": SELECTOR}}),
            Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "system-mine"}, "value": 5}),
            Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "huge"}, "value": 2000000000}),
            Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "pc"}, "value": 5}),
            Step("PATCH", "/apis/scheduling.k8s.io/v1/priorityclasses/pc", {"value": 6}, MERGE),
            Step("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/pc", only=("status",)),
            Step("POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": "sc"}, "provisioner": "example.com/x", "volumeBindingMode": "Nonsense"}),
            Step("POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": "sc"}, "provisioner": "example.com/x"}),
            Step("PATCH", "/apis/storage.k8s.io/v1/storageclasses/sc", {"provisioner": "example.com/y"}, MERGE),
            Step("PATCH", "/apis/storage.k8s.io/v1/storageclasses/sc", {"reclaimPolicy": "Retain"}, MERGE),
            Step("DELETE", "/apis/storage.k8s.io/v1/storageclasses/sc", only=("status",)),
            Step("POST", NS + "/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "accessModes": ["Nonsense"], "resources": {"requests": {"storage": "1Gi"}}}}),
            Step("POST", NS + "/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "0"}}}}),
            Step("POST", NS + "/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"cpu": "1"}}}}),
            Step("POST", NS + "/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}, only=("spec",)),
            Step("PATCH", NS + "/persistentvolumeclaims/v", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, MERGE),
            Step("PATCH", NS + "/persistentvolumeclaims/v", {"spec": {"accessModes": ["ReadWriteMany"]}}, MERGE, only=("code", "reason")),
            Step("DELETE", NS + "/persistentvolumeclaims/v", only=("kind",)),
            Step("POST", "/apis/coordination.k8s.io/v1/namespaces/differ/leases", {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}),
            Step("POST", "/apis/coordination.k8s.io/v1/namespaces/differ/leases", {"metadata": {"name": "l"}, "spec": {"leaseTransitions": -1}}),
            Step("POST", "/apis/discovery.k8s.io/v1/namespaces/differ/endpointslices", {"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["nonsense"]}]}),
            Step("POST", "/apis/discovery.k8s.io/v1/namespaces/differ/endpointslices", {"metadata": {"name": "e"}, "endpoints": []}),
            Step("POST", "/apis/networking.k8s.io/v1/namespaces/differ/ingresses", {"metadata": {"name": "i"}, "spec": {"rules": [{"http": {"paths": [{"path": "x", "pathType": "Prefix", "backend": {"service": {"name": "a", "port": {"number": 1}}}}]}}]}}),
            Step("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {"metadata": {"name": "bad"}, "spec": {"group": "x.example.com", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"}, "versions": []}}),
            Step("POST", NS + "/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}]}}),
            Step("POST", NS + "/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container"}, {"type": "Container"}]}}),
            Step("POST", NS + "/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Pod", "default": {"cpu": "1"}}]}}),
            Step("POST", NS + "/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"nonsense": "1"}}}),
            Step("POST", NS + "/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "-1"}}}),
            Step("POST", NS + "/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1.5"}}}),
            Step("POST", NS + "/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}}),
            Step("POST", NS + "/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "1"}, "scopes": ["BestEffort"]}}),
            Step("POST", NS + "/events", {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other"}}),
            Step("POST", "/apis/events.k8s.io/v1/namespaces/differ/events", {"metadata": {"name": "e"}}),
        ],
    ),
]
