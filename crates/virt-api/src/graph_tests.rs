use serde_json::{Value, json};

use super::*;

fn vm() -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "a", "namespace": "n" },
        "spec": {
            "instancetype": { "kind": "VirtualMachineClusterInstancetype", "name": "small", "revisionName": "rev" },
            "template": { "spec": {
                "domain": { "devices": {} },
                "accessCredentials": [{ "sshPublicKey": {
                    "source": { "secret": { "secretName": "keys" } }, "propagationMethod": { "noCloud": {} },
                } }],
                "networks": [{ "name": "x", "multus": { "networkName": "other/net" } }],
                "volumes": [
                    { "name": "d", "dataVolume": { "name": "disk" } },
                    { "name": "p", "persistentVolumeClaim": { "claimName": "claim" } },
                    { "name": "c", "cloudInitNoCloud": { "secretRef": { "name": "user" } } },
                    { "name": "i", "containerDisk": { "image": "x" } },
                ],
            } },
        },
        "status": { "created": true },
    }))
    .unwrap()
}

/// `kind/name` of each node, children in parentheses.
fn show(node: &ObjectGraphNode) -> String {
    let children: Vec<String> = node.children.iter().map(show).collect();
    let own = format!("{}/{}", node.object_reference.kind, node.object_reference.name);
    if children.is_empty() { own } else { format!("{own}({})", children.join(" ")) }
}

#[test]
fn a_machine_names_everything_that_it_needs() {
    let graph = of_machine(&vm(), Some("virt-launcher-a"));
    assert_eq!(
        show(&graph),
        "VirtualMachine/a(VirtualMachineInstance/a(Pod/virt-launcher-a) \
         VirtualMachineClusterInstancetype/small(ControllerRevision/rev) Secret/keys PersistentVolumeClaim/claim \
         Secret/user DataVolume/disk(PersistentVolumeClaim/disk) NetworkAttachmentDefinition/net)"
    );
    let net = &graph.children[6].object_reference;
    assert_eq!((net.namespace.as_deref(), net.api_group.as_deref()), (Some("other"), Some("k8s.cni.cncf.io")));
}

#[test]
fn a_selector_leaves_out_the_rest() {
    let options = |selector: Value| serde_json::from_value(json!({ "labelSelector": selector })).unwrap();
    let graph = || of_machine(&vm(), None);
    let storage = options(json!({ "matchLabels": { "kubevirt.io/dependency-type": "storage" } }));
    let shown = show(&select(graph(), &storage));
    assert_eq!(shown, "VirtualMachine/a(PersistentVolumeClaim/claim DataVolume/disk(PersistentVolumeClaim/disk))");
    let network = options(json!({ "matchExpressions": [
        { "key": "kubevirt.io/dependency-type", "operator": "NotIn", "values": ["storage", "config", "compute"] },
    ] }));
    assert_eq!(show(&select(graph(), &network)), "VirtualMachine/a(NetworkAttachmentDefinition/net)");
}
