//! CustomResourceDefinitions and their objects.

use http::Method;
use serde_json::json;

use crate::support::{Server, widget, widgets};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

#[tokio::test]
async fn a_crd_makes_a_resource() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.get(WIDGETS).await.expect(404);
    let crd = admin.post(CRDS, &widgets()).await.expect(201);
    let condition = |kind: &str| {
        crd["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).cloned().unwrap()
    };
    assert_eq!(condition("Established")["status"], "True");
    assert_eq!(condition("NamesAccepted")["status"], "True");
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));

    let made = admin.post(WIDGETS, &widget("w")).await.expect(201);
    assert_eq!(made["spec"]["size"], "small", "defaults are filled");
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{WIDGETS}/w");
    let cases = [
        (json!({"spec": {"size": "huge"}}), "spec.size: Unsupported value: \"huge\""),
        (json!({"spec": {"replicas": -1}}), "spec.replicas: Invalid value: -1"),
        (json!({"spec": {"replicas": "x"}}), "spec.replicas: Invalid value"),
        (json!({"spec": null}), "spec: Required value"),
    ];
    for (patch, message) in cases {
        let refused = admin.merge(&path, &patch).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains(message), "{refused:#}");
        assert!(!refused["details"]["causes"].as_array().unwrap().is_empty());
    }
    admin.patch(&path, "application/strategic-merge-patch+json", &json!({})).await.expect(415);

    // Status and spec each have their endpoint.
    let both = json!({"spec": {"size": "large"}, "status": {"phase": "Done"}});
    let after = admin.merge(&path, &both).await.expect(200);
    assert_eq!((after.get("status"), &after["metadata"]["generation"]), (None, &json!(2)));
    let after = admin
        .merge(&format!("{path}/status"), &json!({"spec": {"size": "small"}, "status": {"phase": "Done"}}))
        .await
        .expect(200);
    assert_eq!(
        (&after["spec"]["size"], &after["status"]["phase"], &after["metadata"]["generation"]),
        (&json!("large"), &json!("Done"), &json!(2))
    );

    let scale = admin.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(0)));
    admin.merge(&format!("{path}/scale"), &json!({"spec": {"replicas": 3}})).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["spec"]["replicas"], 3);

    // The other version is the same object.
    let beta = admin.get("/apis/example.com/v1beta1/namespaces/default/widgets/w").await.expect(200);
    assert_eq!(
        (&beta["apiVersion"], &beta["metadata"]["uid"]),
        (&json!("example.com/v1beta1"), &made["metadata"]["uid"])
    );

    let mut unversioned = admin.get(&path).await.expect(200);
    unversioned["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let refused = admin.put(&path, &unversioned).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("must be specified for an update"));

    // Deleting the CRD deletes its objects, finalizers included in the wait.
    admin.merge(&path, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await.expect(200);
    admin.delete(&format!("{CRDS}/widgets.example.com"), &json!({})).await.expect(200);
    let late = admin.post(WIDGETS, &widget("late")).await.expect(405);
    assert!(late["message"].as_str().unwrap().contains("is terminating"));
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1")).await;
    while !watch.next().await.unwrap()["object"]["metadata"]["deletionTimestamp"].is_string() {}
    admin.merge(&path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.until(&format!("{CRDS}/widgets.example.com"), 404).await;
    admin.until(WIDGETS, 404).await;
}

#[tokio::test]
async fn discovery_and_openapi_follow_the_crd() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(CRDS, &widgets()).await.expect(201);
    let list = admin.get("/apis/example.com/v1").await.expect(200);
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    let group = admin.get("/apis/example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")];
    let all = admin.raw(http::Method::GET, "/apis", &accept, "").await.expect(200);
    assert!(all["items"].as_array().unwrap().iter().any(|g| g["metadata"]["name"] == "example.com"), "{all:#}");
    let index = admin.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = admin.get(&url).await.expect(200);
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(schema["properties"]["spec"]["properties"]["size"]["description"], "How big.");
    assert!(
        document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]["parameters"]
            .to_string()
            .contains("fieldValidation")
    );
    assert!(admin.get("/openapi/v2").await.expect(200)["definitions"].get("com.example.v1.Widget").is_some());
}

