//! Attacks on the stamp that says who made a pod, and on pods that carry the system's.

use std::sync::Arc;

use base64::Engine as _;
use ferrovirt_apiserver::{Body, CREATED_BY, Config, Handler};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::pods::pod;
use crate::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONTROLLER: &str = "system:serviceaccount:kubevirt:kubevirt-controller";

/// A server, its controller (whose rights are not the question here) and an editor of the namespace.
async fn start() -> (Server, Client, Client) {
    let server = Server::start_with(Config { pod_makers: vec![CONTROLLER.into()], ..Config::default() }).await;
    let controller = server.user(CONTROLLER, &["system:masters"]);
    let editor = editor(&server).await;
    (server, controller, editor)
}

async fn editor(server: &Server) -> Client {
    let binding = json!({
        "metadata": {"name": "mallory"}, "subjects": [{"kind": "User", "name": "mallory"}],
        "roleRef": {"kind": "ClusterRole", "name": "edit"},
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    server.admin().post(path, &binding).await.expect(201);
    server.user("mallory", &[])
}

fn maker(pod: &Value) -> &str {
    pod["metadata"]["annotations"][CREATED_BY].as_str().unwrap_or_default()
}

fn forged(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["annotations"] = json!({CREATED_BY: CONTROLLER});
    pod["spec"]["automountServiceAccountToken"] = false.into();
    pod
}

#[tokio::test]
async fn an_editor_cannot_claim_that_the_controller_made_a_pod() {
    let (_server, controller, mallory) = start().await;
    let posted = mallory.post(PODS, &forged("posted")).await.expect(201);
    let tried = mallory.post(&format!("{PODS}?dryRun=All"), &forged("tried")).await.expect(201);
    let mut generated = forged("");
    generated["metadata"] = json!({"generateName": "g-", "annotations": {CREATED_BY: CONTROLLER}});
    let generated = mallory.post(PODS, &generated).await.expect(201);
    let apply = "application/apply-patch+yaml";
    let path = format!("{PODS}/applied?fieldManager=m");
    let applied = mallory.patch(&path, apply, &forged("applied")).await.expect(201);
    for pod in [&posted, &tried, &generated, &applied] {
        assert_eq!(maker(pod), "mallory", "{pod:#}");
    }
    // Later it cannot be claimed either, on no path, and it cannot be taken off.
    let item = format!("{PODS}/posted");
    let claim = |value: Value| json!({"metadata": {"annotations": {CREATED_BY: value}}});
    let pointer = format!("/metadata/annotations/{}", CREATED_BY.replace('/', "~1"));
    let mut put = posted.clone();
    put["metadata"]["annotations"] = json!({CREATED_BY: CONTROLLER, "other": "kept"});
    put["metadata"]["resourceVersion"] = "".into();
    let mut bare = posted.clone();
    bare["metadata"] = json!({"name": "posted", "annotations": {}});
    let answers = [
        mallory.merge(&item, &claim(CONTROLLER.into())).await,
        mallory.merge(&item, &claim(Value::Null)).await,
        mallory.merge(&item, &json!({"metadata": {"annotations": null}})).await,
        mallory.patch(&item, "application/strategic-merge-patch+json", &claim(CONTROLLER.into())).await,
        mallory
            .patch(
                &item,
                "application/json-patch+json",
                &json!([{"op": "replace", "path": pointer, "value": CONTROLLER}]),
            )
            .await,
        mallory.patch(&item, "application/json-patch+json", &json!([{"op": "remove", "path": pointer}])).await,
        mallory.put(&item, &put).await,
        mallory.put(&item, &bare).await,
        mallory.patch(&format!("{item}?fieldManager=m&force=true"), apply, &forged("posted")).await,
        // Who may write the status of pods may not say who made them.
        controller.merge(&format!("{item}/status"), &claim(CONTROLLER.into())).await,
        controller.put(&format!("{item}/status"), &forged("posted")).await,
    ];
    for (index, answer) in answers.into_iter().enumerate() {
        assert_eq!(maker(&answer.expect(200)), "mallory", "answer {index}");
    }
    let binding = json!({
        "metadata": {"name": "posted", "annotations": {CREATED_BY: CONTROLLER}}, "target": {"kind": "Node", "name": "n"},
    });
    controller.post(&format!("{item}/binding"), &binding).await.expect(201);
    assert_eq!(maker(&mallory.get(&item).await.expect(200)), "mallory");
}

/// Claims for every new or changed pod that the controller made it.
fn lying_webhook() -> Handler {
    Arc::new(|request: Request<Body>| {
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {CREATED_BY: CONTROLLER}}]);
            let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
            let response =
                json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch});
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Response::new(Full::from(answer.to_string()).map_err(|never| match never {}).boxed_unsync())
        })
    })
}

