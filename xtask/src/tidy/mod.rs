//! Checks that no compiler makes: who may depend on whom, what may not stand in a file, whether documents tell the truth
//! about the tree. Every finding is one line with its place; nothing is fixed here.

mod beneath;
mod layers;
mod links;
mod text;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::r#gen;

pub fn run(root: &Path) -> Result<bool> {
    let files = files(root)?;
    let checks = [
        ("layers", layers::check(root)?),
        ("text", text::check(root, &files)?),
        ("beneath", beneath::check(root, &files)?),
        ("links", links::check(root, &files)?),
        ("readme", readme(root)),
    ];
    let mut tidy = true;
    for (name, findings) in checks {
        if findings.is_empty() {
            println!("ok {name}");
        }
        for finding in findings {
            println!("{name}: {finding}");
            tidy = false;
        }
    }
    tidy &= r#gen::run(root, &r#gen::Options { check: true, crd_schemas: None })?;
    Ok(tidy)
}

/// Every file that is or may become part of the repository, relative to its root.
fn files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("running git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file name that is not UTF-8")?;
    let mut files: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    // A file that is deleted but not yet committed is still listed.
    files.retain(|file| root.join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// The two commands everyone needs first stand in the README.
fn readme(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let missing = ["make up", "make test"].into_iter().filter(|command| !text.contains(command));
    missing.map(|command| format!("README.md does not mention `{command}`")).collect()
}