#[tokio::test]
async fn a_start_brings_kinds_and_objects() {
    let mut widget = widget("first");
    widget["metadata"]["namespace"] = "shop".into();
    let config = ferrovirt_apiserver::Config {
        crds: vec![widgets()],
        bootstrap: vec![widget, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})],
        ..Default::default()
    };
    let server = Server::start_with(config.clone()).await;
    let path = "/apis/example.com/v1/namespaces/shop/widgets/first";
    let first = server.admin().get(path).await.expect(200);
    server.api.shutdown().await;
    // The next version of the program has one more field.
    let mut config = ferrovirt_apiserver::Config { data_dir: server.dir.path().to_owned(), ..config };
    config.crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["extra"] =
        json!({"type": "string"});
    let api = ferrovirt_apiserver::ApiServer::start(config).await.unwrap();
    let server = Server { api, dir: server.dir };
    let admin = server.admin();
    assert_eq!(admin.get(path).await.expect(200), first);
    assert_eq!(admin.merge(path, &json!({"spec": {"extra": "x"}})).await.expect(200)["spec"]["extra"], "x");
}

#[tokio::test]
async fn wrong_crds_are_refused() {
    let server = Server::start().await;
    let admin = server.admin();
    let cases = [
        (json!({"metadata": {"name": "wrong.example.com"}}), "must be spec.names.plural"),
        (json!({"spec": {"scope": "Galaxy"}}), "spec.scope: Unsupported value: \"Galaxy\""),
        (json!({"spec": {"versions": []}}), "must have exactly one version marked as storage version"),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "nonsense"}}}]}}),
            "spec.validation.openAPIV3Schema.type: Unsupported value: \"nonsense\"",
        ),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "array"}}}}}]}}),
            "spec.validation.openAPIV3Schema.properties[a].items: Required value: must be specified",
        ),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-validations": [{"rule": "self.none"}]}}}]}}),
            "compilation failed: ERROR: <input>:1:5: undefined field 'none'",
        ),
        (json!({"spec": {"preserveUnknownFields": true}}), "spec.preserveUnknownFields: Invalid value: true"),
    ];
    for (change, message) in cases {
        let mut crd = widgets();
        merge(&mut crd, &change);
        let refused = admin.post(CRDS, &crd).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains(message), "{refused:#}");
    }
}

fn merge(target: &mut serde_json::Value, change: &serde_json::Value) {
    match change {
        serde_json::Value::Object(map) => map.iter().for_each(|(k, v)| merge(&mut target[k], v)),
        other => *target = other.clone(),
    }
}

#[tokio::test]
async fn cel_rules_are_enforced() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut crd = widgets();
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([
        {"rule": "!has(self.replicas) || self.replicas % 2 == 0", "message": "replicas come in pairs", "fieldPath": ".replicas"},
        {"rule": "self.size == oldSelf.size", "messageExpression": "'size stays ' + oldSelf.size", "reason": "FieldValueForbidden"},
    ]);
    let mut broken = crd.clone();
    broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] =
        "self.replicas %".into();
    let refused = admin.post(CRDS, &broken).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("x-kubernetes-validations[0].rule"),
        "{}",
        refused["message"]
    );
    admin.post(CRDS, &crd).await.expect(201);
    let mut odd = widget("a");
    odd["spec"]["replicas"] = 3.into();
    let refused = admin.post(WIDGETS, &odd).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("replicas come in pairs"), "{}", refused["message"]);
    admin.post(WIDGETS, &widget("a")).await.expect(201);
    let item = format!("{WIDGETS}/a");
    admin.merge(&item, &json!({"spec": {"replicas": 2}})).await.expect(200);
    let refused = admin.merge(&item, &json!({"spec": {"size": "large"}})).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("size stays small"), "{}", refused["message"]);
}

/// The definitions this server is made for, rules included.
#[tokio::test]
async fn the_definitions_of_virtual_machines_compile() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut rules = 0;
    for file in std::fs::read_dir("../api/crds").unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let text = std::fs::read_to_string(&path).unwrap();
            rules += text.matches("x-kubernetes-validations").count();
            let answer = admin.raw(Method::POST, CRDS, &[("content-type", "application/json")], text).await;
            assert_eq!(answer.status.as_u16(), 201, "{}: {}", path.display(), answer.body["message"]);
        }
    }
    assert!(rules > 0);
    let instances = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
    let instance = |path: &str| json!({"metadata": {"generateName": "v-"}, "spec": {"domain": {"devices": {}}, "volumes": [{"name": "v", "containerPath": {"path": path, "readOnly": true}}]}});
    admin.post(instances, &instance("/a")).await.expect(201);
    let refused = admin.post(instances, &instance("a")).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("path must be absolute"), "{}", refused["message"]);
}
