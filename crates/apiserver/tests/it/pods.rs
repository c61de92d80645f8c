//! What only pods have.

use std::sync::Arc;

use ferrovirt_apiserver::{Body, Handler};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::support::Server;

const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

#[tokio::test]
async fn eviction_deletes_with_grace() {
    let server = Server::start().await;
    let admin = server.admin();
    let eviction = |options: Value| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}, "deleteOptions": options});
    admin.post(PODS, &pod("p")).await.expect(201);
    let item = format!("{PODS}/p");
    let evict = format!("{item}/eviction");
    admin.post(&evict, &eviction(json!({"dryRun": ["All"]}))).await.expect(201);
    admin.post(&evict, &eviction(json!({"preconditions": {"uid": "other"}}))).await.expect(409);
    admin.get(&item).await.expect(200);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{item}/binding"), &binding).await.expect(201);
    admin.post(&format!("{item}/binding"), &binding).await.expect(409);
    // It runs on a node, which has to stop it: the pod stays until the node says so.
    admin.post(&evict, &eviction(json!({"gracePeriodSeconds": 7}))).await.expect(201);
    let going = admin.get(&item).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
    admin.delete(&item, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    admin.post(&evict, &eviction(Value::Null)).await.expect(404);
}

/// Whoever protects pods learns of their evictions, with the kind of an eviction, and can refuse.
#[tokio::test]
async fn webhooks_are_asked_about_evictions() {
    let server = Server::start().await;
    let admin = server.admin();
    let handler: Handler = Arc::new(|request: Request<Body>| {
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            let asked = &review["request"];
            let about = (&asked["kind"]["kind"], &asked["subResource"], &asked["object"]["metadata"]["name"]);
            assert_eq!(about, (&json!("Eviction"), &json!("eviction"), &json!("held")));
            let status = json!({"code": 429, "message": "not now"});
            let response = json!({"uid": asked["uid"], "allowed": false, "status": status});
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Response::new(Full::from(answer.to_string()).map_err(|never| match never {}).boxed_unsync())
        })
    });
    server.api.register_in_process("default", "hook", handler);
    let hook = json!({
        "metadata": {"name": "hook"}, "kind": "ValidatingWebhookConfiguration",
        "webhooks": [{
            "name": "hook.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/"}},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}],
            "matchConditions": [{"name": "some", "expression": "object.metadata.name.startsWith(\"held\")"}],
        }],
    });
    admin.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &hook).await.expect(201);
    for (name, code) in [("held", 429), ("free", 201)] {
        admin.post(PODS, &pod(name)).await.expect(201);
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        let answer = admin.post(&format!("{PODS}/{name}/eviction"), &eviction).await;
        assert_eq!(answer.status.as_u16(), code, "{name}: {}", answer.body);
    }
    admin.get(&format!("{PODS}/held")).await.expect(200);
}

#[tokio::test]
async fn the_spec_of_a_pod_is_fixed() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut wrong = pod("p");
    wrong["spec"]["containers"] = json!([{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]);
    admin.post(PODS, &wrong).await.expect(422);
    let mut first = pod("p");
    // Otherwise the patches below would take a mount away.
    first["spec"]["automountServiceAccountToken"] = false.into();
    first["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    admin.post(PODS, &first).await.expect(201);
    let item = format!("{PODS}/p");
    let cases = [
        (json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}}), 200),
        (json!({"spec": {"activeDeadlineSeconds": 60}}), 200),
        (json!({"spec": {"tolerations": [{"operator": "Exists"}, {"key": "b", "operator": "Exists"}]}}), 200),
        (json!({"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}}), 422),
        (json!({"spec": {"containers": [{"name": "c", "image": "i:2", "command": ["x"]}]}}), 422),
        (json!({"spec": {"restartPolicy": "Never"}}), 422),
        (json!({"spec": {"nodeName": "n"}}), 422),
        (json!({"metadata": {"labels": {"a": "b"}}}), 200),
    ];
    for (patch, code) in cases {
        let answer = admin.merge(&item, &patch).await;
        assert_eq!(answer.status.as_u16(), code, "{patch}: {}", answer.body["message"]);
    }
    let binding = |uid: &str| json!({"metadata": {"name": "p", "uid": uid}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{item}/binding"), &binding("other")).await.expect(409);
    admin.post(&format!("{item}/binding"), &binding("")).await.expect(201);
}

#[tokio::test]
async fn evictions_obey_budgets() {
    let server = Server::start().await;
    let admin = server.admin();
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "a"}}}});
    admin.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget).await.expect(201);
    for name in ["a", "b", "c"] {
        let mut object = pod(name);
        object["metadata"]["labels"] = json!({"app": "a"});
        admin.post(PODS, &object).await.expect(201);
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        admin.merge(&format!("{PODS}/{name}/status"), &status).await.expect(200);
    }
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let evict = async |name: &str| admin.post(&format!("{PODS}/{name}/eviction"), &eviction(name)).await;
    // Half of three is two.
    evict("a").await.expect(201);
    // Half of two is one.
    evict("b").await.expect(201);
    let refused = evict("c").await.expect(429);
    assert_eq!(refused["reason"], "TooManyRequests");
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    // Deletion is not eviction, and other pods have no budget.
    admin.delete(&format!("{PODS}/c"), &json!({})).await.expect(200);
    admin.post(PODS, &pod("d")).await.expect(201);
    evict("d").await.expect(201);
}

