//! Arrows point down. The code map of docs/ARCHITECTURE.md says which crate may depend on which, and this check reads
//! that very table, so the document cannot drift from the tree. Crates it calls pure have no runtime, no client and no
//! HTTP below them, however deep.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const PREFIX: &str = "ferrovirt-";
/// Members that are no part of the product; they may use nothing of ours or, for tests, anything.
const OUTSIDE: [&str; 3] = ["xtask", "ferrovirt-e2e", "ferrovirt-guest"];
/// What a pure crate may not reach.
const IMPURE: [&str; 7] = ["axum", "hyper", "kube", "kube-client", "kube-runtime", "reqwest", "tokio"];

#[derive(Debug, PartialEq)]
struct Row {
    pure: bool,
    allowed: Allowed,
}

#[derive(Debug, PartialEq)]
enum Allowed {
    Only(BTreeSet<String>),
    AllBut(BTreeSet<String>),
}

/// Crate name (without our prefix) -> what it depends on in normal and build dependencies, by package name.
struct Graph {
    /// Our crates, and the crates of ours they name directly.
    direct: BTreeMap<String, BTreeSet<String>>,
    /// Our crates, and everything they reach.
    reached: BTreeMap<String, BTreeSet<String>>,
}

pub fn check(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    Ok(compare(&parse_code_map(&text), &load(root)?))
}

fn compare(map: &BTreeMap<String, Row>, graph: &Graph) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, dependencies) in &graph.direct {
        let Some(row) = map.get(name) else {
            findings.push(format!("crate {name} is not in the code map of {DOCUMENT}"));
            continue;
        };
        for dependency in dependencies {
            let fine = match &row.allowed {
                Allowed::Only(list) => list.contains(dependency),
                Allowed::AllBut(list) => !list.contains(dependency),
            };
            if !fine {
                findings.push(format!("crate {name} may not depend on {dependency} ({DOCUMENT})"));
            }
        }
        if row.pure {
            let reached = graph.reached.get(name).into_iter().flatten();
            for impure in reached.filter(|package| IMPURE.contains(&package.as_str())) {
                findings.push(format!("crate {name} is pure, but reaches {impure}"));
            }
        }
    }
    for name in map.keys().filter(|name| !graph.direct.contains_key(*name)) {
        findings.push(format!("the code map of {DOCUMENT} has {name}, the workspace has not"));
    }
    findings
}

/// Rows of the form ``| `name` | role | what it may depend on |``.
fn parse_code_map(text: &str) -> BTreeMap<String, Row> {
    let section = text.split("## Code map").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut map = BTreeMap::new();
    for line in section.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [name, role, dependencies] = cells[..] else {
            continue;
        };
        let Some(name) = name.strip_prefix('`').and_then(|n| n.strip_suffix('`')) else {
            continue;
        };
        let set = |list: &str| list.split(',').map(|n| n.trim().trim_matches('`').to_owned()).collect();
        let allowed = match dependencies.strip_prefix("all but ") {
            Some(list) => Allowed::AllBut(set(list)),
            None if dependencies == "–" => Allowed::Only(BTreeSet::new()),
            None => Allowed::Only(set(dependencies)),
        };
        let pure = role.split_whitespace().any(|word| word.trim_matches(['.', ',']) == "Pure");
        map.insert(name.to_owned(), Row { pure, allowed });
    }
    map
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

fn load(root: &Path) -> Result<Graph> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    Ok(graph(&metadata))
}

fn graph(metadata: &Metadata) -> Graph {
    let names: BTreeMap<&str, &str> = metadata.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
    let edges: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            // What only tests use does not count: it is in no program.
            let used = node.deps.iter().filter(|d| d.dep_kinds.iter().any(|k| k.kind.as_deref() != Some("dev")));
            (node.id.as_str(), used.map(|d| d.pkg.as_str()).collect())
        })
        .collect();
    let mut graph = Graph { direct: BTreeMap::new(), reached: BTreeMap::new() };
    for member in &metadata.workspace_members {
        let Some(name) = names.get(member.as_str()).filter(|name| !OUTSIDE.contains(name)) else {
            continue;
        };
        let below = |ids: &[&str]| -> BTreeSet<String> {
            ids.iter().filter_map(|id| names.get(id)).map(|name| (*name).to_owned()).collect()
        };
        let direct = edges.get(member.as_str()).map(|ids| below(ids)).unwrap_or_default();
        let ours = direct.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect();
        let name = name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
        graph.direct.insert(name.clone(), ours);
        graph.reached.insert(name, below(&reach(member, &edges)));
    }
    graph
}

