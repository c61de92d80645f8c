//! `ferrovirt get`: a table as the server prints it, or the objects themselves.

use anyhow::Result;
use clap::{Args, ValueEnum};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
    discovery::Scope,
};
use serde_json::Value;

use crate::{
    client::{ClientArgs, dynamic, find_kind},
    table,
};

#[derive(Args)]
pub struct GetArgs {
    /// What to list: vms, vmis, pods, nodes, events, …
    kind: String,
    /// One object
    name: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Label selector
    #[arg(short = 'l', long)]
    selector: Option<String>,
    /// How to print [default: a table]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
    Name,
    Wide,
}

pub async fn run(arguments: GetArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let (resource, capabilities) = find_kind(&client, &arguments.kind).await?;
    let namespaced = capabilities.scope == Scope::Namespaced;
    let api: Api<DynamicObject> = match arguments.all_namespaces {
        true => Api::all_with(client.clone(), &resource),
        false => dynamic(&client, &resource, &capabilities.scope, &namespace),
    };
    match arguments.output {
        Some(output @ (Output::Json | Output::Yaml)) => {
            let value = match &arguments.name {
                Some(name) => serde_json::to_value(api.get(name).await?)?,
                None => serde_json::to_value(api.list(&list_params(&arguments)).await?)?,
            };
            if output == Output::Json {
                println!("{value:#}");
            } else {
                print!("{}", serde_saphyr::to_string(&value)?);
            }
        }
        Some(Output::Name) => {
            let items = match &arguments.name {
                Some(name) => vec![api.get(name).await?],
                None => api.list(&list_params(&arguments)).await?.items,
            };
            for item in items {
                println!("{}/{}", resource.kind.to_lowercase(), item.metadata.name.unwrap_or_default());
            }
        }
        None | Some(Output::Wide) => {
            let url = match (&arguments.name, &arguments.selector) {
                (Some(name), _) => format!("{}/{name}", api.resource_url()),
                (None, Some(selector)) => format!("{}?labelSelector={}", api.resource_url(), encode(selector)),
                (None, None) => api.resource_url().to_owned(),
            };
            let request = http::Request::get(url)
                .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io, application/json")
                .body(vec![])?;
            let answer: Value = client.request(request).await?;
            print_table(&answer, arguments.output == Some(Output::Wide), arguments.all_namespaces && namespaced);
            if answer["rows"].as_array().is_none_or(Vec::is_empty) {
                match namespaced && !arguments.all_namespaces {
                    true => eprintln!("No {} in namespace {namespace}.", resource.plural),
                    false => eprintln!("No {}.", resource.plural),
                }
            }
        }
    }
    Ok(())
}

fn list_params(arguments: &GetArgs) -> ListParams {
    let params = ListParams::default();
    match &arguments.selector {
        Some(selector) => params.labels(selector),
        None => params,
    }
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

fn print_table(answer: &Value, wide: bool, with_namespace: bool) {
    let empty = vec![];
    let columns = answer["columnDefinitions"].as_array().unwrap_or(&empty);
    let shown: Vec<usize> =
        (0..columns.len()).filter(|i| wide || columns[*i]["priority"].as_i64().unwrap_or(0) == 0).collect();
    let mut header: Vec<String> =
        shown.iter().map(|i| columns[*i]["name"].as_str().unwrap_or_default().to_uppercase()).collect();
    if with_namespace {
        header.insert(0, "NAMESPACE".into());
    }
    let rows: Vec<Vec<String>> = answer["rows"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .map(|row| {
            let mut cells: Vec<String> = shown.iter().map(|i| cell(&row["cells"][*i])).collect();
            if with_namespace {
                cells.insert(0, cell(&row["object"]["metadata"]["namespace"]));
            }
            cells
        })
        .collect();
    if !rows.is_empty() {
        table::print(&header, &rows);
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
