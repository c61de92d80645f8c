//! What may not stand in a file: code too long to be found one's way in, paths of somebody's machine, `unsafe` outside
//! its one home, unfinished work, tests that never run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const MAX_LINES: usize = 800;
const CODE: [&str; 5] = ["rs", "sh", "py", "ts", "tsx"];
/// Written by a generator and checked by it.
const GENERATED: [&str; 3] = ["crates/api/crds/", "crates/apiserver/data/", "Cargo.lock"];
/// FFI, and the one file of ioctls that no safe crate offers.
const UNSAFE_HOMES: [&str; 5] = [
    "crates/libvirt/",
    "crates/net/src/tap.rs",
    "crates/confine/src/kernel.rs",
    "crates/store/src/heap.rs",
    "crates/beneath/src/adopt.rs",
];

// Spelled in two halves, so that this file does not find itself.
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
/// Inside a guest that is everybody's home: this crate is about nothing else, others may name its ssh keys.
const GUEST_CRATE: &str = "guest/";
const GUEST_HOME: &str = concat!("/ro", "ot/.ssh");
const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[ign", "ore"),
];
const UNSAFE: [&str; 5] = [
    concat!("unsafe", " {"),
    concat!("unsafe", " fn"),
    concat!("unsafe", " impl"),
    concat!("unsafe", " extern"),
    concat!("(unsafe", "_code)"),
];
/// Clones share what they compile: a path that was compiled in may be another clone's.
const COMPILED_PATH: &str = concat!("env!(\"CARGO_", "MANIFEST_DIR\")");
/// A pure crate is told the time and given its random numbers.
const IMPURE: [&str; 6] =
    ["SystemTime::now", "Instant::now", "Timestamp::now", "Zoned::now", "Uuid::new_v4", "getrandom::"];
const PURE: [&str; 4] = ["crates/api/src/", "crates/machine/src/", "crates/plan/src/", "crates/schema/src/"];

pub fn check(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files {
        let bytes = fs::read(root.join(file)).with_context(|| format!("reading {file}"))?;
        // Binary files have no lines to speak of.
        if let Ok(text) = std::str::from_utf8(&bytes) {
            check_file(file, text, &mut findings);
        }
    }
    Ok(findings)
}

fn check_file(file: &str, text: &str, findings: &mut Vec<String>) {
    if GENERATED.iter().any(|prefix| file.starts_with(prefix)) {
        return;
    }
    let code = Path::new(file).extension().and_then(|e| e.to_str()).is_some_and(|e| CODE.contains(&e));
    let lines = text.lines().count();
    if code && lines > MAX_LINES {
        findings.push(format!("{file}: {lines} lines; split it (at most {MAX_LINES})"));
    }
    let rust = file.ends_with(".rs");
    let pure = PURE.iter().any(|prefix| file.starts_with(prefix)) && !file.ends_with("tests.rs");
    let machine_paths = match file.starts_with(GUEST_CRATE) {
        true => &MACHINE_PATHS[..1],
        false => &MACHINE_PATHS[..],
    };
    let mut in_tests = false;
    for (index, line) in text.lines().enumerate() {
        let mut finding = |what: &str| findings.push(format!("{file}:{}: {what}", index + 1));
        in_tests |= line.trim() == "#[cfg(test)]";
        if let Some(path) = machine_paths.iter().find(|path| names_path(line, path)) {
            finding(&format!("a path of somebody's machine ({path})"));
        }
        if let Some(mark) = UNFINISHED.into_iter().find(|mark| line.contains(mark)) {
            finding(&format!("unfinished work ({mark})"));
        }
        if line.contains(COMPILED_PATH) {
            finding("the path of the clone that was compiled; tests run in their package's directory");
        }
        if rust && !UNSAFE_HOMES.iter().any(|home| file.starts_with(home)) && is_unsafe(line) {
            finding(&format!("unsafe code outside {}", UNSAFE_HOMES.join(" and ")));
        }
        if rust && pure && !in_tests && IMPURE.iter().any(|call| line.contains(call)) {
            finding("a clock or randomness in a pure crate");
        }
    }
}

/// Whether the line has `path` as the beginning of a path, not in the middle of a longer one.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let inside = before.is_some_and(|c| c.is_alphanumeric() || "._-}/>*".contains(c));
        !inside && !line[at..].starts_with(GUEST_HOME)
    })
}

fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    // A manifest or a crate root that forbids it names it as well.
    !code.starts_with("//")
        && !code.contains("forbid(")
        && !code.contains("deny(")
        && UNSAFE.iter().any(|word| code.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        check_file(file, text, &mut out);
        out
    }

    #[test]
    fn each_rule_finds_and_spares() {
        let long = "x\n".repeat(801);
        let [work, home] = MACHINE_PATHS;
        for (file, text, expected) in [
            ("a.rs", long.as_str(), Some("a.rs: 801 lines; split it (at most 800)")),
            ("a.yaml", long.as_str(), None),
            ("a.md", &format!("see {work}x"), Some("a.md:1: a path of somebody's machine")),
            ("a.md", &format!("`{home}x`"), Some("a.md:1: a path of somebody's machine")),
            ("a.md", &format!("overlay{work}x"), None),
            ("a.rs", &format!("\"{GUEST_HOME}/authorized_keys\""), None),
            ("guest/a.rs", &format!("\"{home}x\""), None),
            ("a.sh", concat!("\n# TO", "DO later"), Some("a.sh:2: unfinished work")),
            ("a.rs", concat!("#[ign", "ore = \"slow\"]"), Some("a.rs:1: unfinished work")),
            ("a.rs", &format!("Path::new({COMPILED_PATH})"), Some("a.rs:1: the path of the clone")),
            ("crates/net/src/a.rs", concat!("let x = unsafe", " { y() };"), Some("crates/net/src/a.rs:1: unsafe code")),
            ("crates/net/src/a.rs", concat!("#![allow(unsafe", "_code)]"), Some("crates/net/src/a.rs:1: unsafe code")),
            ("crates/net/src/a.rs", concat!("#![forbid(unsafe", "_code)]"), None),
            ("crates/net/src/a.rs", concat!("// no unsafe", " { here"), None),
            ("crates/libvirt/src/a.rs", concat!("unsafe", " { y() }"), None),
            ("crates/plan/src/a.rs", "let t = Timestamp::now();", Some("crates/plan/src/a.rs:1: a clock")),
            ("crates/plan/src/a.rs", "#[cfg(test)]\nlet t = Timestamp::now();", None),
            ("crates/node/src/a.rs", "let t = Timestamp::now();", None),
            ("Cargo.lock", long.as_str(), None),
        ] {
            let found = findings(file, text);
            match expected {
                None => assert_eq!(found, [""; 0], "{file}: {text:.60}"),
                Some(start) => assert!(found.len() == 1 && found[0].starts_with(start), "{start}: {found:?}"),
            }
        }
    }
}
