//! Input and clients that mean no good. None may panic the server, grow it without bound or block others.

use std::sync::Arc;

use ferrovirt_apiserver::Handler;
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::kubectl::Kubectl;
use crate::support::{Server, configmap, widget, widgets};

const CMS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn deep(open: &str, close: &str, levels: usize) -> String {
    format!("{}{}", open.repeat(levels), close.repeat(levels))
}

#[tokio::test]
async fn hostile_bodies_are_refused() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widgets()).await.expect(201);
    admin.post(CMS, &configmap("a")).await.expect(201);
    admin.post(WIDGETS, &widget("a")).await.expect(201);
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
        + &(b'b'..=b'z')
            .map(|c| {
                let (this, last) = (char::from(c), char::from(c - 1));
                format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 9].join(","))
            })
            .collect::<String>();
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("no map", b"[]".to_vec()),
        ("null", b"null".to_vec()),
        ("number", b"1e999".to_vec()),
        ("half a map", b"{\"metadata\":".to_vec()),
        ("bad UTF-8", b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec()),
        ("lone surrogate", br#"{"metadata":{"name":"\ud800"}}"#.to_vec()),
        ("deep lists", deep("[", "]", 100_000).into_bytes()),
        ("deep maps", deep("{\"a\":", "}", 100_000).into_bytes()),
        ("deep in range", format!("{{\"metadata\":{{\"name\":\"d\"}},\"spec\":{}}}", deep("[", "]", 124)).into_bytes()),
        ("too large", vec![b' '; 4 << 20]),
        ("wrong metadata", br#"{"metadata":[1,2]}"#.to_vec()),
        ("wrong labels", br#"{"metadata":{"name":"n","labels":[1]}}"#.to_vec()),
        ("wrong owners", br#"{"metadata":{"name":"n","ownerReferences":[1,{"uid":2}]}}"#.to_vec()),
        ("wrong finalizers", br#"{"metadata":{"name":"n","finalizers":{"a":1}}}"#.to_vec()),
        ("wrong managers", br#"{"metadata":{"name":"n","managedFields":[{"fieldsV1":{"f:a":3,"k:{":{}}}]}}"#.to_vec()),
        ("protobuf header", b"k8s\0".to_vec()),
        ("protobuf noise", [b"k8s\0".as_slice(), &[0xff; 64]].concat()),
        ("protobuf length", b"k8s\0\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()),
        ("yaml aliases", bomb.into_bytes()),
        ("yaml deep", format!("a: {}", deep("[", "]", 50_000)).into_bytes()),
        ("yaml tabs", b"\t- : :\n\x00".to_vec()),
    ];
    let types = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    let patches = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ];
    for (what, bytes) in &bodies {
        for collection in [CMS, WIDGETS] {
            let item = format!("{collection}/a");
            let mut answers = Vec::new();
            for kind in types {
                let headers = [("content-type", kind)];
                answers.push((kind, admin.raw(Method::POST, collection, &headers, bytes.clone()).await));
                answers.push((kind, admin.raw(Method::PUT, &item, &headers, bytes.clone()).await));
            }
            for kind in patches {
                let path = format!("{item}?fieldManager=t");
                answers.push((kind, admin.raw(Method::PATCH, &path, &[("content-type", kind)], bytes.clone()).await));
            }
            for (kind, answer) in answers {
                let code = answer.status.as_u16();
                // Some are harmless as some type (an empty merge patch is not, but a map without a spec may be).
                assert!(code < 500, "{what} as {kind} to {collection}: {code} {:#}", answer.body);
            }
        }
    }
    admin.get(&format!("{CMS}/a")).await.expect(200);
    admin.get(&format!("{WIDGETS}/a")).await.expect(200);
    admin.get(CMS).await.expect(200);
}

/// What is stored can be read again: a JSON patch cannot nest deeper than the parser goes, and cannot grow without end.
#[tokio::test]
async fn patches_cannot_grow_an_object_out_of_reach() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut crd = widgets();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await.expect(201);
    let mut object = widget("a");
    object["spec"] = serde_json::from_str(&format!("{{\"a\":{}1{}}}", "{\"a\":".repeat(100), "}".repeat(100))).unwrap();
    admin.post(WIDGETS, &object).await.expect(201);
    let inner: Value = serde_json::from_str(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).unwrap();
    let path = format!("/spec/a{}", "/a".repeat(100));
    let patch = json!([{"op": "replace", "path": path, "value": inner}]);
    let item = format!("{WIDGETS}/a");
    admin.patch(&item, "application/json-patch+json", &patch).await.expect(400);
    let doubling: Vec<Value> = (0..64).map(|_| json!({"op": "copy", "from": "/spec", "path": "/spec/b"})).collect();
    let answer = admin.patch(&item, "application/json-patch+json", &json!(doubling)).await;
    assert!(matches!(answer.status.as_u16(), 400 | 413 | 422), "{}", answer.status);
    let big = "x".repeat(2 << 20);
    admin.merge(&item, &json!({"spec": {"b": big}})).await.expect(200);
    admin.merge(&item, &json!({"spec": {"c": big}})).await.expect(413);
    admin.get(WIDGETS).await.expect(200);
}

#[tokio::test]
async fn faults_by_the_thousand_stay_cheap() {
    let server = Server::start().await;
    let admin = server.admin();
    let unknown: String = (0..100_000).map(|i| format!(",\"u{i}\":1")).collect();
    let doubled: String = (0..80_000).map(|i| format!(",\"d{i}\":1,\"d{i}\":2")).collect();
    for (name, members) in [("unknown", unknown), ("doubled", doubled)] {
        for mode in ["Warn", "Strict"] {
            let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}}{members}}}");
            let path = format!("{CMS}?fieldValidation={mode}");
            let answer = admin.raw(Method::POST, &path, &[("content-type", "application/json")], body).await;
            assert_eq!(answer.status.as_u16(), if mode == "Warn" { 201 } else { 400 }, "{name} {mode}");
            let bytes: usize = answer.warnings.iter().map(String::len).sum();
            assert!(bytes <= 4096 && (mode == "Strict" || bytes > 100), "{bytes} bytes of warnings");
            admin.delete(&format!("{CMS}/{name}"), &json!({})).await;
        }
    }
}

