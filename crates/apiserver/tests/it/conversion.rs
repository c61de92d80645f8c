//! Custom resources whose versions differ in more than their name.

use std::sync::Arc;

use ferrovirt_apiserver::{Body, Handler};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::support::Server;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "/apis/example.com/v1/namespaces/default/places";
const V2: &str = "/apis/example.com/v2/namespaces/default/places";

/// v1 has `hostPort: "a:1"`, v2 has `host` and `port`. An object called `stuck` cannot be converted.
fn converter() -> Handler {
    Arc::new(|request: Request<Body>| {
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            let desired = review["request"]["desiredAPIVersion"].as_str().unwrap();
            let mut result = json!({"status": "Success"});
            let mut objects = vec![];
            for object in review["request"]["objects"].as_array().unwrap() {
                let mut object = object.clone();
                if object["metadata"]["name"] == "stuck" {
                    result = json!({"status": "Failed", "message": "it is stuck"});
                }
                if desired == "example.com/v2" {
                    let text = object["hostPort"].take();
                    let (host, port) = text.as_str().unwrap().split_once(':').unwrap();
                    (object["host"], object["port"]) = (host.into(), port.into());
                    object.as_object_mut().unwrap().remove("hostPort");
                } else {
                    let (host, port) = (object["host"].take(), object["port"].take());
                    object["hostPort"] = format!("{}:{}", host.as_str().unwrap(), port.as_str().unwrap()).into();
                    object.as_object_mut().unwrap().retain(|key, _| key != "host" && key != "port");
                }
                object["apiVersion"] = desired.into();
                // Not the webhook's to change.
                object["metadata"]["finalizers"] = json!(["example.com/nobody"]);
                objects.push(object);
            }
            let uid = &review["request"]["uid"];
            let answer = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "response": {"uid": uid, "result": result, "convertedObjects": objects},
            });
            Response::new(Full::from(answer.to_string()).map_err(|never| match never {}).boxed_unsync())
        })
    })
}

fn places() -> Value {
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        let selectable: Vec<Value> = fields.iter().map(|field| json!({"jsonPath": format!(".{field}")})).collect();
        json!({
            "name": name, "served": true, "storage": storage, "selectableFields": selectable,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "places.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "places", "kind": "Place"},
            "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"service": {"namespace": "default", "name": "converter", "path": "/convert"}},
            }},
        },
    })
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[tokio::test]
async fn objects_are_served_in_every_version() {
    let server = Server::start().await;
    let admin = server.admin();
    server.api.register_in_process("default", "converter", converter());
    admin.post(CRDS, &places()).await.expect(201);
    let place = |name: &str, host: &str| json!({"apiVersion": "example.com/v2", "kind": "Place", "metadata": {"name": name}, "host": host, "port": "80"});
    let mut watch = admin.watch(&format!("{V2}?watch=1&fieldSelector=host%3Da")).await;
    let made = admin.post(V2, &place("one", "a")).await.expect(201);
    assert_eq!((&made["host"], made.get("hostPort")), (&json!("a"), None));
    assert_eq!(made["metadata"].get("finalizers"), None, "metadata is not the webhook's");
    admin
        .post(
            V1,
            &json!({"apiVersion": "example.com/v1", "kind": "Place", "metadata": {"name": "two"}, "hostPort": "b:81"}),
        )
        .await
        .expect(201);
    assert_eq!(admin.get(&format!("{V1}/one")).await.expect(200)["hostPort"], "a:80");
    assert_eq!(admin.get(&format!("{V2}/two")).await.expect(200)["port"], "81");

    // Lists and selectors speak of the version that was asked for.
    assert_eq!(names(&admin.get(V2).await.expect(200)), ["one", "two"]);
    let selected = admin.get(&format!("{V2}?fieldSelector=host%3Da")).await.expect(200);
    assert_eq!((names(&selected), &selected["items"][0]["port"]), (vec!["one"], &json!("80")));
    assert_eq!(names(&admin.get(&format!("{V1}?fieldSelector=hostPort%3Db:81")).await.expect(200)), ["two"]);
    admin.get(&format!("{V1}?fieldSelector=host%3Da")).await.expect(400);
    let first = admin.get(&format!("{V2}?limit=1")).await.expect(200);
    let next = first["metadata"]["continue"].as_str().unwrap();
    let second = admin.get(&format!("{V2}?limit=1&continue={next}")).await.expect(200);
    assert_eq!((names(&first), names(&second)), (vec!["one"], vec!["two"]));
    assert_eq!(second["items"][0]["host"], "b");

    // Writes of either version change the one object.
    admin.merge(&format!("{V2}/one"), &json!({"port": "90"})).await.expect(200);
    let patched = admin.merge(&format!("{V1}/one"), &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!((&patched["hostPort"], &patched["metadata"]["labels"]["x"]), (&json!("a:90"), &json!("y")));
    admin.merge(&format!("{V1}/one"), &json!({"hostPort": "c:90"})).await.expect(200);
    let events = [
        watch.next().await.unwrap(),
        watch.next().await.unwrap(),
        watch.next().await.unwrap(),
        watch.next().await.unwrap(),
    ];
    let shown: Vec<String> =
        events.iter().map(|event| format!("{} {}", event["type"], event["object"]["port"])).collect();
    assert_eq!(shown, [r#""ADDED" "80""#, r#""MODIFIED" "90""#, r#""MODIFIED" "90""#, r#""DELETED" "90""#]);
    admin.delete(&format!("{V2}/one"), &json!({})).await.expect(200);

    // A webhook that fails is told as such, and nothing is stored.
    let stuck = admin.post(V2, &place("stuck", "a")).await.expect(500);
    assert!(
        stuck["message"]
            .as_str()
            .unwrap()
            .contains("conversion webhook for example.com/v2, Kind=Place failed: it is stuck"),
        "{stuck:#}"
    );
    admin.get(&format!("{V1}/stuck")).await.expect(404);
}

#[tokio::test]
async fn a_conversion_has_to_be_whole() {
    let server = Server::start().await;
    let admin = server.admin();
    let cases = [
        ("/spec/conversion/webhook/clientConfig", json!(null), "spec.conversion.webhookClientConfig: Required value"),
        (
            "/spec/conversion/webhook/conversionReviewVersions",
            json!(["v9"]),
            "must include at least one of v1, v1beta1",
        ),
        ("/spec/conversion/strategy", json!("None"), "spec.conversion.webhookClientConfig: Forbidden"),
        ("/spec/conversion/strategy", json!("Magic"), "spec.conversion.strategy: Unsupported value: \"Magic\""),
    ];
    for (path, value, message) in cases {
        let mut crd = places();
        *crd.pointer_mut(path).unwrap() = value;
        let refused = admin.post(CRDS, &crd).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains(message), "{refused:#}");
    }
}
