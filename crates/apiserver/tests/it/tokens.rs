//! Service account tokens, from the request to the refusal.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrovirt_apiserver::Config;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::pods::pod;
use crate::support::Server;
use crate::support::kubectl::{Kubectl, connect_with};

const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

pub fn with_key() -> Config {
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    Config { service_account_key_pem: Some(key), ..Config::default() }
}

/// A request without an identity but with a header.
async fn bearing(server: &Server, credential: &str) -> (u16, Value) {
    let body = Full::from("{}").map_err(|never| match never {}).boxed_unsync();
    let request =
        Request::builder().method(Method::POST).uri(WHOAMI).header("authorization", credential).body(body).unwrap();
    let response = server.api.service().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn tokens_are_issued_and_known() {
    let server = Server::start_with(with_key()).await;
    let admin = server.admin();
    admin.until(ACCOUNT, 200).await;
    let request = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let path = format!("{ACCOUNT}/token");
    admin.post(&path, &request(json!({"expirationSeconds": 10}))).await.expect(422);
    admin.post(&path.replace("/default/token", "/nobody/token"), &request(json!({}))).await.expect(404);
    server.user("jane", &[]).post(&path, &request(json!({}))).await.expect(403);
    let issued = admin.post(&path, &request(json!({}))).await.expect(201);
    assert_eq!(issued["spec"]["expirationSeconds"], 3600);
    let token = issued["status"]["token"].as_str().unwrap().to_owned();
    let (code, answer) = bearing(&server, &format!("Bearer {token}")).await;
    assert_eq!(code, 201, "{answer}");
    let user = &answer["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    assert_eq!(
        user["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );

    let review = |token: &str, audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
    let known = admin.post(REVIEWS, &review(&token, Value::Null)).await.expect(201);
    assert_eq!(known["status"]["authenticated"], true);
    assert_eq!(known["status"]["user"]["username"], "system:serviceaccount:default:default");
    let other = admin.post(REVIEWS, &review(&token, json!(["vault"]))).await.expect(201);
    assert_ne!(other["status"]["authenticated"], true);
    let scoped = admin.post(&path, &request(json!({"audiences": ["vault"]}))).await.expect(201);
    let scoped = scoped["status"]["token"].as_str().unwrap().to_owned();
    let known = admin.post(REVIEWS, &review(&scoped, json!(["vault", "x"]))).await.expect(201);
    assert_eq!(known["status"]["audiences"], json!(["vault"]));
    assert_eq!(bearing(&server, &format!("Bearer {scoped}")).await.0, 401, "for another audience");

    // Forgeries: each is one change away from a good token.
    let parts: Vec<&str> = token.split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    claims["sub"] = "system:serviceaccount:kube-system:default".into();
    let forged = URL_SAFE_NO_PAD.encode(claims.to_string());
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let stranger = Server::start_with(with_key()).await;
    stranger.admin().until(ACCOUNT, 200).await;
    let foreign = stranger.admin().post(&path, &request(json!({}))).await.expect(201);
    for bad in [
        format!("Bearer {}.{forged}.{}", parts[0], parts[2]),
        format!("Bearer {none}.{}.", parts[1]),
        format!("Bearer {none}.{}.{}", parts[1], parts[2]),
        format!("Bearer {}.{}", parts[0], parts[1]),
        format!("Bearer {}", foreign["status"]["token"].as_str().unwrap()),
        format!("Bearer {}", "a.".repeat(10_000)),
        "Bearer ..".to_owned(),
        "Bearer".to_owned(),
        format!("Basic {token}"),
    ] {
        assert_eq!(bearing(&server, &bad).await.0, 401, "{bad}");
    }
}

#[tokio::test]
async fn tokens_end_with_what_they_are_bound_to() {
    let server = Server::start_with(with_key()).await;
    let admin = server.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "bound"}})).await.expect(201);
    let pods = "/api/v1/namespaces/default/pods";
    let uid = admin.post(pods, &pod("p")).await.expect(201)["metadata"]["uid"].clone();
    let path = format!("{accounts}/bound/token");
    let bound = |name: &str, uid: &Value| json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}}});
    admin.post(&path, &bound("q", &uid)).await.expect(404);
    admin.post(&path, &bound("p", &json!("other"))).await.expect(409);
    let token = |answer: Value| format!("bearer {}", answer["status"]["token"].as_str().unwrap());
    let to_pod = token(admin.post(&path, &bound("p", &uid)).await.expect(201));
    let to_account = token(admin.post(&path, &json!({})).await.expect(201));
    let (code, answer) = bearing(&server, &to_pod).await;
    assert_eq!(code, 201);
    assert_eq!(answer["status"]["userInfo"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    admin.delete(&format!("{pods}/p"), &json!({})).await.expect(200);
    assert_eq!(bearing(&server, &to_pod).await.0, 401);
    assert_eq!(bearing(&server, &to_account).await.0, 201);
    // One with the same name is another account.
    admin.delete(&format!("{accounts}/bound"), &json!({})).await.expect(200);
    admin.post(accounts, &json!({"metadata": {"name": "bound"}})).await.expect(201);
    assert_eq!(bearing(&server, &to_account).await.0, 401);
}

#[tokio::test]
async fn without_a_key_there_are_no_tokens() {
    let server = Server::start().await;
    let admin = server.admin();
    admin.until(ACCOUNT, 200).await;
    admin.post(&format!("{ACCOUNT}/token"), &json!({})).await.expect(500);
    assert_eq!(bearing(&server, "Bearer a.b.c").await.0, 401);
}

/// Somebody makes up tokens: few of them are looked at, and who has a good one is served from the same address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_up_tokens_cost_little() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let server = Server::start_with(with_key()).await;
    let admin = server.admin();
    admin.until(ACCOUNT, 200).await;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let issued = admin.post(&format!("{ACCOUNT}/token"), &request).await.expect(201);
    let good = issued["status"]["token"].as_str().unwrap().to_owned();
    let k = Kubectl::start(server).await;
    let dir = k.server.dir.path().to_owned();
    let mut stream = connect_with(k.address, &dir, None).await.unwrap();
    // One connection: its end would be a bound of another kind.
    let mut ask = async |token: &str| -> u16 {
        let head = format!("GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.unwrap());
        }
        let text = String::from_utf8(bytes).unwrap().to_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        text.split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(ask(&good).await, 200);
    let (start, _) = good.rsplit_once('.').unwrap();
    let mut answers = std::collections::BTreeMap::new();
    for n in 0..600 {
        let forged = format!("{start}.{}", URL_SAFE_NO_PAD.encode([n as u8; 64]));
        *answers.entry(ask(&forged).await).or_insert(0) += 1;
    }
    // 64, and those that came back while this went on.
    assert!(answers[&429] > 300 && answers.keys().all(|code| matches!(code, 401 | 429)), "{answers:?}");
    assert_eq!(ask(&good).await, 200);
    k.stop().await;
}
