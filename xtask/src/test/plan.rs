//! Which test programs there are, and in which order they run.

use std::path::PathBuf;

use serde_json::Value;

use super::Seconds;

#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// `package/target`.
    pub name: String,
    /// Where it runs: the directory of its package, as with `cargo test`.
    pub directory: PathBuf,
    pub command: Vec<String>,
}

/// The package whose programs boot guests.
const SUITES: &str = "ferrovirt-e2e/";

/// What `cargo test --no-run --message-format=json` said that it made.
pub fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| program(&message)).collect()
}

fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let package = package(message["package_id"].as_str()?);
    // A program and a library of one package may have the same name.
    let kind = if matches!(kind, "lib" | "test") { String::new() } else { format!("-{kind}") };
    Some(Program {
        name: format!("{package}/{target}{kind}"),
        directory: manifest.parent()?.into(),
        command: vec![message["executable"].as_str()?.to_owned()],
    })
}

/// `path+file:///…/crates/net#ferrovirt-net@0.1.0`, or `…/xtask#0.1.0` where directory and package have one name.
fn package(id: &str) -> &str {
    let (place, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

/// The longest first, so that none of them begins when all others have ended. Those that nothing is known of are taken for long
/// if they boot guests.
pub fn in_order(mut programs: Vec<Program>, seconds: &Seconds) -> Vec<Program> {
    let expected = |program: &Program| {
        let unknown = if program.name.starts_with(SUITES) { 60.0 } else { 1.0 };
        seconds.get(&program.name).copied().unwrap_or(unknown)
    };
    programs.sort_by(|a, b| expected(b).total_cmp(&expected(a)).then_with(|| a.name.cmp(&b.name)));
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/net#ferrovirt-net@0.1.0","manifest_path":"/w/crates/net/Cargo.toml","target":{"kind":["lib"],"name":"ferrovirt_net"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/net#ferrovirt-net@0.1.0","manifest_path":"/w/crates/net/Cargo.toml","target":{"kind":["lib"],"name":"ferrovirt_net"},"profile":{"test":true},"executable":"/t/net-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/xtask#0.1.0","manifest_path":"/w/xtask/Cargo.toml","target":{"kind":["bin"],"name":"xtask"},"profile":{"test":true},"executable":"/t/xtask-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/e2e#ferrovirt-e2e@0.1.0","manifest_path":"/w/e2e/Cargo.toml","target":{"kind":["test"],"name":"power"},"profile":{"test":true},"executable":"/t/power-1"}
{"reason":"build-finished","success":true}
not json"#;

    #[test]
    fn test_programs_are_told_from_what_else_is_compiled() {
        let found = programs(MESSAGES);
        let names: Vec<&str> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["ferrovirt-net/ferrovirt_net", "xtask/xtask-bin", "ferrovirt-e2e/power"]);
        assert_eq!(found[0].directory, PathBuf::from("/w/crates/net"));
        assert_eq!(found[2].command, ["/t/power-1"]);
    }

    #[test]
    fn the_longest_come_first() {
        let order = |seconds: &[(&str, f64)]| -> Vec<String> {
            let seconds = seconds.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect();
            in_order(programs(MESSAGES), &seconds).into_iter().map(|program| program.name).collect()
        };
        assert_eq!(order(&[]), ["ferrovirt-e2e/power", "ferrovirt-net/ferrovirt_net", "xtask/xtask-bin"]);
        let known = [("ferrovirt-e2e/power", 9.0), ("ferrovirt-net/ferrovirt_net", 0.5), ("xtask/xtask-bin", 70.0)];
        assert_eq!(order(&known), ["xtask/xtask-bin", "ferrovirt-e2e/power", "ferrovirt-net/ferrovirt_net"]);
    }
}
