//! `xtask/generated.sha256`: the checksums of every generated file and of our own input to it, in the format of
//! `sha256sum`. A file edited by hand is found on machines that have none of the upstream sources.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

pub const DESCRIPTIONS: &str = "xtask/descriptions.yaml";
const LOCK: &str = "xtask/generated.sha256";
const GENERATED_DIRS: [&str; 2] = ["crates/api/crds", "crates/apiserver/data"];

pub fn write(root: &Path) -> Result<()> {
    let path = root.join(LOCK);
    fs::write(&path, render(root)?).with_context(|| format!("writing {}", path.display()))
}

/// One line per difference between the recorded checksums and the files.
pub fn verify(root: &Path) -> Result<Vec<String>> {
    let recorded = fs::read_to_string(root.join(LOCK)).unwrap_or_default();
    let actual = render(root)?;
    let mut problems = Vec::new();
    for line in actual.lines().filter(|line| !recorded.lines().any(|r| r == *line)) {
        problems.push(format!("STALE {}: differs from {LOCK}; run `cargo xtask gen`", file_of(line)));
    }
    for line in recorded.lines().filter(|line| !actual.lines().any(|a| file_of(a) == file_of(line))) {
        problems.push(format!("MISSING {}: recorded in {LOCK}; run `cargo xtask gen`", file_of(line)));
    }
    Ok(problems)
}

fn file_of(line: &str) -> &str {
    line.split_once("  ").map_or(line, |(_, file)| file)
}

fn render(root: &Path) -> Result<String> {
    let mut files = vec![DESCRIPTIONS.to_owned()];
    for dir in GENERATED_DIRS {
        let entries = fs::read_dir(root.join(dir)).with_context(|| format!("listing {dir}"))?;
        for entry in entries {
            let name = entry?.file_name();
            if Path::new(&name).extension().is_some_and(|e| e == "json") {
                files.push(format!("{dir}/{}", name.to_string_lossy()));
            }
        }
    }
    files.sort();
    let mut out = String::new();
    for file in files {
        let bytes = fs::read(root.join(&file)).with_context(|| format!("reading {file}"))?;
        for byte in Sha256::digest(&bytes) {
            write!(out, "{byte:02x}")?;
        }
        writeln!(out, "  {file}")?;
    }
    Ok(out)
}
