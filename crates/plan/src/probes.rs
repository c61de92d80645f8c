//! Probes of an instance as probes of its launcher pod, so that whoever runs the pod runs them.
//!
//! `httpGet` and `tcpSocket` go to the pod's address, behind which the guest is. `exec` and `guestAgentPing` become a
//! command in the launcher's container that asks the guest agent through the launcher's socket.
//!
//! Whoever runs the pod runs them with its own place in the network: they go nowhere but to the pod.

use ferrovirt_api::v1::Probe as VmProbe;
use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, Probe, TCPSocketAction};

const LAUNCHER: &str = "/usr/bin/ferrovirt-launcher";
/// As Kubernetes has it.
const DEFAULT_TIMEOUT_SECONDS: i32 = 1;
/// The time that a pod's probe gets beyond the guest's own, to say that it was too long.
const SLACK_SECONDS: i32 = 2;

pub(crate) fn probe(probe: &VmProbe) -> Probe {
    let some = |seconds: i32| (seconds != 0).then_some(seconds);
    let timeout = some(probe.timeout_seconds).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    let command = if probe.guest_agent_ping.is_some() {
        Some(vec![LAUNCHER.into(), "guest-ping".into()])
    } else {
        probe.exec.as_ref().map(|exec| {
            let mut command = vec![LAUNCHER.into(), "guest-exec".into(), format!("--timeout={timeout}"), "--".into()];
            command.extend(exec.command.iter().flatten().cloned());
            command
        })
    };
    Probe {
        timeout_seconds: if command.is_some() { Some(timeout + SLACK_SECONDS) } else { some(probe.timeout_seconds) },
        exec: command.map(|command| ExecAction { command: Some(command) }),
        http_get: probe.http_get.clone().map(|http| HTTPGetAction { host: None, ..http }),
        tcp_socket: probe.tcp_socket.clone().map(|tcp| TCPSocketAction { host: None, ..tcp }),
        initial_delay_seconds: some(probe.initial_delay_seconds),
        period_seconds: some(probe.period_seconds),
        success_threshold: some(probe.success_threshold),
        failure_threshold: some(probe.failure_threshold),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(given: Value, expected: Value) {
        let given: VmProbe = serde_json::from_value(given).unwrap();
        assert_eq!(serde_json::to_value(probe(&given)).unwrap(), expected);
    }

    #[test]
    fn what_asks_the_guest_becomes_a_command_of_the_launcher() {
        check(
            json!({ "exec": { "command": ["cat", "/tmp/healthy"] }, "initialDelaySeconds": 5, "timeoutSeconds": 4 }),
            json!({ "exec": { "command": ["/usr/bin/ferrovirt-launcher", "guest-exec", "--timeout=4", "--", "cat", "/tmp/healthy"] },
                "initialDelaySeconds": 5, "timeoutSeconds": 6 }),
        );
        check(
            json!({ "guestAgentPing": {}, "periodSeconds": 3, "failureThreshold": 9, "successThreshold": 2 }),
            json!({ "exec": { "command": ["/usr/bin/ferrovirt-launcher", "guest-ping"] }, "timeoutSeconds": 3,
                "periodSeconds": 3, "failureThreshold": 9, "successThreshold": 2 }),
        );
        let http = json!({ "httpGet": { "path": "/", "port": 80 }, "timeoutSeconds": 4 });
        check(http.clone(), http);
        let tcp = json!({ "tcpSocket": { "port": "ssh" } });
        check(tcp.clone(), tcp);
    }

    #[test]
    fn a_probe_that_names_a_host_goes_to_its_pod_all_the_same() {
        check(
            json!({ "httpGet": { "path": "/", "port": 80, "host": "127.0.0.1" } }),
            json!({ "httpGet": { "path": "/", "port": 80 } }),
        );
        check(json!({ "tcpSocket": { "port": 1, "host": "169.254.169.254" } }), json!({ "tcpSocket": { "port": 1 } }));
    }
}
