//! Ways to become more than one is by roles, bindings and other people's names.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Client, Server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
const NODES: &str = "/api/v1/nodes";

/// A user with these rules everywhere.
async fn user_with(server: &Server, name: &str, rules: Value) -> Client {
    let admin = server.admin();
    admin.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules})).await.expect(201);
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding(name, "ClusterRole", name, name)).await.expect(201);
    server.user(name, &[])
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name}, "subjects": [{"kind": "User", "name": user}],
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
    })
}

#[tokio::test]
async fn a_cluster_role_binding_to_a_role_makes_nobody_cluster_admin() {
    let server = Server::start().await;
    // Who may bind roles anywhere, and make bindings of both kinds.
    let rules = json!([
        {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["roles"]},
        {"verbs": ["create", "update", "patch"], "apiGroups": [GROUP], "resources": ["clusterrolebindings", "rolebindings"]},
    ]);
    let mallory = user_with(&server, "mallory", rules).await;
    for (group, kind, role) in [
        (GROUP, "Role", "cluster-admin"),
        (GROUP, "role", "cluster-admin"),
        (GROUP, "", "cluster-admin"),
        (GROUP, "clusterrole", "cluster-admin"),
        ("", "Role", "cluster-admin"),
        ("example.com", "Role", "cluster-admin"),
        ("example.com", "ClusterRole", "cluster-admin"),
    ] {
        let mut attack = binding("attack", kind, role, "mallory");
        attack["roleRef"]["apiGroup"] = group.into();
        let answer = mallory.post(&format!("{RBAC}/clusterrolebindings"), &attack).await;
        assert_eq!(answer.status, 422, "{attack}: {:#}", answer.body);
        mallory.get(NODES).await.expect(403);
    }
    // In a namespace a role is one of that namespace.
    let path = format!("{RBAC}/namespaces/default/rolebindings");
    mallory.post(&path, &binding("attack", "Role", "cluster-admin", "mallory")).await.expect(201);
    mallory.get("/api/v1/namespaces/default/secrets").await.expect(403);
    // And it stays the one that it was.
    let turned = json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"}});
    assert!(mallory.merge(&format!("{path}/attack"), &turned).await.status.is_client_error());
    mallory.get("/api/v1/namespaces/default/secrets").await.expect(403);
    let odd = json!({
        "metadata": {"name": "odd"}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "User", "name": "a", "apiGroup": "example.com"}, {"kind": "Robot", "name": "a"},
            {"kind": "ServiceAccount", "name": "a:b", "namespace": "default"},
        ],
    });
    let refused = server.admin().post(&format!("{RBAC}/clusterrolebindings"), &odd).await.expect(422);
    assert_eq!(refused["details"]["causes"].as_array().unwrap().len(), 3, "{refused:#}");
}

#[tokio::test]
async fn a_label_on_a_strong_role_does_not_make_viewers_strong() {
    let server = Server::start().await;
    let rules = json!([
        {"verbs": ["get", "update", "patch"], "apiGroups": [GROUP], "resources": ["clusterroles"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]},
    ]);
    let mallory = user_with(&server, "mallory", rules).await;
    let admin = server.admin();
    admin
        .post(&format!("{RBAC}/clusterrolebindings"), &binding("v", "ClusterRole", "view", "mallory"))
        .await
        .expect(201);
    let label = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    let refused = mallory.merge(&format!("{RBAC}/clusterroles/cluster-admin"), &label).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("not currently held"), "{refused:#}");
    mallory.get(NODES).await.expect(403);
    // Bookkeeping changes no rights, and what one holds one may pass on.
    let kept = json!({"metadata": {"finalizers": ["example.com/a"]}});
    mallory.merge(&format!("{RBAC}/clusterroles/cluster-admin"), &kept).await.expect(200);
    let weak = json!({"metadata": {"name": "weak"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]});
    admin.post(&format!("{RBAC}/clusterroles"), &weak).await.expect(201);
    mallory.merge(&format!("{RBAC}/clusterroles/weak"), &label).await.expect(200);
}

#[tokio::test]
async fn impersonation_takes_a_right_for_every_part_of_an_identity() {
    let server = Server::start().await;
    let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]}]);
    let admin = server.admin();
    let role = json!({"metadata": {"name": "actor"}, "rules": rules});
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &role).await.expect(201);
    let bound = binding("actor", "Role", "actor", "mallory");
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &bound).await.expect(201);
    let mallory = server.user("mallory", &[]);
    let own = ("impersonate-user", "system:serviceaccount:default:robot");
    let cases: [(&[(&str, &str)], u16); 8] = [
        (&[own], 201),
        (&[own, ("impersonate-group", "system:masters")], 403),
        (&[own, ("impersonate-uid", "1")], 403),
        (&[own, ("impersonate-extra-scopes", "all")], 403),
        (&[("impersonate-user", "system:serviceaccount:kubevirt:kubevirt-controller")], 403),
        // Looks like an account of the namespace and is none.
        (&[("impersonate-user", "system:serviceaccount:default:robot:admin")], 403),
        (&[("impersonate-user", "system:serviceaccount:default:")], 403),
        (&[("impersonate-user", "system:serviceaccount:default")], 403),
    ];
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for (headers, code) in cases {
        let all: Vec<(&str, &str)> = headers.iter().copied().chain([("content-type", "application/json")]).collect();
        let answer = mallory.raw(Method::POST, path, &all, "{}").await;
        assert_eq!(answer.status.as_u16(), code, "{headers:?}: {:#}", answer.body);
    }
    // A key that a header cannot hold as it is arrives as what it is.
    let headers = [own, ("impersonate-extra-example.com%2Fscopes", "all"), ("content-type", "application/json")];
    let seen = admin.raw(Method::POST, path, &headers, "{}").await.expect(201);
    assert_eq!(seen["status"]["userInfo"]["extra"], json!({"example.com/scopes": ["all"]}), "{seen:#}");
}
