//! Everything the agent can tell, from its commands' answers.
//!
//! Agents differ: an old or locked-down one lacks commands. What it does not tell stays empty; only an agent that does not
//! answer at all is an error.

use ferrovirt_machine::protocol::{
    AgentCommand, GuestDisk, GuestFacts, GuestFilesystem, GuestInterface, GuestOs, GuestReport, GuestUser,
};
use serde_json::{Value, json};

use super::{Agent, PATIENCE, is_frozen};
use crate::domain::DomainError;

/// How much of each thing is taken. A guest says what it likes, and all of it goes into objects that have to stay writable: the
/// end of the machine is written to the same ones.
const ENTRIES: usize = 128;
/// Addresses of one interface.
const PARTS: usize = 32;
/// Disks of one file system.
const DISKS: usize = 8;
/// Characters.
const TEXT: usize = 256;
const SHORT: usize = 64;

pub async fn read<A: Agent>(agent: &A) -> Result<GuestReport, DomainError> {
    let info = agent.command(json!({"execute": "guest-info"}), PATIENCE).await?;
    let facts = facts(agent).await?;
    let mut report = GuestReport { facts, ..self::info(&info) };
    if !report.facts.frozen {
        report.users = list(&ask(agent, "guest-get-users").await, ENTRIES, user);
        report.filesystems = list(&ask(agent, "guest-get-fsinfo").await, ENTRIES, filesystem);
    }
    Ok(report)
}

/// What belongs to the machine's state. A frozen guest answers nothing but that it is frozen.
pub async fn facts<A: Agent>(agent: &A) -> Result<GuestFacts, DomainError> {
    match is_frozen(agent).await {
        Ok(true) => return Ok(GuestFacts { frozen: true, ..GuestFacts::default() }),
        Err(error) if error.agent_is_silent() => return Err(error),
        // An agent without this command cannot freeze.
        Ok(false) | Err(_) => {}
    }
    let host = ask(agent, "guest-get-host-name").await;
    let zone = ask(agent, "guest-get-timezone").await;
    let os = ask(agent, "guest-get-osinfo").await;
    let interfaces = ask(agent, "guest-network-get-interfaces").await;
    Ok(GuestFacts {
        hostname: text(&host, "host-name"),
        timezone: timezone(&zone),
        os: self::os(&os),
        interfaces: list(&interfaces, ENTRIES, interface),
        frozen: false,
    })
}

async fn ask<A: Agent>(agent: &A, command: &str) -> Value {
    match agent.command(json!({ "execute": command }), PATIENCE).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(command, error = ferrovirt_machine::chain(&error), "the guest agent does not tell");
            Value::Null
        }
    }
}

fn info(value: &Value) -> GuestReport {
    let commands = value.get("supported_commands").unwrap_or(&Value::Null);
    let command = |value: &Value| {
        let enabled = value.get("enabled").and_then(Value::as_bool).unwrap_or(false);
        Some(AgentCommand { name: text(value, "name"), enabled })
    };
    GuestReport {
        agent_version: text(value, "version"),
        commands: list(commands, 2 * ENTRIES, command),
        ..Default::default()
    }
}

fn os(value: &Value) -> GuestOs {
    GuestOs {
        id: text(value, "id"),
        name: text(value, "name"),
        pretty_name: text(value, "pretty-name"),
        version: text(value, "version"),
        version_id: text(value, "version-id"),
        kernel_release: text(value, "kernel-release"),
        kernel_version: text(value, "kernel-version"),
        machine: text(value, "machine"),
    }
}

/// As upstream shows it: the zone's name and its offset in seconds.
fn timezone(value: &Value) -> String {
    let zone = short(value, "zone");
    match value.get("offset").and_then(Value::as_i64) {
        Some(offset) if zone.is_empty() => offset.to_string(),
        Some(offset) => format!("{zone}, {offset}"),
        None => zone,
    }
}

fn interface(value: &Value) -> Option<GuestInterface> {
    let name = short(value, "name");
    if name == "lo" {
        return None;
    }
    let addresses = value.get("ip-addresses").unwrap_or(&Value::Null);
    let one = |value: &Value| Some(address(value, "ip-address")).filter(|address| !address.is_empty());
    let mac = address(value, "hardware-address").to_lowercase();
    Some(GuestInterface { name, mac, addresses: list(addresses, PARTS, one) })
}

fn user(value: &Value) -> Option<GuestUser> {
    Some(GuestUser {
        name: text(value, "user"),
        domain: text(value, "domain"),
        login_time: value.get("login-time").and_then(Value::as_f64).unwrap_or_default(),
    })
}

fn filesystem(value: &Value) -> Option<GuestFilesystem> {
    let bytes = |key: &str| value.get(key).and_then(Value::as_i64).unwrap_or_default();
    let disk = |value: &Value| Some(GuestDisk { serial: short(value, "serial"), bus: short(value, "bus-type") });
    Some(GuestFilesystem {
        name: text(value, "name"),
        mount_point: text(value, "mountpoint"),
        kind: text(value, "type"),
        used_bytes: bytes("used-bytes"),
        total_bytes: bytes("total-bytes"),
        disks: list(value.get("disk").unwrap_or(&Value::Null), DISKS, disk),
    })
}

fn list<T>(value: &Value, most: usize, one: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    value.as_array().into_iter().flatten().filter_map(one).take(most).collect()
}

fn text(value: &Value, key: &str) -> String {
    cut(value, key, TEXT)
}

fn short(value: &Value, key: &str) -> String {
    cut(value, key, SHORT)
}

/// Addresses of any kind.
fn address(value: &Value, key: &str) -> String {
    cut(value, key, SHORT).chars().filter(char::is_ascii_graphic).collect()
}

fn cut(value: &Value, key: &str, most: usize) -> String {
    let text = value.get(key).and_then(Value::as_str).unwrap_or_default();
    text.chars().filter(|character| !character.is_control()).take(most).collect()
}
