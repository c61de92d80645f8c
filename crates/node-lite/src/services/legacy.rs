//! The older form of endpoint slices, for clients that still read or write it: one Endpoints object per service. What we
//! know of a service's pods is written there too, and what somebody else writes there is mirrored into slices. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as OldPort, EndpointSubset, Endpoints, ObjectReference, Service,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::endpoints::{HEADLESS, MAX_ENDPOINTS, Source};

/// Says that an Endpoints object is ours.
pub(crate) const OLD_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
pub(crate) const OLD_MANAGER: &str = "endpoint-controller";
/// Says that a slice is a mirror.
pub(crate) const MIRROR_MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// An Endpoints object holds no more; the annotation says that there are.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

/// Whether two of them say the same.
pub(crate) fn same(current: &Endpoints, wanted: &Endpoints) -> bool {
    current.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default()
        && current.metadata.labels == wanted.metadata.labels
        && annotation(current, OVER_CAPACITY) == annotation(wanted, OVER_CAPACITY)
}

fn annotation<'a>(object: &'a Endpoints, name: &str) -> Option<&'a String> {
    object.metadata.annotations.as_ref()?.get(name)
}

/// The Endpoints of a service, from the slices it should have. It has room for one address family, the first.
pub(crate) fn endpoints_of(service: &Service, slices: &[EndpointSlice]) -> Endpoints {
    let family = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref()?.first().cloned());
    let family = family.unwrap_or_else(|| "IPv4".into());
    let mut left = MAX_ENDPOINTS;
    let mut over = false;
    let mut subsets = vec![];
    for slice in slices.iter().filter(|slice| slice.address_type == family) {
        let (mut ready, mut waiting) = (vec![], vec![]);
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            if conditions.terminating == Some(true) && conditions.ready != Some(true) {
                continue;
            }
            if left == 0 {
                over = true;
                break;
            }
            left -= 1;
            let list = if conditions.ready == Some(true) { &mut ready } else { &mut waiting };
            list.push(old_address(endpoint));
        }
        let old_port = |port: &EndpointPort| OldPort {
            name: port.name.clone().filter(|name| !name.is_empty()),
            port: port.port.unwrap_or_default(),
            protocol: port.protocol.clone(),
            app_protocol: port.app_protocol.clone(),
        };
        let some = |list: Vec<EndpointAddress>| (!list.is_empty()).then_some(list);
        if !ready.is_empty() || !waiting.is_empty() {
            let ports: Vec<OldPort> = slice.ports.iter().flatten().map(old_port).collect();
            subsets.push(EndpointSubset {
                addresses: some(ready),
                not_ready_addresses: some(waiting),
                ports: (!ports.is_empty()).then_some(ports),
            });
        }
    }
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(OLD_MANAGED_BY.into(), OLD_MANAGER.into());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.into(), String::new());
    }
    Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: over.then(|| [(OVER_CAPACITY.to_owned(), "truncated".to_owned())].into()),
            ..Default::default()
        },
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

fn old_address(endpoint: &Endpoint) -> EndpointAddress {
    EndpointAddress {
        ip: endpoint.addresses.first().cloned().unwrap_or_default(),
        hostname: endpoint.hostname.clone(),
        node_name: endpoint.node_name.clone(),
        target_ref: endpoint.target_ref.clone(),
    }
}

/// The slices that say what somebody's Endpoints say. None if they are not to be mirrored.
pub(crate) fn mirrored(endpoints: &Endpoints, service: &Service) -> Option<Vec<EndpointSlice>> {
    let spec = service.spec.as_ref()?;
    let labels = endpoints.metadata.labels.clone().unwrap_or_default();
    let with_selector = spec.selector.as_ref().is_some_and(|selector| !selector.is_empty());
    let foreign = labels.get(SKIP_MIRROR).is_some_and(|value| value == "true")
        || labels.contains_key(OLD_MANAGED_BY)
        || annotation(endpoints, LEADER).is_some();
    if with_selector || foreign || endpoints.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let source = Source {
        kind: "Endpoints",
        metadata: &endpoints.metadata,
        manager: MIRROR_MANAGER,
        prefix: "mirror/",
        headless: false,
    };
    let mut out = vec![];
    for subset in endpoints.subsets.iter().flatten() {
        let mut families: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let waiting = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(waiting) {
            let family = if address.ip.contains(':') { "IPv6" } else { "IPv4" };
            families.entry(family).or_default().push(new_address(address, ready));
        }
        let ports = subset.ports.iter().flatten().map(|port| EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(port.port),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
            app_protocol: port.app_protocol.clone(),
        });
        let ports: Vec<EndpointPort> = ports.collect();
        for (family, addresses) in families {
            for chunk in addresses.chunks(MAX_ENDPOINTS) {
                out.push(source.slice(family, ports.clone(), out.len(), chunk.to_vec()));
            }
        }
    }
    Some(out)
}

