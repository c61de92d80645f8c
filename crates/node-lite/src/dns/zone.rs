//! What the names under `cluster.local` mean. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::DOMAIN;
use super::message::{A, AAAA, ANY, CNAME, Data, PTR, Record, SRV};
use crate::services::{Key, View};

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The name exists. It may have no records of the kind that was asked for.
    Known(Vec<Record>),
    Unknown,
    /// An alias of a name that others know.
    Alias {
        record: Record,
        target: String,
    },
    /// Not our zone.
    Elsewhere,
}

pub(crate) fn lookup(view: &View, name: &str, kind: u16) -> Lookup {
    if let Some(rest) = name.strip_suffix(".in-addr.arpa") {
        return reverse(view, name, rest, kind);
    }
    let inside = match name.strip_suffix(DOMAIN) {
        Some("") => return Lookup::Known(vec![]),
        Some(rest) if rest.ends_with('.') => rest.trim_end_matches('.'),
        _ => return Lookup::Elsewhere,
    };
    let mut labels: Vec<&str> = inside.split('.').collect();
    labels.reverse();
    match *labels.as_slice() {
        ["svc" | "pod"] => Lookup::Known(vec![]),
        ["pod", _namespace, address] => match address.replace('-', ".").parse() {
            Ok(address) => Lookup::Known(of_kind(kind, name, [IpAddr::V4(address)].into_iter())),
            Err(_) => Lookup::Unknown,
        },
        ["svc" | "pod", namespace] => match view.services.keys().any(|(known, _)| known == namespace) {
            true => Lookup::Known(vec![]),
            false => Lookup::Unknown,
        },
        ["svc", namespace, service, ref rest @ ..] => {
            let key = (namespace.to_owned(), service.to_owned());
            match view.services.get(&key) {
                Some(found) => in_service(view, &key, found, rest, name, kind),
                None => Lookup::Unknown,
            }
        }
        _ => Lookup::Unknown,
    }
}

fn in_service(view: &View, key: &Key, service: &Service, rest: &[&str], name: &str, kind: u16) -> Lookup {
    let spec = service.spec.clone().unwrap_or_default();
    let base = format!("{}.{}.svc.{DOMAIN}", key.1, key.0);
    if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.unwrap_or_default().trim_end_matches('.').to_lowercase();
        let record = Record { name: name.into(), data: Data::Cname(target.clone()) };
        return match rest {
            [] if kind == CNAME => Lookup::Known(vec![record]),
            [] => Lookup::Alias { record, target },
            _ => Lookup::Unknown,
        };
    }
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let ready = || view.slices_of(key).flat_map(usable);
    match *rest {
        [] if headless => Lookup::Known(of_kind(kind, name, ready().filter_map(address))),
        [] => {
            let addresses = spec.cluster_ips.unwrap_or_default();
            Lookup::Known(of_kind(kind, name, addresses.iter().filter_map(|text| text.parse().ok())))
        }
        [host] if headless && !host.starts_with('_') => {
            let matching: Vec<_> = ready().filter(|e| host_name(e) == host).filter_map(address).collect();
            match matching.is_empty() {
                true => Lookup::Unknown,
                false => Lookup::Known(of_kind(kind, name, matching.into_iter())),
            }
        }
        [protocol, port] => {
            let (Some(protocol), Some(port)) = (protocol.strip_prefix('_'), port.strip_prefix('_')) else {
                return Lookup::Unknown;
            };
            let is = |found: Option<&str>| found.unwrap_or("TCP").eq_ignore_ascii_case(protocol);
            let mut records = vec![];
            if headless {
                for slice in view.slices_of(key) {
                    let ports = slice.ports.iter().flatten();
                    let wanted = ports.filter(|p| p.name.as_deref() == Some(port) && is(p.protocol.as_deref()));
                    for number in wanted.filter_map(|p| u16::try_from(p.port?).ok()) {
                        for endpoint in usable(slice) {
                            let target = format!("{}.{base}", host_name(endpoint));
                            records.push(Record { name: name.into(), data: Data::Srv { port: number, target } });
                        }
                    }
                }
            } else {
                let ports = spec.ports.iter().flatten();
                let wanted = ports.filter(|p| p.name.as_deref() == Some(port) && is(p.protocol.as_deref()));
                for number in wanted.filter_map(|p| u16::try_from(p.port).ok()) {
                    records.push(Record { name: name.into(), data: Data::Srv { port: number, target: base.clone() } });
                }
            }
            match (records.is_empty(), kind) {
                (true, _) => Lookup::Unknown,
                (false, SRV | ANY) => Lookup::Known(records),
                (false, _) => Lookup::Known(vec![]),
            }
        }
        _ => Lookup::Unknown,
    }
}

/// The name of an address that a service or one of its named endpoints has.
fn reverse(view: &View, name: &str, digits: &str, kind: u16) -> Lookup {
    let mut octets: Vec<&str> = digits.split('.').collect();
    octets.reverse();
    let Ok(wanted) = octets.join(".").parse::<IpAddr>() else { return Lookup::Elsewhere };
    let known = |target: String| {
        let record = Record { name: name.into(), data: Data::Ptr(target) };
        Lookup::Known(if matches!(kind, PTR | ANY) { vec![record] } else { vec![] })
    };
    for (key, service) in &view.services {
        let base = || format!("{}.{}.svc.{DOMAIN}", key.1, key.0);
        let addresses = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
        if addresses.filter_map(|text| text.parse::<IpAddr>().ok()).any(|address| address == wanted) {
            return known(base());
        }
        let mut named = view.slices_of(key).flat_map(usable).filter(|e| e.hostname.is_some());
        if let Some(endpoint) = named.find(|endpoint| address(endpoint) == Some(wanted)) {
            return known(format!("{}.{}", host_name(endpoint), base()));
        }
    }
    Lookup::Elsewhere
}

