//! Probes of an instance: of which kind, and where they may go.

use ferrovirt_api::v1::{Probe, VirtualMachineInstanceSpec};

use super::Findings;

pub(super) fn probes(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let pod_network = spec.networks.iter().any(|network| network.pod.is_some());
    for (probe, key) in [(&spec.readiness_probe, "readinessProbe"), (&spec.liveness_probe, "livenessProbe")] {
        if let Some(probe) = probe {
            self::probe(probe, &format!("{path}.{key}"), pod_network, found);
        }
    }
}

fn probe(probe: &Probe, field: &str, pod_network: bool, found: &mut Findings) {
    let kinds =
        [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some(), probe.guest_agent_ping.is_some()];
    match kinds.iter().filter(|set| **set).count() {
        0 => {
            let message = format!(
                "either {field}.tcpSocket, {field}.exec or {field}.httpGet must be set if a {field} is specified"
            );
            found.required(field.to_owned(), message);
        }
        1 => {}
        _ => found.invalid(field.to_owned(), format!("{field} must have exactly one probe type set")),
    }
    if !pod_network {
        for (set, key) in [(probe.http_get.is_some(), "httpGet"), (probe.tcp_socket.is_some(), "tcpSocket")] {
            if set {
                let field = format!("{field}.{key}");
                let message = format!("{field} is only allowed if the Pod Network is attached");
                found.invalid(field, message);
            }
        }
    }
    target(probe, field, found);
}

/// Where a probe goes, and what it says there. A node runs it, so its words must not become another request.
fn target(probe: &Probe, field: &str, found: &mut Findings) {
    let hosts = [
        ("httpGet", probe.http_get.as_ref().and_then(|http| http.host.as_deref())),
        ("tcpSocket", probe.tcp_socket.as_ref().and_then(|tcp| tcp.host.as_deref())),
    ];
    for (kind, host) in hosts {
        if host.is_some_and(|host| !host.is_empty()) {
            let field = format!("{field}.{kind}.host");
            let message = format!(
                "{field} must not be set: a node probes the instance and nobody else. Leave it out, and use an httpHeader named \
                 Host if the guest serves several names"
            );
            found.invalid(field, message);
        }
    }
    let Some(http) = &probe.http_get else { return };
    let field = format!("{field}.httpGet");
    let mut refuse = |name: &str, what: &str| {
        let field = format!("{field}.{name}");
        let message = format!("{field} must not hold {what}");
        found.invalid(field, message);
    };
    if http.path.as_deref().is_some_and(|path| path.chars().any(char::is_control)) {
        refuse("path", "control characters such as line ends");
    }
    if http.scheme.as_deref().is_some_and(|scheme| !["", "HTTP", "HTTPS"].contains(&scheme)) {
        refuse("scheme", "anything but HTTP or HTTPS");
    }
    for (index, header) in http.http_headers.iter().flatten().enumerate() {
        if header.name.is_empty() || !header.name.bytes().all(is_token) {
            refuse(&format!("httpHeaders[{index}].name"), "anything but letters, digits and !#$%&'*+-.^_`|~");
        }
        if header.value.chars().any(|character| character.is_control() && character != '\t') {
            refuse(&format!("httpHeaders[{index}].value"), "control characters such as line ends");
        }
    }
}

/// What a header's name is made of.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(probe: Value) -> Vec<String> {
        let spec = json!({ "domain": {}, "networks": [{ "name": "default", "pod": {} }], "readinessProbe": probe });
        let mut found = Findings::default();
        probes(&serde_json::from_value(spec).unwrap(), "spec", &mut found);
        found.0.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_probe_that_names_a_host_is_refused() {
        for host in ["127.0.0.1", "localhost", "169.254.169.254", "kubernetes.default"] {
            assert_eq!(
                refused(json!({ "httpGet": { "port": 80, "host": host } })),
                ["spec.readinessProbe.httpGet.host"]
            );
            assert_eq!(
                refused(json!({ "tcpSocket": { "port": 1, "host": host } })),
                ["spec.readinessProbe.tcpSocket.host"]
            );
        }
        assert!(refused(json!({ "httpGet": { "port": 80, "host": "" } })).is_empty());
    }

    #[test]
    fn a_probe_with_line_ends_smuggles_no_request() {
        let evil = "/ HTTP/1.1\r\nHost: x\r\n\r\nDELETE /api HTTP/1.1";
        let http = |more: Value| {
            let mut probe = json!({ "httpGet": { "port": 80 } });
            probe["httpGet"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            refused(probe)
        };
        let field = |name: &str| vec![format!("spec.readinessProbe.httpGet.{name}")];
        for path in [evil, "/\n", "/\r", "/\0", "/\u{7f}", "/\u{85}"] {
            assert_eq!(http(json!({ "path": path })), field("path"), "{path:?}");
        }
        assert_eq!(http(json!({ "scheme": "HTTP\r\n" })), field("scheme"));
        let header = |name: &str, value: &str| http(json!({ "httpHeaders": [{ "name": name, "value": value }] }));
        for name in ["a\r\nb", "a:", "a b", "", "ä"] {
            assert_eq!(header(name, "x"), field("httpHeaders[0].name"), "{name:?}");
        }
        assert_eq!(header("host", "x\r\n\r\nGET /"), field("httpHeaders[0].value"));
        assert!(header("X-Custom", "some\tvalue, ä").is_empty());
        assert!(http(json!({ "path": "/health?a=b c", "scheme": "HTTPS" })).is_empty());
    }
}