fn new_address(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone().map(|target| ObjectReference { resource_version: None, ..target }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::services::endpoints::{PodFacts, slices};

    fn service(spec: Value) -> Service {
        let object = json!({ "metadata": { "name": "web", "namespace": "default", "uid": "u" }, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn pod(name: &str, ip: &str, ready: bool, terminating: bool) -> PodFacts {
        PodFacts {
            namespace: "default".into(),
            name: name.into(),
            labels: [("app".into(), "web".into())].into(),
            ips: vec![ip.into()],
            ready,
            terminating,
            ..Default::default()
        }
    }

    fn shown(endpoints: &Endpoints) -> Value {
        let mut value = serde_json::to_value(&endpoints.subsets).unwrap();
        for subset in value.as_array_mut().into_iter().flatten() {
            for list in ["addresses", "notReadyAddresses"] {
                for address in subset.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                    *address = address["ip"].take();
                }
            }
        }
        value
    }

    #[test]
    fn the_old_form_says_what_the_slices_say() {
        let web = service(json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] }));
        let pods = [
            pod("a", "10.0.0.2", true, false),
            pod("b", "10.0.0.3", false, false),
            pod("c", "10.0.0.4", true, true),
            pod("d", "fd00::1", true, false),
        ];
        let endpoints = endpoints_of(&web, &slices(&web, pods.iter()).unwrap());
        assert_eq!(
            shown(&endpoints),
            json!([{ "addresses": ["10.0.0.2"], "notReadyAddresses": ["10.0.0.3"],
                     "ports": [{ "port": 8080, "protocol": "TCP" }] }])
        );
        assert_eq!(endpoints.metadata.labels.unwrap()[OLD_MANAGED_BY], OLD_MANAGER);
        let empty = endpoints_of(&web, &slices(&web, [].into_iter()).unwrap());
        assert_eq!(empty.subsets, None, "an object that says nobody is there");
    }

    #[test]
    fn more_than_it_may_hold_is_said_to_be_cut() {
        let web = service(json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }] }));
        let pods: Vec<PodFacts> =
            (0..1001).map(|n| pod(&format!("p{n}"), &format!("10.1.{}.{}", n / 250, n % 250), true, false)).collect();
        let endpoints = endpoints_of(&web, &slices(&web, pods.iter()).unwrap());
        let count: usize =
            endpoints.subsets.iter().flatten().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum();
        assert_eq!(count, MAX_ENDPOINTS);
        assert_eq!(endpoints.metadata.annotations.unwrap()[OVER_CAPACITY], "truncated");
    }

    #[test]
    fn endpoints_of_somebody_else_are_mirrored() {
        let plain = service(json!({ "ports": [{ "port": 80 }] }));
        let endpoints = |metadata: Value| -> Endpoints {
            let object = json!({ "metadata": metadata, "subsets": [
                { "addresses": [{ "ip": "10.1.2.3" }, { "ip": "fd00::1" }], "notReadyAddresses": [{ "ip": "10.1.2.4" }],
                  "ports": [{ "port": 80 }] },
                { "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "name": "b", "port": 81 }] }]});
            serde_json::from_value(object).unwrap()
        };
        let made = mirrored(&endpoints(json!({ "name": "web", "namespace": "default" })), &plain).unwrap();
        let shown: Vec<String> = made
            .iter()
            .map(|slice| {
                let addresses: Vec<&str> =
                    slice.endpoints.iter().flatten().map(|endpoint| endpoint.addresses[0].as_str()).collect();
                format!("{} {} {:?}", slice.address_type, addresses.join(","), slice.ports.as_ref().unwrap()[0].port)
            })
            .collect();
        assert_eq!(shown, ["IPv4 10.1.2.3,10.1.2.4 Some(80)", "IPv6 fd00::1 Some(80)", "IPv4 10.1.2.3 Some(81)"]);
        let names: std::collections::BTreeSet<_> = made.iter().map(|slice| slice.metadata.name.clone()).collect();
        assert_eq!(names.len(), 3);
        assert!(made[0].metadata.name.as_ref().unwrap().starts_with("web-"));

        let skipped = json!({ "name": "web", "labels": { SKIP_MIRROR: "true" } });
        assert_eq!(mirrored(&endpoints(skipped), &plain), None);
        let ours = json!({ "name": "web", "labels": { OLD_MANAGED_BY: OLD_MANAGER } });
        assert_eq!(mirrored(&endpoints(ours), &plain), None);
        let selecting = service(json!({ "selector": { "app": "web" } }));
        assert_eq!(mirrored(&endpoints(json!({ "name": "web" })), &selecting), None);
    }
}
