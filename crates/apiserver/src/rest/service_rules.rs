//! What the fields of a service may say, by its type.

use std::net::IpAddr;

use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use crate::object::{at, text};

/// Rules of one port.
pub fn port(index: usize, port: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let protocol = text(port, &["protocol"]);
    if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
        let known = ["SCTP", "TCP", "UDP"].map(|p| json!(p));
        causes.push(Cause::not_supported(format!("spec.ports[{index}].protocol"), &json!(protocol), &known));
    }
    let target = &port["targetPort"];
    let field = format!("spec.ports[{index}].targetPort");
    match target {
        Value::Number(number) if !number.as_i64().is_some_and(|n| (1..=65535).contains(&n)) => {
            causes.push(Cause::invalid(field, target, "must be between 1 and 65535, inclusive"));
        }
        Value::String(name) => {
            causes.extend(port_name(name).into_iter().map(|fault| Cause::invalid(field.clone(), target, fault)));
        }
        _ => {}
    }
    causes
}

/// Why a name cannot be that of a port.
fn port_name(name: &str) -> Vec<&'static str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let faults = [
        (name.len() > 15, "must be no more than 15 characters"),
        (!name.bytes().all(plain), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        (!name.bytes().any(|b| b.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (name.contains("--"), "must not contain consecutive hyphens"),
        (name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    faults.into_iter().filter(|(wrong, _)| *wrong).map(|(_, fault)| fault).collect()
}

/// Rules of the rest of the spec.
pub fn spec(service: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let kind = text(service, &["spec", "type"]);
    let external = matches!(kind, "NodePort" | "LoadBalancer");
    let affinity = text(service, &["spec", "sessionAffinity"]);
    if !matches!(affinity, "ClientIP" | "None") {
        let known = [json!("ClientIP"), json!("None")];
        causes.push(Cause::not_supported("spec.sessionAffinity", &json!(affinity), &known));
    }
    let name = text(service, &["spec", "externalName"]);
    if kind == "ExternalName"
        && let Some(fault) = names::dns_subdomain(name.trim_end_matches('.')).first().filter(|_| !name.is_empty())
    {
        causes.push(Cause::invalid("spec.externalName", &json!(name), fault));
    }
    if external && text(service, &["spec", "clusterIP"]) == "None" {
        let fault = format!("may not be set to 'None' for {kind} services");
        causes.push(Cause::invalid("spec.clusterIPs[0]", &json!("None"), fault));
    }
    let policy = text(service, &["spec", "externalTrafficPolicy"]);
    let outside = at(service, &["spec", "externalIPs"]).and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    if !policy.is_empty() && !external && !outside && old.is_none() {
        let fault = "may only be set for externally-accessible services";
        causes.push(Cause::invalid("spec.externalTrafficPolicy", &json!(policy), fault));
    }
    for (index, address) in
        at(service, &["spec", "externalIPs"]).and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        if address.as_str().is_none_or(|a| a.parse::<IpAddr>().is_err()) {
            let fault = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.push(Cause::invalid(format!("spec.externalIPs[{index}]"), address, fault));
        }
    }
    let balanced = at(service, &["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
    if kind != "LoadBalancer" && balanced.is_some_and(|list| !list.is_empty()) {
        let before = old.and_then(|old| at(old, &["status", "loadBalancer", "ingress"]));
        if before != at(service, &["status", "loadBalancer", "ingress"]) {
            let fault = "may only be used when `spec.type` is 'LoadBalancer'";
            causes.push(Cause::forbidden("status.loadBalancer.ingress", fault));
        }
    }
    causes
}

/// Ports of nodes that a new service asks for without being of a type that has them.
pub fn stray_node_ports(service: &Value) -> Vec<Cause> {
    let kind = text(service, &["spec", "type"]);
    if matches!(kind, "NodePort" | "LoadBalancer") {
        return Vec::new();
    }
    let ports = at(service, &["spec", "ports"]).and_then(Value::as_array).into_iter().flatten().enumerate();
    let given = ports.filter(|(_, port)| port["nodePort"].as_u64().unwrap_or(0) > 0);
    let fault = format!("may not be used when `type` is '{kind}'");
    given.map(|(index, _)| Cause::forbidden(format!("spec.ports[{index}].nodePort"), &fault)).collect()
}
