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

/// Creates, deletes and changes at the same time in several namespaces: at no moment is there more than a quota allows, and in
/// the end each says what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_are_exact_whatever_happens_at_once() {
    const NAMESPACES: usize = 4;
    const ROUNDS: usize = 30;
    let server = Server::start().await;
    let admin = server.admin();
    let claim = |name: &str, size: usize| json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": format!("{size}Mi")}}}});
    for n in 0..NAMESPACES {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": format!("q{n}")}})).await.expect(201);
        let hard = json!({"requests.storage": "50Mi", "persistentvolumeclaims": "8"});
        admin.post(&format!("/api/v1/namespaces/q{n}/resourcequotas"), &quota("q", hard)).await.expect(201);
    }
    let tasks = (0..NAMESPACES * 8).map(|task| {
        let (admin, path) =
            (admin.clone(), format!("/api/v1/namespaces/q{}/persistentvolumeclaims", task % NAMESPACES));
        tokio::spawn(async move {
            let mut refused = 0;
            for round in 0..ROUNDS {
                let name = format!("c{task}-{round}");
                let answer = admin.post(&path, &claim(&name, 1 + (task * 7 + round * 3) % 13)).await;
                match answer.status.as_u16() {
                    201 if round % 3 == 0 => {
                        drop(admin.delete(&format!("{path}/{name}"), &json!({})).await.expect(200))
                    }
                    201 => {}
                    403 => refused += 1,
                    other => panic!("{other}: {}", answer.body),
                }
            }
            refused
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let sum = |list: &Value| -> (u64, usize) {
        let items = list["items"].as_array().unwrap();
        let size = |claim: &Value| {
            let text = claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap();
            text.trim_end_matches("Mi").parse::<u64>().unwrap()
        };
        (items.iter().map(size).sum(), items.len())
    };
    let mut done = false;
    while !done {
        done = tasks.iter().all(tokio::task::JoinHandle::is_finished);
        for n in 0..NAMESPACES {
            let list = admin.get(&format!("/api/v1/namespaces/q{n}/persistentvolumeclaims")).await.expect(200);
            let (size, count) = sum(&list);
            assert!(size <= 50 && count <= 8, "{size} {count}");
        }
    }
    let mut refused = 0;
    for task in tasks {
        refused += task.await.unwrap();
    }
    assert!(refused > 0);
    for n in 0..NAMESPACES {
        let list = admin.get(&format!("/api/v1/namespaces/q{n}/persistentvolumeclaims")).await.expect(200);
        let (size, count) = sum(&list);
        let said = |answer: &crate::support::Answer| {
            let used = &answer.body["status"]["used"];
            let storage = if size == 0 { "0".to_owned() } else { format!("{size}Mi") };
            used["requests.storage"] == storage && used["persistentvolumeclaims"] == *format!("{count}")
        };
        admin.until_that(&format!("/api/v1/namespaces/q{n}/resourcequotas/q"), said).await;
        // Exactly what is left can be had, and no more.
        if count < 8 && size < 50 {
            let path = format!("/api/v1/namespaces/q{n}/persistentvolumeclaims");
            admin.post(&path, &claim("more", 51 - size as usize)).await.expect(403);
            admin.post(&path, &claim("rest", 50 - size as usize)).await.expect(201);
        }
    }
}

/// A write that was promised the last of a quota holds it, and nobody is refused for a promise that is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_that_is_broken_is_somebody_elses() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(&format!("{NS}/resourcequotas"), &quota("q", json!({"count/configmaps": "2"}))).await.expect(201);
    let path = format!("{NS}/configmaps");
    admin.post(&path, &configmap("a")).await.expect(201);
    // One place is left. Those that exist already take none, however often they are tried.
    for _ in 0..20 {
        let same = configmap("a");
        let (one, two, other) = futures::join!(admin.post(&path, &same), admin.post(&path, &same), async {
            admin.post(&path, &configmap("b")).await
        });
        other.expect(201);
        // It is there already, or there is no room for it any more.
        assert!([one, two].iter().all(|answer| matches!(answer.status.as_u16(), 409 | 403)));
        admin.delete(&format!("{path}/b"), &json!({})).await.expect(200);
    }
}

/// Requests whose clients hang up may still be stored; they have their place until it is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_hang_up_get_nothing_for_free() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(&format!("{NS}/resourcequotas"), &quota("q", json!({"count/configmaps": "5"}))).await.expect(201);
    let path = format!("{NS}/configmaps");
    for round in 0..200 {
        let object = configmap(&format!("c{round}"));
        let mut request = Box::pin(admin.post(&path, &object));
        for _ in 0..round % 7 {
            if futures::poll!(&mut request).is_ready() {
                break;
            }
        }
        drop(request);
    }
    let count = admin.get(&path).await.expect(200)["items"].as_array().unwrap().len();
    assert!(count <= 5, "{count}");
}

/// One thing that has two names, and containers of which the pod says that they ask for nothing.
#[tokio::test]
async fn there_is_no_way_around_a_quota() {
    let server = Server::start().await;
    let admin = server.admin();
    admin
        .post(&format!("{NS}/resourcequotas"), &quota("q", json!({"count/events": "1", "requests.cpu": "1"})))
        .await
        .expect(201);
    let event = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "involvedObject": {"namespace": "default"}});
    admin.post(&format!("{NS}/events"), &event("a")).await.expect(201);
    admin.post(&format!("{NS}/events"), &event("b")).await.expect(403);
    let newer = json!({
        "metadata": {"name": "c", "namespace": "default"}, "regarding": {"namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "x.y/z", "reportingInstance": "i",
        "action": "a", "reason": "r", "type": "Normal",
    });
    admin.post("/apis/events.k8s.io/v1/namespaces/default/events", &newer).await.expect(403);
    let mut hidden = sized("p", json!({"cpu": "2"}), json!({}));
    hidden["spec"]["resources"] = json!({"requests": {"cpu": "0"}});
    let answer = admin.post(&format!("{NS}/pods"), &hidden).await;
    assert!(matches!(answer.status.as_u16(), 403 | 422), "{}", answer.body);
    let mut sidecar = sized("p", json!({"cpu": "600m"}), json!({}));
    sidecar["spec"]["initContainers"] = json!([{
        "name": "s", "image": "i:1", "restartPolicy": "Always", "resources": {"requests": {"cpu": "600m"}},
    }]);
    admin.post(&format!("{NS}/pods"), &sidecar).await.expect(403);
}

