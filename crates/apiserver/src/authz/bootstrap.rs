//! The roles and bindings every cluster starts with.

use serde_json::{Value, json};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const RBAC: &str = "rbac.authorization.k8s.io";

const WORKLOADS: &[&str] = &[
    "daemonsets",
    "daemonsets/status",
    "deployments",
    "deployments/scale",
    "deployments/status",
    "replicasets",
    "replicasets/scale",
    "replicasets/status",
    "statefulsets",
    "statefulsets/scale",
    "statefulsets/status",
];

/// Cluster roles and bindings that every server has.
pub fn policy() -> Vec<Value> {
    let discovery = rule_url(
        &["get"],
        &[
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/healthz",
            "/livez",
            "/openapi",
            "/openapi/*",
            "/readyz",
            "/version",
            "/version/",
        ],
    );
    let reviews =
        rule(&["create"], &["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]);
    let self_review = rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]);
    let mut objects = vec![
        role("cluster-admin", &[], &[rule(&["*"], &["*"], &["*"]), rule_url(&["*"], &["*"])]),
        role("system:discovery", &[], &[discovery]),
        role("system:basic-user", &[], &[reviews, self_review]),
        role(
            "system:public-info-viewer",
            &[],
            &[rule_url(&["get"], &["/healthz", "/livez", "/readyz", "/version", "/version/"])],
        ),
        role(
            "system:monitoring",
            &[],
            &[rule_url(
                &["get"],
                &["/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/*", "/readyz", "/readyz/*"],
            )],
        ),
        role(
            "system:auth-delegator",
            &[],
            &[
                rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
                rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
        role(
            "system:service-account-issuer-discovery",
            &[],
            &[rule_url(
                &["get"],
                &[
                    "/.well-known/openid-configuration",
                    "/.well-known/openid-configuration/",
                    "/openid/v1/jwks",
                    "/openid/v1/jwks/",
                ],
            )],
        ),
        aggregate("admin", &["admin"], None),
        aggregate("edit", &["edit"], Some("admin")),
        aggregate("view", &["view"], Some("edit")),
    ];
    objects.push(json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role",
        "metadata": {"name": "extension-apiserver-authentication-reader", "namespace": "kube-system"},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "verbs": READ,
            "resourceNames": ["extension-apiserver-authentication"],
        }],
    }));
    objects.extend(user_facing());
    objects.extend([
        binding("cluster-admin", "system:masters"),
        binding("system:discovery", "system:authenticated"),
        binding("system:basic-user", "system:authenticated"),
        binding("system:public-info-viewer", "system:authenticated"),
        binding("system:monitoring", "system:monitoring"),
        binding("system:service-account-issuer-discovery", "system:serviceaccounts"),
    ]);
    objects
}

/// What view, edit and admin are aggregated from.
fn user_facing() -> Vec<Value> {
    let core_readable = &[
        "configmaps",
        "endpoints",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "pods",
        "pods/log",
        "pods/status",
        "serviceaccounts",
        "services",
        "services/status",
        "bindings",
        "events",
        "limitranges",
        "namespaces",
        "namespaces/status",
        "resourcequotas",
        "resourcequotas/status",
    ];
    let core_writable = &["configmaps", "events", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"];
    let pods_writable = &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"];
    let others: &[(&str, &[&str])] = &[
        ("discovery.k8s.io", &["endpointslices"]),
        ("policy", &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
        ("apps", WORKLOADS),
        ("apps", &["controllerrevisions"]),
        ("batch", &["cronjobs", "cronjobs/status", "jobs", "jobs/status"]),
        ("autoscaling", &["horizontalpodautoscalers", "horizontalpodautoscalers/status"]),
        ("networking.k8s.io", &["ingresses", "ingresses/status", "networkpolicies"]),
        ("events.k8s.io", &["events"]),
    ];
    let mut view = vec![rule(READ, &[""], core_readable)];
    view.extend(others.iter().map(|(group, resources)| rule(READ, &[*group], resources)));
    let edit = vec![
        rule(READ, &[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"]),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], pods_writable),
        rule(&["create"], &[""], &["pods/eviction", "serviceaccounts/token"]),
        rule(WRITE, &[""], core_writable),
        rule(WRITE, &["policy"], &["poddisruptionbudgets"]),
        rule(WRITE, &["apps"], WORKLOADS),
        rule(WRITE, &["batch"], &["cronjobs", "jobs"]),
        rule(WRITE, &["autoscaling"], &["horizontalpodautoscalers"]),
        rule(WRITE, &["networking.k8s.io"], &["ingresses", "networkpolicies"]),
        rule(
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            &["coordination.k8s.io"],
            &["leases"],
        ),
    ];
    let admin = vec![
        rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        rule(
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            &[RBAC],
            &["rolebindings", "roles"],
        ),
    ];
    vec![
        role("system:aggregate-to-view", &["view"], &view),
        role("system:aggregate-to-edit", &["edit"], &edit),
        role("system:aggregate-to-admin", &["admin"], &admin),
    ]
}

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

fn rule_url(verbs: &[&str], urls: &[&str]) -> Value {
    json!({"verbs": verbs, "nonResourceURLs": urls})
}

fn labels(aggregate_to: &[&str]) -> Value {
    let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    for target in aggregate_to {
        labels[format!("{RBAC}/aggregate-to-{target}")] = "true".into();
    }
    labels
}

fn role(name: &str, aggregate_to: &[&str], rules: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels(aggregate_to)}, "rules": rules,
    })
}

/// admin holds what edit holds, and edit what view holds: each selects its own label and those of the weaker ones.
fn aggregate(name: &str, from: &[&str], into: Option<&str>) -> Value {
    let weaker: &[&str] = match name {
        "admin" => &["edit", "view"],
        "edit" => &["view"],
        _ => &[],
    };
    let selectors: Vec<Value> = from
        .iter()
        .chain(weaker)
        .map(|label| json!({"matchLabels": {format!("{RBAC}/aggregate-to-{label}"): "true"}}))
        .collect();
    let into: Vec<&str> = into.into_iter().collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels(&into)},
        "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": [],
    })
}

fn binding(role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": role, "labels": labels(&[])},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    })
}
