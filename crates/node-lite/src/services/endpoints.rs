//! Which pods are behind a service. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::SERVICE_NAME;

pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
/// What one slice may hold.
pub(crate) const MAX_ENDPOINTS: usize = 1000;

/// Name, protocol and number of a port.
type NamedPort = (String, String, i32);

/// What endpoints need to know of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub ips: Vec<String>,
    pub node: String,
    pub hostname: String,
    pub subdomain: String,
    pub ready: bool,
    pub terminating: bool,
    pub finished: bool,
    /// Name, protocol and number of each port that has a name.
    pub ports: Vec<NamedPort>,
}

impl PodFacts {
    pub fn of(pod: Pod) -> Self {
        let (metadata, spec, status) = (pod.metadata, pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
        let ports = ports.filter_map(|port| {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some((port.name.clone()?, protocol, port.container_port))
        });
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        Self {
            ports: ports.collect(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            ips: status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect(),
            node: spec.node_name.unwrap_or_default(),
            hostname: spec.hostname.unwrap_or_default(),
            subdomain: spec.subdomain.unwrap_or_default(),
            ready,
            terminating: metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        }
    }
}

/// The slices that a service should have. None for a service whose endpoints are somebody else's business.
pub(crate) fn slices<'a>(service: &Service, pods: impl Iterator<Item = &'a PodFacts>) -> Option<Vec<EndpointSlice>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let families = spec.ip_families.clone().unwrap_or_else(|| vec!["IPv4".into()]);
    // By address family and ports.
    let mut groups: BTreeMap<(String, Vec<NamedPort>), Vec<Endpoint>> = BTreeMap::new();
    for pod in pods {
        let selected = pod.namespace == service.metadata.namespace.as_deref().unwrap_or_default()
            && selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value));
        if !selected || pod.finished {
            continue;
        }
        let ports = resolve(spec.ports.as_deref().unwrap_or_default(), pod);
        if ports.is_empty() && spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            continue;
        }
        for family in &families {
            let address = pod.ips.iter().find(|ip| ip.contains(':') == (family == "IPv6"));
            if let Some(address) = address {
                let endpoint = endpoint(service, pod, address, spec.publish_not_ready_addresses == Some(true));
                groups.entry((family.clone(), ports.clone())).or_default().push(endpoint);
            }
        }
    }
    if groups.is_empty() {
        // An empty slice tells that nobody is there; none would tell that nobody looked.
        for family in &families {
            groups.insert((family.clone(), vec![]), vec![]);
        }
    }
    let source = Source {
        kind: "Service",
        metadata: &service.metadata,
        manager: MANAGER,
        prefix: "",
        headless: spec.cluster_ip.as_deref() == Some("None"),
    };
    let mut out = vec![];
    for ((family, ports), mut endpoints) in groups {
        endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        let ports = ports.into_iter().map(|(name, protocol, port)| EndpointPort {
            name: Some(name),
            protocol: Some(protocol),
            port: Some(port),
            app_protocol: None,
        });
        let ports: Vec<EndpointPort> = ports.collect();
        let mut rest = endpoints.as_slice();
        loop {
            let (chunk, after) = rest.split_at(rest.len().min(MAX_ENDPOINTS));
            out.push(source.slice(&family, ports.clone(), out.len(), chunk.to_vec()));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
    Some(out)
}

/// The numbers behind a service's ports on one pod: name, protocol, number. A name that the pod does not know is left out.
fn resolve(ports: &[ServicePort], pod: &PodFacts) -> Vec<NamedPort> {
    let resolved = ports.iter().filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        let number = match &port.target_port {
            None => port.port,
            Some(IntOrString::Int(0)) => port.port,
            Some(IntOrString::Int(number)) => *number,
            Some(IntOrString::String(name)) => {
                pod.ports.iter().find(|(known, of, _)| known == name && *of == protocol)?.2
            }
        };
        Some((port.name.clone().unwrap_or_default(), protocol, number))
    });
    resolved.collect()
}

fn endpoint(service: &Service, pod: &PodFacts, address: &str, publish_not_ready: bool) -> Endpoint {
    let serving = pod.ready || publish_not_ready;
    let named = !pod.hostname.is_empty() && service.metadata.name.as_deref() == Some(pod.subdomain.as_str());
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(serving && (!pod.terminating || publish_not_ready)),
            serving: Some(pod.ready),
            terminating: Some(pod.terminating),
        }),
        hostname: named.then(|| pod.hostname.clone()),
        node_name: Some(pod.node.clone()).filter(|node| !node.is_empty()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The object that slices are made from: a Service, or Endpoints that somebody wrote.
pub(crate) struct Source<'a> {
    pub kind: &'static str,
    pub metadata: &'a ObjectMeta,
    pub manager: &'static str,
    /// Kept apart in the names of slices.
    pub prefix: &'static str,
    pub headless: bool,
}

