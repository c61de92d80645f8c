//! create, get, update, patch and delete of built-in kinds.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn objects_live_from_create_to_delete() {
    let server = Server::start().await;
    let admin = server.admin();
    let made = admin.post(CMS, &configmap("a")).await.expect(201);
    let meta = &made["metadata"];
    assert!(meta["uid"].as_str().is_some_and(|u| u.len() == 36), "{made:#}");
    assert!(meta["creationTimestamp"].is_string() && meta["resourceVersion"].is_string());
    assert_eq!(meta["namespace"], "default");
    assert_eq!(admin.post(CMS, &configmap("a")).await.expect(409)["reason"], "AlreadyExists");

    // An update with the version just read works once; the same version again is a conflict.
    let mut changed = made.clone();
    changed["data"]["a"] = "2".into();
    let updated = admin.put(&format!("{CMS}/a"), &changed).await.expect(200);
    assert_ne!(updated["metadata"]["resourceVersion"], meta["resourceVersion"]);
    assert_eq!(updated["metadata"]["uid"], meta["uid"]);
    let conflict = admin.put(&format!("{CMS}/a"), &changed).await.expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert!(conflict["message"].as_str().unwrap().contains("the object has been modified"));

    // An update that changes nothing makes no new revision.
    let again = admin.put(&format!("{CMS}/a"), &updated).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], updated["metadata"]["resourceVersion"]);

    admin.delete(&format!("{CMS}/a"), &json!({})).await.expect(200);
    let gone = admin.get(&format!("{CMS}/a")).await.expect(404);
    assert_eq!(gone["message"], "configmaps \"a\" not found");
    assert_eq!(gone["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test]
async fn wrong_requests_are_refused_in_upstream_words() {
    let server = Server::start().await;
    let admin = server.admin();
    let cm = |change: fn(&mut Value)| {
        let mut object = configmap("a");
        change(&mut object);
        object
    };
    let cases = [
        // (path, object, code, part of the message)
        (CMS, cm(|o| o["metadata"]["name"] = "A_b".into()), 422, "metadata.name: Invalid value"),
        (CMS, cm(|o| o["metadata"] = json!({})), 422, "name or generateName is required"),
        (CMS, cm(|o| o["metadata"]["namespace"] = "other".into()), 400, "does not match the namespace"),
        (CMS, cm(|o| o["kind"] = "Secret".into()), 400, "cannot be handled as a ConfigMap"),
        (CMS, cm(|o| o["data"] = json!({"a": 1})), 400, "data.a"),
        (CMS, cm(|o| o["metadata"]["labels"] = json!({"a b": "c"})), 422, "metadata.labels"),
        (CMS, cm(|o| o["metadata"]["resourceVersion"] = "1".into()), 422, "resourceVersion should not be set"),
        // Whatever else is wrong is told first.
        (
            CMS,
            cm(|o| o["metadata"] = json!({"name": "A_b", "resourceVersion": "1"})),
            422,
            "metadata.name: Invalid value",
        ),
        ("/api/v1/namespaces/nope/configmaps", configmap("a"), 404, "namespaces \"nope\" not found"),
        (
            "/api/v1/namespaces/default/configmaps?fieldValidation=Strict",
            cm(|o| o["x"] = 1.into()),
            400,
            "strict decoding error: unknown field \"x\"",
        ),
        ("/apis/apps/v1/namespaces/default/deployments", configmap("a"), 400, "cannot be handled as a Deployment"),
        ("/apis/nope/v1/things", configmap("a"), 404, "could not find the requested resource"),
    ];
    for (path, object, code, message) in cases {
        let answer = admin.post(path, &object).await.expect(code);
        assert!(answer["message"].as_str().unwrap().contains(message), "{path}: {answer:#}");
        assert_eq!(answer["kind"], "Status");
    }
    // Without Strict the same fault is a warning, and the field is dropped.
    let answer = admin.post(CMS, &cm(|o| o["x"] = 1.into())).await;
    assert_eq!(answer.warnings, ["299 - \"unknown field \\\"x\\\"\""]);
    assert!(answer.expect(201).get("x").is_none());
    let twice = "{\"metadata\":{\"name\":\"b\"},\"data\":{\"k\":\"1\",\"k\":\"2\"}}";
    let answer = admin.raw(Method::POST, &format!("{CMS}?fieldValidation=Strict"), &[], twice).await.expect(400);
    assert!(answer["message"].as_str().unwrap().contains("duplicate field \"data.k\""), "{answer:#}");
    let types = [("text/csv", 415), ("application/yaml", 201), ("", 201)];
    for (index, (kind, code)) in types.into_iter().enumerate() {
        let body = format!("{{metadata: {{name: t{index}}}}}")
            .replace("metadata", "\"metadata\"")
            .replace("name", "\"name\"")
            .replace(&format!("t{index}"), &format!("\"t{index}\""));
        admin.raw(Method::POST, CMS, &[("content-type", kind)], body).await.expect(code);
    }
    let huge = "x".repeat(4 << 20);
    admin.raw(Method::POST, CMS, &[], huge).await.expect(413);
    admin.raw(Method::GET, CMS, &[("accept", "text/csv")], "").await.expect(406);
}

#[tokio::test]
async fn patches_of_all_kinds() {
    let server = Server::start().await;
    let admin = server.admin();
    let path = format!("{CMS}/p");
    admin.post(CMS, &configmap("p")).await.expect(201);
    let cases = [
        ("application/merge-patch+json", json!({"data": {"b": "2"}}), 200, json!({"a": "1", "b": "2"})),
        ("application/json-patch+json", json!([{"op": "remove", "path": "/data/a"}]), 200, json!({"b": "2"})),
        ("application/strategic-merge-patch+json", json!({"data": {"c": "3"}}), 200, json!({"b": "2", "c": "3"})),
        (
            "application/json-patch+json",
            json!([{"op": "test", "path": "/data/b", "value": "9"}]),
            422,
            json!({"b": "2", "c": "3"}),
        ),
        (
            "application/merge-patch+json",
            json!({"metadata": {"resourceVersion": "1"}}),
            409,
            json!({"b": "2", "c": "3"}),
        ),
        ("application/merge-patch+json", json!({"metadata": {"name": "q"}}), 400, json!({"b": "2", "c": "3"})),
    ];
    for (kind, patch, code, data) in cases {
        admin.patch(&path, kind, &patch).await.expect(code);
        assert_eq!(admin.get(&path).await.expect(200)["data"], data, "{kind} {patch}");
    }
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"x": "1"}});
    let path = format!("{CMS}/s");
    let kind = "application/apply-patch+yaml";
    admin.patch(&format!("{path}?fieldManager=one"), kind, &apply).await.expect(201);
    let mut other = apply.clone();
    other["data"]["x"] = "2".into();
    let conflict = admin.patch(&format!("{path}?fieldManager=two"), kind, &other).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict", "{conflict:#}");
    admin.patch(&format!("{path}?fieldManager=two&force=true"), kind, &other).await.expect(200);
    admin.patch(&path, kind, &apply).await.expect(422);
    // Many at once: each is tried again until it gets through.
    let many = (0..20).map(|i| {
        let (admin, path) = (admin.clone(), format!("{CMS}/p"));
        async move { admin.merge(&path, &json!({"data": {format!("k{i}"): "v"}})).await.expect(200) }
    });
    futures::future::join_all(many).await;
    assert_eq!(admin.get(&format!("{CMS}/p")).await.expect(200)["data"].as_object().unwrap().len(), 22);
}

