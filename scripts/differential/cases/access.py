"""Who may do what: reviews, impersonation, escalation, tokens, the anonymous."""

from run import MERGE, Case, Step

from .objects import MAPS, NS, configmap

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"


def as_user(name, *groups, **more):
    headers = {"Impersonate-User": name, **more}
    if groups:
        headers["Impersonate-Group"] = groups[0]
    return headers


CASES = [
    Case(
        "access",
        [
            Step("GET", MAPS, headers={"Authorization": ""}),
            Step("GET", "/healthz", headers={"Authorization": ""}, accept="*/*"),
            Step("GET", "/version", headers={"Authorization": ""}, only=("code", "major")),
            Step("GET", "/api", headers={"Authorization": ""}),
            Step("GET", MAPS, headers={"Authorization": "Bearer nonsense"}),
            Step("GET", MAPS, headers={"Authorization": "Basic YTpi"}, differs="who tries to be somebody is not anonymous"),
            Step("GET", MAPS, headers={"Authorization": "Bearer"}, differs="who tries to be somebody is not anonymous"),
            Step("GET", MAPS, headers=as_user("nobody")),
            Step("GET", MAPS + "/x", headers=as_user("nobody")),
            Step("POST", MAPS, configmap("x"), headers=as_user("nobody")),
            Step("POST", NS + "/pods/x/eviction", {}, headers=as_user("nobody")),
            Step("GET", "/api/v1/nodes", headers=as_user("nobody")),
            Step("GET", "/apis/apps/v1/deployments", headers=as_user("nobody")),
            Step("GET", "/metrics", headers=as_user("nobody")),
            Step("GET", "/api/v1/nonsense", headers=as_user("nobody")),
            Step("GET", MAPS, headers={"Impersonate-Group": "x"}),
            Step("GET", MAPS, headers=as_user("system:serviceaccount:differ:default")),
            Step("POST", REVIEWS + "/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "differ"}}}),
            Step("POST", REVIEWS + "/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}, headers=as_user("nobody")),
            Step("POST", REVIEWS + "/selfsubjectaccessreviews", {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}}, headers=as_user("nobody"), ignore=("status.reason",)),
            Step("POST", REVIEWS + "/selfsubjectaccessreviews", {"spec": {}}),
            Step("POST", REVIEWS + "/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"verb": "get", "path": "/"}}}),
            Step("POST", REVIEWS + "/subjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            Step("POST", REVIEWS + "/subjectaccessreviews", {"spec": {"user": "a", "resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            Step("POST", REVIEWS + "/subjectaccessreviews", {"spec": {"groups": ["system:masters"], "resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            Step("POST", REVIEWS + "/namespaces/differ/localsubjectaccessreviews", {"metadata": {"namespace": "differ"}, "spec": {"user": "a", "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "pods"}}}),
            Step("POST", REVIEWS + "/namespaces/differ/localsubjectaccessreviews", {"metadata": {"namespace": "differ"}, "spec": {"user": "a", "resourceAttributes": {"namespace": "differ", "verb": "get", "resource": "pods"}}}),
            Step("POST", REVIEWS + "/selfsubjectrulesreviews", {"spec": {"namespace": "differ"}}, headers=as_user("nobody"), ignore=("status.resourceRules",)),
            Step("POST", REVIEWS + "/selfsubjectrulesreviews", {"spec": {}}),
            Step("GET", REVIEWS + "/selfsubjectaccessreviews"),
            Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=as_user("me", "team", **{"Impersonate-Extra-Color": "blue", "Impersonate-Uid": "u-1"})),
            Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=as_user("system:serviceaccount:a:b")),
            Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=as_user("system:anonymous")),
            Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "nonsense"}}, ignore=("status.error",)),
            Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {}}),
        ],
    ),
    Case(
        "escalation",
        [
            Step("POST", RBAC + "/namespaces/differ/roles", {"metadata": {"name": "roler"}, "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["*"]}]}),
            Step("POST", RBAC + "/namespaces/differ/rolebindings", {"metadata": {"name": "roler"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "roler"}, "subjects": [{"kind": "User", "name": "roler", "apiGroup": "rbac.authorization.k8s.io"}]}),
            Step("POST", RBAC + "/namespaces/differ/roles", {"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}, headers=as_user("roler"), until=403),
            Step("POST", RBAC + "/namespaces/differ/rolebindings", {"metadata": {"name": "more"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "none"}}, headers=as_user("roler")),
            Step("GET", MAPS, headers={**as_user("roler"), "Impersonate-Uid": "x"}, only=("code", "message")),
            Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=as_user("roler")),
            Step("POST", REVIEWS + "/selfsubjectrulesreviews", {"spec": {"namespace": "differ"}}, headers=as_user("roler"), ignore=("status.resourceRules",)),
        ],
    ),
    Case(
        "tokens",
        [
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {}}, ignore=("status.token", "spec.audiences")),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {"expirationSeconds": 5}}),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {"expirationSeconds": 99999999999}}),
            Step("POST", NS + "/serviceaccounts/none/token", {"spec": {}}),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}}),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "none"}}}),
            Step("POST", NS + "/serviceaccounts/default/token", {"metadata": {"name": "other"}, "spec": {}}),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {"audiences": ["x"]}}, save={"sa": "status.token"}, ignore=("status.token",)),
            Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "{sa}"}}, ignore=("status.error", "spec.token")),
            Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "{sa}", "audiences": ["x"]}}, ignore=("spec.token", "status.user.extra")),
            Step("POST", NS + "/serviceaccounts/default/token", {"spec": {}}, save={"sa": "status.token"}, only=("kind",)),
            Step("GET", MAPS, headers={"Authorization": "Bearer {sa}"}),
        ],
    ),
]
