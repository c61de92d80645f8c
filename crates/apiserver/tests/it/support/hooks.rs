//! Webhooks of this process that get in the way.

use std::sync::Arc;

use ferrovirt_apiserver::{Body, Handler};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use super::{Client, Server};

/// Answers the request of a review: None to let it pass, or why not.
pub type Judge = Arc<dyn Fn(Value) -> BoxFuture<'static, Option<String>> + Send + Sync>;

pub fn judge<F: Future<Output = Option<String>> + Send + 'static>(
    answer: impl Fn(Value) -> F + Send + Sync + 'static,
) -> Judge {
    Arc::new(move |request| Box::pin(answer(request)))
}

pub fn handler(judge: Judge) -> Handler {
    Arc::new(move |request: Request<Body>| {
        let judge = judge.clone();
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            let uid = review["request"]["uid"].clone();
            let response = match judge(review["request"].clone()).await {
                None => json!({"uid": uid, "allowed": true}),
                Some(why) => json!({"uid": uid, "allowed": false, "status": {"code": 403, "message": why}}),
            };
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Response::new(Full::from(answer.to_string()).map_err(|never| match never {}).boxed_unsync())
        })
    })
}

/// Puts a validating webhook before these operations on a resource of the core group.
pub async fn install(server: &Server, admin: &Client, operations: &[&str], resource: &str, judge: Judge) {
    server.api.register_in_process("default", "judge", handler(judge));
    let configuration = json!({
        "metadata": {"name": "judge"},
        "webhooks": [{
            "name": "judge.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "timeoutSeconds": 30, "clientConfig": {"service": {"namespace": "default", "name": "judge"}},
            "rules": [{"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    admin.post(path, &configuration).await.expect(201);
}
