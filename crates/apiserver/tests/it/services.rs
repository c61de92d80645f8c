//! Addresses and ports of services.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::Server;

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let server = Server::start().await;
    let admin = server.admin();
    let api = admin.get(&format!("{SERVICES}/kubernetes")).await.expect(200);
    assert_eq!(api["spec"]["clusterIP"], "10.43.0.1");
    let plain = admin.post(SERVICES, &service("plain", json!({}))).await.expect(201);
    let address = plain["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.43."), "{address}");
    assert_eq!(plain["spec"]["clusterIPs"], json!([address]));
    assert_eq!(plain["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(plain["spec"]["ports"][0]["targetPort"], 80);
    let headless =
        admin.post(SERVICES, &service("headless", json!({"clusterIP": "None", "ports": []}))).await.expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let external = json!({"type": "ExternalName", "externalName": "example.com", "ports": []});
    let external = admin.post(SERVICES, &service("external", external)).await.expect(201);
    assert_eq!(external["spec"].get("clusterIP"), None);
    let refused = [
        (json!({"clusterIP": address}), "already allocated"),
        (json!({"clusterIP": "192.168.0.1"}), "not in the valid range"),
        (json!({"clusterIP": "nonsense"}), "valid IPv4 address"),
        (json!({"ports": []}), "spec.ports: Required value"),
        (json!({"ports": [{"port": 0}]}), "between 1 and 65535"),
        (json!({"ports": [{"port": 1}, {"port": 2}]}), "spec.ports[0].name: Required value"),
        (json!({"type": "Sideways"}), "spec.type: Unsupported value"),
        (json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}), "30000-32767"),
    ];
    for (spec, why) in refused {
        let answer = admin.post(SERVICES, &service("bad", spec)).await.expect(422);
        assert!(answer["message"].as_str().unwrap().contains(why), "{why}: {}", answer["message"]);
    }
    // An update that leaves the address out keeps it; one that changes it is refused.
    let item = format!("{SERVICES}/plain");
    let mut changed = service("plain", json!({"selector": {"a": "b"}}));
    assert_eq!(admin.put(&item, &changed).await.expect(200)["spec"]["clusterIP"], json!(address));
    changed["spec"]["clusterIP"] = "10.43.200.200".into();
    changed["spec"]["clusterIPs"] = json!(["10.43.200.200"]);
    admin.put(&item, &changed).await.expect(422);
    // Node ports come and go with the type.
    let ported = admin.merge(&item, &json!({"spec": {"type": "NodePort"}})).await.expect(200);
    let port = ported["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    let taken = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]});
    admin.post(SERVICES, &service("bad", taken)).await.expect(422);
    let kept = admin.put(&item, &service("plain", json!({"type": "NodePort"}))).await.expect(200);
    assert_eq!(kept["spec"]["ports"][0]["nodePort"], port);
    let back = admin.merge(&item, &json!({"spec": {"type": "ClusterIP"}})).await.expect(200);
    assert_eq!(back["spec"]["ports"][0].get("nodePort"), None);
    // What is deleted is free again, at once.
    admin.delete(&item, &json!({})).await.expect(200);
    admin.post(SERVICES, &service("again", json!({"clusterIP": address}))).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_services_share_a_number() {
    let server = Server::start().await;
    let admin = server.admin();
    let wanted: Vec<Value> = (0..64).map(|i| service(&format!("s{i}"), json!({"type": "NodePort"}))).collect();
    let made = futures::future::join_all(wanted.iter().map(|s| admin.post(SERVICES, s))).await;
    let mut addresses = HashSet::new();
    let mut ports = HashSet::new();
    for answer in made {
        let made = answer.expect(201);
        assert!(addresses.insert(made["spec"]["clusterIP"].to_string()));
        assert!(ports.insert(made["spec"]["ports"][0]["nodePort"].to_string()));
    }
}