#[tokio::test]
async fn pods_move_from_scope_to_scope() {
    let server = Server::start().await;
    let admin = server.admin();
    let (quotas, pods) = (format!("{NS}/resourcequotas"), format!("{NS}/pods"));
    for (name, scope, hard) in [("ends", "Terminating", "1"), ("stays", "NotTerminating", "3")] {
        let mut scoped = quota(name, json!({"pods": hard}));
        scoped["spec"]["scopes"] = json!([scope]);
        admin.post(&quotas, &scoped).await.expect(201);
    }
    for name in ["a", "b", "c"] {
        admin.post(&pods, &pod(name)).await.expect(201);
    }
    admin.post(&pods, &pod("d")).await.expect(403);
    let deadline = json!({"spec": {"activeDeadlineSeconds": 60}});
    admin.merge(&format!("{pods}/a"), &deadline).await.expect(200);
    let refused = admin.merge(&format!("{pods}/b"), &deadline).await.expect(403);
    let expected = "exceeded quota: ends, requested: pods=1, used: pods=1, limited: pods=1";
    assert!(refused["message"].as_str().unwrap().ends_with(expected), "{}", refused["message"]);
    reports(&admin, "ends", json!({"pods": "1"})).await;
    reports(&admin, "stays", json!({"pods": "2"})).await;
    admin.post(&pods, &pod("d")).await.expect(201);
    // More of a quota, less of it, and none.
    let hard = |pods: &str| json!({"spec": {"hard": {"pods": pods}}});
    admin.merge(&format!("{quotas}/stays"), &hard("4")).await.expect(200);
    admin.post(&pods, &pod("e")).await.expect(201);
    admin.merge(&format!("{quotas}/stays"), &hard("0")).await.expect(200);
    admin.post(&pods, &pod("f")).await.expect(403);
    reports(&admin, "stays", json!({"pods": "4"})).await;
    admin.delete(&format!("{quotas}/stays"), &json!({})).await.expect(200);
    admin.post(&pods, &pod("f")).await.expect(201);
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

    // A claim that was made before there were bounds, or within them, cannot be changed to be beyond.
    let (claims, one) = (format!("{NS}/persistentvolumeclaims"), format!("{NS}/persistentvolumeclaims/p"));
    let mut claim = claim;
    claim["spec"]["resources"]["requests"]["storage"] = "1Gi".into();
    claim["spec"]["storageClassName"] = "grows".into();
    let class = json!({"metadata": {"name": "grows"}, "provisioner": "p", "allowVolumeExpansion": true});
    admin.post("/apis/storage.k8s.io/v1/storageclasses", &class).await.expect(201);
    admin.post(&claims, &claim).await.expect(201);
    let bound = json!({"metadata": {"name": "s"}, "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}]}});
    admin.post(&format!("{NS}/limitranges"), &bound).await.expect(201);
    admin.merge(&format!("{one}/status"), &json!({"status": {"phase": "Bound"}})).await.expect(200);
    let grown = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    admin.merge(&one, &grown("2Gi")).await.expect(200);
    let refused = admin.merge(&one, &grown("3Gi")).await.expect(403);
    let why = "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi";
    assert!(refused["message"].as_str().unwrap().ends_with(why), "{}", refused["message"]);
    // A pod's containers do not change, and one that is beyond the bounds can still be labelled.
    admin
        .merge(
            &format!("{NS}/limitranges/r"),
            &json!({"spec": {"limits": [{"type": "Container", "max": {"memory": "1Mi"}}]}}),
        )
        .await
        .expect(200);
    admin.merge(&format!("{pods}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    // What is going away is left alone.
    admin.merge(&one, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await.expect(200);
    admin.delete(&one, &json!({})).await.expect(200);
    admin
        .merge(
            &format!("{NS}/limitranges/s"),
            &json!({"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Mi"}}]}}),
        )
        .await
        .expect(200);
    admin.merge(&one, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.get(&one).await.expect(404);
}
