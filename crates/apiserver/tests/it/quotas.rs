//! Resource quotas and limit ranges are more than objects.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::pods::pod;
use crate::support::{Client, Server, configmap, widget, widgets};

const NS: &str = "/api/v1/namespaces/default";

fn quota(name: &str, hard: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}})
}

fn sized(name: &str, requests: Value, limits: Value) -> Value {
    let mut object = pod(name);
    object["spec"]["containers"][0]["resources"] = json!({"requests": requests, "limits": limits});
    object
}

/// Waits for a quota to report this use.
async fn reports(client: &Client, name: &str, used: Value) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = client.get(&format!("{NS}/resourcequotas/{name}")).await.expect(200);
        if now["status"]["used"] == used {
            assert_eq!(now["status"]["hard"], now["spec"]["hard"]);
            return;
        }
        assert!(Instant::now() < deadline, "{name} reports {}, not {used}", now["status"]["used"]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn quotas_are_enforced_and_report_their_use() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widgets()).await.expect(201);
    let quotas = format!("{NS}/resourcequotas");
    let counts =
        json!({"pods": "2", "count/widgets.example.com": "1", "services.nodeports": "1", "requests.storage": "3Gi"});
    admin.post(&quotas, &quota("counts", counts)).await.expect(201);
    let zero =
        json!({"pods": "0", "count/widgets.example.com": "0", "services.nodeports": "0", "requests.storage": "0"});
    reports(&admin, "counts", zero).await;
    let claim = |name: &str, size: &str| json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    let port = |name: &str| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let custom = "/apis/example.com/v1/namespaces/default/widgets";
    let pods = format!("{NS}/pods");
    let (claims, services) = (format!("{NS}/persistentvolumeclaims"), format!("{NS}/services"));
    let cases = [
        (&*pods, pod("a"), 201, ""),
        (&*pods, pod("b"), 201, ""),
        (
            &*pods,
            pod("c"),
            403,
            "pods \"c\" is forbidden: exceeded quota: counts, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (custom, widget("a"), 201, ""),
        (custom, widget("b"), 403, "count/widgets.example.com=1"),
        (&*services, port("a"), 201, ""),
        (&*services, port("b"), 403, "services.nodeports=1"),
        (&*claims, claim("a", "2Gi"), 201, ""),
        (
            &*claims,
            claim("b", "1025Mi"),
            403,
            "requested: requests.storage=1025Mi, used: requests.storage=2Gi, limited: requests.storage=3Gi",
        ),
        (&*claims, claim("b", "1Gi"), 201, ""),
    ];
    for (path, object, code, message) in cases {
        let answer = admin.post(path, &object).await.expect(code);
        assert!(message.is_empty() || answer["message"].as_str().unwrap().contains(message), "{}", answer["message"]);
    }
    let full =
        json!({"pods": "2", "count/widgets.example.com": "1", "services.nodeports": "1", "requests.storage": "3Gi"});
    reports(&admin, "counts", full).await;
    // A pod that has ended counts no more, one that is deleted neither; other changes are free.
    admin.merge(&format!("{pods}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    admin.merge(&format!("{pods}/a/status"), &json!({"status": {"phase": "Succeeded"}})).await.expect(200);
    admin.post(&pods, &pod("c")).await.expect(201);
    admin.delete(&format!("{pods}/b"), &json!({})).await.expect(200);
    admin.delete(&format!("{services}/a"), &json!({})).await.expect(200);
    let less =
        json!({"pods": "1", "count/widgets.example.com": "1", "services.nodeports": "0", "requests.storage": "3Gi"});
    reports(&admin, "counts", less).await;
    // Other namespaces are not concerned.
    admin.post("/api/v1/namespaces/kube-system/pods", &pod("a")).await.expect(201);
}

#[tokio::test]
async fn quotas_of_compute_resources() {
    let server = Server::start().await;
    let admin = server.admin();
    let quotas = format!("{NS}/resourcequotas");
    let pods = format!("{NS}/pods");
    admin.post(&quotas, &quota("cpu", json!({"requests.cpu": "1", "limits.memory": "1Gi"}))).await.expect(201);
    let mut scoped = quota("best", json!({"pods": "0"}));
    scoped["spec"]["scopes"] = json!(["BestEffort"]);
    admin.post(&quotas, &scoped).await.expect(201);
    let silent = admin.post(&pods, &pod("a")).await.expect(403);
    let message = silent["message"].as_str().unwrap();
    assert!(
        message.contains("exceeded quota: best")
            || message.contains("must specify limits.memory for: c; requests.cpu for: c"),
        "{message}"
    );
    admin.post(&pods, &sized("a", json!({"cpu": "600m"}), json!({"memory": "512Mi"}))).await.expect(201);
    let more = admin.post(&pods, &sized("b", json!({"cpu": "0.5"}), json!({"memory": "1Mi"}))).await.expect(403);
    assert!(
        more["message"]
            .as_str()
            .unwrap()
            .contains("requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1")
    );
    reports(&admin, "cpu", json!({"requests.cpu": "600m", "limits.memory": "512Mi"})).await;
    reports(&admin, "best", json!({"pods": "0"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_holds_against_many_at_once() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(&format!("{NS}/resourcequotas"), &quota("q", json!({"count/configmaps": "7"}))).await.expect(201);
    let path = format!("{NS}/configmaps");
    let objects: Vec<Value> = (0..40).map(|i| configmap(&format!("c{i}"))).collect();
    let answers = futures::future::join_all(objects.iter().map(|o| admin.post(&path, o))).await;
    assert_eq!(answers.iter().filter(|a| a.status.as_u16() == 201).count(), 7);
    assert!(answers.iter().all(|a| matches!(a.status.as_u16(), 201 | 403)));
}

#[tokio::test]
async fn limit_ranges_fill_and_bound() {
    let server = Server::start().await;
    let admin = server.admin();
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"memory": "1Gi"}, "min": {"cpu": "50m"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}},
        {"type": "Pod", "max": {"cpu": "2"}},
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}},
    ]}});
    let made = admin.post(&format!("{NS}/limitranges"), &range).await.expect(201);
    assert_eq!(made["spec"]["limits"][0]["default"], json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(made["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "100m", "memory": "1Gi"}));
    let pods = format!("{NS}/pods");
    let filled = admin.post(&pods, &pod("a")).await.expect(201);
    let resources = &filled["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources,
        &json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}})
    );
    let refused = [
        (
            sized("b", json!({}), json!({"memory": "2Gi"})),
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ),
        (sized("b", json!({"cpu": "10m"}), json!({})), "minimum cpu usage per Container is 50m, but request is 10m"),
        (sized("b", json!({"cpu": "1"}), json!({"cpu": "3"})), "maximum cpu usage per Pod is 2, but limit is 3"),
    ];
    for (object, why) in refused {
        let answer = admin.post(&pods, &object).await.expect(403);
        assert!(answer["message"].as_str().unwrap().contains(why), "{}", answer["message"]);
    }
    let claim = json!({"metadata": {"name": "p"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    admin.post(&format!("{NS}/persistentvolumeclaims"), &claim).await.expect(403);
}
