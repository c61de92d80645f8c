//! Webhooks and aggregated APIs that are served in this process.

use std::sync::Arc;

use base64::Engine as _;
use ferrovirt_apiserver::{Body, Handler, User};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::support::{Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";

fn answer(value: &Value) -> Response<Body> {
    Response::new(Full::from(value.to_string()).map_err(|never| match never {}).boxed_unsync())
}

/// Adds a key to every configmap; refuses those with a key `bad`.
fn webhook() -> Handler {
    Arc::new(|request: Request<Body>| {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            let uid = &review["request"]["uid"];
            let mut response = json!({"uid": uid, "allowed": true, "warnings": ["seen"]});
            if path == "/mutate" {
                let patch = json!([{"op": "add", "path": "/data/added", "value": "yes"}]).to_string();
                response["patch"] = base64::engine::general_purpose::STANDARD.encode(patch).into();
                response["patchType"] = "JSONPatch".into();
            } else if review["request"]["object"]["data"].get("bad").is_some() {
                response = json!({"uid": uid, "allowed": false, "status": {"code": 422, "reason": "Invalid", "message": "bad is bad"}});
            }
            answer(&json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
        })
    })
}

fn configuration(kind: &str, path: &str, service: &str, policy: &str) -> Value {
    json!({
        "metadata": {"name": path.trim_matches('/')}, "kind": kind,
        "webhooks": [{
            "name": format!("{}.example.com", path.trim_matches('/')), "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": policy,
            "clientConfig": {"service": {"namespace": "default", "name": service, "path": path}},
            "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        }],
    })
}

#[tokio::test]
async fn webhooks_change_and_refuse() {
    let server = Server::start().await;
    let admin = server.admin();
    server.api.register_in_process("default", "hook", webhook());
    let base = "/apis/admissionregistration.k8s.io/v1";
    let mutating = configuration("MutatingWebhookConfiguration", "/mutate", "hook", "Fail");
    let validating = configuration("ValidatingWebhookConfiguration", "/validate", "hook", "Fail");
    admin.post(&format!("{base}/mutatingwebhookconfigurations"), &mutating).await.expect(201);
    admin.post(&format!("{base}/validatingwebhookconfigurations"), &validating).await.expect(201);
    let made = admin.post(CMS, &configmap("a")).await;
    assert_eq!(made.warnings, ["299 - \"seen\""]);
    assert_eq!(made.expect(201)["data"]["added"], "yes");
    let refused = admin.merge(&format!("{CMS}/a"), &json!({"data": {"bad": "1"}})).await.expect(422);
    assert_eq!(refused["message"], "admission webhook \"validate.example.com\" denied the request: bad is bad");
    assert_eq!(refused["reason"], "Invalid");
    // Other namespaces are not asked about.
    let elsewhere = admin.post("/api/v1/namespaces/kube-system/configmaps", &configmap("a")).await.expect(201);
    assert!(elsewhere["data"].get("added").is_none());
    // A webhook that cannot be reached fails the request, unless it says otherwise.
    let missing = configuration("ValidatingWebhookConfiguration", "/missing", "nobody", "Fail");
    admin.post(&format!("{base}/validatingwebhookconfigurations"), &missing).await.expect(201);
    let failed = admin.post(CMS, &configmap("b")).await.expect(500);
    assert!(
        failed["message"].as_str().unwrap().contains("failed calling webhook \"missing.example.com\""),
        "{failed:#}"
    );
    admin.delete(&format!("{base}/validatingwebhookconfigurations/missing"), &json!({})).await.expect(200);
    let ignored = configuration("ValidatingWebhookConfiguration", "/missing", "nobody", "Ignore");
    admin.post(&format!("{base}/validatingwebhookconfigurations"), &ignored).await.expect(201);
    admin.post(CMS, &configmap("b")).await.expect(201);
}

#[tokio::test]
async fn api_services_lead_to_handlers() {
    let server = Server::start().await;
    let admin = server.admin();
    let service = json!({
        "metadata": {"name": "v1.sub.example.com"},
        "spec": {"group": "sub.example.com", "version": "v1", "service": {"namespace": "default", "name": "sub"}, "groupPriorityMinimum": 1000, "versionPriority": 15},
    });
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let made = admin.post(path, &service).await.expect(201);
    assert_eq!(made["status"]["conditions"][0]["status"], "False");
    admin.get("/apis/sub.example.com/v1").await.expect(503);
    let handler: Handler = Arc::new(|request: Request<Body>| {
        Box::pin(async move {
            let user = request.extensions().get::<User>().map(|u| u.name.clone());
            if request.uri().path() == "/apis/sub.example.com/v1" {
                return answer(
                    &json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "sub.example.com/v1", "resources": [
                    {"name": "vms/start", "singularName": "", "namespaced": true, "kind": "VM", "verbs": ["update"]}]}),
                );
            }
            answer(&json!({"user": user, "path": request.uri().path()}))
        })
    });
    server.api.register_in_process("default", "sub", handler);
    let answer = admin.put("/apis/sub.example.com/v1/namespaces/default/vms/a/start", &json!({})).await.expect(200);
    assert_eq!(answer, json!({"user": "admin", "path": "/apis/sub.example.com/v1/namespaces/default/vms/a/start"}));
    server
        .user("jane", &[])
        .put("/apis/sub.example.com/v1/namespaces/default/vms/a/start", &json!({}))
        .await
        .expect(403);
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let all = admin.raw(http::Method::GET, "/apis", &accept, "").await.expect(200);
    let group = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "sub.example.com").unwrap();
    assert_eq!(group["versions"][0]["resources"][0]["subresources"][0]["subresource"], "start");
    let mut watch = admin.watch(&format!("{path}?watch=1")).await;
    while watch.next().await.unwrap()["object"]["status"]["conditions"][0]["status"] != "True" {}
}
