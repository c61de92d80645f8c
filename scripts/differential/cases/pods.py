"""Pods: defaults, fixed fields, binding, eviction, logs, quotas and limit ranges."""

from run import MERGE, STRATEGIC, TABLE, Case, Step

from .objects import NS

PODS = NS + "/pods"


def pod(name, container=None, labels=None, **spec):
    body = {"name": "c", "image": "i", **(container or {})}
    meta = {"name": name, **({"labels": labels} if labels else {})}
    return {"metadata": meta, "spec": {"schedulerName": "nobody", "terminationGracePeriodSeconds": 0, "containers": [body], **spec}}


# Names that are made up, and the note of who made a pod.
TOKEN = ("spec.volumes.0.name", "spec.containers.0.volumeMounts.0.name", "metadata.annotations")

CASES = [
    Case(
        "pods",
        [
            Step("POST", PODS, pod("p1"), ignore=TOKEN),
            Step("GET", PODS + "/p1", accept=TABLE, ignore=("rows.0.object",)),
            Step("POST", PODS, {"metadata": {"name": "p2"}, "spec": {"containers": []}}),
            Step("POST", PODS, {"metadata": {"name": "p2"}}),
            Step("POST", PODS, pod("p2", {"name": "Bad_Name"})),
            Step("POST", PODS, pod("p2", {"image": ""})),
            Step("POST", PODS, pod("p2", {"image": " "})),
            Step("POST", PODS, pod("p2", restartPolicy="Nonsense")),
            Step("POST", PODS, pod("p2", dnsPolicy="Nonsense")),
            Step("POST", PODS, pod("p2", {"imagePullPolicy": "Nonsense"})),
            Step("POST", PODS, pod("p2", serviceAccountName="none")),
            Step("POST", PODS, pod("p2", priorityClassName="none")),
            Step("POST", PODS, pod("p2", priorityClassName="system-node-critical"), only=("code", "spec.priority", "spec.preemptionPolicy")),
            Step("POST", PODS, pod("p3", priority=5)),
            Step("POST", PODS, pod("p3", {"ports": [{"containerPort": 0}]})),
            Step("POST", PODS, pod("p3", {"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]})),
            Step("POST", PODS, pod("p3", {"volumeMounts": [{"name": "none", "mountPath": "/x"}]})),
            Step("POST", PODS, pod("p3", volumes=[{"name": "v"}]), only=("code", "spec.volumes.0.emptyDir", "message")),
            Step("POST", PODS, pod("p4", volumes=[{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}])),
            Step("POST", PODS, pod("p4", volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}])),
            Step("POST", PODS, pod("p4", {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            Step("POST", PODS, pod("p4", {"resources": {"limits": {"nonsense": "1"}}})),
            Step("POST", PODS, pod("p4", {"resources": {"limits": {"example.com/dev": "1.5"}}})),
            Step("POST", PODS, pod("p4", {"env": [{"name": "A=B", "value": "x"}]})),
            Step("POST", PODS, pod("p4", {"env": [{"name": "", "value": "x"}]})),
            Step("POST", PODS, pod("p4", tolerations=[{"operator": "Nonsense"}])),
            Step("POST", PODS, pod("p4", nodeSelector={"a b": "c"})),
            Step("POST", PODS, pod("p4", {"livenessProbe": {"httpGet": {"port": 80}}}, hostNetwork=True), only=("code", "message", "spec.containers.0.livenessProbe", "spec.hostNetwork"), differs="Pod Security is baseline where nobody says otherwise"),
            Step("POST", PODS, pod("p5", {"livenessProbe": {}})),
            Step("POST", PODS, pod("p5", {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}})),
            Step("POST", PODS, pod("p5", activeDeadlineSeconds=0)),
            Step("POST", PODS, pod("p5", terminationGracePeriodSeconds=-1), only=("code", "spec.terminationGracePeriodSeconds", "message")),
            Step("POST", PODS, pod("p6", hostname="Bad_Host")),
            Step("POST", PODS, pod("p6", schedulingGates=[{"name": "a.example.com/x"}], nodeName="n")),
        ],
    ),
    Case(
        "pod changes",
        [
            Step("PATCH", PODS + "/p1", {"spec": {"containers": [{"name": "c", "image": "other"}]}}, STRATEGIC, only=("spec.containers.0.image", "metadata.generation")),
            Step("PATCH", PODS + "/p1", {"spec": {"nodeName": "n"}}, MERGE, only=("code", "reason")),
            Step("PATCH", PODS + "/p1", {"spec": {"restartPolicy": "Never"}}, MERGE, only=("code", "reason")),
            Step("PATCH", PODS + "/p1", {"spec": {"containers": [{"name": "d", "image": "other"}]}}, STRATEGIC, only=("code", "reason")),
            Step("PATCH", PODS + "/p1", {"spec": {"activeDeadlineSeconds": 50}}, MERGE, only=("spec.activeDeadlineSeconds",)),
            Step("PATCH", PODS + "/p1", {"spec": {"activeDeadlineSeconds": 60}}, MERGE, only=("code", "reason", "message")),
            Step("PATCH", PODS + "/p1", {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}, MERGE, only=("code", "reason")),
            Step("PATCH", PODS + "/p1/status", {"status": {"phase": "Running", "podIP": "192.0.2.7"}}, MERGE, only=("status",)),
            Step("PATCH", PODS + "/p1/status", {"status": {"phase": "Nonsense"}}, MERGE, only=("code", "reason", "message")),
            Step("PATCH", PODS + "/p1/status", {"status": {"phase": "Running"}}, MERGE, only=("code",)),
            Step("POST", PODS + "/p1/binding", {"target": {}}),
            Step("POST", PODS + "/p1/binding", {"target": {"kind": "Nonsense", "name": "n"}}),
            Step("POST", PODS + "/p1/binding", {"target": {"name": "n1"}}),
            Step("POST", PODS + "/p1/binding", {"target": {"name": "n2"}}),
            Step("POST", PODS + "/none/binding", {"target": {"name": "n2"}}),
            Step("GET", PODS + "/p1/log?container=none", only=("code", "reason", "message")),
            Step("GET", PODS + "/none/log"),
            Step("GET", PODS + "/p1/log?tailLines=x", only=("code", "reason")),
            Step("GET", PODS + "/p1/log?sinceSeconds=1&sinceTime=2001-01-01T00:00:00Z", only=("code", "reason")),
            Step("POST", PODS, pod("grace", terminationGracePeriodSeconds=30, nodeName="n1"), only=("spec.terminationGracePeriodSeconds",)),
            Step("DELETE", PODS + "/grace", only=("kind", "metadata.deletionGracePeriodSeconds", "metadata.generation")),
            Step("DELETE", PODS + "/grace?gracePeriodSeconds=10", only=("kind", "metadata.deletionGracePeriodSeconds", "metadata.generation")),
            Step("DELETE", PODS + "/grace?gracePeriodSeconds=20", only=("kind", "metadata.deletionGracePeriodSeconds")),
            Step("POST", PODS + "/grace/binding", {"target": {"name": "n2"}}),
            Step("DELETE", PODS + "/grace?gracePeriodSeconds=0", only=("kind", "metadata.deletionGracePeriodSeconds")),
            Step("GET", PODS + "/grace"),
        ],
    ),
    Case(
        "eviction",
        [
            Step("POST", PODS, pod("ev", labels={"app": "ev"}, nodeName="n1"), only=("kind",)),
            Step("PATCH", PODS + "/ev/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, MERGE, only=("kind",)),
            Step("POST", "/apis/policy/v1/namespaces/differ/poddisruptionbudgets", {"metadata": {"name": "ev"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "ev"}}}}, only=("kind",)),
            Step("POST", PODS + "/ev/eviction", {"metadata": {"name": "other"}}),
            Step("POST", PODS + "/ev/eviction", {"metadata": {"name": "ev"}}, until=429, ignore=("details.causes", "details.retryAfterSeconds")),
            Step("POST", PODS + "/none/eviction", {"metadata": {"name": "none"}}),
            Step("POST", PODS + "/ev/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "ev"}, "deleteOptions": {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}}, only=("code", "reason")),
            Step("DELETE", "/apis/policy/v1/namespaces/differ/poddisruptionbudgets/ev", only=("status",)),
            Step("POST", PODS + "/ev/eviction?dryRun=All", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "ev"}}),
            Step("POST", PODS + "/ev/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "ev"}}),
        ],
    ),
    Case(
        "limits",
        [
            Step("POST", "/api/v1/namespaces", {"metadata": {"name": "limits"}}, only=("kind",)),
            Step("GET", "/api/v1/namespaces/limits/serviceaccounts/default", until=200, only=()),
            Step("POST", "/api/v1/namespaces/limits/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "max": {"cpu": "4"}, "min": {"cpu": "100m"}, "maxLimitRequestRatio": {"cpu": "2"}}, {"type": "Pod", "max": {"cpu": "5"}}, {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}]}}),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("a"), only=("spec.containers.0.resources",)),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("b", {"resources": {"limits": {"cpu": "5"}}})),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("b", {"resources": {"requests": {"cpu": "50m"}}})),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("b", {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}})),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("b", containers=[{"name": "x", "image": "i", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}}, {"name": "y", "image": "i", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}}])),
            Step("POST", "/api/v1/namespaces/limits/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}}}),
            Step("POST", "/api/v1/namespaces/limits/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "2", "count/secrets": "1", "services.nodeports": "0"}}}, only=("spec",)),
            Step("GET", "/api/v1/namespaces/limits/pods?labelSelector=none%3Dx", only=("kind",)),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("c", {"resources": {"requests": {"cpu": "2"}}}), until=403),
            Step("POST", "/api/v1/namespaces/limits/services", {"metadata": {"name": "np"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}, until=403),
            Step("POST", "/api/v1/namespaces/limits/secrets", {"metadata": {"name": "s1"}}, only=("kind",)),
            Step("POST", "/api/v1/namespaces/limits/secrets", {"metadata": {"name": "s2"}}, until=403),
            Step("POST", "/api/v1/namespaces/limits/resourcequotas", {"metadata": {"name": "be"}, "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}}, only=("spec",)),
            Step("POST", "/api/v1/namespaces/limits/resourcequotas", {"metadata": {"name": "pc"}, "spec": {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["none"]}]}}}, only=("spec",)),
            Step("POST", "/api/v1/namespaces/limits/resourcequotas", {"metadata": {"name": "bad"}, "spec": {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "In", "values": ["none"]}]}}}),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("d"), only=("code", "kind")),
            Step("POST", "/api/v1/namespaces/limits/pods", pod("e"), until=403),
            Step("GET", "/api/v1/namespaces/limits/resourcequotas/q", only=("status.hard",)),
        ],
    ),
]
