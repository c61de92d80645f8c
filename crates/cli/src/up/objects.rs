//! The objects that an installation consists of: its namespace, its configuration, its API service and its webhooks.

use anyhow::Result;
use ferrovirt_api::v1::KubeVirt;
use ferrovirt_machine::hypervisor;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

pub use super::services::NAMESPACE;
use super::services::SERVICE;

/// Of the API group that gives out upload tokens. The name is upstream's.
pub const UPLOAD_SERVICE: &str = "cdi-api";

/// Our own kinds, and that of secondary networks, which Multus brings to a cluster.
pub fn definitions() -> Vec<Value> {
    let mut definitions = ferrovirt_api::crds();
    definitions.push(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "network-attachment-definitions.k8s.cni.cncf.io" },
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition", "shortNames": ["net-attach-def"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "description": "A network that pods and VMs can be attached to besides the pod network.",
                    "type": "object",
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": { "type": "object", "properties": { "config": {
                            "description": "A CNI configuration or list of configurations, as JSON.", "type": "string",
                        } } },
                    },
                } },
            }],
        },
    }));
    definitions
}

/// Whose pods are the system's own.
pub fn pod_makers() -> Vec<String> {
    [ferrovirt_api::names::CONTROLLER_USER, ferrovirt_api::names::UP_USER].map(str::to_owned).to_vec()
}

/// What every host has. Roles and hooks follow the version that runs; the configuration is only made if it is not there.
pub fn bootstrap(allow_emulation: bool) -> Vec<Value> {
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": { "name": "kubevirt", "namespace": NAMESPACE },
            "spec": { "configuration": { "developerConfiguration": { "useEmulation": allow_emulation } } },
        }),
    ];
    objects.extend(ferrovirt_virt_api::user_roles());
    objects.extend(ferrovirt_cdi::user_roles());
    for version in ["v1", "v1alpha3"] {
        objects.push(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("{version}.subresources.kubevirt.io") },
            "spec": {
                "group": "subresources.kubevirt.io", "version": version,
                "groupPriorityMinimum": 1000, "versionPriority": if version == "v1" { 15 } else { 10 },
                "service": { "namespace": NAMESPACE, "name": SERVICE, "port": 443 },
            },
        }));
    }
    objects.push(json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1beta1.upload.cdi.kubevirt.io" },
        "spec": {
            "group": "upload.cdi.kubevirt.io", "version": "v1beta1",
            "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": { "namespace": NAMESPACE, "name": UPLOAD_SERVICE, "port": 443 },
        },
    }));
    objects.push(json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": { "name": "config" }, "spec": {},
    }));
    objects.push(webhooks(
        "MutatingWebhookConfiguration",
        "virt-api-mutator",
        &[(
            "virtualmachineinstances-mutator.kubevirt.io",
            "virtualmachineinstances-mutate",
            "virtualmachineinstances",
            &["CREATE"],
        )],
    ));
    objects.push(webhooks(
        "ValidatingWebhookConfiguration",
        "virt-api-validator",
        &[
            (
                "virtualmachine-validator.kubevirt.io",
                "virtualmachines-validate",
                "virtualmachines",
                &["CREATE", "UPDATE"],
            ),
            (
                "virtualmachineinstances-create-validator.kubevirt.io",
                "virtualmachineinstances-validate-create",
                "virtualmachineinstances",
                &["CREATE"],
            ),
            (
                "virtualmachineinstances-update-validator.kubevirt.io",
                "virtualmachineinstances-validate-update",
                "virtualmachineinstances",
                &["UPDATE"],
            ),
            (
                "virtualmachinereplicaset-validator.kubevirt.io",
                "virtualmachinereplicaset-validate",
                "virtualmachineinstancereplicasets",
                &["CREATE", "UPDATE"],
            ),
        ],
    ));
    objects.extend(later_webhooks());
    let mut volumes = webhooks(
        "ValidatingWebhookConfiguration",
        "cdi-api-datavolume-validate",
        &[("datavolume-validate.cdi.kubevirt.io", "datavolumes-validate", "datavolumes", &["CREATE", "UPDATE"])],
    );
    volumes["webhooks"][0]["rules"][0]["apiGroups"] = json!(["cdi.kubevirt.io"]);
    volumes["webhooks"][0]["rules"][0]["apiVersions"] = json!(["v1beta1"]);
    objects.push(volumes);
    objects.push(eviction_interceptor());
    objects
}

/// Asks before a launcher's pod is evicted. Nothing else stands between a drain and a machine that is to be
/// moved first, so who cannot be asked refuses, as upstream's.
fn eviction_interceptor() -> Value {
    let name = "virt-launcher-eviction-interceptor";
    let mut hooks = webhooks(
        "ValidatingWebhookConfiguration",
        name,
        &[(&format!("{name}.kubevirt.io"), "pod-eviction-validate", "pods/eviction", &["*"])],
    );
    let hook = &mut hooks["webhooks"][0];
    hook["rules"][0]["apiGroups"] = json!([""]);
    hook["rules"][0]["apiVersions"] = json!(["v1"]);
    hook["sideEffects"] = json!("NoneOnDryRun");
    hook["matchConditions"] =
        json!([{ "name": "only-vms", "expression": "object.metadata.name.startsWith(\"virt-launcher\")" }]);
    hooks
}

