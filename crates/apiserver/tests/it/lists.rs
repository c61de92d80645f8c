//! list and watch.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Server, configmap};

const CMS: &str = "/api/v1/namespaces/default/configmaps";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
}

fn labelled(name: &str, color: &str) -> Value {
    let mut object = configmap(name);
    object["metadata"]["labels"] = json!({"color": color});
    object
}

#[tokio::test]
async fn lists_select_and_come_in_chunks() {
    let server = Server::start().await;
    let admin = server.admin();
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red"), ("d", "blue"), ("e", "red")] {
        admin.post(CMS, &labelled(name, color)).await.expect(201);
    }
    let cases: [(&str, &[&str]); 6] = [
        ("", &["a", "b", "c", "d", "e"]),
        ("?labelSelector=color%3Dred", &["a", "c", "e"]),
        ("?labelSelector=color%20notin%20(red)", &["b", "d"]),
        ("?fieldSelector=metadata.name%3Db", &["b"]),
        ("?fieldSelector=metadata.name!%3Db&labelSelector=color=blue", &["d"]),
        ("?resourceVersion=0&limit=2", &["a", "b"]),
    ];
    for (query, expected) in cases {
        let list = admin.get(&format!("{CMS}{query}")).await.expect(200);
        assert_eq!(names(&list), expected, "{query}");
        assert_eq!(list["kind"], "ConfigMapList");
    }
    let first = admin.get(&format!("{CMS}?limit=2")).await.expect(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    // What happens between chunks does not show.
    admin.delete(&format!("{CMS}/c"), &json!({})).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = admin.get(&format!("{CMS}?limit=10&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d", "e"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    admin.get(&format!("{CMS}?fieldSelector=data.a%3D1")).await.expect(400);
    admin.get(&format!("{CMS}?resourceVersion=99999999")).await.expect(504);
    admin.delete(&format!("{CMS}?labelSelector=color%3Dred"), &json!({})).await.expect(200);
    assert_eq!(names(&admin.get(CMS).await.expect(200)), ["b", "d"]);
}

#[tokio::test]
async fn shapes_of_answers() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(CMS, &configmap("a")).await.expect(201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let answer = admin.raw(Method::GET, CMS, &[("accept", table)], "").await.expect(200);
    assert_eq!(answer["kind"], "Table");
    assert_eq!((&answer["rows"][0]["cells"][0], &answer["rows"][0]["cells"][1]), (&json!("a"), &json!(1)));
    assert_eq!(answer["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let answer = admin.raw(Method::GET, CMS, &[("accept", partial)], "").await.expect(200);
    assert_eq!(answer["kind"], "PartialObjectMetadataList");
    assert!(answer["items"][0].get("data").is_none());
    let yaml = admin.raw(Method::GET, &format!("{CMS}/a"), &[("accept", "application/yaml")], "").await.expect(200);
    assert!(yaml.as_str().unwrap().contains("kind: ConfigMap"), "{yaml}");
    let proto = [("accept", "application/vnd.kubernetes.protobuf")];
    let response = admin.send(Method::GET, &format!("{CMS}/a"), &proto, "").await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf");
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    assert!(bytes.starts_with(b"k8s\0"), "{bytes:?}");
    // The same bytes are a valid request body.
    let proto = [("content-type", "application/vnd.kubernetes.protobuf")];
    let back = admin.raw(Method::PUT, &format!("{CMS}/a"), &proto, bytes).await.expect(200);
    assert_eq!(back["data"], json!({"a": "1"}));
    let list = [("accept", "application/vnd.kubernetes.protobuf")];
    for path in [CMS.to_owned(), format!("{CMS}?watch=1&timeoutSeconds=1")] {
        let response = admin.send(Method::GET, &path, &list, "").await;
        assert_eq!(response.status(), 200, "{path}");
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&bytes).contains("k8s\0"), "{path}");
    }
}

#[tokio::test]
async fn watches_start_resume_and_end() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(CMS, &configmap("a")).await.expect(201);
    let list = admin.get(CMS).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    admin.post(CMS, &configmap("b")).await.expect(201);
    admin.merge(&format!("{CMS}/a"), &json!({"data": {"x": "y"}})).await.expect(200);
    admin.delete(&format!("{CMS}/b"), &json!({})).await.expect(200);
    let mut resumed = admin.watch(&format!("{CMS}?watch=true&resourceVersion={version}&timeoutSeconds=1")).await;
    for expected in ["ADDED b", "MODIFIED a", "DELETED b", "END"] {
        assert_eq!(resumed.brief().await, expected);
    }
    let mut fresh = admin
        .watch(&format!(
            "{CMS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ))
        .await;
    assert_eq!(fresh.brief().await, "ADDED a");
    let bookmark = fresh.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let mut old = admin.watch(&format!("{CMS}?watch=1&resourceVersion=1")).await;
    let first = old.next().await.unwrap();
    // Revision 1 is still in the ring here; what matters is that nothing in between is lost.
    assert!(matches!(first["type"].as_str(), Some("ADDED" | "ERROR")), "{first:#}");
    server.api.shutdown().await;
    assert_eq!(fresh.brief().await, "END");
}

#[tokio::test]
async fn a_watch_with_a_selector_sees_objects_come_and_go() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut watch = admin.watch(&format!("{CMS}?watch=1&labelSelector=color%3Dred")).await;
    let label = |color: &str| json!({"metadata": {"labels": {"color": color}}});
    admin.post(CMS, &labelled("a", "blue")).await.expect(201);
    for color in ["red", "blue", "red"] {
        admin.merge(&format!("{CMS}/a"), &label(color)).await.expect(200);
    }
    admin.merge(&format!("{CMS}/a"), &json!({"data": {"k": "v"}})).await.expect(200);
    admin.delete(&format!("{CMS}/a"), &json!({})).await.expect(200);
    for expected in ["ADDED a", "DELETED a", "ADDED a", "MODIFIED a", "DELETED a"] {
        assert_eq!(watch.brief().await, expected);
    }
}

#[tokio::test]
async fn large_answers_are_compressed_on_request() {
    use http_body_util::BodyExt as _;
    use std::io::Read as _;

    let server = Server::start().await;
    let admin = server.admin();
    for name in ["a", "b"] {
        let mut object = configmap(name);
        object["data"]["big"] = "x".repeat(100_000).into();
        admin.post(CMS, &object).await.expect(201);
    }
    let cases =
        [(CMS, "gzip, deflate", true), (CMS, "", false), ("/api/v1/namespaces/default/configmaps/a", "gzip", false)];
    for (path, accepted, packed) in cases {
        let headers: &[(&str, &str)] = if accepted.is_empty() { &[] } else { &[("accept-encoding", accepted)] };
        let response = admin.send(Method::GET, path, headers, "").await;
        assert_eq!(
            response.headers().get("content-encoding").is_some_and(|e| e == "gzip"),
            packed,
            "{path} {accepted}"
        );
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let mut text = Vec::new();
        match packed {
            true => drop(flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap()),
            false => text.extend_from_slice(&bytes),
        }
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert!(value["kind"].as_str().unwrap().starts_with("ConfigMap"));
    }
}

/// The ring of events holds some megabytes; what has left it cannot be watched from.
#[tokio::test]
async fn a_watch_from_too_long_ago_is_gone() {
    let server = Server::start().await;
    let admin = server.admin();
    let first = admin.post(CMS, &configmap("a")).await.expect(201);
    let old = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // One that lags: it reads nothing while the ring turns.
    let mut lagging = admin.watch(&format!("{CMS}?watch=true&resourceVersion={old}")).await;
    for i in 0..12 {
        let data = json!({"data": {"big": format!("{i}{}", "x".repeat(1_000_000))}});
        admin.merge(&format!("{CMS}/a"), &data).await.expect(200);
    }
    let event = lagging.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{}", event["type"]);
    assert!(lagging.next().await.is_none());
    let mut watch = admin.watch(&format!("{CMS}?watch=true&resourceVersion={old}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!((&event["object"]["reason"], &event["object"]["code"]), (&json!("Expired"), &json!(410)));
    assert!(watch.next().await.is_none());
    // Recovery: list, then watch from there.
    let list = admin.get(CMS).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = admin.watch(&format!("{CMS}?watch=true&resourceVersion={version}")).await;
    admin.post(CMS, &configmap("b")).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED b");
}

#[tokio::test]
async fn watches_come_as_tables() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(CMS, &configmap("a")).await.expect(201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let mut watch = admin.watch_as(&format!("{CMS}?watch=true"), &accept).await;
    let first = watch.next().await.unwrap();
    assert_eq!((&first["type"], &first["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    assert_eq!(first["object"]["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    admin.merge(&format!("{CMS}/a"), &json!({"data": {"b": "2"}})).await.expect(200);
    let second = watch.next().await.unwrap();
    assert_eq!(second["type"], "MODIFIED");
    assert_eq!(second["object"]["rows"][0]["cells"][1], 2);
    // Only the first says what the columns are.
    assert_eq!(second["object"]["columnDefinitions"].as_array().map_or(0, Vec::len), 0);
}

/// Many begin a list in chunks and go on while everything changes: each gets what was there when it began, or is told that
/// nobody knows any more and may go on with what is there now. What is kept for all of them has one bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunked_lists_of_many_clients_hold_little() {
    const CLIENTS: usize = 60;
    const OBJECTS: usize = 20;
    let server = Server::start().await;
    let admin = server.admin();
    let sized = |name: &str, round: usize| {
        let mut object = configmap(name);
        object["data"] = json!({"round": round.to_string(), "x": "x".repeat(50_000)});
        object
    };
    let name = |n: usize| format!("o{n:02}");
    let object = |n: usize| format!("{CMS}/{}", name(n));
    for n in 0..OBJECTS {
        admin.post(CMS, &sized(&name(n), 0)).await.expect(201);
    }
    // One more change before each client begins, and in the end every object was written many times: 60 MB.
    let mut begun = Vec::new();
    for client in 0..CLIENTS {
        let first = admin.get(&format!("{CMS}?limit=1")).await.expect(200);
        assert_eq!(names(&first), ["o00"]);
        begun.push((client, first["metadata"]["continue"].as_str().unwrap().to_owned(), first));
        for n in 0..OBJECTS {
            let patch = json!({"data": {"round": (client + 1).to_string()}});
            admin.merge(&object(n), &patch).await.expect(200);
        }
    }
    admin.delete(&object(7), &json!({})).await.expect(200);
    let kept = server.api.store_stats().history_bytes;
    assert!(kept > 0 && kept <= 64 << 20, "{kept}");
    let (mut consistent, mut expired) = (0, 0);
    for (client, token, first) in &begun {
        let answer = admin.get(&format!("{CMS}?limit=100&continue={token}")).await;
        let rest = match answer.status.as_u16() {
            200 => {
                consistent += 1;
                let rest = answer.body;
                assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
                assert_eq!(rest["items"].as_array().unwrap().len(), OBJECTS - 1);
                for item in rest["items"].as_array().unwrap() {
                    assert_eq!(item["data"]["round"], client.to_string(), "{}", item["metadata"]["name"]);
                }
                continue;
            }
            410 => answer.expect(410),
            other => panic!("{other}"),
        };
        expired += 1;
        assert_eq!(rest["reason"], "Expired");
        let token = rest["metadata"]["continue"].as_str().unwrap();
        let rest = admin.get(&format!("{CMS}?limit=100&continue={token}")).await.expect(200);
        assert_eq!(names(&rest).len(), OBJECTS - 2, "one is gone now");
    }
    assert!(consistent > 10 && expired > 10, "{consistent} {expired}");
    // A revision that is known can also be asked for, and one that is forgotten cannot.
    let of = |n: usize| begun[n].2["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = |n: usize| format!("{CMS}?resourceVersion={}&resourceVersionMatch=Exact", of(n));
    let last = admin.get(&exact(CLIENTS - 1)).await.expect(200);
    assert_eq!(last["items"][3]["data"]["round"], (CLIENTS - 1).to_string());
    admin.get(&exact(0)).await.expect(410);
}
