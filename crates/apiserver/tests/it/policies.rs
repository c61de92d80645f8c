//! Admission policies, and webhooks outside of this process.

use std::sync::Arc;

use ferrovirt_apiserver::{Config, StaticTokens};
use http::Method;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::support::{Client, Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";
const BASE: &str = "/apis/admissionregistration.k8s.io/v1";

fn constraints() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]})
}

async fn bind(admin: &Client, kind: &str, plural: &str, policy: Value, binding: Value) {
    let spec = |mut spec: Value, more: Value| {
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let policy = json!({"kind": kind, "metadata": {"name": "p"}, "spec": spec(json!({"matchConstraints": constraints()}), policy)});
    admin.post(&format!("{BASE}/{plural}ies"), &policy).await.expect(201);
    let binding = json!({"kind": format!("{kind}Binding"), "metadata": {"name": "b"}, "spec": spec(json!({"policyName": "p"}), binding)});
    admin.post(&format!("{BASE}/{plural}ybindings"), &binding).await.expect(201);
}

fn with_data(name: &str, data: Value) -> Value {
    let mut map = configmap(name);
    map["data"] = data;
    map
}

#[tokio::test]
async fn validating_policies_decide() {
    let server = Server::start().await;
    let admin = server.admin();
    let policy = json!({
        "variables": [{"name": "size", "expression": "object.data.size()"}, {"name": "big", "expression": "variables.size > 2"}],
        "matchConditions": [{"name": "not-exempt", "expression": "!object.metadata.name.startsWith('free')"}],
        "validations": [
            {"expression": "!variables.big", "messageExpression": "'has ' + string(variables.size) + ' keys'"},
            {"expression": "!('x' in object.data)", "message": "no x here", "reason": "Forbidden"},
            {"expression": "namespaceObject.metadata.name == request.namespace"},
            {"expression": "authorizer.group('').resource('configmaps').namespace('default').check('create').allowed()"},
        ],
    });
    let plural = "validatingadmissionpolic";
    bind(&admin, "ValidatingAdmissionPolicy", plural, policy, json!({"validationActions": ["Deny"]})).await;
    let three = json!({"a": "1", "b": "2", "c": "3"});
    // (name, data, status, words of the refusal)
    let cases = [
        ("fine", json!({"a": "1"}), 201, ""),
        ("big", three.clone(), 422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: has 3 keys"),
        ("x", json!({"x": "1"}), 403, "no x here"),
        ("free", three, 201, ""),
    ];
    for (name, data, status, words) in cases {
        let answer = admin.post(CMS, &with_data(name, data)).await.expect(status);
        assert!(answer["message"].as_str().unwrap_or_default().contains(words), "{answer:#}");
    }
    // A warning instead of a refusal.
    let path = format!("{BASE}/validatingadmissionpolicybindings/b");
    admin.merge(&path, &json!({"spec": {"validationActions": ["Warn", "Audit"]}})).await.expect(200);
    let answer = admin.post(CMS, &with_data("x", json!({"x": "1"}))).await;
    assert!(answer.warnings.iter().any(|w| w.contains("no x here")), "{:?}", answer.warnings);
    answer.expect(201);
    // Without its binding a policy does nothing.
    admin.delete(&path, &json!({})).await.expect(200);
    assert!(admin.post(CMS, &with_data("y", json!({"x": "1"}))).await.warnings.is_empty());
}

#[tokio::test]
async fn params_and_failures_count() {
    let server = Server::start().await;
    let admin = server.admin();
    let policy = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "others", "expression": "object.metadata.name != 'limits'"}],
        "validations": [{"expression": "object.data.size() <= int(params.data.max)"}],
    });
    let binding = json!({"validationActions": ["Deny"], "paramRef": {"name": "limits"}});
    bind(&admin, "ValidatingAdmissionPolicy", "validatingadmissionpolic", policy, binding).await;
    let refused = admin.post(CMS, &configmap("early")).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("no params found"), "{refused:#}");
    let path = format!("{BASE}/validatingadmissionpolicybindings/b");
    admin.merge(&path, &json!({"spec": {"paramRef": {"parameterNotFoundAction": "Allow"}}})).await.expect(200);
    admin.post(CMS, &with_data("limits", json!({"max": "1"}))).await.expect(201);
    admin.post(CMS, &configmap("one")).await.expect(201);
    admin.post(CMS, &with_data("two", json!({"a": "1", "b": "2"}))).await.expect(422);
    // An expression that fails refuses, unless the policy says to ignore that.
    admin.merge(&format!("{CMS}/limits"), &json!({"data": {"max": "many"}})).await.expect(200);
    admin.post(CMS, &configmap("three")).await.expect(422);
    let policy = format!("{BASE}/validatingadmissionpolicies/p");
    admin.merge(&policy, &json!({"spec": {"failurePolicy": "Ignore"}})).await.expect(200);
    admin.post(CMS, &configmap("three")).await.expect(201);
    for bad in ["object.", "nobody.knows"] {
        let validations = json!({"spec": {"validations": [{"expression": bad}]}});
        let refused = admin.merge(&policy, &validations).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains("compilation failed"), "{refused:#}");
    }
}

