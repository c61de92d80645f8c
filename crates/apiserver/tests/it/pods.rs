//! What only pods have.

use serde_json::{Value, json};

use crate::support::Server;

const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

#[tokio::test]
async fn eviction_deletes_with_grace() {
    let server = Server::start().await;
    let admin = server.admin();
    let eviction = |options: Value| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}, "deleteOptions": options});
    admin.post(PODS, &pod("p")).await.expect(201);
    let item = format!("{PODS}/p");
    let evict = format!("{item}/eviction");
    admin.post(&evict, &eviction(json!({"dryRun": ["All"]}))).await.expect(201);
    admin.post(&evict, &eviction(json!({"preconditions": {"uid": "other"}}))).await.expect(409);
    admin.get(&item).await.expect(200);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{item}/binding"), &binding).await.expect(201);
    admin.post(&format!("{item}/binding"), &binding).await.expect(409);
    // It runs on a node, which has to stop it: the pod stays until the node says so.
    admin.post(&evict, &eviction(json!({"gracePeriodSeconds": 7}))).await.expect(201);
    let going = admin.get(&item).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
    admin.delete(&item, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    admin.post(&evict, &eviction(Value::Null)).await.expect(404);
}