#[tokio::test]
async fn deletion_waits_for_finalizers_and_grace() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut held = configmap("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = admin.post(CMS, &held).await.expect(201);
    let path = format!("{CMS}/held");
    let wrong = json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}});
    assert_eq!(admin.delete(&path, &wrong).await.expect(409)["reason"], "Conflict");
    let dry = admin.delete(&format!("{path}?dryRun=All"), &json!({})).await.expect(200);
    assert!(dry["metadata"]["deletionTimestamp"].is_string());
    let pending = admin.delete(&path, &json!({"preconditions": {"uid": made["metadata"]["uid"]}})).await.expect(200);
    assert!(pending["metadata"]["deletionTimestamp"].is_string(), "{pending:#}");
    let added = admin
        .merge(&path, &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}}))
        .await
        .expect(422);
    assert!(added["message"].as_str().unwrap().contains("no new finalizers can be added"));
    admin.merge(&path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.get(&path).await.expect(404);

    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = admin.post(pods, &pod).await.expect(201);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("p-") && name.len() == 7, "{name}");
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    admin.post(&format!("{pods}/{name}/binding"), &binding).await.expect(201);
    admin.post(&format!("{pods}/{name}/binding"), &binding).await.expect(409);
    let bound = admin.get(&format!("{pods}/{name}")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    // A pod on a node ends when the node says so.
    let ending = admin.delete(&format!("{pods}/{name}"), &json!({})).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    admin.get(&format!("{pods}/{name}")).await.expect(200);
    admin.delete(&format!("{pods}/{name}"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    admin.get(&format!("{pods}/{name}")).await.expect(404);
}

#[tokio::test]
async fn dry_runs_leave_nothing() {
    let server = Server::start().await;
    let admin = server.admin();
    let made = admin.post(&format!("{CMS}?dryRun=All"), &configmap("d")).await.expect(201);
    assert!(made["metadata"]["uid"].is_string() && made["metadata"].get("resourceVersion").is_none(), "{made:#}");
    admin.get(&format!("{CMS}/d")).await.expect(404);
    admin.post(&format!("{CMS}?dryRun=Some"), &configmap("d")).await.expect(422);
}

#[tokio::test]
async fn a_restart_keeps_everything() {
    let server = Server::start().await;
    let made = server.admin().post(CMS, &configmap("kept")).await.expect(201);
    server
        .admin()
        .post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crate::support::widgets())
        .await
        .expect(201);
    server
        .admin()
        .post("/apis/example.com/v1/namespaces/default/widgets", &crate::support::widget("w"))
        .await
        .expect(201);
    server.api.shutdown().await;
    let config = ferrovirt_apiserver::Config { data_dir: server.dir.path().to_owned(), ..Default::default() };
    let api = ferrovirt_apiserver::ApiServer::start(config).await.unwrap();
    let again = Server { api, dir: server.dir };
    assert_eq!(again.admin().get(&format!("{CMS}/kept")).await.expect(200), made);
    again.admin().get("/apis/example.com/v1/namespaces/default/widgets/w").await.expect(200);
}

#[tokio::test]
async fn events_of_both_groups_are_the_same_objects() {
    let server = Server::start().await;
    let admin = server.admin();
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R", "message": "m", "type": "Normal"});
    admin.post("/api/v1/namespaces/default/events", &event).await.expect(201);
    let new = admin.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!(
        (&new["regarding"]["name"], &new["note"], &new["apiVersion"]),
        (&json!("p"), &json!("m"), &json!("events.k8s.io/v1"))
    );
    let found = admin.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp").await.expect(200);
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
}

/// Built-in objects have a status even if nobody wrote one, so a patch may add to it.
#[tokio::test]
async fn json_patches_add_to_a_status_that_was_never_written() {
    let server = Server::start().await;
    let admin = server.admin();
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": {}});
    admin.post(claims, &claim).await.expect(201);
    let patch = json!([{"op": "add", "path": "/status/allocation", "value": {"devices": {}}}]);
    let status = format!("{claims}/a/status");
    let patched = admin.patch(&status, "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(patched["status"], json!({"allocation": {"devices": {}}}));
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    admin.post(claims, &json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "b"}, "spec": {}})).await.expect(201);
    let patched = admin.patch(&format!("{claims}/b"), "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(patched.get("status"), Some(&json!({})), "nothing was added");
}

