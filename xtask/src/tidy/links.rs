//! Links between documents lead somewhere: the file exists, and the heading too.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

pub fn check(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))?;
        for (line, target) in links(&text) {
            if let Some(problem) = problem(root, file, &target) {
                findings.push(format!("{file}:{line}: link to {target}: {problem}"));
            }
        }
    }
    Ok(findings)
}

fn problem(root: &Path, file: &str, target: &str) -> Option<&'static str> {
    // The rest of the world is not ours to check, and may be down.
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match path {
        "" => root.join(file),
        _ => root.join(inside(Path::new(file).parent().unwrap_or(Path::new("")), path)?),
    };
    if !path.exists() {
        return Some("no such file");
    }
    if !anchor.is_empty() && path.extension().is_some_and(|e| e == "md") {
        let text = fs::read_to_string(&path).unwrap_or_default();
        return (!headings(&text).any(|heading| slug(&heading) == anchor)).then_some("no such heading");
    }
    None
}

/// The path from the root of the repository; `None` if it leads out of it, which is a web page's affair on a forge.
fn inside(dir: &Path, path: &str) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in dir.join(path).components() {
        match part {
            Component::ParentDir if !out.pop() => return None,
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    Some(out)
}

/// Targets of `[text](target)` outside of code blocks, with their line numbers.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.to_owned()));
            rest = after;
        }
    }
    found
}

fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_start_matches('#').trim().to_owned())
}

fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// As forges make it: lower case, spaces to dashes, punctuation dropped.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](x.md) and ![b](y.png \"title\")\n```\n[c](no.md)\n```\n[d](#e)\n";
        let expected = [(1, "x.md".to_owned()), (1, "y.png".to_owned()), (5, "#e".to_owned())];
        assert_eq!(links(text), expected);
    }

    #[test]
    fn slugs_are_as_forges_make_them() {
        assert_eq!(slug("How a VM comes alive, `really`?"), "how-a-vm-comes-alive-really");
    }

    #[test]
    fn files_and_headings_are_looked_up() {
        let root = Path::new("..");
        for (target, expected) in [
            ("ARCHITECTURE.md", None),
            ("ARCHITECTURE.md#code-map", None),
            ("ARCHITECTURE.md#nowhere", Some("no such heading")),
            ("../Cargo.toml", None),
            ("gone.md", Some("no such file")),
            ("../../elsewhere", None),
            ("https://example.org/x", None),
        ] {
            assert_eq!(problem(root, "docs/x.md", target), expected, "{target}");
        }
    }
}
