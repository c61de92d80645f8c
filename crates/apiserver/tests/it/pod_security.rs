//! Pods with which an editor would reach the node, and what namespaces say about them.

use ferrovirt_apiserver::{Config, ExternalAddresses};
use serde_json::{Value, json};

use crate::pods::pod;
use crate::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CONTROLLER: &str = "system:serviceaccount:kubevirt:kubevirt-controller";

async fn start() -> (Server, Client) {
    let external_addresses = ExternalAddresses {
        allowed: ["198.51.100.0/24", "127.0.0.0/8", "10.0.0.0/8"].iter().map(|n| n.parse().unwrap()).collect(),
        reserved: vec!["10.99.0.0/24".parse().unwrap()],
    };
    let config = Config { pod_makers: vec![CONTROLLER.into()], external_addresses, ..Config::default() };
    let server = Server::start_with(config).await;
    for (name, role) in [("mallory", "edit"), (CONTROLLER, "edit")] {
        let binding = json!({
            "metadata": {"name": role.to_owned() + &name.len().to_string()}, "subjects": [{"kind": "User", "name": name}],
            "roleRef": {"kind": "ClusterRole", "name": role},
        });
        server.admin().post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    }
    let mallory = server.user("mallory", &[]);
    (server, mallory)
}

/// A pod with more in its spec.
fn with(name: &str, more: Value) -> Value {
    let mut pod = pod(name);
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// What of a pod leads to the node, and the right that it takes.
fn attacks() -> Vec<(Value, &'static str)> {
    let container = |context: Value| json!({"containers": [{"name": "c", "image": "i:1", "securityContext": context}]});
    vec![
        (json!({"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}), "hostpath"),
        (json!({"securityContext": {"runAsUser": 1000}}), "ids"),
        (json!({"securityContext": {"runAsGroup": 42}}), "ids"),
        (json!({"securityContext": {"fsGroup": 42}}), "ids"),
        (json!({"securityContext": {"supplementalGroups": [42]}}), "ids"),
        (container(json!({"runAsUser": 107})), "ids"),
        (container(json!({"runAsGroup": 42})), "ids"),
        (json!({"initContainers": [{"name": "i", "image": "i:1", "securityContext": {"runAsUser": 0}}]}), "ids"),
        (json!({"hostNetwork": true}), "privileged"),
        (json!({"hostPID": true}), "privileged"),
        (json!({"hostIPC": true}), "privileged"),
        (container(json!({"privileged": true})), "privileged"),
        (container(json!({"capabilities": {"add": ["SYS_ADMIN"]}})), "privileged"),
        (container(json!({"seccompProfile": {"type": "Unconfined"}})), "privileged"),
        (json!({"securityContext": {"sysctls": [{"name": "kernel.core_pattern", "value": "|/x"}]}}), "privileged"),
        (
            json!({"containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
            "privileged",
        ),
    ]
}

#[tokio::test]
async fn an_editor_reaches_the_node_by_no_pod_not_even_in_a_privileged_namespace() {
    let (server, mallory) = start().await;
    let controller = server.user(CONTROLLER, &[]);
    for label in [Value::Null, json!("privileged")] {
        let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": label}}});
        server.admin().merge("/api/v1/namespaces/default", &labels).await.expect(200);
        for (index, (more, right)) in attacks().into_iter().enumerate() {
            let attack = with(&format!("p{index}"), more);
            let refused = mallory.post(&format!("{PODS}?dryRun=All"), &attack).await.expect(403);
            let message = refused["message"].as_str().unwrap();
            assert!(message.contains(&format!("pods/{right}")), "{attack}: {message}");
            // Ours do that, and are known by who makes them.
            let made = controller.post(&format!("{PODS}?dryRun=All"), &attack).await;
            assert_eq!(made.status, 201, "{attack}: {:#}", made.body);
        }
    }
    // A namespace of the editor's own does not help: nobody but administrators labels one.
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    mallory.merge("/api/v1/namespaces/default", &label).await.expect(403);
    // Nor does an image put into a pod that an administrator made.
    server
        .admin()
        .post(PODS, &with("theirs", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})))
        .await
        .expect(201);
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "evil:1"}]);
    let refused = mallory.patch(&format!("{PODS}/theirs"), "application/json-patch+json", &image).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("pods/hostpath"), "{refused:#}");
    // An administrator may give the rights.
    let role = json!({"metadata": {"name": "ids"}, "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods/ids"]}]});
    server.admin().post(&format!("{RBAC}/namespaces/default/roles"), &role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "ids"}, "subjects": [{"kind": "User", "name": "mallory"}], "roleRef": {"kind": "Role", "name": "ids"},
    });
    server.admin().post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    mallory.post(PODS, &with("allowed", json!({"securityContext": {"runAsUser": 1000}}))).await.expect(201);
    let ephemeral = with("e", json!({"ephemeralContainers": [{"name": "d", "image": "i:1"}]}));
    mallory.post(PODS, &ephemeral).await.expect(422);
}