#[tokio::test]
async fn a_namespace_is_labelled_with_the_name_that_it_gets() {
    let server = Server::start().await;
    for metadata in [json!({"name": "plain"}), json!({"generateName": "made-"})] {
        let namespace = server.admin().post("/api/v1/namespaces", &json!({"metadata": metadata})).await.expect(201);
        let meta = &namespace["metadata"];
        assert!(meta["name"].as_str().is_some_and(|name| !name.is_empty()), "{namespace:#}");
        assert_eq!(meta["labels"]["kubernetes.io/metadata.name"], meta["name"]);
        // What the server itself sets is nobody's.
        let fields = &meta["managedFields"][0]["fieldsV1"];
        assert!(fields.get("f:spec").is_none() && fields.get("f:status").is_none(), "{namespace:#}");
    }
}

/// What is wrong with an object is told before that it names a version, which only the storage minds.
#[tokio::test]
async fn a_new_object_with_a_version_is_validated_first() {
    let server = Server::start().await;
    let admin = server.admin();
    let path = "/api/v1/namespaces/default/configmaps";
    let versioned = |name: &str, version: &str| {
        let mut object = configmap(name);
        object["metadata"]["resourceVersion"] = version.into();
        object
    };
    let invalid = admin.post(path, &versioned("Not A Name", "7")).await.expect(422);
    assert_eq!(invalid["reason"], "Invalid");
    let refused = admin.post(path, &versioned("a", "7")).await.expect(422);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("resourceVersion should not be set on objects to be created"), "{message}");
    admin.get(&format!("{path}/a")).await.expect(404);
}

