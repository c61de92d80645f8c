//! Webhooks and aggregated APIs that are served in this process.

use std::sync::Arc;

use base64::Engine as _;
use ferrovirt_apiserver::{Body, Handler, User};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::support::hooks::{self, judge};
use crate::support::{Server, configmap, widget, widgets};

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
            let start = "/apis/sub.example.com/v1/namespaces/{namespace}/vms/{name}/start";
            if request.uri().path().starts_with("/openapi/") {
                return answer(
                    &json!({"paths": {start: {"put": {}}, "/apis/other.example.com/v1/x": {}}, "definitions": {"Sub": {}}}),
                );
            }
            answer(&json!({"user": user, "path": request.uri().path()}))
        })
    });
    server.api.register_in_process("default", "sub", handler);
    // What it publishes of itself is part of what this server does, and nothing else that it says.
    let start = "/apis/sub.example.com/v1/namespaces/{namespace}/vms/{name}/start";
    let published = admin.get("/openapi/v2").await.expect(200);
    assert_eq!(published["paths"][start], json!({"put": {}}));
    assert!(
        published["paths"].get("/apis/other.example.com/v1/x").is_none()
            && published["definitions"].get("Sub").is_some()
    );
    let index = admin.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/sub.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(admin.get(url).await.expect(200)["paths"][start], json!({"put": {}}));
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

/// A webhook takes its time, and meanwhile the namespace goes, or begins to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_lands_in_a_namespace_that_went_during_a_slow_webhook() {
    let server = Server::start().await;
    let admin = server.admin();
    let (asked, gate) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(tokio::sync::Semaphore::new(0)));
    let (tell, hold) = (asked.clone(), gate.clone());
    let slow = judge(move |request: Value| {
        let (tell, hold) = (tell.clone(), hold.clone());
        async move {
            if request["name"] == "slow" {
                tell.add_permits(1);
                hold.acquire().await.unwrap().forget();
            }
            None
        }
    });
    hooks::install(&server, &admin, &["CREATE"], "configmaps", slow).await;
    let maps = "/api/v1/namespaces/t/configmaps";
    for (held, code) in [(false, 404), (true, 403)] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "t"}})).await.expect(201);
        if held {
            let mut object = configmap("held");
            object["metadata"]["finalizers"] = json!(["example.com/hold"]);
            admin.post(maps, &object).await.expect(201);
        }
        let writer = admin.clone();
        let write = tokio::spawn(async move { writer.post(maps, &configmap("slow")).await });
        asked.acquire().await.unwrap().forget();
        admin.delete("/api/v1/namespaces/t", &json!({})).await.expect(200);
        if !held {
            admin.until("/api/v1/namespaces/t", 404).await;
        }
        gate.add_permits(1);
        let refused = write.await.unwrap().expect(code);
        if held {
            assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
        } else {
            assert_eq!(refused["message"], "namespaces \"t\" not found");
            // Not even for one of the same name that comes later.
            admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "t"}})).await.expect(201);
            assert_eq!(admin.get(maps).await.expect(200)["items"], json!([]));
            admin.delete("/api/v1/namespaces/t", &json!({})).await.expect(200);
            admin.until("/api/v1/namespaces/t", 404).await;
        }
    }
}

/// Many create while a namespace goes: it ends, and with it everything in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_ends_under_load_and_leaves_nothing_behind() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widgets()).await.expect(201);
    admin.until("/apis/example.com/v1/namespaces/default/widgets", 200).await;
    for round in 0..5 {
        let namespace = format!("load{round}");
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
        let writers = (0..8).map(|writer| {
            let (admin, namespace) = (admin.clone(), namespace.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    let name = format!("w{writer}-{n}");
                    let answer = match n % 2 {
                        0 => admin.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &configmap(&name)).await,
                        _ => {
                            let path = format!("/apis/example.com/v1/namespaces/{namespace}/widgets");
                            admin.post(&path, &widget(&name)).await
                        }
                    };
                    match answer.status.as_u16() {
                        201 => {}
                        403 | 404 => return,
                        other => panic!("{other}: {}", answer.body),
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        admin.delete(&format!("/api/v1/namespaces/{namespace}"), &json!({})).await.expect(200);
        for writer in writers {
            writer.await.unwrap();
        }
        admin.until(&format!("/api/v1/namespaces/{namespace}"), 404).await;
        for path in ["/api/v1/configmaps", "/apis/example.com/v1/widgets"] {
            let all = admin.get(path).await.expect(200);
            let left = all["items"].as_array().unwrap().iter().filter(|o| o["metadata"]["namespace"] == *namespace);
            assert_eq!(left.count(), 0, "{path}");
        }
    }
}