/// A webhook that is asked about deletions takes its time over one: other evictions go on, and do not get what that one was given.
#[tokio::test]
async fn evictions_do_not_wait_for_each_others_webhooks() {
    let server = Server::start().await;
    let admin = server.admin();
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let (answer, answered) = tokio::sync::watch::channel(false);
    let handler: Handler = Arc::new(move |request: Request<Body>| {
        let (asked, mut answered) = (asked.clone(), answered.clone());
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            if review["request"]["name"] == "slow" {
                asked.send(()).unwrap();
                answered.wait_for(|answered| *answered).await.unwrap();
            }
            let response = json!({"uid": review["request"]["uid"], "allowed": true});
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Response::new(Full::from(answer.to_string()).map_err(|never| match never {}).boxed_unsync())
        })
    });
    server.api.register_in_process("default", "hook", handler);
    let hook = json!({
        "metadata": {"name": "hook"}, "kind": "ValidatingWebhookConfiguration",
        "webhooks": [{
            "name": "hook.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 30,
            "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/"}},
            "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }],
    });
    admin.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &hook).await.expect(201);
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    admin.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget).await.expect(201);
    for (name, app) in [("slow", "a"), ("next", "a"), ("other", "b")] {
        let mut object = pod(name);
        object["metadata"]["labels"] = json!({"app": app});
        admin.post(PODS, &object).await.expect(201);
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        admin.merge(&format!("{PODS}/{name}/status"), &status).await.expect(200);
    }
    let evict = |name: &'static str| {
        let admin = admin.clone();
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        async move { admin.post(&format!("{PODS}/{name}/eviction"), &eviction).await }
    };
    let slow = tokio::spawn(evict("slow"));
    was_asked.recv().await.unwrap();
    evict("other").await.expect(201);
    evict("next").await.expect(429);
    answer.send(true).unwrap();
    slow.await.unwrap().expect(201);
    admin.get(&format!("{PODS}/next")).await.expect(200);
}

#[tokio::test]
async fn claims_grow_where_their_class_lets_them() {
    let server = Server::start().await;
    let admin = server.admin();
    for (name, grows) in [("fixed", json!(false)), ("silent", Value::Null), ("grows", json!(true))] {
        let class = json!({"metadata": {"name": name}, "provisioner": "p", "allowVolumeExpansion": grows});
        admin.post("/apis/storage.k8s.io/v1/storageclasses", &class).await.expect(201);
    }
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    for (class, code) in [("fixed", 403), ("silent", 403), ("none", 403), ("", 403), ("grows", 200)] {
        let name = format!("of-{class}x");
        let claim = json!({"metadata": {"name": name}, "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }});
        admin.post(claims, &claim).await.expect(201);
        let item = format!("{claims}/{name}");
        admin.merge(&format!("{item}/status"), &json!({"status": {"phase": "Bound"}})).await.expect(200);
        let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        // The same in other words is no growth.
        admin.merge(&item, &size("1024Mi")).await.expect(200);
        let answer = admin.merge(&item, &size("2Gi")).await.expect(code);
        if code == 403 {
            let words = format!(
                "persistentvolumeclaims \"{name}\" is forbidden: only dynamically provisioned pvc can be resized and the \
                 storageclass that provisions the pvc must support resize"
            );
            assert_eq!(answer["message"], words);
        }
    }
}
