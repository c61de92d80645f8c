//! `ferrovirt hypervisors`: which hypervisors there are, what each cannot do and why, and which nodes can run them.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ferrovirt_machine::features::{self, Row};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde::Serialize;

use crate::{client::ClientArgs, table};

#[derive(Args)]
pub struct HypervisorsArgs {
    /// One hypervisor, with all it cannot do
    name: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Do not ask a cluster which of its nodes can run them
    #[arg(long)]
    offline: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
    Yaml,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    row: Row,
    /// Nodes that can run it; absent if no cluster was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<String>>,
}

pub async fn run(arguments: HypervisorsArgs) -> Result<()> {
    let nodes = match arguments.offline {
        true => None,
        false => nodes(&arguments.client).await,
    };
    let mut entries: Vec<Entry> = features::rows()
        .into_iter()
        .map(|row| Entry { nodes: nodes.as_ref().map(|nodes| able(nodes, &row)), row })
        .collect();
    if let Some(name) = &arguments.name {
        if !entries.iter().any(|entry| entry.row.name == name) {
            let known: Vec<&str> = entries.iter().map(|entry| entry.row.name).collect();
            anyhow::bail!("there is no hypervisor {name:?}; known: {}", known.join(", "));
        }
        entries.retain(|entry| entry.row.name == name);
    }
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&entries)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&entries)?),
        Output::Table => print_table(&entries, arguments.name.is_some()),
    }
    Ok(())
}

/// The labels of each node, if there is a cluster that answers.
async fn nodes(arguments: &ClientArgs) -> Option<BTreeMap<String, BTreeMap<String, String>>> {
    let client = arguments.connect().await.ok()?;
    let nodes = Api::<Node>::all(client).list(&ListParams::default()).await.ok()?;
    let labels = |node: Node| (node.metadata.name.unwrap_or_default(), node.metadata.labels.unwrap_or_default());
    Some(nodes.items.into_iter().map(labels).collect())
}

/// The nodes whose agent says that they can run it.
fn able(nodes: &BTreeMap<String, BTreeMap<String, String>>, row: &Row) -> Vec<String> {
    let label = features::node_label(row.name);
    let says = |labels: &BTreeMap<String, String>| labels.get(&label).is_some_and(|value| value == "true");
    nodes.iter().filter(|(_, labels)| says(labels)).map(|(name, _)| name.clone()).collect()
}

fn print_table(entries: &[Entry], with_gaps: bool) {
    let asked = entries.iter().any(|entry| entry.nodes.is_some());
    let mut header = vec!["NAME", "DRIVER", "DEVICE", "GAPS"];
    if asked {
        header.push("NODES");
    }
    header.push("NOTE");
    let header: Vec<String> = header.into_iter().map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = entries.iter().map(|entry| cells(entry, asked)).collect();
    table::print(&header, &rows);
    for entry in entries.iter().filter(|entry| with_gaps && entry.row.implemented) {
        println!();
        let header = ["FEATURE".to_owned(), "SUPPORTED".to_owned()];
        let support = |support: &features::Support| {
            let text = support.reason.map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"));
            vec![support.feature.to_owned(), text]
        };
        table::print(&header, &entry.row.features.iter().map(support).collect::<Vec<_>>());
    }
}

fn cells(entry: &Entry, asked: bool) -> Vec<String> {
    let row = &entry.row;
    let device = row.traits.as_ref().and_then(|traits| traits.device);
    let gaps = row.features.iter().filter(|support| !support.supported).count();
    let mut cells = vec![
        row.name.to_owned(),
        if row.implemented { "yes" } else { "no" }.to_owned(),
        device.unwrap_or("-").to_owned(),
        if row.implemented { format!("{gaps} of {}", row.features.len()) } else { "-".into() },
    ];
    if asked {
        let nodes = entry.nodes.as_deref().unwrap_or_default();
        cells.push(if nodes.is_empty() { "-".into() } else { nodes.join(",") });
    }
    cells.push(row.missing.unwrap_or_default().to_owned());
    cells
}
