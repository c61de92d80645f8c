//! What a server makes by itself follows the version that runs, on a store of an earlier one.

use ferrovirt_apiserver::Config;
use serde_json::{Value, json};

use crate::support::Server;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const PRIORITIES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const KUBECTL: &[(&str, &str)] = &[("content-type", "application/merge-patch+json"), ("user-agent", "kubectl-edit")];

fn rule(verbs: &[&str], resource: &str) -> Value {
    json!({"verbs": verbs, "apiGroups": ["shop"], "resources": [resource]})
}

fn role(name: &str, rules: &[Value]) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, role: &str, users: &[&str]) -> Value {
    let group = "rbac.authorization.k8s.io";
    let subjects: Vec<Value> =
        users.iter().map(|user| json!({"apiGroup": group, "kind": "User", "name": user})).collect();
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role}, "subjects": subjects,
    })
}

fn hook(name: &str, paths: &[&str]) -> Value {
    let hooks: Vec<Value> = paths
        .iter()
        .map(|path| {
            json!({
                "name": format!("{path}.shop.test"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"service": {"namespace": "shop", "name": "shop", "path": format!("/{path}")}},
                "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
            })
        })
        .collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name}, "webhooks": hooks,
    })
}

fn priority(value: i64) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "shop"}, "value": value})
}

fn shipping(objects: Vec<Value>) -> Config {
    Config { bootstrap: objects, ..Config::default() }
}

async fn upgrade(server: Server, objects: Vec<Value>) -> Server {
    server.api.shutdown().await;
    let Server { api, dir } = server;
    drop(api);
    Server::start_in(dir, shipping(objects)).await
}

async fn may(server: &Server, user: &str, verb: &str, resource: &str) -> bool {
    let attributes = json!({"verb": verb, "group": "shop", "resource": resource});
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    server.admin().post(path, &review).await.expect(201)["status"]["allowed"] == true
}

#[tokio::test]
async fn a_right_that_was_taken_back_is_taken_from_hosts_that_have_it() {
    let earlier = vec![role("keeper", &[rule(&["get", "paint"], "fences")]), binding("keeper", "keeper", &["joe"])];
    let today = vec![role("keeper", &[rule(&["get"], "fences")]), binding("keeper", "keeper", &["joe"])];
    let server = Server::start_with(shipping(earlier.clone())).await;
    assert!(may(&server, "joe", "paint", "fences").await);
    // An administrator's own: a right, a verb of a rule of ours, a subject.
    let admin = server.admin();
    let rules = json!([rule(&["get", "paint", "mend"], "fences"), rule(&["get"], "gates")]);
    admin
        .raw(http::Method::PATCH, &format!("{ROLES}/keeper"), KUBECTL, json!({"rules": rules}).to_string())
        .await
        .expect(200);
    let subjects = binding("x", "x", &["joe", "jane"])["subjects"].clone();
    admin.merge(&format!("{BINDINGS}/keeper"), &json!({"subjects": subjects})).await.expect(200);

    let server = upgrade(server, today.clone()).await;
    for (user, verb, resource, expected) in [
        ("joe", "paint", "fences", false),
        ("joe", "get", "fences", true),
        ("jane", "get", "fences", true),
        ("jane", "mend", "fences", true),
        ("jane", "get", "gates", true),
        ("jane", "paint", "fences", false),
    ] {
        assert_eq!(may(&server, user, verb, resource).await, expected, "{user} {verb} {resource}");
    }

    // Nothing to do is nothing done.
    let version = |object: Value| object["metadata"]["resourceVersion"].clone();
    let before = version(server.admin().get(&format!("{ROLES}/keeper")).await.expect(200));
    let server = upgrade(server, today).await;
    assert_eq!(version(server.admin().get(&format!("{ROLES}/keeper")).await.expect(200)), before);
}

/// Stores of before have no inventory. What nobody else wrote to is ours; the rest is only added to.
#[tokio::test]
async fn a_store_without_an_inventory_follows_too() {
    let earlier = [role("ours", &[rule(&["paint"], "fences")]), role("edited", &[rule(&["paint"], "fences")])];
    // Made as the server makes them, but not shipped: no inventory knows them.
    let server = Server::start().await;
    for role in &earlier {
        server.admin().post(ROLES, role).await.expect(201);
    }
    let rules = json!({"rules": [rule(&["paint"], "fences"), rule(&["get"], "gates")]});
    let path = format!("{ROLES}/edited");
    server.admin().raw(http::Method::PATCH, &path, KUBECTL, rules.to_string()).await.expect(200);

    let today = ["ours", "edited"].map(|name| role(name, &[rule(&["get"], "fences")]));
    let server = upgrade(server, today.to_vec()).await;
    let rules = |role: Value| role["rules"].clone();
    assert_eq!(
        rules(server.admin().get(&format!("{ROLES}/ours")).await.expect(200)),
        json!([rule(&["get"], "fences")])
    );
    assert_eq!(
        rules(server.admin().get(&path).await.expect(200)),
        json!([rule(&["get"], "fences"), rule(&["paint"], "fences"), rule(&["get"], "gates")])
    );
}

