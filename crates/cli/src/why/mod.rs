//! `ferrovirt why NAME`: why a VM is not in the state that its owner wants, and what to do about it.
//!
//! [`collect`] asks the API for everything that has to do with the VM; [`explain`] is a pure function from that to lines.

mod explain;
mod imports;
mod placing;
mod volumes;

use anyhow::Result;
use clap::Args;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::{Value, json};

use crate::{
    client::ClientArgs,
    exit,
    info::{self, Format},
    next, output, target,
};
use explain::{Facts, Outlook, explain};

#[derive(Args)]
pub struct WhyArgs {
    /// The VM, optionally with the word `vm` or `vmi` before it
    #[arg(required = true, num_args = 1..=2, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// How to print [default: sentences]
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub async fn run(arguments: WhyArgs) -> Result<()> {
    let named = target::words(&arguments.words)?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let mut facts = collect(&client, &namespace, &named.name).await?;
    facts.flags = next::flags().in_namespace(named.namespace.as_deref());
    let report = explain(&facts);
    if let Some(format) = arguments.output {
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|finding| {
                let stuck = finding.outlook == Outlook::Stuck;
                json!({ "about": finding.about, "message": finding.message, "next": finding.next, "stuck": stuck })
            })
            .collect();
        return info::print(&json!({ "summary": report.summary, "well": report.well, "findings": findings }), format);
    }
    let coloured = exit::coloured(&std::io::stdout());
    let (strong, plain) = if coloured { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    println!("{strong}{}{plain}", output::harmless(&report.summary));
    for finding in &report.findings {
        println!("  {}: {}", output::harmless(&finding.about), output::harmless(&finding.message));
        if let Some(next) = &finding.next {
            println!("    -> {}", output::harmless(next));
        }
    }
    Ok(())
}

/// What keeps a VM from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// What is wrong, and with which object.
    pub message: String,
    pub next: Option<String>,
    /// Waiting will not help.
    pub stuck: bool,
}

/// Looks for what keeps a VM from starting. Nothing if it gets on, or if nothing can be known.
pub async fn obstacle(client: &Client, namespace: &str, name: &str) -> Option<Obstacle> {
    let mut facts = collect(client, namespace, name).await.ok()?;
    facts.flags = next::flags().in_namespace(Some(namespace).filter(|ns| *ns != client.default_namespace()));
    let report = explain(&facts);
    report.obstacle().map(|finding| Obstacle {
        message: format!("{}: {}", finding.about, finding.message),
        next: finding.next.clone(),
        stuck: finding.outlook == Outlook::Stuck,
    })
}

async fn collect(client: &Client, namespace: &str, name: &str) -> Result<Facts> {
    let api = |group: &str, version: &str, kind: &str, plural: &str| {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource)
    };
    let everywhere = |group: &str, version: &str, kind: &str, plural: &str| {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, plural))
    };
    let vm = one(&api("kubevirt.io", "v1", "VirtualMachine", "virtualmachines"), name).await?;
    let vmi = one(&api("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances"), name).await?;
    let mut facts = Facts { name: name.into(), namespace: namespace.into(), vm, vmi, ..Default::default() };
    if facts.vm.is_none() && facts.vmi.is_none() {
        let machines = everywhere("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
        facts.elsewhere = many(&machines).await.into_iter().filter(|vm| vm["metadata"]["name"] == name).collect();
        return Ok(facts);
    }
    // What the caller may not read is left out: a report that knows less is better than none.
    facts.pods = many(&api("", "v1", "Pod", "pods")).await;
    facts.claims = many(&api("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")).await;
    facts.data_volumes = many(&api("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")).await;
    facts.events = many(&api("", "v1", "Event", "events")).await;
    facts.nodes = many(&everywhere("", "v1", "Node", "nodes")).await;
    facts.storage_classes = many(&everywhere("storage.k8s.io", "v1", "StorageClass", "storageclasses")).await;
    Ok(facts)
}

async fn one(api: &Api<DynamicObject>, name: &str) -> Result<Option<Value>> {
    Ok(api.get_opt(name).await?.map(serde_json::to_value).transpose()?)
}

async fn many(api: &Api<DynamicObject>) -> Vec<Value> {
    let list = api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    list.into_iter().filter_map(|object| serde_json::to_value(object).ok()).collect()
}

#[cfg(test)]
mod tests;