impl Source<'_> {
    pub fn slice(
        &self,
        family: &str,
        ports: Vec<EndpointPort>,
        index: usize,
        endpoints: Vec<Endpoint>,
    ) -> EndpointSlice {
        let name = self.metadata.name.clone().unwrap_or_default();
        let mut labels = self.metadata.labels.clone().unwrap_or_default();
        labels.insert(SERVICE_NAME.into(), name.clone());
        labels.insert(MANAGED_BY.into(), self.manager.into());
        if self.headless {
            labels.insert(HEADLESS.into(), String::new());
        }
        EndpointSlice {
            address_type: family.to_owned(),
            endpoints: Some(endpoints),
            ports: Some(ports),
            metadata: ObjectMeta {
                name: Some(slice_name(&name, &format!("{}{family}", self.prefix), index)),
                namespace: self.metadata.namespace.clone(),
                labels: Some(labels),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: self.kind.into(),
                    name,
                    uid: self.metadata.uid.clone().unwrap_or_default(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                }]),
                ..Default::default()
            },
        }
    }
}

/// The same slice has the same name every time, so creating it twice creates one.
fn slice_name(service: &str, family: &str, index: usize) -> String {
    let mut state: u32 = 0x811c_9dc5;
    for byte in format!("{service}/{family}/{index}").bytes() {
        state = (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let suffix = (0..5).map(|place| {
        let digit = (state / (LETTERS.len() as u32).pow(place)) as usize % LETTERS.len();
        char::from(LETTERS[digit])
    });
    format!("{service}-{}", suffix.collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, ip: &str, ready: bool) -> PodFacts {
        PodFacts {
            namespace: "default".into(),
            name: name.into(),
            labels: [("app".into(), "web".into())].into(),
            ips: vec![ip.into()],
            ports: vec![("http".into(), "TCP".into(), 8080)],
            ready,
            ..Default::default()
        }
    }

    fn service(spec: Value) -> Service {
        let object = json!({ "metadata": { "name": "web", "namespace": "default", "uid": "u" }, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn shown(service: &Service, pods: &[PodFacts]) -> Vec<String> {
        let mut out = vec![];
        for slice in slices(service, pods.iter()).unwrap() {
            let ports: Vec<i32> = slice.ports.iter().flatten().filter_map(|port| port.port).collect();
            for endpoint in slice.endpoints.iter().flatten() {
                let ready = endpoint.conditions.as_ref().unwrap().ready.unwrap();
                let host = endpoint.hostname.clone().unwrap_or_default();
                out.push(format!("{} {ports:?} {ready} {host}", endpoint.addresses[0]));
            }
        }
        out
    }

    #[test]
    fn pods_that_match_are_behind_the_service() {
        let web = service(json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] }));
        let other = PodFacts { labels: BTreeMap::new(), ..pod("x", "10.0.0.9", true) };
        let elsewhere = PodFacts { namespace: "b".into(), ..pod("y", "10.0.0.8", true) };
        let ended = PodFacts { finished: true, ..pod("z", "10.0.0.7", true) };
        let nameless = PodFacts { ports: vec![], ..pod("n", "10.0.0.6", true) };
        let leaving = PodFacts { terminating: true, ..pod("t", "10.0.0.4", true) };
        let pods =
            [pod("b", "10.0.0.3", false), pod("a", "10.0.0.2", true), other, elsewhere, ended, nameless, leaving];
        assert_eq!(shown(&web, &pods), ["10.0.0.2 [8080] true ", "10.0.0.3 [8080] false ", "10.0.0.4 [8080] false "]);
        assert_eq!(slices(&web, [].into_iter()).unwrap().len(), 1, "an empty slice");
    }

    #[test]
    fn host_names_belong_to_the_service_they_name() {
        let headless = json!({ "clusterIP": "None", "selector": { "app": "web" }, "publishNotReadyAddresses": true });
        let named = PodFacts { hostname: "one".into(), subdomain: "web".into(), ..pod("a", "10.0.0.2", false) };
        let stranger = PodFacts { hostname: "two".into(), subdomain: "db".into(), ..pod("b", "10.0.0.3", false) };
        assert_eq!(shown(&service(headless), &[named, stranger]), ["10.0.0.2 [] true one", "10.0.0.3 [] true "]);
    }

    #[test]
    fn services_without_a_selector_are_left_alone() {
        assert!(slices(&service(json!({ "ports": [{ "port": 1 }] })), [].into_iter()).is_none());
        let external = json!({ "type": "ExternalName", "externalName": "x.y", "selector": { "a": "b" } });
        assert!(slices(&service(external), [].into_iter()).is_none());
    }

    #[test]
    fn names_are_stable_and_differ() {
        assert_eq!(slice_name("web", "IPv4", 0), slice_name("web", "IPv4", 0));
        assert_ne!(slice_name("web", "IPv4", 0), slice_name("web", "IPv4", 1));
        assert_ne!(slice_name("web", "IPv4", 0), slice_name("web", "IPv6", 0));
    }
}