fn usable(slice: &EndpointSlice) -> impl Iterator<Item = &Endpoint> {
    slice.endpoints.iter().flatten().filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true))
}

fn address(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.addresses.first()?.parse().ok()
}

/// An endpoint without a name goes by its address.
fn host_name(endpoint: &Endpoint) -> String {
    endpoint.hostname.clone().unwrap_or_else(|| {
        endpoint.addresses.first().map(|address| address.replace(['.', ':'], "-")).unwrap_or_default()
    })
}

fn of_kind(kind: u16, name: &str, addresses: impl Iterator<Item = IpAddr>) -> Vec<Record> {
    let records = addresses.filter_map(|address| {
        let data = match address {
            IpAddr::V4(v4) if matches!(kind, A | ANY) => Data::A(v4),
            IpAddr::V6(v6) if matches!(kind, AAAA | ANY) => Data::Aaaa(v6),
            _ => return None,
        };
        Some(Record { name: name.into(), data })
    });
    records.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn view() -> View {
        let service = |name: &str, spec: Value| {
            let object = json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec });
            (("default".to_owned(), name.to_owned()), Arc::new(serde_json::from_value(object).unwrap()))
        };
        let slice = json!({
            "metadata": { "name": "db-x", "namespace": "default", "labels": { "kubernetes.io/service-name": "db" } },
            "addressType": "IPv4", "ports": [{ "name": "sql", "port": 5432, "protocol": "TCP" }],
            "endpoints": [
                { "addresses": ["10.42.0.2"], "hostname": "one", "conditions": { "ready": true } },
                { "addresses": ["10.42.0.3"], "conditions": { "ready": true } },
                { "addresses": ["10.42.0.4"], "hostname": "three", "conditions": { "ready": false } },
            ],
        });
        View {
            services: [
                service(
                    "web",
                    json!({ "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
                            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] }),
                ),
                service(
                    "db",
                    json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "name": "sql", "port": 5432 }] }),
                ),
                service("out", json!({ "type": "ExternalName", "externalName": "Example.org." })),
            ]
            .into(),
            slices: [(("default".into(), "db-x".into()), Arc::new(serde_json::from_value(slice).unwrap()))].into(),
        }
    }

    #[test]
    fn names_have_the_meaning_of_kubernetes() {
        let cases = [
            ("web.default.svc.cluster.local", A, "10.43.0.9"),
            ("web.default.svc.cluster.local", AAAA, ""),
            ("db.default.svc.cluster.local", A, "10.42.0.2 10.42.0.3"),
            ("one.db.default.svc.cluster.local", A, "10.42.0.2"),
            ("10-42-0-3.db.default.svc.cluster.local", A, "10.42.0.3"),
            ("three.db.default.svc.cluster.local", A, "unknown"),
            ("one.web.default.svc.cluster.local", A, "unknown"),
            ("_http._tcp.web.default.svc.cluster.local", SRV, "80:web.default.svc.cluster.local"),
            ("_http._udp.web.default.svc.cluster.local", SRV, "unknown"),
            (
                "_sql._tcp.db.default.svc.cluster.local",
                SRV,
                "5432:one.db.default.svc.cluster.local 5432:10-42-0-3.db.default.svc.cluster.local",
            ),
            ("10-42-0-7.default.pod.cluster.local", A, "10.42.0.7"),
            ("x.default.pod.cluster.local", A, "unknown"),
            ("none.default.svc.cluster.local", A, "unknown"),
            ("default.svc.cluster.local", A, ""),
            ("other.svc.cluster.local", A, "unknown"),
            ("svc.cluster.local", A, ""),
            ("cluster.local", A, ""),
            ("notcluster.local", A, "elsewhere"),
            ("example.org", A, "elsewhere"),
            ("out.default.svc.cluster.local", A, "alias example.org"),
            ("out.default.svc.cluster.local", CNAME, "example.org"),
            ("9.0.43.10.in-addr.arpa", PTR, "web.default.svc.cluster.local"),
            ("2.0.42.10.in-addr.arpa", PTR, "one.db.default.svc.cluster.local"),
            ("1.2.0.192.in-addr.arpa", PTR, "elsewhere"),
        ];
        for (name, kind, expected) in cases {
            let shown = match lookup(&view(), name, kind) {
                Lookup::Known(records) => {
                    let shown: Vec<String> = records
                        .iter()
                        .map(|record| match &record.data {
                            Data::A(address) => address.to_string(),
                            Data::Aaaa(address) => address.to_string(),
                            Data::Cname(name) | Data::Ptr(name) => name.clone(),
                            Data::Srv { port, target } => format!("{port}:{target}"),
                        })
                        .collect();
                    shown.join(" ")
                }
                Lookup::Unknown => "unknown".into(),
                Lookup::Alias { target, .. } => format!("alias {target}"),
                Lookup::Elsewhere => "elsewhere".into(),
            };
            assert_eq!(shown, expected, "{name}");
        }
    }
}
