//! Small commands that read or set one thing: version, expand, permitted-devices, adm log-verbosity.

use std::{fs, io::Read};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use ferrovirt_api::v1::KubeVirt;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use crate::{client::ClientArgs, persona, socket, target::Kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Json,
    Yaml,
}

pub fn print(value: &Value, format: Format) -> Result<()> {
    match format {
        Format::Json => println!("{}", serde_json::to_string_pretty(value)?),
        Format::Yaml => print!("{}", serde_saphyr::to_string(value)?),
    }
    Ok(())
}

#[derive(Args)]
pub struct VersionArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this program's version
    #[arg(short = 'c', long = "client", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    client_only: bool,
    /// How to print [default: lines]
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub async fn version(arguments: VersionArgs) -> Result<()> {
    let mut value = json!({ "client": env!("CARGO_PKG_VERSION") });
    if !arguments.client_only {
        let client = arguments.client.connect().await?;
        let path = "/apis/subresources.kubevirt.io/v1/version";
        let server: Value = client.request(http::Request::get(path).body(vec![])?).await?;
        let kubernetes = client.apiserver_version().await?;
        let version = server["gitVersion"].as_str().unwrap_or_default();
        value["server"] = json!(version.trim_start_matches('v'));
        value["kubernetes"] = json!(kubernetes.git_version);
    }
    if let Some(format) = arguments.output {
        return print(&value, format);
    }
    for (key, label) in [("client", "Client Version"), ("server", "Server Version"), ("kubernetes", "Kubernetes")] {
        if let Some(version) = value[key].as_str() {
            println!("{label}: {version}");
        }
    }
    Ok(())
}

#[derive(Args)]
#[group(required = true, multiple = false, id = "expand_source", args = ["vm", "file"])]
pub struct ExpandArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// A VM of the cluster
    #[arg(long)]
    vm: Option<String>,
    /// A VM in a file, `-` for standard input
    #[arg(short, long)]
    file: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Format,
}

pub async fn expand(arguments: ExpandArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let request = match (&arguments.vm, &arguments.file) {
        (Some(vm), _) => {
            http::Request::get(socket::path(&namespace, Kind::Machine.resource(), vm, "expand-spec")).body(vec![])?
        }
        (None, file) => {
            let value = read_yaml(file.as_deref().unwrap_or("-"))?;
            let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/expand-vm-spec");
            http::Request::put(path).body(serde_json::to_vec(&value)?)?
        }
    };
    let expanded: Value = client.request(request).await?;
    print(&expanded, arguments.output)
}

fn read_yaml(file: &str) -> Result<Value> {
    let mut text = String::new();
    match file {
        "-" => drop(std::io::stdin().read_to_string(&mut text)?),
        file => text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?,
    }
    serde_saphyr::from_str(&text).map_err(|error| anyhow::anyhow!("{file} is not valid YAML: {error}"))
}

#[derive(Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// How to print [default: lists]
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub async fn permitted_devices(arguments: DevicesArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let kubevirt = serde_json::to_value(kubevirt(&client).await?)?;
    let devices = &kubevirt["spec"]["configuration"]["permittedHostDevices"];
    let names = |keys: &[&str]| -> Vec<String> {
        let all = keys.iter().flat_map(|key| devices[*key].as_array().into_iter().flatten());
        all.filter_map(|device| device["resourceName"].as_str().map(str::to_owned)).collect()
    };
    let (host, gpus) = (names(&["pciHostDevices", "usb"]), names(&["mediatedDevices"]));
    if let Some(format) = arguments.output {
        return print(&json!({ "hostDevices": host, "mediatedDevices": gpus }), format);
    }
    if persona::is_virtctl() {
        println!("Permitted Devices: \nHost Devices: \n{} \nGPU Devices: \n{}", host.join(", "), gpus.join(", "));
        return Ok(());
    }
    if host.is_empty() && gpus.is_empty() {
        println!("No devices of hosts may be given to machines.");
        println!("Permit them in the KubeVirt object, at spec.configuration.permittedHostDevices.");
    }
    for name in host {
        println!("host device      {name}");
    }
    for name in gpus {
        println!("mediated device  {name}");
    }
    Ok(())
}

async fn kubevirt(client: &Client) -> Result<KubeVirt> {
    let all = Api::<KubeVirt>::all(client.clone()).list(&ListParams::default()).await?;
    all.items.into_iter().next().context("the cluster has no KubeVirt object: is Ferrovirt installed there?")
}

#[derive(Subcommand)]
pub enum AdmCommand {
    /// Show or set how much the components log
    #[command(name = "log-verbosity", visible_alias = "logVerbosity")]
    LogVerbosity(VerbosityArgs),
}