#[tokio::test]
async fn mutating_policies_change() {
    let server = Server::start().await;
    let admin = server.admin();
    let policy = json!({
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {'by': 'policy'}}}"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/data/added', value: object.metadata.labels.by}]"}},
        ],
    });
    bind(&admin, "MutatingAdmissionPolicy", "mutatingadmissionpolic", policy, json!({})).await;
    let created = admin.post(CMS, &configmap("a")).await.expect(201);
    assert_eq!(created["metadata"]["labels"], json!({"by": "policy"}));
    assert_eq!(created["data"], json!({"a": "1", "added": "policy"}));
    let managers = created["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().all(|m| m["manager"] != "admission-policy"), "{managers:?}");
}

/// A webhook on loopback: adds a key named after the path, or is as slow as it can be.
async fn serve_webhook() -> (u16, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let private = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                    let path = request.uri().path().trim_matches('/').to_owned();
                    if path == "slow" {
                        std::future::pending::<()>().await;
                    }
                    let bytes = request.into_body().collect().await?.to_bytes();
                    let review: Value = serde_json::from_slice(&bytes).unwrap();
                    let patch = json!([{"op": "add", "path": format!("/data/{path}"), "value": "yes"}]).to_string();
                    let patch = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, patch);
                    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
                        "uid": review["request"]["uid"], "allowed": true, "patch": patch, "patchType": "JSONPatch",
                    }});
                    Ok::<_, hyper::Error>(http::Response::new(Full::<bytes::Bytes>::from(answer.to_string())))
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, certificate.pem())
}

#[tokio::test]
async fn webhooks_elsewhere_are_called() {
    let server = Server::start().await;
    let admin = server.admin();
    let (port, pem) = serve_webhook().await;
    let bundle = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let hook = |path: &str, more: Value| {
        let mut hook = json!({
            "name": format!("{path}.hooks.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/{path}"), "caBundle": bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        });
        for (key, value) in more.as_object().unwrap() {
            hook[key] = value.clone();
        }
        hook
    };
    let path = format!("{BASE}/mutatingwebhookconfigurations");
    let condition = json!({"matchConditions": [{"name": "some", "expression": "object.metadata.name == 'wanted'"}]});
    let hooks = json!([
        hook("first", json!({})),
        hook("second", condition),
        hook("slow", json!({"failurePolicy": "Ignore", "timeoutSeconds": 1})),
    ]);
    admin.post(&path, &json!({"metadata": {"name": "all"}, "webhooks": hooks})).await.expect(201);
    let created = admin.post(CMS, &configmap("wanted")).await.expect(201);
    assert_eq!(created["data"], json!({"a": "1", "first": "yes", "second": "yes"}));
    let created = admin.post(CMS, &configmap("other")).await.expect(201);
    assert_eq!(created["data"], json!({"a": "1", "first": "yes"}));
    // The slow one, if it counts.
    let slow = json!({"webhooks": [hook("slow", json!({"failurePolicy": "Fail", "timeoutSeconds": 1}))]});
    admin.merge(&format!("{path}/all"), &slow).await.expect(200);
    let refused = admin.post(CMS, &configmap("late")).await.expect(500);
    assert!(refused["message"].as_str().unwrap().contains("deadline exceeded"), "{refused:#}");
    // Nobody is trusted without a bundle, and a condition has to compile.
    let cases = [
        (json!({"matchConditions": [{"name": "x", "expression": "objekt.x"}]}), "compilation failed"),
        (json!({"clientConfig": {"url": "http://127.0.0.1/"}}), "'https' is the only allowed URL scheme"),
        (json!({"timeoutSeconds": 60}), "between 1 and 30"),
    ];
    for (more, words) in cases {
        let refused = admin.merge(&format!("{path}/all"), &json!({"webhooks": [hook("x", more)]})).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains(words), "{refused:#}");
    }
}

