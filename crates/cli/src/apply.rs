//! `ferrovirt apply -f`: creates objects, or merges a file's content into those that exist.

use std::{fs, io::Read};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kube::{
    api::{DynamicObject, Patch, PatchParams, ValidationDirective},
    core::GroupVersionKind,
};
use serde_json::Value;

use crate::{
    client::{ClientArgs, dynamic, find_gvk},
    wait,
};

const MANAGER: &str = "ferrovirt";

#[derive(Args)]
pub struct ApplyArgs {
    /// File with one or more manifests, `-` for standard input; may be given several times
    #[arg(short, long = "filename", required = true)]
    file: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Wait until VMs that should run are ready
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
}

/// One document of a manifest file.
pub struct Manifest {
    pub gvk: GroupVersionKind,
    pub namespace: Option<String>,
    pub name: String,
    pub value: Value,
}

pub async fn run(arguments: ApplyArgs) -> Result<()> {
    let manifests = read_files(&arguments.file)?;
    let client = arguments.client.connect().await?;
    let default_namespace = arguments.client.namespace(&client).to_owned();
    let mut waiting = vec![];
    for manifest in manifests {
        let (resource, capabilities) = find_gvk(&client, &manifest.gvk).await?;
        let namespace = manifest.namespace.as_deref().unwrap_or(&default_namespace);
        let api = dynamic(&client, &resource, &capabilities.scope, namespace);
        let label = format!("{}/{}", manifest.gvk.kind.to_lowercase(), manifest.name);
        let problem = || format!("{label} was refused");
        let done = match api.get_opt(&manifest.name).await? {
            None => {
                // The client library's create has no word for strict validation, which names every unknown field.
                let url = format!("{}?fieldManager={MANAGER}&fieldValidation=Strict", api.resource_url());
                let request = http::Request::post(url)
                    .header("Content-Type", "application/json")
                    .body(serde_json::to_vec(&manifest.value)?)?;
                client.request::<DynamicObject>(request).await.with_context(problem)?;
                "created"
            }
            Some(existing) => {
                let params = PatchParams {
                    field_manager: Some(MANAGER.into()),
                    field_validation: Some(ValidationDirective::Strict),
                    ..Default::default()
                };
                let changed =
                    api.patch(&manifest.name, &params, &Patch::Merge(&manifest.value)).await.with_context(problem)?;
                match changed.metadata.resource_version == existing.metadata.resource_version {
                    true => "unchanged",
                    false => "configured",
                }
            }
        };
        println!("{label} {done}");
        if arguments.wait && should_run(&manifest) {
            waiting.push((api, manifest.name, label));
        }
    }
    for (api, name, label) in waiting {
        wait::until_ready(&api, &name, &label).await?;
    }
    Ok(())
}

/// Nobody waits for a VM that is meant to be off, or that somebody has to start.
fn should_run(manifest: &Manifest) -> bool {
    let spec = &manifest.value["spec"];
    let strategy = spec["runStrategy"].as_str().unwrap_or_default();
    let wanted = spec["running"] == true || ["Always", "RerunOnFailure", "Once"].contains(&strategy);
    manifest.gvk.kind == "VirtualMachine" && wanted
}

pub fn read_files(files: &[String]) -> Result<Vec<Manifest>> {
    let mut manifests = vec![];
    for file in files {
        let text = match file.as_str() {
            "-" => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text)?;
                text
            }
            file => fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?,
        };
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("{file} is not valid YAML: {error}"))?;
        for (index, document) in documents.into_iter().enumerate().filter(|(_, d)| !d.is_null()) {
            manifests.push(manifest(document).with_context(|| format!("document {} of {file}", index + 1))?);
        }
    }
    if manifests.is_empty() && !files.is_empty() {
        bail!("no objects in {}", files.join(", "));
    }
    Ok(manifests)
}

fn manifest(value: Value) -> Result<Manifest> {
    let text = |path: &Value| path.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let api_version = text(&value["apiVersion"]).ok_or_else(|| anyhow!("apiVersion is missing"))?;
    let kind = text(&value["kind"]).ok_or_else(|| anyhow!("kind is missing"))?;
    let name = text(&value["metadata"]["name"]).ok_or_else(|| anyhow!("metadata.name is missing"))?;
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    Ok(Manifest {
        gvk: GroupVersionKind::gvk(group, version, &kind),
        namespace: text(&value["metadata"]["namespace"]),
        name,
        value,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_should_run_is_waited_for() {
        let vm = |kind: &str, spec: Value| {
            manifest(json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": { "name": "a" }, "spec": spec }))
                .unwrap()
        };
        for (kind, spec, expected) in [
            ("VirtualMachine", json!({ "runStrategy": "Always" }), true),
            ("VirtualMachine", json!({ "running": true }), true),
            ("VirtualMachine", json!({ "runStrategy": "Once" }), true),
            ("VirtualMachine", json!({ "runStrategy": "Halted" }), false),
            ("VirtualMachine", json!({ "runStrategy": "Manual" }), false),
            ("VirtualMachine", json!({ "running": false }), false),
            ("VirtualMachine", json!({}), false),
            ("DataVolume", json!({ "runStrategy": "Always" }), false),
        ] {
            assert_eq!(should_run(&vm(kind, spec.clone())), expected, "{kind} {spec}");
        }
    }
}
