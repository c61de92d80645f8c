//! `ferrovirt expose`: a Service for a machine.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ferrovirt_api::{
    names,
    v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceSpec},
};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::{client::ClientArgs, persona, target::Kind};

#[derive(Args)]
pub struct ExposeArgs {
    /// vm, vmi or vmirs
    kind: String,
    /// Its name
    name: String,
    #[command(flatten)]
    client: ClientArgs,
    /// Name of the Service
    #[arg(long = "name", value_name = "SERVICE")]
    service: String,
    /// Port of the Service [default: the ports that the machine declares]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Port of the guest, or its name [default: the same]
    #[arg(long)]
    target_port: Option<String>,
    /// Name of the port
    #[arg(long)]
    port_name: Option<String>,
    /// Protocol of the port
    #[arg(long, value_enum, ignore_case = true, default_value = "tcp")]
    protocol: Protocol,
    /// Kind of Service
    #[arg(long = "type", value_enum, ignore_case = true, default_value = "clusterip")]
    service_type: ServiceType,
    /// A cluster address of your choice, or None for a headless Service
    #[arg(long)]
    cluster_ip: Option<String>,
    /// An address outside of the cluster that leads to a node
    #[arg(long)]
    external_ip: Option<String>,
    /// IPv4, IPv6, or both with a comma
    #[arg(long)]
    ip_family: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack
    #[arg(long)]
    ip_family_policy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServiceType {
    #[value(name = "clusterip")]
    ClusterIp,
    #[value(name = "nodeport")]
    NodePort,
    #[value(name = "loadbalancer")]
    LoadBalancer,
}

/// What a Service needs to know of the object that it is for.
struct Exposed {
    selector: Value,
    declared: Vec<Value>,
    owner: Value,
}

pub async fn run(arguments: ExposeArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let name = &arguments.name;
    let by_id = json!({ names::VIRTUAL_MACHINE_INSTANCE_ID_LABEL: ferrovirt_plan::pod::instance_id(name) });
    let owner = |kind: &str, uid: Option<String>| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": false,
        })
    };
    let exposed = match Kind::parse(&arguments.kind) {
        Some(Kind::Machine) => {
            let vm = Api::<VirtualMachine>::namespaced(client.clone(), &namespace).get(name).await?;
            let declared = vm.spec.template.as_ref().map(|template| declared(&template.spec)).unwrap_or_default();
            Exposed { selector: by_id, declared, owner: owner("VirtualMachine", vm.uid()) }
        }
        Some(Kind::Instance) => {
            let vmi = Api::<VirtualMachineInstance>::namespaced(client.clone(), &namespace).get(name).await?;
            Exposed {
                selector: by_id,
                declared: declared(&vmi.spec),
                owner: owner("VirtualMachineInstance", vmi.uid()),
            }
        }
        None if ["vmirs", "vmirss", "virtualmachineinstancereplicaset", "virtualmachineinstancereplicasets"]
            .contains(&arguments.kind.to_lowercase().as_str()) =>
        {
            let sets = Api::<VirtualMachineInstanceReplicaSet>::namespaced(client.clone(), &namespace);
            let set = serde_json::to_value(sets.get(name).await?)?;
            let selector = &set["spec"]["selector"];
            if selector["matchExpressions"].as_array().is_some_and(|list| !list.is_empty()) {
                bail!("cannot expose VirtualMachineInstanceReplicaSet with match expressions");
            }
            if selector["matchLabels"].as_object().is_none_or(serde_json::Map::is_empty) {
                bail!("cannot expose VirtualMachineInstanceReplicaSet without any selector labels");
            }
            let spec = serde_json::from_value(set["spec"]["template"]["spec"].clone())?;
            let uid = set["metadata"]["uid"].as_str().map(Into::into);
            Exposed {
                selector: selector["matchLabels"].clone(),
                declared: declared(&spec),
                owner: owner("VirtualMachineInstanceReplicaSet", uid),
            }
        }
        None => bail!("{:?} cannot be exposed; a vm, a vmi or a vmirs can", arguments.kind),
    };
    let service: Service = serde_json::from_value(service(&arguments, &namespace, exposed)?)?;
    let made = Api::<Service>::namespaced(client, &namespace).create(&PostParams::default(), &service).await?;
    if persona::is_virtctl() {
        println!("Service {} successfully created for {} {name}", arguments.service, arguments.kind);
        return Ok(());
    }
    let spec = made.spec.unwrap_or_default();
    let address = spec.cluster_ip.unwrap_or_else(|| "no address".into());
    println!("service/{} at {address} leads to {}/{name}", arguments.service, arguments.kind.to_lowercase());
    for port in spec.ports.unwrap_or_default() {
        let node = port.node_port.map(|port| format!(", on every node at port {port}")).unwrap_or_default();
        println!("  {} {}{node}", port.protocol.unwrap_or_default(), port.port);
    }
    Ok(())
}