#[tokio::test]
async fn roles_that_opted_out_stay_as_they_are() {
    let server = Server::start_with(shipping(vec![role("keeper", &[rule(&["paint"], "fences")])])).await;
    let path = format!("{ROLES}/keeper");
    let keep = json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}});
    let before = server.admin().merge(&path, &keep).await.expect(200);
    let server = upgrade(server, vec![role("keeper", &[rule(&["get"], "fences")])]).await;
    assert_eq!(server.admin().get(&path).await.expect(200), before);
    let server = upgrade(server, vec![]).await;
    assert_eq!(server.admin().get(&path).await.expect(200), before);
}

#[tokio::test]
async fn hooks_bindings_and_classes_follow_and_go() {
    let earlier = vec![
        role("keeper", &[rule(&["get"], "fences")]),
        role("painter", &[rule(&["paint"], "fences")]),
        binding("joe", "painter", &["joe"]),
        priority(5),
        hook("shop", &["one", "two"]),
        hook("gone", &["three"]),
    ];
    let server = Server::start_with(shipping(earlier)).await;
    // These hooks answer for everything, and nobody answers: the start does not ask them.
    let server = upgrade(
        server,
        vec![
            role("keeper", &[rule(&["get"], "fences"), rule(&["get"], "gates")]),
            binding("joe", "keeper", &["joe"]),
            priority(7),
            hook("shop", &["two"]),
        ],
    )
    .await;
    let admin = server.admin();
    let hooks = admin.get(&format!("{HOOKS}/shop")).await.expect(200);
    assert_eq!(hooks["webhooks"].as_array().unwrap().len(), 1, "{hooks:#}");
    assert_eq!(hooks["webhooks"][0]["clientConfig"]["service"]["path"], "/two");
    admin.get(&format!("{HOOKS}/gone")).await.expect(404);
    admin.get(&format!("{ROLES}/painter")).await.expect(404);
    assert_eq!(admin.get(&format!("{BINDINGS}/joe")).await.expect(200)["roleRef"]["name"], "keeper");
    assert_eq!(admin.get(&format!("{PRIORITIES}/shop")).await.expect(200)["value"], 7);

    // The last of what is shipped goes as well, and the server's own stays.
    let server = upgrade(server, vec![]).await;
    for path in [format!("{ROLES}/keeper"), format!("{BINDINGS}/joe"), format!("{PRIORITIES}/shop")] {
        server.admin().get(&path).await.expect(404);
    }
    for path in [format!("{ROLES}/edit"), format!("{PRIORITIES}/system-node-critical")] {
        server.admin().get(&path).await.expect(200);
    }
}

/// A definition that lost a rule does not keep it.
#[tokio::test]
async fn definitions_lose_what_this_version_lacks() {
    let definition = |schema: Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "fences.shop.test"},
            "spec": {
                "group": "shop.test", "scope": "Namespaced", "names": {"plural": "fences", "kind": "Fence"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"size": schema},
                }}}],
            },
        })
    };
    let config = |schema: Value| Config { crds: vec![definition(schema)], ..Config::default() };
    let server = Server::start_with(config(json!({"type": "integer", "maximum": 3}))).await;
    let fence = json!({"apiVersion": "shop.test/v1", "kind": "Fence", "metadata": {"name": "f"}, "size": 4});
    let path = "/apis/shop.test/v1/namespaces/default/fences";
    server.admin().post(path, &fence).await.expect(422);
    server.api.shutdown().await;
    let Server { api, dir } = server;
    drop(api);
    let server = Server::start_in(dir, config(json!({"type": "integer"}))).await;
    server.admin().post(path, &fence).await.expect(201);
}

/// Who could write the inventory would choose what the next start removes.
#[tokio::test]
async fn the_inventory_is_no_object_of_the_api() {
    let server = Server::start_with(shipping(vec![role("keeper", &[])])).await;
    for path in ["/apis/ferrovirt/v1/shipped", "/apis/ferrovirt/v1/shipped/inventory", "/api/v1/shipped/inventory"] {
        server.admin().get(path).await.expect(404);
    }
}