/// A flag without a value shows; with one, sets.
#[derive(Args)]
pub struct VerbosityArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Back to the default (2) for all but the components named
    #[arg(long)]
    reset: bool,
    /// All components: show the level, or set it
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    all: Option<Option<u8>>,
    /// The webhooks and subresources: show the level, or set it
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    virt_api: Option<Option<u8>>,
    /// The controllers: show the level, or set it
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    virt_controller: Option<Option<u8>>,
    /// The node agents: show the level, or set it
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    virt_handler: Option<Option<u8>>,
    /// The launchers of new VMs: show the level, or set it
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    virt_launcher: Option<Option<u8>>,
    /// Accepted as upstream; there is no such component here
    #[arg(long, num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=9))]
    virt_operator: Option<Option<u8>>,
}

const COMPONENTS: [(&str, &str); 5] = [
    ("virt-api", "virtAPI"),
    ("virt-controller", "virtController"),
    ("virt-handler", "virtHandler"),
    ("virt-launcher", "virtLauncher"),
    ("virt-operator", "virtOperator"),
];
const DEFAULT_VERBOSITY: u64 = 2;

pub async fn adm(command: AdmCommand) -> Result<()> {
    let AdmCommand::LogVerbosity(arguments) = command;
    let asked = [
        arguments.virt_api,
        arguments.virt_controller,
        arguments.virt_handler,
        arguments.virt_launcher,
        arguments.virt_operator,
    ];
    let client = arguments.client.connect().await?;
    let kubevirt = kubevirt(&client).await?;
    let value = serde_json::to_value(&kubevirt)?;
    let present = value["spec"]["configuration"]["developerConfiguration"]["logVerbosity"].clone();
    match verbosity(&present, arguments.reset, arguments.all, &asked)? {
        Verbosity::Show(lines) => lines.iter().for_each(|line| println!("{line}")),
        Verbosity::Set(wanted) => {
            let metadata = kubevirt.metadata;
            let namespace = metadata.namespace.unwrap_or_default();
            let api = Api::<KubeVirt>::namespaced(client, &namespace);
            // A merge keeps what it does not name, so what is to go is named as null.
            let mut patch = Map::new();
            for (_, key) in COMPONENTS {
                patch.insert(key.into(), wanted.get(key).cloned().unwrap_or(Value::Null));
            }
            let patch = json!({ "spec": { "configuration": { "developerConfiguration": { "logVerbosity": patch } } } });
            api.patch(&metadata.name.unwrap_or_default(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            println!("successfully set/reset the log verbosity");
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Verbosity {
    Show(Vec<String>),
    Set(Map<String, Value>),
}

fn verbosity(
    present: &Value,
    reset: bool,
    all: Option<Option<u8>>,
    asked: &[Option<Option<u8>>; 5],
) -> Result<Verbosity> {
    let shows = all == Some(None) || asked.contains(&Some(None));
    let sets = reset || matches!(all, Some(Some(_))) || asked.iter().any(|flag| matches!(flag, Some(Some(_))));
    match (shows, sets) {
        (true, true) => bail!("only show or set is allowed"),
        (false, false) => bail!("no flag specified - expecting at least one flag; try --all"),
        (true, false) => {
            let chosen = COMPONENTS.iter().zip(asked).filter(|(_, flag)| all.is_some() || flag.is_some());
            let line =
                |(name, key): &(&str, &str)| format!("{name}={}", present[*key].as_u64().unwrap_or(DEFAULT_VERBOSITY));
            Ok(Verbosity::Show(chosen.map(|(component, _)| line(component)).collect()))
        }
        (false, true) => {
            let mut wanted = if reset { Map::new() } else { present.as_object().cloned().unwrap_or_default() };
            for ((_, key), flag) in COMPONENTS.iter().zip(asked) {
                if let Some(level) = flag.flatten().or(all.flatten()) {
                    wanted.insert((*key).into(), json!(level));
                }
            }
            Ok(Verbosity::Set(wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_is_shown_or_set() {
        let present = json!({ "virtAPI": 5 });
        let none = [None; 5];
        let handler = |value| [None, None, Some(value), None, None];
        let show = |reset, all, asked: &_| verbosity(&present, reset, all, asked);
        let lines = ["virt-api=5", "virt-controller=2", "virt-handler=2", "virt-launcher=2", "virt-operator=2"];
        assert_eq!(show(false, Some(None), &none).unwrap(), Verbosity::Show(lines.map(Into::into).to_vec()));
        assert_eq!(show(false, None, &handler(None)).unwrap(), Verbosity::Show(vec!["virt-handler=2".into()]));
        let set = |value: Value| Verbosity::Set(value.as_object().unwrap().clone());
        let both = set(json!({ "virtAPI": 5, "virtHandler": 7 }));
        assert_eq!(show(false, None, &handler(Some(7))).unwrap(), both);
        assert_eq!(show(true, None, &handler(Some(7))).unwrap(), set(json!({ "virtHandler": 7 })));
        assert!(show(true, Some(None), &none).is_err());
        assert!(show(false, None, &none).is_err());
    }
}