#[tokio::test]
async fn absurd_selectors_are_answered() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.post(CMS, &configmap("a")).await.expect(201);
    let long = (0..4000).map(|i| format!("k{i}!=v")).collect::<Vec<_>>().join(",");
    let values = format!("a in ({})", (0..8000).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
    let selectors: &[(&str, String)] = &[
        ("parentheses", "(".repeat(20_000)),
        ("negations", "!".repeat(20_000)),
        ("commas", ",".repeat(20_000)),
        ("operators", "a==!=in notin".repeat(1000)),
        ("long", long),
        ("values", values),
        ("no end", "a in (".to_owned()),
        ("unicode", "ключ=значение,\u{0}=\u{fffd}".to_owned()),
        ("numbers", "a>99999999999999999999".to_owned()),
    ];
    for (what, selector) in selectors {
        let encoded: String = selector.bytes().map(|b| format!("%{b:02x}")).collect();
        for (key, watch) in
            [("labelSelector", ""), ("fieldSelector", ""), ("labelSelector", "&watch=1&timeoutSeconds=1")]
        {
            // URLs end at 64 KiB.
            let query: String = format!("{key}={encoded}").chars().take(60_000).collect();
            let query = query.trim_end_matches('%');
            let answer = admin.get(&format!("{CMS}?{query}{watch}")).await;
            assert!(matches!(answer.status.as_u16(), 200 | 400), "{what} {key}: {} {}", answer.status, answer.body);
        }
    }
    for query in ["limit=99999999999999999999", "continue=%ff", "continue=bm90IGpzb24", "resourceVersion=x"] {
        admin.get(&format!("{CMS}?{query}")).await.expect(400);
    }
    for path in
        ["/api/v1/namespaces/%2e%2e/configmaps/%00", "/apis/%ff/%fe/%fd", "/api/v1/namespaces/a/b/c/d/e/f/g", "//"]
    {
        let code = admin.get(path).await.status.as_u16();
        assert!(matches!(code, 200 | 404), "{path}: {code}");
    }
}

/// A panic is the fault of one request.
#[tokio::test]
async fn a_panic_is_a_500() {
    let server = Server::start().await;
    let admin = server.admin();
    let handler: Handler = Arc::new(|_| Box::pin(async { panic!("on purpose") }));
    server.api.register_subresource("", "pods", "log", handler);
    let body = admin.get("/api/v1/namespaces/default/pods/p/log").await.expect(500);
    assert_eq!(body["reason"], "InternalError");
    admin.get(CMS).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_idle_watches_do_not_slow_a_writer() {
    let server = Server::start().await;
    let admin = server.admin();
    let mut watches = Vec::new();
    for i in 0..2000 {
        // Most look at another object, as watchers do.
        let name = if i % 100 == 0 { "hot".to_owned() } else { format!("cold-{i}") };
        watches.push(admin.watch(&format!("{CMS}?watch=true&fieldSelector=metadata.name%3D{name}")).await);
    }
    admin.post(CMS, &configmap("hot")).await.expect(201);
    for i in 0..50 {
        admin.merge(&format!("{CMS}/hot"), &json!({"data": {"i": i.to_string()}})).await.expect(200);
    }
    for watch in watches.iter_mut().step_by(100) {
        assert_eq!(watch.brief().await, "ADDED hot");
        for _ in 0..50 {
            assert_eq!(watch.brief().await, "MODIFIED hot");
        }
    }
}

/// Connections that never speak, stop in the middle or read nothing leave the server to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_do_not_block() {
    let k = Kubectl::start(Server::start().await).await;
    let mut held = Vec::new();
    for i in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(k.address).await.unwrap();
        match i % 3 {
            0 => {}
            // The start of a TLS record that promises more.
            1 => stream.write_all(&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01]).await.unwrap(),
            _ => stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap(),
        }
        held.push(stream);
    }
    let head = format!(
        "POST {CMS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    );
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut stream = k.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let output = k.run("get namespaces -o name", "").await;
    assert!(output.contains("namespace/default"), "{output}");
    drop((held, slow));
    k.stop().await;
}
