//! Generated data: facts of KubeVirt and Kubernetes in the form our crates embed.
//!
//! ```text
//! KubeVirt structural schemas + descriptions.yaml --crds-----> crates/api/crds/<kind>.json
//! Kubernetes swagger.json -------------------------openapi---> crates/apiserver/data/openapi.json
//! the feature table of crates/machine ------------------------> docs/hypervisors.md
//! generated.proto + struct tags of the Go types ---proto-----> crates/apiserver/data/proto.json
//! ```
//!
//! Upstream's prose never enters: descriptions are dropped, and ours are added where we wrote one. The outputs are
//! checked in, because the sources are not at hand on most machines; `generated.sha256` tells a hand edit from a
//! generated file even there.

mod crd_kinds;
mod crds;
mod go_module;
mod go_structs;
mod kube_kinds;
mod lock;
mod openapi;
mod proto;
mod proto_file;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Where the KubeVirt schemas are looked for when no directory is given, relative to the workspace.
const DEFAULT_CRD_SCHEMAS: &str = "../shared/kubevirt/crd-schemas";

pub struct Options {
    pub check: bool,
    pub crd_schemas: Option<PathBuf>,
}

/// Path relative to the workspace, and content.
type Files = BTreeMap<String, String>;

/// What a generator answers: its files, or why its sources are not at hand.
enum Outcome {
    Files(Files),
    Skipped(String),
}

pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let outcomes = [
        ("crds", generate_crds(root, options)?),
        ("openapi", openapi::generate(options.check)?),
        ("proto", proto::generate(options.check)?),
    ];
    let mut fresh = true;
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Skipped(reason) if options.check => println!("SKIPPED {name}: {reason}"),
            Outcome::Skipped(reason) => bail!("{name}: {reason}"),
            Outcome::Files(files) if options.check => fresh &= check(root, name, &files)?,
            Outcome::Files(files) => write(root, name, &files)?,
        }
    }
    if !options.check {
        lock::write(root)?;
        tables(root)?;
    }
    for problem in lock::verify(root)? {
        println!("{problem}");
        fresh = false;
    }
    Ok(fresh)
}

/// The tables in docs/, which a test of the machine crate writes and otherwise compares.
fn tables(root: &Path) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "-p", "ferrovirt-machine", "--test", "it", "documentation"]);
    let status = command.env("UPDATE_GOLDENS", "1").current_dir(root).status().context("running cargo test")?;
    ensure!(status.success(), "the tables in docs/ could not be written");
    Ok(())
}

fn generate_crds(root: &Path, options: &Options) -> Result<Outcome> {
    let dir = options.crd_schemas.clone().unwrap_or_else(|| root.join(DEFAULT_CRD_SCHEMAS));
    if !dir.is_dir() {
        ensure!(options.crd_schemas.is_none(), "no directory {}", dir.display());
        return Ok(Outcome::Skipped(format!("no KubeVirt schemas at {}; give --crd-schemas DIR", dir.display())));
    }
    let descriptions = root.join(lock::DESCRIPTIONS);
    let descriptions =
        fs::read_to_string(&descriptions).with_context(|| format!("reading {}", descriptions.display()))?;
    Ok(Outcome::Files(crds::generate(&dir, &descriptions)?))
}

fn check(root: &Path, name: &str, files: &Files) -> Result<bool> {
    let mut fresh = true;
    for (path, content) in files {
        let found = fs::read_to_string(root.join(path)).unwrap_or_default();
        if found != *content {
            println!("STALE {path}: run `cargo xtask gen`");
            fresh = false;
        }
    }
    if fresh {
        println!("fresh {name}: {} file(s)", files.len());
    }
    Ok(fresh)
}

fn write(root: &Path, name: &str, files: &Files) -> Result<()> {
    for (path, content) in files {
        let target = root.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        fs::write(&target, content).with_context(|| format!("writing {}", target.display()))?;
        println!("wrote {path} ({} KiB, {name})", content.len().div_ceil(1024));
    }
    Ok(())
}

/// One line, keys sorted. The order is made here because serde_json's own depends on a feature that any crate of the
/// workspace may switch on.
fn compact(value: &Value) -> String {
    let mut out = sorted(value).to_string();
    out.push('\n');
    out
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, Value> = map.iter().map(|(k, v)| (k, sorted(v))).collect();
            Value::Object(ordered.into_iter().map(|(k, v)| (k.clone(), v)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