#[tokio::test]
async fn workloads_are_stored_with_a_warning() {
    let server = Server::start().await;
    let admin = server.admin();
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "web:1"}]}},
        },
    });
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let answer = admin.post(path, &deployment).await;
    assert!(answer.warnings[0].contains("runs virtual machines, not workload controllers"), "{:?}", answer.warnings);
    let created = answer.expect(201);
    assert_eq!(created["spec"]["replicas"], 1);
    assert_eq!(created["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    let scale = admin.get(&format!("{path}/web/scale")).await.expect(200);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("app=web")));
    let mut wrong = deployment.clone();
    wrong["metadata"]["name"] = "wrong".into();
    wrong["spec"]["selector"]["matchLabels"]["app"] = "other".into();
    admin.post(path, &wrong).await.expect(422);
    // Both versions of an autoscaler are one object.
    let hpa = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    admin.post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", &hpa).await.expect(201);
    let other = admin.get("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h").await.expect(200);
    assert_eq!(other["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50, "{other:#}");
}

#[tokio::test]
async fn the_key_of_tokens_is_published_and_static_tokens_are_known() {
    let key = KeyPair::generate().unwrap().serialize_pem();
    let static_tokens = StaticTokens::parse("s3cret,jane,,\"system:masters\"\n").unwrap();
    let config = Config {
        service_account_key_pem: Some(key),
        static_tokens,
        root_ca_pem: Some("PEM".into()),
        ..Config::default()
    };
    let server = Server::start_with(config).await;
    let admin = server.admin();
    let discovery = admin.get("/.well-known/openid-configuration").await.expect(200);
    assert!(discovery["jwks_uri"].as_str().unwrap().starts_with(discovery["issuer"].as_str().unwrap()));
    let keys = admin.get("/openid/v1/jwks").await.expect(200);
    assert_eq!((&keys["keys"][0]["crv"], &keys["keys"][0]["alg"]), (&json!("P-256"), &json!("ES256")));
    let nobody = server.user("nobody", &[]);
    nobody.raw(Method::GET, "/openid/v1/jwks", &[], "").await.expect(403);
    server.user("pod", &["system:serviceaccounts"]).get("/openid/v1/jwks").await.expect(200);
    let map = admin.until("/api/v1/namespaces/default/configmaps/kube-root-ca.crt", 200).await;
    assert_eq!(map["data"], json!({"ca.crt": "PEM"}));
}

/// Expressions that cannot fit the kinds they are for are told in the status, kind by kind.
#[tokio::test]
async fn policies_are_type_checked() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crate::support::widgets()).await.expect(201);
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = json!({"metadata": {"name": "typed"}, "spec": {
        "matchConstraints": {"resourceRules": [rule("apps", "deployments"), rule("example.com", "widgets")]},
        "variables": [{"name": "n", "expression": "object.spec.replicas"}],
        "validations": [
            {"expression": "object.spec.replicas > 1 && variables.n < 5 && object.metadata.name != 'x'"},
            {"expression": "object.spec.replicas > '1'", "messageExpression": "'got ' + object.spec.replicas"},
            {"expression": "object.spec.size == 'small'"},
        ],
    }});
    admin.post(policies, &policy).await.expect(201);
    let mut watch = admin.watch(&format!("{policies}?watch=1")).await;
    let status = loop {
        let status = watch.next().await.unwrap()["object"]["status"].take();
        if status["observedGeneration"] == 1 {
            break status;
        }
    };
    let warnings = status["typeChecking"]["expressionWarnings"].as_array().unwrap();
    let shown: Vec<(&str, &str)> =
        warnings.iter().map(|w| (w["fieldRef"].as_str().unwrap(), w["warning"].as_str().unwrap())).collect();
    let mismatch = "found no matching overload for '_>_' applied to '(int, string)'";
    let sum = "found no matching overload for '_+_' applied to '(string, int)'";
    assert_eq!(
        shown,
        [
            (
                "spec.validations[1].expression",
                format!("apps/v1, Kind=Deployment: ERROR: <input>: {mismatch}\nexample.com/v1, Kind=Widget: ERROR: <input>: {mismatch}").as_str()
            ),
            (
                "spec.validations[1].messageExpression",
                format!("apps/v1, Kind=Deployment: ERROR: <input>: {sum}\nexample.com/v1, Kind=Widget: ERROR: <input>: {sum}").as_str()
            ),
            ("spec.validations[2].expression", "apps/v1, Kind=Deployment: ERROR: <input>: undefined field 'size'"),
        ]
    );
    let fixed = json!({"spec": {"validations": [{"expression": "object.spec.replicas > 1"}]}});
    admin.merge(&format!("{policies}/typed"), &fixed).await.expect(200);
    loop {
        let status = watch.next().await.unwrap()["object"]["status"].take();
        if status["observedGeneration"] == 2 {
            assert_eq!(status["typeChecking"], json!({}));
            return;
        }
    }
}
