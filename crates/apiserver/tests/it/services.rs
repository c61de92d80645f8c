//! Addresses and ports of services.

use std::collections::HashSet;

use ferrovirt_apiserver::{Config, ServiceNetwork};
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

#[tokio::test]
async fn services_have_the_families_they_ask_for() {
    let network = ServiceNetwork { ipv6: Some("fd00:5::".parse().unwrap()), ..ServiceNetwork::default() };
    let server = Server::start_with(Config { service_network: network, ..Config::default() }).await;
    let admin = server.admin();
    for (name, spec, families, prefixes) in [
        ("plain", json!({}), json!(["IPv4"]), vec!["10.43."]),
        ("six", json!({"ipFamilies": ["IPv6"]}), json!(["IPv6"]), vec!["fd00:5::"]),
        ("both", json!({"ipFamilyPolicy": "PreferDualStack"}), json!(["IPv4", "IPv6"]), vec!["10.43.", "fd00:5::"]),
        (
            "turned",
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}),
            json!(["IPv6", "IPv4"]),
            vec!["fd00:5::", "10.43."],
        ),
        ("given", json!({"clusterIP": "fd00:5::77"}), json!(["IPv6"]), vec!["fd00:5::77"]),
        (
            "headless",
            json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"}),
            json!(["IPv4", "IPv6"]),
            vec!["None"],
        ),
    ] {
        let made = admin.post(SERVICES, &service(name, spec)).await.expect(201);
        assert_eq!(made["spec"]["ipFamilies"], families, "{name}");
        let addresses = made["spec"]["clusterIPs"].as_array().unwrap();
        assert_eq!(addresses.len(), prefixes.len(), "{name}: {addresses:?}");
        for (address, prefix) in addresses.iter().zip(prefixes) {
            assert!(address.as_str().unwrap().starts_with(prefix), "{name}: {address}");
        }
        assert_eq!(made["spec"]["clusterIP"], addresses[0]);
    }
    // A second family comes and goes; what is there stays.
    let before = admin.get(&format!("{SERVICES}/plain")).await.expect(200);
    let item = format!("{SERVICES}/plain");
    let wider = admin.merge(&item, &json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}})).await.expect(200);
    assert_eq!(wider["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
    assert_eq!(wider["spec"]["clusterIP"], before["spec"]["clusterIP"]);
    let again = admin.merge(&item, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(again["spec"]["clusterIPs"], wider["spec"]["clusterIPs"]);
    let narrow = admin.merge(&item, &json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await.expect(200);
    assert_eq!(narrow["spec"]["clusterIPs"], before["spec"]["clusterIPs"]);
    for (spec, why) in [
        (json!({"clusterIP": "fd00:5::77"}), "already allocated"),
        (json!({"clusterIP": "fd00:6::1"}), "not in the valid range (fd00:5::/112)"),
        (json!({"ipFamilies": ["IPv5"]}), "spec.ipFamilies[0]"),
        (json!({"ipFamilies": ["IPv6"], "clusterIP": "10.43.1.1"}), "valid IPv6 address"),
    ] {
        let answer = admin.post(SERVICES, &service("bad", spec)).await.expect(422);
        assert!(answer["message"].as_str().unwrap().contains(why), "{why}: {}", answer["message"]);
    }
    // Without the family there is one only.
    let server = Server::start().await;
    let admin = server.admin();
    let one = admin.post(SERVICES, &service("one", json!({"ipFamilyPolicy": "PreferDualStack"}))).await.expect(201);
    assert_eq!(one["spec"]["ipFamilies"], json!(["IPv4"]));
    for spec in [json!({"ipFamilyPolicy": "RequireDualStack"}), json!({"ipFamilies": ["IPv6"]})] {
        admin.post(SERVICES, &service("bad", spec)).await.expect(422);
    }
}
