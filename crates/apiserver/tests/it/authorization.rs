//! Who may do what.

use http::Method;
use serde_json::json;

use crate::support::{Server, configmap};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CMS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn roles_decide() {
    let server = Server::start().await;
    let admin = server.admin();
    let jane = server.user("jane", &["devs"]);
    let refused = jane.get(CMS).await.expect(403);
    assert_eq!(
        refused["message"],
        "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    jane.get("/apis").await.expect(200);
    let binding = json!({
        "metadata": {"name": "devs-view"}, "subjects": [{"kind": "Group", "name": "devs"}], "roleRef": {"kind": "ClusterRole", "name": "view"},
    });
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    jane.get(CMS).await.expect(200);
    jane.post(CMS, &configmap("a")).await.expect(403);
    jane.get("/api/v1/namespaces/kube-system/configmaps").await.expect(403);
    // view grows with every role that has its label.
    jane.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await.expect(403);
    let role = json!({
        "metadata": {"name": "leases", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["list"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}],
    });
    admin.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    jane.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await.expect(200);
    admin.delete(&format!("{RBAC}/namespaces/default/rolebindings/devs-view"), &json!({})).await.expect(200);
    jane.get(CMS).await.expect(403);
    let review =
        json!({"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(jane.post(path, &review).await.expect(201)["status"]["allowed"], false);
    assert_eq!(admin.post(path, &review).await.expect(201)["status"]["allowed"], true);
    // Acting as somebody else needs a right of its own.
    let as_jane = [("impersonate-user", "jane")];
    admin.raw(Method::GET, CMS, &as_jane, "").await.expect(403);
    jane.raw(Method::GET, "/apis", &[("impersonate-user", "admin")], "").await.expect(403);
}

#[tokio::test]
async fn nobody_grants_more_than_they_hold() {
    let server = Server::start().await;
    let jane = server.user("jane", &[]);
    let binding = json!({
        "metadata": {"name": "jane"}, "subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "ClusterRole", "name": "admin"},
    });
    let base = format!("{RBAC}/namespaces/default");
    server.admin().post(&format!("{base}/rolebindings"), &binding).await.expect(201);
    let role = |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]});
    let bind = |name: &str, kind: &str, role: &str| json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "joe"}], "roleRef": {"kind": kind, "name": role}});
    let cases = [
        ("roles", role("good", "pods"), 201),
        ("roles", role("bad", "nodes"), 403),
        ("roles", role("worse", "*"), 403),
        ("rolebindings", bind("good", "Role", "good"), 201),
        ("rolebindings", bind("view", "ClusterRole", "view"), 201),
        ("rolebindings", bind("root", "ClusterRole", "cluster-admin"), 403),
        // Whoever makes this role later would grant it to joe without knowing.
        ("rolebindings", bind("later", "ClusterRole", "not-there-yet"), 404),
        ("rolebindings", bind("later", "Role", "not-there-yet"), 404),
    ];
    for (plural, object, code) in cases {
        let answer = jane.post(&format!("{base}/{plural}"), &object).await.expect(code);
        if code == 403 {
            assert!(answer["message"].as_str().unwrap().contains("not currently held"), "{answer:#}");
        }
    }
}

#[tokio::test]
async fn anonymous_gets_health_and_version_only() {
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;
    let server = Server::start().await;
    for (path, code) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/livez/ping", 200),
        ("/version", 200),
        ("/api", 403),
        (CMS, 403),
        ("/metrics", 403),
    ] {
        let body = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
        let request = http::Request::get(path).body(body).unwrap();
        assert_eq!(server.api.service().oneshot(request).await.unwrap().status(), code, "{path}");
    }
}