fn reach<'a>(from: &'a str, edges: &BTreeMap<&'a str, Vec<&'a str>>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(id) = open.pop() {
        for next in edges.get(id).into_iter().flatten() {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "# A\n\n## Code map\n\n| crate | role | may depend on |\n|---|---|---|\n\
        | `api` | types. Pure | – |\n| `node` | agent | api, net |\n| `net` | links | – |\n\
        | `cli` | all of it | all but net |\n\n## Next\n\n| `other` | x | y |\n";

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    fn graph_of(rows: &[(&str, &[&str], &[&str])]) -> Graph {
        let rows = rows.iter();
        let direct = rows.clone().map(|(name, direct, _)| ((*name).to_owned(), set(direct))).collect();
        let reached = rows.map(|(name, _, reached)| ((*name).to_owned(), set(reached))).collect();
        Graph { direct, reached }
    }

    #[test]
    fn the_table_is_read() {
        let map = parse_code_map(MAP);
        assert_eq!(map.len(), 4);
        assert_eq!(map["api"], Row { pure: true, allowed: Allowed::Only(set(&[])) });
        assert_eq!(map["node"], Row { pure: false, allowed: Allowed::Only(set(&["api", "net"])) });
        assert_eq!(map["cli"], Row { pure: false, allowed: Allowed::AllBut(set(&["net"])) });
    }

    #[test]
    fn findings_name_both_ends() {
        let fine = graph_of(&[
            ("api", &[], &["serde"]),
            ("node", &["api", "net"], &["tokio"]),
            ("net", &[], &[]),
            ("cli", &["node", "api"], &[]),
        ]);
        assert_eq!(compare(&parse_code_map(MAP), &fine), [""; 0]);

        let broken =
            graph_of(&[("api", &["net"], &["tokio"]), ("node", &[], &[]), ("cli", &["net"], &[]), ("new", &[], &[])]);
        let expected = [
            "crate api may not depend on net (docs/ARCHITECTURE.md)",
            "crate api is pure, but reaches tokio",
            "crate cli may not depend on net (docs/ARCHITECTURE.md)",
            "crate new is not in the code map of docs/ARCHITECTURE.md",
            "the code map of docs/ARCHITECTURE.md has net, the workspace has not",
        ];
        assert_eq!(compare(&parse_code_map(MAP), &broken), expected);
    }

    #[test]
    fn dev_dependencies_do_not_count() {
        let metadata: Metadata = serde_json::from_value(serde_json::json!({
            "packages": [
                {"id": "1", "name": "ferrovirt-api"}, {"id": "2", "name": "serde"},
                {"id": "3", "name": "tokio"}, {"id": "4", "name": "ferrovirt-net"}, {"id": "5", "name": "xtask"},
            ],
            "workspace_members": ["1", "4", "5"],
            "resolve": {"nodes": [
                {"id": "1", "deps": [{"pkg": "3", "dep_kinds": [{"kind": "dev"}]},
                                     {"pkg": "2", "dep_kinds": [{"kind": null}]}]},
                {"id": "2", "deps": []}, {"id": "3", "deps": []},
                {"id": "4", "deps": [{"pkg": "1", "dep_kinds": [{"kind": "dev"}, {"kind": null}]}]},
                {"id": "5", "deps": []},
            ]},
        }))
        .expect("metadata");
        let graph = graph(&metadata);
        assert_eq!(graph.direct, BTreeMap::from([("api".to_owned(), set(&[])), ("net".to_owned(), set(&["api"]))]));
        assert_eq!(graph.reached["net"], set(&["ferrovirt-api", "serde"]));
    }
}