fn service(arguments: &ExposeArgs, namespace: &str, exposed: Exposed) -> Result<Value> {
    let ports = match arguments.port {
        Some(port) => {
            let target = match arguments.target_port.as_deref() {
                None => json!(port),
                Some(text) => text.parse::<u16>().map_or_else(|_| json!(text), |number| json!(number)),
            };
            let protocol = if arguments.protocol == Protocol::Udp { "UDP" } else { "TCP" };
            let mut entry = json!({ "port": port, "targetPort": target, "protocol": protocol });
            if let Some(name) = &arguments.port_name {
                entry["name"] = json!(name);
            }
            vec![entry]
        }
        None => exposed.declared,
    };
    if ports.is_empty() {
        bail!("the machine declares no ports; name one with --port");
    }
    let mut spec = json!({
        "type": match arguments.service_type {
            ServiceType::ClusterIp => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
        },
        "selector": exposed.selector, "ports": ports,
    });
    if let Some(ip) = &arguments.cluster_ip {
        spec["clusterIP"] = json!(ip);
    }
    if let Some(ip) = &arguments.external_ip {
        spec["externalIPs"] = json!([ip]);
    }
    let families = arguments.ip_family.as_deref().map(families).transpose()?.unwrap_or_default();
    if !families.is_empty() {
        spec["ipFamilies"] = json!(families);
    }
    match (&arguments.ip_family_policy, families.len()) {
        (Some(policy), _) => {
            let known = ["SingleStack", "PreferDualStack", "RequireDualStack"];
            match known.iter().find(|name| name.eq_ignore_ascii_case(policy)) {
                Some(name) => spec["ipFamilyPolicy"] = json!(name),
                None => bail!("unknown IPFamilyPolicy/s: {policy}"),
            }
        }
        (None, 2..) => spec["ipFamilyPolicy"] = json!("PreferDualStack"),
        _ => {}
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": arguments.service, "namespace": namespace, "ownerReferences": [exposed.owner] },
        "spec": spec,
    }))
}

fn families(text: &str) -> Result<Vec<&'static str>> {
    text.split(',')
        .map(|word| match word.trim().to_lowercase().as_str() {
            "ipv4" => Ok("IPv4"),
            "ipv6" => Ok("IPv6"),
            _ => bail!("unknown IPFamily/s: {text}"),
        })
        .collect()
}

/// The ports that a machine declares on the pod network.
fn declared(spec: &VirtualMachineInstanceSpec) -> Vec<Value> {
    let Some(network) = spec.networks.iter().find(|network| network.pod.is_some()) else { return vec![] };
    let interface = spec.domain.devices.interfaces.iter().find(|interface| interface.name == network.name);
    let ports = interface.map(|interface| interface.ports.as_slice()).unwrap_or_default();
    ports
        .iter()
        .enumerate()
        .map(|(index, port)| {
            let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
            json!({ "name": format!("port-{}", index + 1), "protocol": protocol, "port": port.port })
        })
        .collect()
}