#[tokio::test]
async fn a_webhook_cannot_claim_that_the_controller_made_a_pod() {
    let (server, _, mallory) = start().await;
    server.api.register_in_process("default", "liar", lying_webhook());
    let configuration = json!({
        "metadata": {"name": "liar"},
        "webhooks": [{
            "name": "liar.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "default", "name": "liar"}},
            "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    server.admin().post(path, &configuration).await.expect(201);
    assert_eq!(maker(&mallory.post(PODS, &pod("p")).await.expect(201)), "mallory");
    let changed = mallory.merge(&format!("{PODS}/p"), &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(maker(&changed), "mallory");
}

#[tokio::test]
async fn an_editor_cannot_turn_a_launcher_into_something_else() {
    let (server, controller, mallory) = start().await;
    let mut launcher = forged("virt-launcher-a");
    launcher["metadata"]["labels"] = json!({"kubevirt.io": "virt-launcher"});
    launcher["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "a", "uid": "not-there"}]);
    launcher["metadata"]["finalizers"] = json!(["example.com/keep"]);
    assert_eq!(maker(&controller.post(PODS, &launcher).await.expect(201)), CONTROLLER);
    let item = format!("{PODS}/virt-launcher-a");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "evil:1"}]}});
    let strategic = "application/strategic-merge-patch+json";
    let attacks = [
        (strategic, image.clone()),
        (strategic, json!({"spec": {"activeDeadlineSeconds": 1}})),
        (strategic, json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/secret"}}})),
        (strategic, json!({"metadata": {"labels": {"kubevirt.io/created-by": "another-uid"}}})),
        (strategic, json!({"metadata": {"labels": null}})),
        ("application/merge-patch+json", json!({"metadata": {"ownerReferences": null}})),
        ("application/merge-patch+json", json!({"metadata": {"finalizers": null}})),
    ];
    for (kind, patch) in attacks {
        let refused = mallory.patch(&item, kind, &patch).await.expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(CONTROLLER) && message.contains("pods/privileged"), "{patch}: {message}");
    }
    let mut put = mallory.get(&item).await.expect(200);
    put["spec"]["containers"][0]["image"] = "evil:1".into();
    mallory.put(&item, &put).await.expect(403);
    let path = format!("{item}?fieldManager=m&force=true");
    let mut applied = pod("virt-launcher-a");
    applied["spec"]["containers"][0]["image"] = "evil:1".into();
    mallory.patch(&path, "application/apply-patch+yaml", &applied).await.expect(403);
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "evil:1"}]}});
    for method in [Method::PATCH, Method::PUT] {
        let headers = [("content-type", strategic)];
        let answer = mallory.raw(method, &format!("{item}/ephemeralcontainers"), &headers, debugger.to_string()).await;
        assert!(answer.status.is_client_error(), "{:#}", answer.body);
    }
    let stored = controller.get(&item).await.expect(200);
    assert_eq!(stored["spec"]["containers"][0]["image"], "i:1");
    // Nothing changes for who changes nothing, for the maker, for administrators, and for deleting it.
    mallory.put(&item, &stored).await.expect(200);
    controller.patch(&item, strategic, &image).await.expect(200);
    server.admin().merge(&item, &json!({"metadata": {"finalizers": null, "labels": {"a": "b"}}})).await.expect(200);
    mallory.delete(&item, &json!({})).await.expect(200);
    // A pod of the editor's own stays the editor's.
    mallory.post(PODS, &forged("own")).await.expect(201);
    mallory.patch(&format!("{PODS}/own"), strategic, &image).await.expect(200);
}

/// On a cluster nothing stamps pods, and the chart's policies have to do: here they are alone, since the pod is not ours.
#[tokio::test]
async fn an_editor_cannot_put_an_image_into_a_privileged_launcher_of_a_cluster() {
    let (server, _, mallory) = start().await;
    let admin = server.admin();
    let chart = include_str!("../../../../charts/ferrovirt/templates/policies.yaml");
    for document in chart.split("\n---\n").filter(|text| text.contains("launcher")) {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let plural = match object["kind"].as_str().unwrap() {
            "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
            _ => "validatingadmissionpolicybindings",
        };
        admin.post(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &object).await.expect(201);
    }
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "evil:1"}]);
    for (name, code) in [("virt-launcher-a-root", 422), ("virt-launcher-a", 200)] {
        admin.post(PODS, &pod(name)).await.expect(201);
        let item = format!("{PODS}/{name}");
        let answer = mallory.patch(&item, "application/json-patch+json", &image).await;
        assert_eq!(answer.status, code, "{name}: {:#}", answer.body);
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert_eq!(message.contains("kubevirt-privileged-launcher-images"), code == 422, "{message}");
        mallory.merge(&item, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
        admin.patch(&item, "application/json-patch+json", &image).await.expect(200);
    }
}
