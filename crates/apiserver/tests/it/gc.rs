//! What goes when its owner goes, and what goes with a namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::support::hooks::{self, Judge, handler, judge};
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

/// Refuses the first so many requests about an object.
fn refuse(name: &'static str, times: usize) -> (Judge, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let judge = judge(move |request: Value| {
        let count = count.clone();
        async move {
            if request["name"] != name || count.load(SeqCst) >= times {
                return None;
            }
            count.fetch_add(1, SeqCst);
            Some("not now".to_owned())
        }
    });
    (judge, refused)
}

/// More often than anybody would count to.
const OFTEN: usize = 8;

#[tokio::test]
async fn what_cannot_go_now_goes_later() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "child", &owner, true).await;
    let (judge, refused) = refuse("child", OFTEN);
    hooks::install(&server, &admin, &["DELETE"], "configmaps", judge).await;
    admin.delete(&format!("{CMS}/owner"), &json!({})).await.expect(200);
    admin.until(&format!("{CMS}/child"), 404).await;
    assert_eq!(refused.load(SeqCst), OFTEN);
}

#[tokio::test]
async fn foreground_and_orphan_deletion_survive_failures() {
    let server = Server::start().await;
    let admin = server.admin();
    let (judge, refused) = refuse("owner", OFTEN);
    hooks::install(&server, &admin, &["UPDATE"], "configmaps", judge).await;
    // The finalizer of the owner cannot be taken away.
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "child", &owner, true).await;
    admin.delete(&format!("{CMS}/owner"), &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    admin.until(&format!("{CMS}/owner"), 404).await;
    admin.get(&format!("{CMS}/child")).await.expect(404);
    assert_eq!(refused.load(SeqCst), OFTEN);
    // The reference of the child cannot be.
    let (judge, refused) = refuse("kept", OFTEN);
    server.api.register_in_process("default", "judge", handler(judge));
    let owner = admin.post(CMS, &configmap("other")).await.expect(201);
    owned(&admin, "kept", &owner, true).await;
    admin.delete(&format!("{CMS}/other?propagationPolicy=Orphan"), &json!({})).await.expect(200);
    admin.until(&format!("{CMS}/other"), 404).await;
    assert_eq!(refused.load(SeqCst), OFTEN);
    let kept = admin.get(&format!("{CMS}/kept")).await.expect(200);
    assert!(kept["metadata"].get("ownerReferences").is_none() && kept["metadata"].get("deletionTimestamp").is_none());
}

#[tokio::test]
async fn what_was_left_undone_is_done_after_a_restart() {
    let server = Server::start().await;
    let admin = server.admin();
    let (never, refused) = refuse("child", usize::MAX);
    hooks::install(&server, &admin, &["DELETE"], "configmaps", never).await;
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "child", &owner, true).await;
    admin.delete(&format!("{CMS}/owner"), &json!({})).await.expect(200);
    while refused.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let server = server.restart().await;
    let (at_once, _) = refuse("child", 0);
    server.api.register_in_process("default", "judge", handler(at_once));
    server.admin().until(&format!("{CMS}/child"), 404).await;
}

#[tokio::test]
async fn one_that_stays_does_not_hold_an_owner_that_goes() {
    let server = Server::start().await;
    let admin = server.admin();
    let going = admin.post(CMS, &configmap("going")).await.expect(201);
    let staying = admin.post(CMS, &configmap("staying")).await.expect(201);
    let mut child = configmap("child");
    let reference = |owner: &Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": true,
        })
    };
    child["metadata"]["ownerReferences"] = json!([reference(&going), reference(&staying)]);
    admin.post(CMS, &child).await.expect(201);
    admin.delete(&format!("{CMS}/going"), &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    admin.until(&format!("{CMS}/going"), 404).await;
    let child = admin.get(&format!("{CMS}/child")).await.expect(200);
    assert_eq!(child["metadata"]["ownerReferences"], json!([reference(&staying)]));
}

/// One that may not go before its dependent, and one whose dependents need not be waited for.
#[tokio::test]
async fn only_dependents_that_block_are_waited_for() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
    owned(&admin, "held", &owner, false).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    admin.merge(&format!("{CMS}/held"), &hold).await.expect(200);
    admin.delete(&format!("{CMS}/owner"), &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    admin.until(&format!("{CMS}/owner"), 404).await;
    let going = |answer: &crate::support::Answer| answer.body["metadata"]["deletionTimestamp"].is_string();
    admin.until_that(&format!("{CMS}/held"), going).await;
}

#[tokio::test]
async fn an_object_of_another_namespace_holds_nobodys_owner() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "stranger"}})).await.expect(201);
    for policy in ["Foreground", "Orphan"] {
        let owner = admin.post(CMS, &configmap("owner")).await.expect(201);
        let mut object = configmap(&policy.to_lowercase());
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
        }]);
        // So that it stays, although its owner is none.
        object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        admin.post("/api/v1/namespaces/stranger/configmaps", &object).await.expect(201);
        admin.delete(&format!("{CMS}/owner"), &json!({"propagationPolicy": policy})).await.expect(200);
        admin.until(&format!("{CMS}/owner"), 404).await;
    }
}

#[tokio::test]
async fn owners_of_another_namespace_are_none() {
    let server = Server::start().await;
    let admin = server.admin();
    let owner = admin.post("/api/v1/namespaces/kube-public/configmaps", &configmap("owner")).await.expect(201);
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
    });
    owned(&admin, "child", &owner, false).await;
    admin.until(&format!("{CMS}/child"), 404).await;
    // A cluster-scoped object cannot have an owner in a namespace; nobody can say whether that is gone.
    let role = json!({"metadata": {"name": "owned", "ownerReferences": [reference]}, "rules": []});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    admin.post(roles, &role).await.expect(201);
    // Whoever sees this one has seen the role.
    owned(&admin, "later", &owner, false).await;
    admin.until(&format!("{CMS}/later"), 404).await;
    admin.get(&format!("{roles}/owned")).await.expect(200);
    let told = |answer: &crate::support::Answer| {
        let items = answer.body["items"].as_array().unwrap();
        items.iter().any(|event| {
            event["reason"] == "OwnerRefInvalidNamespace"
                && event["involvedObject"]["name"] == "child"
                && event["message"].as_str().unwrap().ends_with("does not exist in namespace \"default\"")
        })
    };
    admin.until_that("/api/v1/namespaces/default/events", told).await;
}
