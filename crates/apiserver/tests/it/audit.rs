//! The audit log.

use std::time::{Duration, Instant};

use ferrovirt_apiserver::{AuditPolicy, Config};
use http::Method;
use serde_json::{Value, json};

use crate::support::{Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn requests_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let server = Server::start_with(Config { audit_log: Some(path.clone()), ..Config::default() }).await;
    server.admin().post(CMS, &configmap("a")).await.expect(201);
    let jane = [("impersonate-user", "jane"), ("user-agent", "tests/1")];
    server.admin().raw(Method::GET, &format!("{CMS}/a?x=y"), &jane, "").await.expect(403);
    let wanted = |event: &Value, uri: &str| event["requestURI"] == uri;
    let deadline = Instant::now() + Duration::from_secs(10);
    let events: Vec<Value> = loop {
        let text = std::fs::read_to_string(&path).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let events: Vec<Value> = whole.collect();
        if events.iter().any(|e| wanted(e, &format!("{CMS}/a?x=y"))) {
            break events;
        }
        assert!(Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let created = events.iter().find(|e| wanted(e, CMS) && e["verb"] == "create").unwrap();
    assert_eq!((&created["kind"], &created["apiVersion"]), (&json!("Event"), &json!("audit.k8s.io/v1")));
    assert_eq!((&created["level"], &created["stage"]), (&json!("Metadata"), &json!("ResponseComplete")));
    assert_eq!(created["user"]["username"], "admin");
    assert_eq!(created["responseStatus"]["code"], 201);
    assert_eq!(created["objectRef"], json!({"resource": "configmaps", "namespace": "default", "apiVersion": "v1"}));
    let refused = events.iter().find(|e| wanted(e, &format!("{CMS}/a?x=y"))).unwrap();
    assert_eq!((&refused["verb"], &refused["responseStatus"]["code"]), (&json!("get"), &json!(403)));
    assert_eq!(refused["user"]["username"], "admin");
    assert_eq!(refused["impersonatedUser"]["username"], "jane");
    assert_eq!(refused["userAgent"], "tests/1");
    assert_eq!(refused["objectRef"]["name"], "a");
    for key in ["requestReceivedTimestamp", "stageTimestamp"] {
        assert!(refused[key].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }
    // Nothing of what was sent or answered is in it.
    assert!(events.iter().all(|e| e.get("requestObject").is_none() && e.get("responseObject").is_none()));
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// A policy that asks for everything still keeps passwords out of the log, and nobody writes a line of his own into it.
#[tokio::test]
async fn a_policy_logs_content_but_no_credential_and_no_forged_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitManagedFields: true, rules: [{level: None, verbs: [list]}, {level: RequestResponse}]}";
    let config = Config {
        audit_log: Some(path.clone()),
        audit_policy: AuditPolicy::parse(policy).unwrap(),
        ..Config::default()
    };
    let server = Server::start_with(config).await;
    let admin = server.admin();
    let forged = "x\n{\"kind\":\"Event\",\"user\":{\"username\":\"forged\"}}\r\n\u{2028}";
    let mut map = configmap("a");
    map["data"]["a"] = forged.into();
    admin.post(CMS, &map).await.expect(201);
    admin.get(CMS).await.expect(200);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    admin.post(SECRETS, &secret).await.expect(201);
    admin.get(&format!("{SECRETS}/s?x=%0a%7b%22forged%22")).await.expect(200);
    let deadline = Instant::now() + Duration::from_secs(10);
    let text = loop {
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("%0a%7b") && text.ends_with('\n') {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is an event")).collect();
    assert!(events.iter().all(|event| event["user"]["username"] != "forged"));
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "the password");
    let of = |uri: &str, verb: &str| events.iter().find(|e| e["requestURI"] == uri && e["verb"] == verb);
    let created = of(CMS, "create").unwrap();
    assert_eq!(created["level"], "RequestResponse");
    assert_eq!(created["requestObject"]["data"]["a"], forged);
    assert_eq!(created["responseObject"]["data"]["a"], forged);
    assert!(created["responseObject"]["metadata"].get("managedFields").is_none());
    assert_eq!(of(SECRETS, "create").unwrap()["level"], "Metadata");
    assert!(of(CMS, "list").is_none());
}
