//! What goes when its owner goes, and what goes with a namespace.

use serde_json::{Value, json};

use crate::support::{Client, Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";

async fn owned(admin: &Client, name: &str, owner: &Value, blocking: bool) -> Value {
    let mut object = configmap(name);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": blocking,
    }]);
    admin.post(CMS, &object).await.expect(201)
}

#[tokio::test]
async fn dependents_follow_their_owner() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    let child = owned(&admin, "child", &owner, true).await;
    owned(&admin, "grandchild", &child, true).await;
    admin.delete(&format!("{CMS}/owner"), &json!({})).await.expect(200);
    admin.until(&format!("{CMS}/child"), 404).await;
    admin.until(&format!("{CMS}/grandchild"), 404).await;
    // Born after its owner died.
    owned(&admin, "late", &owner, true).await;
    admin.until(&format!("{CMS}/late"), 404).await;
}

#[tokio::test]
async fn foreground_deletion_waits_for_dependents() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "child", &owner, true).await;
    admin.merge(&format!("{CMS}/child"), &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await.expect(200);
    let ending = admin.delete(&format!("{CMS}/owner"), &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    assert_eq!(ending["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let mut watch = admin.watch(&format!("{CMS}?watch=1&fieldSelector=metadata.name%3Dchild")).await;
    loop {
        let event = watch.next().await.unwrap();
        if event["object"]["metadata"]["deletionTimestamp"].is_string() {
            break;
        }
    }
    admin.get(&format!("{CMS}/owner")).await.expect(200);
    admin.merge(&format!("{CMS}/child"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.until(&format!("{CMS}/owner"), 404).await;
}

#[tokio::test]
async fn orphans_live_on() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "child", &owner, true).await;
    admin.delete(&format!("{CMS}/owner?propagationPolicy=Orphan"), &json!({})).await.expect(200);
    admin.until(&format!("{CMS}/owner"), 404).await;
    let child = admin.get(&format!("{CMS}/child")).await.expect(200);
    assert!(child["metadata"].get("ownerReferences").is_none(), "{child:#}");
}

#[tokio::test]
async fn a_namespace_takes_its_content_along() {
    let server = Server::start().await;
    let admin = server.admin();
    let made = admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "t"}})).await.expect(201);
    assert_eq!(
        (&made["status"]["phase"], &made["metadata"]["labels"]["kubernetes.io/metadata.name"]),
        (&json!("Active"), &json!("t"))
    );
    admin.until("/api/v1/namespaces/t/serviceaccounts/default", 200).await;
    let mut held = configmap("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    admin.post("/api/v1/namespaces/t/configmaps", &held).await.expect(201);
    admin.post("/api/v1/namespaces/t/configmaps", &configmap("free")).await.expect(201);
    let ending = admin.delete("/api/v1/namespaces/t", &json!({})).await.expect(200);
    assert_eq!(ending["status"]["phase"], "Terminating");
    let refused = admin.post("/api/v1/namespaces/t/configmaps", &configmap("new")).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    admin.until("/api/v1/namespaces/t/configmaps/free", 404).await;
    admin.get("/api/v1/namespaces/t").await.expect(200);
    admin.merge("/api/v1/namespaces/t/configmaps/held", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.until("/api/v1/namespaces/t", 404).await;
    admin.delete("/api/v1/namespaces/default", &json!({})).await.expect(403);
}