/// Built-in objects have the form that Go's types give them, and so have the records of who owns what.
#[tokio::test]
async fn built_in_objects_look_as_go_writes_them() {
    let server = Server::start().await;
    let admin = server.admin();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
        {"name": "c", "image": "i", "args": [], "resources": {"limits": {"cpu": "1000m", "memory": 1024}}}]}});
    let deployment = json!({"metadata": {"name": "d", "labels": {}}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": template, "paused": false, "replicas": 0}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let made = admin.post(path, &deployment).await.expect(201);
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"], json!({"cpu": "1", "memory": "1024"}));
    assert!(container.get("args").is_none() && made["metadata"].get("labels").is_none());
    assert_eq!((&made["spec"]["replicas"], made["spec"].get("paused")), (&json!(0), None));
    assert_eq!(made["status"], json!({}));
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"];
    assert!(owned["f:spec"]["f:strategy"].is_object() && owned.get("f:status").is_none(), "{owned:#}");
    // The same amounts in other words are no change.
    let again = admin.put(&format!("{path}/d"), &deployment).await.expect(200);
    assert_eq!(again["metadata"]["generation"], 1);
    assert_eq!(again["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    // What nobody set is there all the same.
    let account = json!({"metadata": {"name": "r"}});
    let role = admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &account).await.expect(201);
    assert_eq!(role.get("rules"), Some(&Value::Null));
}

/// What an earlier version stored lacks structs that Go always writes; a node with such a status still says how it is.
#[tokio::test]
async fn a_nodes_status_needs_no_endpoints() {
    let server = Server::start().await;
    let admin = server.admin();
    let node = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}});
    let mut made = admin.post("/api/v1/nodes", &node).await.expect(201);
    made["status"] = json!({"capacity": {"cpu": "4"}});
    let told = admin.put("/api/v1/nodes/n/status", &made).await.expect(200);
    assert_eq!(told["status"]["capacity"]["cpu"], "4");
}
