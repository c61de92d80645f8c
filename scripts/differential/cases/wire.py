"""Media types, odd paths and methods, field validation, discovery and health."""

from run import APPLY, JSON, MERGE, PARTIAL, PARTIALS, TABLE, YAML, Case, Step

from .objects import MAPS, NS, configmap

PROTO = "application/vnd.kubernetes.protobuf"
PODS = NS + "/pods"
POD = {"metadata": {"name": "strict"}, "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i"}]}}

CASES = [
    Case(
        "media types",
        [
            Step("POST", MAPS, configmap("w1")),
            Step("GET", MAPS + "/w1", accept="text/html"),
            Step("GET", MAPS + "/w1", accept=""),
            Step("GET", MAPS + "/w1", accept="*/*"),
            Step("GET", MAPS + "/w1", accept="text/html, application/json;q=0.5"),
            Step("GET", MAPS + "/w1", accept="application/json;as=Nonsense;v=v1;g=meta.k8s.io"),
            Step("GET", MAPS + "/w1", accept=TABLE),
            Step("GET", MAPS + "/w1?includeObject=None", accept=TABLE),
            Step("GET", MAPS + "/w1?includeObject=Object", accept=TABLE),
            Step("GET", MAPS + "/w1?includeObject=Nonsense", accept=TABLE),
            Step("GET", MAPS + "/w1", accept=PARTIAL),
            Step("GET", MAPS + "/w1", accept=PARTIALS),
            Step("GET", MAPS + "?fieldSelector=metadata.name=w1", accept=PARTIALS),
            Step("GET", MAPS + "?fieldSelector=metadata.name=w1", accept=PARTIAL),
            Step("GET", MAPS + "?fieldSelector=metadata.name=w1", accept=TABLE),
            Step("GET", MAPS + "?fieldSelector=metadata.name=none", accept=TABLE),
            Step("GET", MAPS + "/w1", accept="application/json;as=Table;v=v2;g=meta.k8s.io"),
            Step("GET", MAPS + "/w1", accept="application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
            Step("GET", MAPS + "/w1?pretty=true", accept=JSON),
            Step("POST", MAPS, configmap("w2"), "text/plain"),
            Step("POST", MAPS, configmap("w2"), ""),
            Step("POST", MAPS, configmap("w2"), "application/json; charset=utf-8"),
            Step("POST", MAPS, "not protobuf", PROTO),
            Step("POST", MAPS, "k8s\x00", PROTO),
            Step("POST", MAPS, "", JSON),
            Step("POST", MAPS, "{", JSON),
            Step("POST", MAPS, "[]", JSON),
            Step("POST", MAPS, "null", JSON),
            Step("POST", MAPS, "5", JSON),
            Step("POST", MAPS, '{"metadata":{"name":"trailing"}} x', JSON),
            Step("DELETE", MAPS + "/w1", accept=TABLE),
        ],
    ),
    Case(
        "paths",
        [
            Step("GET", "/nonsense"),
            Step("GET", "/apis/nonsense"),
            Step("GET", "/apis/nonsense/v1"),
            Step("GET", "/apis/apps/v9"),
            Step("GET", "/apis/apps/v9/deployments"),
            Step("GET", "/api/v1/nonsense"),
            Step("GET", "/api/v1/nonsense/x"),
            Step("GET", "/api/v2"),
            Step("GET", NS + "/nonsense"),
            Step("GET", NS + "/nodes"),
            Step("GET", "/api/v1/configmaps/x"),
            Step("GET", MAPS + "/none/status"),
            Step("GET", MAPS + "/none/nonsense"),
            Step("GET", MAPS + "/", only=("kind", "apiVersion")),
            Step("GET", "/api/", ignore=("serverAddressByClientCIDRs",)),
            Step("GET", "/version/", only=("major", "minor")),
            Step("PUT", "/api/v1"),
            Step("DELETE", "/healthz", differs="nothing is deleted there"),
            Step("POST", "/api/v1/namespaces/differ"),
            Step("OPTIONS", MAPS),
            Step("HEAD", MAPS),
            Step("GET", "/healthz", accept="*/*"),
            Step("GET", "/livez", accept="*/*"),
            Step("GET", "/readyz", accept="*/*"),
            Step("GET", "/healthz/ping", accept="*/*"),
            Step("GET", "/healthz/nonsense", accept="*/*"),
            Step("GET", "/api", ignore=("serverAddressByClientCIDRs",)),
            Step("GET", "/apis/apps"),
            Step("GET", "/apis/policy"),
            Step("GET", "/version", only=("major", "minor")),
            Step("GET", MAPS + "/" + "x" * 300),
            Step("GET", MAPS + "/a%2Fb"),
        ],
    ),
    Case(
        "discovery",
        [
            Step("GET", "/apis/" + group, ignore=("serverAddressByClientCIDRs",))
            for group in (
                "coordination.k8s.io", "discovery.k8s.io", "policy", "scheduling.k8s.io", "storage.k8s.io", "node.k8s.io",
                "rbac.authorization.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io",
                "authorization.k8s.io", "certificates.k8s.io", "batch", "autoscaling", "networking.k8s.io", "events.k8s.io",
                "flowcontrol.apiserver.k8s.io", "admissionregistration.k8s.io", "resource.k8s.io",
            )
        ]
        + [
            Step("GET", "/apis/" + version)
            for version in (
                "coordination.k8s.io/v1", "discovery.k8s.io/v1", "policy/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1",
                "node.k8s.io/v1", "rbac.authorization.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1",
                "authentication.k8s.io/v1", "authorization.k8s.io/v1", "certificates.k8s.io/v1", "batch/v1", "autoscaling/v1",
                "autoscaling/v2", "networking.k8s.io/v1", "events.k8s.io/v1", "flowcontrol.apiserver.k8s.io/v1",
                "admissionregistration.k8s.io/v1", "resource.k8s.io/v1", "apps/v1",
            )
        ]
        + [Step("GET", "/api/v1")],
    ),
    Case(
        "strict",
        [
            Step("POST", PODS + "?fieldValidation=Nonsense&dryRun=All", POD),
            Step("POST", PODS + "?fieldValidation=Strict&dryRun=All", {**POD, "spec": {**POD["spec"], "nonsense": 1, "containers": [{"name": "c", "image": "i", "bad": 1, "ports": [{"containerPort": 80, "worse": 2}]}]}}),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "nonsense": 1}}, ignore=("metadata.annotations", "spec.volumes.0.name", "spec.containers.0.volumeMounts.0.name")),
            Step("POST", PODS + "?fieldValidation=Ignore&dryRun=All", {**POD, "spec": {**POD["spec"], "nonsense": 1}}, only=("metadata.name",)),
            Step("POST", PODS + "?fieldValidation=Strict&dryRun=All", '{"metadata":{"name":"strict","name":"again"},"spec":{"containers":[{"name":"c","name":"d","image":"i"}]}}'),
            Step("POST", PODS + "?fieldValidation=Strict&dryRun=All", '{"metadata":{"name":"strict"},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"a","value":"1","value":"2"}]}]}}'),
            Step("POST", PODS + "?fieldValidation=Strict&dryRun=All", '{"Metadata":{"name":"strict"},"spec":{"containers":[{"name":"c","image":"i"}]}}'),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "containers": "x"}}),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "hostNetwork": "true"}}),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "priority": 1.5}}),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "activeDeadlineSeconds": 99999999999999999999}}),
            Step("POST", PODS + "?dryRun=All", {**POD, "spec": {**POD["spec"], "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "nonsense"}}}]}}),
        ],
    ),
]