/// Those that came after the first. Their objects are their own.
fn later_webhooks() -> Vec<Value> {
    const BOTH: &[&str] = &["CREATE", "UPDATE"];
    let mutating = webhooks(
        "MutatingWebhookConfiguration",
        "virt-api-defaults",
        &[
            ("virtualmachines-mutator.kubevirt.io", "virtualmachines-mutate", "virtualmachines", BOTH),
            (
                "virtualmachineinstancemigrations-mutator.kubevirt.io",
                "migration-mutate-create",
                "virtualmachineinstancemigrations",
                &["CREATE"],
            ),
        ],
    );
    let mut validating = webhooks(
        "ValidatingWebhookConfiguration",
        "virt-api-kinds",
        &[
            (
                "virtualmachineinstancepreset-validator.kubevirt.io",
                "vmipreset-validate",
                "virtualmachineinstancepresets",
                BOTH,
            ),
            (
                "migration-create-validator.kubevirt.io",
                "migration-validate-create",
                "virtualmachineinstancemigrations",
                &["CREATE"],
            ),
            (
                "migration-update-validator.kubevirt.io",
                "migration-validate-update",
                "virtualmachineinstancemigrations",
                &["UPDATE"],
            ),
            ("kubevirt-create-validator.kubevirt.io", "kubevirt-validate-create", "kubevirts", &["CREATE"]),
            ("kubevirt-update-validator.kubevirt.io", "kubevirt-validate-update", "kubevirts", &["UPDATE"]),
            ("kubevirt-delete-validator.kubevirt.io", "kubevirt-validate-delete", "kubevirts", &["DELETE"]),
            (
                "virtualmachineinstancetype-validator.instancetype.kubevirt.io",
                "virtualmachineinstancetypes-validate",
                "virtualmachineinstancetypes",
                BOTH,
            ),
            (
                "virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io",
                "virtualmachineclusterinstancetypes-validate",
                "virtualmachineclusterinstancetypes",
                BOTH,
            ),
            (
                "virtualmachinepreference-validator.instancetype.kubevirt.io",
                "virtualmachinepreferences-validate",
                "virtualmachinepreferences",
                BOTH,
            ),
            (
                "virtualmachineclusterpreference-validator.instancetype.kubevirt.io",
                "virtualmachineclusterpreferences-validate",
                "virtualmachineclusterpreferences",
                BOTH,
            ),
        ],
    );
    for hook in validating["webhooks"].as_array_mut().into_iter().flatten() {
        if hook["name"].as_str().is_some_and(|name| name.ends_with("instancetype.kubevirt.io")) {
            hook["rules"][0]["apiGroups"] = json!(["instancetype.kubevirt.io"]);
            hook["rules"][0]["apiVersions"] = json!(["v1beta1"]);
        }
        // Whoever takes the installation away may take virt-api first, and who makes it again may have none yet.
        let update = hook["rules"][0]["operations"] == json!(["UPDATE"]);
        if hook["rules"][0]["resources"] == json!(["kubevirts"]) && !update {
            hook["failurePolicy"] = json!("Ignore");
        }
    }
    vec![mutating, validating]
}

fn webhooks(kind: &str, name: &str, hooks: &[(&str, &str, &str, &[&str])]) -> Value {
    let hooks: Vec<Value> = hooks
        .iter()
        .map(|(name, path, resource, operations)| {
            json!({
                "name": name,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "clientConfig": { "service": { "namespace": NAMESPACE, "name": SERVICE, "path": format!("/{path}"), "port": 443 } },
                "rules": [{
                    "apiGroups": ["kubevirt.io"], "apiVersions": ["v1", "v1alpha3"],
                    "operations": operations, "resources": [resource], "scope": "*",
                }],
            })
        })
        .collect();
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name }, "webhooks": hooks })
}

/// What the command line says about the configuration, written into the object that everyone reads.
pub async fn apply_settings(client: &Client, allow_emulation: bool, hypervisors: &[String]) -> Result<()> {
    for name in hypervisors {
        hypervisor::find(name).map_err(anyhow::Error::msg)?;
    }
    let kubevirts = Api::<KubeVirt>::namespaced(client.clone(), NAMESPACE);
    let mut patch =
        json!({ "spec": { "configuration": { "developerConfiguration": { "useEmulation": allow_emulation } } } });
    if !hypervisors.is_empty() {
        let others = hypervisors.iter().map(String::as_str).filter(|name| *name != hypervisor::DEFAULT);
        let names: Vec<Value> =
            std::iter::once(hypervisor::DEFAULT).chain(others).map(|name| json!({ "name": name })).collect();
        patch["spec"]["configuration"]["hypervisors"] = names.into();
    }
    kubevirts.patch("kubevirt", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn nodes_look_for_the_stamp_that_the_api_server_makes() {
        assert_eq!(ferrovirt_api::names::CREATED_BY, ferrovirt_apiserver::CREATED_BY);
    }
}
