//! Finds the source of a Go module in Go's module cache. `go` itself downloads and checks it against the checksum
//! database, so nothing of that is ours to do.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The Kubernetes release all built-in types come from.
pub const KUBERNETES: GoModule = GoModule { path: "k8s.io/kubernetes", version: "v1.36.3" };

/// The libraries of that release that carry protobuf definitions.
pub const LIBRARIES: [GoModule; 4] = [
    GoModule { path: "k8s.io/api", version: "v0.36.3" },
    GoModule { path: "k8s.io/apimachinery", version: "v0.36.3" },
    GoModule { path: "k8s.io/apiextensions-apiserver", version: "v0.36.3" },
    GoModule { path: "k8s.io/kube-aggregator", version: "v0.36.3" },
];

#[derive(Clone, Copy)]
pub struct GoModule {
    pub path: &'static str,
    pub version: &'static str,
}

pub enum Located {
    At(PathBuf),
    Missing(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Download {
    dir: Option<PathBuf>,
    error: Option<String>,
}

/// A check stays offline: it runs on every lint, and a download of 50 MB is not what one expects there.
pub fn locate(module: GoModule, offline: bool) -> Result<Located> {
    let name = format!("{}@{}", module.path, module.version);
    let mut command = Command::new("go");
    // Outside of any Go module or workspace of the caller.
    command.args(["mod", "download", "-json", &name]).current_dir(std::env::temp_dir()).env("GOWORK", "off");
    if offline {
        command.env("GOPROXY", "off");
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Located::Missing("`go` is not installed".to_owned()));
        }
        Err(error) => return Err(error).context("running go"),
    };
    let download: Download =
        serde_json::from_slice(&output.stdout).with_context(|| format!("reading the answer of go for {name}"))?;
    match (download.dir, download.error) {
        (Some(dir), _) => Ok(Located::At(dir)),
        (None, _) if offline => Ok(Located::Missing(format!("Go module {name} is not in the module cache"))),
        (None, Some(error)) => bail!("{name}: {error}"),
        (None, None) => bail!("{name}: go named no directory"),
    }
}
