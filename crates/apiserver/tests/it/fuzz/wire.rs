//! Bytes that nobody meant: bodies of every content type, URLs and headers, mutated from ones that work. Whatever they
//! are, the answer is not an internal error, and the server goes on.

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;

use super::mutation::{Random, mutate, rounds};
use crate::support::{Client, Server, widgets};
use crate::tokens::with_key;

/// A path or a header can only hold some characters; the rest is written in hexadecimal.
fn printable(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?&=,()!;:*".contains(&byte);
    bytes.iter().map(|&b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

struct Seed {
    method: Method,
    path: String,
    kind: &'static str,
    body: Vec<u8>,
}

async fn ask(admin: &Client, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (u16, Vec<u8>) {
    let response = admin.send(method, path, headers, body).await;
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

async fn seeds(admin: &Client) -> Vec<Seed> {
    let maps = "/api/v1/namespaces/default/configmaps";
    let pods = "/api/v1/namespaces/default/pods";
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fuzz", "labels": {"a": "b"}}, "data": {"a": "1"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}});
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": "small", "parts": [{"name": "x"}]}});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "as.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"}, "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 1}}, "x-kubernetes-validations": [{"rule": "self.n > 0 || A{b: 1}.b == 2", "messageExpression": "'n is ' + string(self.n)"}]}}}}}]}});
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["x.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["as"]}]}, "variables": [{"name": "a", "expression": "object.spec"}], "validations": [{"expression": "variables.a.n < 5 && Object{spec: Object.spec{n: 1}}.spec.n == 1"}]}});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "5", "requests.cpu": "500m"}}});
    admin.post(widgets, &widget).await.expect(201);
    admin.post(maps, &map).await.expect(201);
    let headers = [("accept", "application/vnd.kubernetes.protobuf")];
    let (status, protobuf) = ask(admin, Method::GET, &format!("{maps}/fuzz"), &headers, vec![]).await;
    assert_eq!(status, 200);
    let text = |value: &serde_json::Value| value.to_string().into_bytes();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\n  annotations: {a: &x \"1\", b: *x}\ndata:\n  a: |\n    b\n";
    let seed =
        |method: Method, path: &str, kind: &'static str, body: Vec<u8>| Seed { method, path: path.into(), kind, body };
    let (json, merge, strategic) =
        ("application/json", "application/merge-patch+json", "application/strategic-merge-patch+json");
    let (jsonpatch, apply, proto) =
        ("application/json-patch+json", "application/apply-patch+yaml", "application/vnd.kubernetes.protobuf");
    let one = format!("{maps}/fuzz");
    let dry = |path: &str| format!("{path}?dryRun=All&fieldValidation=Strict");
    vec![
        seed(Method::POST, &dry(maps), json, text(&map)),
        seed(Method::POST, &dry(maps), "application/yaml", yaml.into()),
        seed(Method::POST, &dry(maps), proto, protobuf),
        seed(Method::POST, &dry(pods), json, text(&pod)),
        seed(Method::POST, &dry(widgets), json, text(&widget)),
        seed(Method::POST, &dry(crds), json, text(&crd)),
        seed(Method::POST, &dry("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"), json, text(&policy)),
        seed(Method::POST, &dry("/api/v1/namespaces/default/resourcequotas"), json, text(&quota)),
        seed(Method::PATCH, &one, merge, br#"{"data":{"b":"2","a":null},"metadata":{"labels":{"c":"d"}}}"#.into()),
        seed(Method::PATCH, &one, jsonpatch, br#"[{"op":"add","path":"/data/x","value":"1"},{"op":"test","path":"/data/a","value":"1"},{"op":"move","from":"/data/x","path":"/data/y"},{"op":"copy","from":"/metadata","path":"/data/z"}]"#.into()),
        seed(Method::PATCH, &one, strategic, br#"{"metadata":{"ownerReferences":[{"uid":"1","$patch":"delete"}],"$retainKeys":["name"],"$setElementOrder/finalizers":["a"],"finalizers":["a"]}}"#.into()),
        seed(Method::PATCH, &format!("{one}?fieldManager=m&force=true"), apply, yaml.replace("name: y", "name: fuzz").into()),
        seed(Method::PATCH, &format!("{one}?fieldManager=m"), apply, br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"fuzz","managedFields":[{"manager":"a","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{},"k:{\"x\":1}":{}}}}]}}"#.into()),
        seed(Method::GET, &format!("{maps}?labelSelector=a%20in%20(b,c),!d,e!=f&fieldSelector=metadata.name=x&limit=2&continue=eyJ2IjoiIn0"), json, vec![]),
        seed(Method::GET, &format!("{maps}?resourceVersion=1&resourceVersionMatch=Exact&timeoutSeconds=1&watch=0"), json, vec![]),
        seed(Method::POST, "/api/v1/namespaces/default/serviceaccounts/default/token", json, br#"{"spec":{"audiences":["a"],"expirationSeconds":600}}"#.into()),
        seed(Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", json, br#"{"spec":{"token":"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJ4In0.AAAA"}}"#.into()),
        seed(Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews", json, br#"{"spec":{"user":"a","groups":["b"],"resourceAttributes":{"verb":"get","resource":"pods","fieldSelector":{"rawSelector":"a=b"}}}}"#.into()),
        seed(Method::DELETE, &format!("{maps}/none?gracePeriodSeconds=1"), json, br#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"x"},"propagationPolicy":"Orphan"}"#.into()),
    ]
}

#[tokio::test]
async fn no_bytes_make_the_server_stumble() {
    let server = Server::start_with(with_key()).await;
    let admin = server.admin();
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widgets()).await.expect(201);
    let seeds = seeds(&admin).await;
    let accepts = [
        "application/json",
        "application/yaml",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf",
        "*/*;q=0.1,,;=",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ];
    for round in 0..rounds(400, 100_000) {
        let mut random = Random(round);
        let seed = random.pick(&seeds);
        let body = mutate(&mut random, &seed.body);
        let path = match random.below(4) {
            0 => {
                let mutated = printable(&mutate(&mut random, seed.path.as_bytes()));
                // A watch would not end by itself.
                if mutated.contains("watch") {
                    seed.path.clone()
                } else {
                    format!("/{}", mutated.trim_start_matches('/'))
                }
            }
            _ => seed.path.clone(),
        };
        let headers = [("content-type", seed.kind), ("accept", *random.pick(&accepts))];
        if path.parse::<http::Uri>().is_err() {
            continue;
        }
        let (status, answer) = ask(&admin, seed.method.clone(), &path, &headers, body.clone()).await;
        // An apply that names unknown fields is a 500 upstream too, but not an internal error.
        let internal = status == 500 && String::from_utf8_lossy(&answer).contains("InternalError");
        assert!(
            !internal,
            "round {round}: {} {path} {}: {}\nanswered: {}",
            seed.method,
            seed.kind,
            String::from_utf8_lossy(&body),
            String::from_utf8_lossy(&answer)
        );
    }
    admin.get("/api/v1/namespaces/default/configmaps").await.expect(200);
}
