use serde_json::json;

use super::*;

fn vmi(phase: &str, conditions: &[&str], spec: serde_json::Value) -> VirtualMachineInstance {
    let conditions: Vec<serde_json::Value> =
        conditions.iter().map(|kind| json!({ "type": kind, "status": "True" })).collect();
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": "a" }, "spec": spec,
        "status": { "phase": phase, "conditions": conditions, "interfaces": [{ "ipAddress": "10.0.0.2" }] },
    }))
    .unwrap()
}

#[test]
fn an_instance_does_what_its_state_allows() {
    let conflict = |why: &str| Err(Refusal::Conflict(why.into()));
    let bad = |why: &str| Err(Refusal::BadRequest(why.into()));
    let plain = || json!({ "domain": { "devices": {} } });
    let without = |device: &str| json!({ "domain": { "devices": { device: false } } });
    let paused: &[&str] = &["Paused"];
    let agent: &[&str] = &["AgentConnected"];
    let rows = [
        ("pause", vmi("Running", &[], plain()), Ok(())),
        ("pause", vmi("Scheduling", &[], plain()), conflict("VM is not running")),
        ("pause", vmi("Running", paused, plain()), conflict("VMI is already paused")),
        (
            "pause",
            vmi(
                "Running",
                &[],
                json!({ "domain": { "devices": {} }, "livenessProbe": { "tcpSocket": { "port": 1 } } }),
            ),
            Err(Refusal::Forbidden("Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported".into())),
        ),
        ("unpause", vmi("Running", paused, plain()), Ok(())),
        ("unpause", vmi("Running", &[], plain()), conflict("VMI is not paused")),
        ("unpause", vmi("Failed", paused, plain()), conflict("VMI is not running")),
        ("freeze", vmi("Succeeded", &[], plain()), conflict("VM is not running")),
        ("unfreeze", vmi("Succeeded", &[], plain()), conflict("VMI is not running")),
        ("softreboot", vmi("Running", &[], plain()), Ok(())),
        ("softreboot", vmi("Running", paused, plain()), conflict("VMI is paused")),
        (
            "softreboot",
            vmi("Running", &[], json!({ "domain": { "devices": {}, "features": { "acpi": { "enabled": false } } } })),
            conflict("VMI neither have the agent connected nor the ACPI feature enabled"),
        ),
        ("guestosinfo", vmi("Running", &[], plain()), conflict("VMI does not have guest agent connected")),
        ("guestosinfo", vmi("Running", agent, plain()), Ok(())),
        ("userlist", vmi("Scheduled", agent, plain()), conflict("VMI is not running")),
        ("filesystemlist", vmi("Running", agent, plain()), Ok(())),
        ("console", vmi("Running", &[], plain()), Ok(())),
        ("console", vmi("Scheduling", &[], plain()), bad("VMI is not running")),
        ("console", vmi("Failed", &[], plain()), conflict("VMI is in failed status")),
        ("console", vmi("Running", &[], without("autoattachSerialConsole")), bad("No serial consoles are present.")),
        ("vnc", vmi("Running", &[], without("autoattachGraphicsDevice")), bad("No graphics devices are present.")),
        ("vnc/screenshot", vmi("Running", &[], plain()), Ok(())),
        ("vnc/screenshot", vmi("Pending", &[], plain()), bad("VMI is not running")),
        ("portforward", vmi("Running", paused, plain()), conflict("VMI is paused")),
        ("portforward", vmi("Running", &[], plain()), Ok(())),
        ("reset", vmi("Running", &[], plain()), Ok(())),
    ];
    for (subresource, vmi, expected) in rows {
        assert_eq!(check(subresource, &vmi), expected, "{subresource} of {}", vmi.status.phase);
    }
    let reset = check("reset", &vmi("Scheduling", &[], plain()));
    assert!(matches!(reset, Err(Refusal::BadRequest(why)) if why.starts_with("Failed to reset non-running VMI")));
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, seconds) in [
        ("0", Some(0)),
        ("0s", Some(0)),
        ("5m0s", Some(300)),
        ("1h2m3s", Some(3723)),
        ("1.5s", Some(2)),
        ("300ms", Some(1)),
        ("", None),
        ("5", None),
        ("5 m", None),
        ("-5m", None),
    ] {
        assert_eq!(go_duration_seconds(text), seconds, "{text:?}");
    }
}

#[tokio::test]
async fn what_a_node_refuses_names_the_object_and_is_not_called_an_internal_error() {
    let target = Target {
        verb: "update",
        namespace: "n",
        resource: "virtualmachineinstances",
        name: "a",
        subresource: "pause".into(),
        version: "v1",
    };
    let failed = "pause of virtualmachineinstance \\\"a\\\" failed: it hangs";
    for (code, status, words) in [
        (ErrorCode::Conflict, 409, "virtualmachineinstance.kubevirt.io \\\"a\\\": it hangs"),
        (ErrorCode::NotHere, 404, "it hangs"),
        (ErrorCode::BadRequest, 400, failed),
        (ErrorCode::Version, 503, "restart the VM"),
        (ErrorCode::Failed, 500, failed),
    ] {
        let response = refused(&target, &ProtocolError { code, message: "it hangs".into() });
        assert_eq!(response.status().as_u16(), status, "{code:?}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains(words) && !text.contains("Internal error"), "{text}");
    }
}

#[tokio::test]
async fn without_an_agent_a_freeze_fails_with_upstreams_words() {
    let error = ProtocolError { code: ErrorCode::NoAgent, message: "it is silent".into() };
    for (subresource, code, said) in [
        (
            "freeze",
            500,
            "Internal error occurred: command Freeze failed: QEMU guest agent is not connected: it is silent",
        ),
        ("unfreeze", 500, "command Unfreeze failed: QEMU guest agent is not connected"),
        ("guestosinfo", 409, "it is silent"),
    ] {
        let target = Target {
            verb: "update",
            namespace: "n",
            resource: "virtualmachineinstances",
            name: "a",
            subresource: subresource.into(),
            version: "v1",
        };
        let answer = refused(&target, &error);
        assert_eq!(answer.status().as_u16(), code, "{subresource}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains(said), "{subresource}: {body:?}");
    }
}