#[tokio::test]
async fn namespaces_enforce_baseline_unless_they_say_otherwise() {
    let (server, mallory) = start().await;
    let admin = server.admin();
    let host_path = with("p", json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}));
    let refused = admin.post(PODS, &host_path).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": hostPath volumes (volume \"v\")"
    );
    let label = |mode: &str, level: &str| json!({"metadata": {"labels": {format!("pod-security.kubernetes.io/{mode}"): level}}});
    let namespace = "/api/v1/namespaces/default";
    let wrong = admin.merge(namespace, &label("enforce", "none")).await.expect(422);
    assert_eq!(
        wrong["message"],
        "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"none\": \
         must be one of privileged, baseline, restricted"
    );
    admin.merge(namespace, &label("warn-version", "1.2")).await.expect(422);
    // A stricter level says which pods it would not let in, and what makes pods is only warned.
    mallory.post(PODS, &pod("plain")).await.expect(201);
    let stricter = admin.merge(namespace, &label("enforce", "restricted")).await;
    let reasons = "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile";
    assert_eq!(
        stricter.warnings,
        [
            "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\"\"".to_owned(),
            format!("299 - \"plain: {reasons}\""),
        ]
    );
    let refused = mallory.post(PODS, &pod("q")).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"q\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
         (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \
         \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
         securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
         securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let strict = with(
        "strict",
        json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "i:1", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }}],
        }),
    );
    mallory.post(PODS, &strict).await.expect(201);
    let deployment = json!({
        "metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
        },
    });
    let made = mallory.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await;
    assert!(made.warnings.iter().any(|w| w.contains("would violate PodSecurity")), "{:?}", made.warnings);
    made.expect(201);
    // A pod that is there already is changed in ways that do not matter.
    mallory.merge(&format!("{PODS}/plain"), &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
}

#[tokio::test]
async fn external_addresses_take_nobodys_traffic() {
    let (server, mallory) = start().await;
    let service = |name: &str, ips: &[&str]| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, "externalIPs": ips}});
    for address in [
        "203.0.113.1",
        "127.0.0.1",
        "127.0.0.53",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "10.43.0.1",
        "10.99.0.7",
    ] {
        let refused = mallory.post(SERVICES, &service("attack", &[address])).await.expect(403);
        let message = refused["message"].as_str().unwrap();
        let expected = "services \"attack\" is forbidden: Use of external IPs is denied by admission control.";
        assert!(message.starts_with(expected) && message.contains(address), "{message}");
    }
    mallory.post(SERVICES, &service("good", &["198.51.100.1", "198.51.100.2"])).await.expect(201);
    let item = format!("{SERVICES}/good");
    mallory.merge(&item, &json!({"spec": {"externalIPs": ["198.51.100.1", "127.0.0.1"]}})).await.expect(403);
    mallory.merge(&item, &json!({"spec": {"externalIPs": ["198.51.100.2"]}})).await.expect(200);
    // The same by way of what a load balancer would say, and of endpoints: editors have no right to either.
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}});
    mallory.merge(&format!("{item}/status"), &ingress).await.expect(403);
    let slice = json!({
        "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"port": 22}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    mallory.post(slices, &slice).await.expect(403);
    let endpoints =
        json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "::1"}], "ports": [{"port": 22}]}]});
    mallory.post("/api/v1/namespaces/default/endpoints", &endpoints).await.expect(403);
    // Who has it cannot point at the node's own loopback.
    let role = json!({"metadata": {"name": "slices"}, "rules": [
        {"verbs": ["create"], "apiGroups": ["discovery.k8s.io", ""], "resources": ["endpointslices", "endpoints"]},
    ]});
    server.admin().post(&format!("{RBAC}/namespaces/default/roles"), &role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "slices"}, "subjects": [{"kind": "User", "name": "mallory"}],
        "roleRef": {"kind": "Role", "name": "slices"},
    });
    server.admin().post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    mallory.post(slices, &slice).await.expect(422);
    mallory.post("/api/v1/namespaces/default/endpoints", &endpoints).await.expect(422);
    // Programs go on finding the API where it is.
    let own = format!("{SERVICES}/kubernetes");
    mallory.merge(&own, &json!({"spec": {"selector": {"a": "b"}}})).await.expect(403);
    mallory.delete(&own, &json!({})).await.expect(403);
    mallory.merge(&own, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
}

/// Users of its own would make root in a pod harmless; no node here gives it any. And what a pod's runtime adds is not for the pod
/// to say: with less than nothing it would be let in where there is no room.
#[tokio::test]
async fn what_a_pod_says_of_itself_excuses_it_from_nothing() {
    let (server, mallory) = start().await;
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    server.admin().merge("/api/v1/namespaces/default", &label).await.expect(200);
    let strict = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let containers = json!([{"name": "c", "image": "i:1", "securityContext": strict}]);
    for (more, code) in [
        (json!({"containers": containers, "hostUsers": false}), 403),
        (json!({"containers": containers}), 403),
        (json!({"containers": containers, "hostUsers": false, "securityContext": {"runAsNonRoot": true}}), 201),
    ] {
        mallory.post(PODS, &with("p", more)).await.expect(code);
    }
    let open = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": null}}});
    server.admin().merge("/api/v1/namespaces/default", &open).await.expect(200);
    let class = json!({"metadata": {"name": "heavy"}, "handler": "h", "overhead": {"podFixed": {"cpu": "250m"}}});
    server.admin().post("/apis/node.k8s.io/v1/runtimeclasses", &class).await.expect(201);
    let heavy = |overhead: Value| json!({"runtimeClassName": "heavy", "overhead": overhead});
    for (name, more, code) in [
        ("a", json!({"overhead": {"cpu": "-5"}}), 403),
        ("a", json!({"overhead": {"cpu": "1"}}), 403),
        ("a", heavy(json!({"cpu": "-5"})), 403),
        ("a", heavy(json!({"cpu": "0.25"})), 201),
        ("b", json!({"runtimeClassName": "heavy"}), 201),
    ] {
        let answer = mallory.post(PODS, &with(name, more)).await.expect(code);
        assert!(code == 403 || answer["spec"]["overhead"] == json!({"cpu": "250m"}), "{answer}");
    }
}
