//! What a VM takes over from objects that it names before it is stored: it must not change later, when they do.
//!
//! An object that cannot be read changes nothing here; whoever needs it says so later.

use ferrovirt_api::v1::VirtualMachine;
use ferrovirt_machine::spec::Arch;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

/// Label of a DataSource whose images are for one architecture.
const ARCHITECTURE: &str = "template.kubevirt.io/architecture";

async fn read(client: &Client, api_version: [&str; 2], kind: &str, plural: &str, place: (&str, &str)) -> Option<Value> {
    let [group, version] = api_version;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let (namespace, name) = place;
    let api: Api<DynamicObject> = match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    match api.get_opt(name).await {
        Ok(object) => serde_json::to_value(object?).ok(),
        Err(error) => {
            tracing::debug!(%error, kind, name, "cannot read what a VM refers to");
            None
        }
    }
}

/// The architecture of the images that the VM's disks are made from, if it names none.
pub(super) async fn architecture(client: &Client, namespace: &str, vm: &mut VirtualMachine) {
    let Some(template) = vm.spec.template.as_mut().filter(|template| template.spec.architecture.is_empty()) else {
        return;
    };
    for volume in &vm.spec.data_volume_templates {
        let source = &volume.spec["sourceRef"];
        let is_source = source["kind"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("DataSource"));
        let Some(name) = source["name"].as_str().filter(|_| is_source) else { continue };
        let place = source["namespace"].as_str().filter(|own| !own.is_empty()).unwrap_or(namespace);
        if let Some(found) = of_source(client, place, name).await {
            template.spec.architecture = found;
            return;
        }
    }
}

async fn of_source(client: &Client, namespace: &str, name: &str) -> Option<String> {
    let get = |namespace: String, name: String| async move {
        let version = ["cdi.kubevirt.io", "v1beta1"];
        read(client, version, "DataSource", "datasources", (&namespace, &name)).await
    };
    let mut source = get(namespace.into(), name.into()).await?;
    // One may lead to another, and no further.
    let other = &source["spec"]["source"]["dataSource"];
    if let (Some(namespace), Some(name)) = (other["namespace"].as_str(), other["name"].as_str()) {
        source = get(namespace.into(), name.into()).await?;
    }
    let label = source["metadata"]["labels"][ARCHITECTURE].as_str()?;
    Arch::parse(label).filter(|arch| arch.go_name() == label).map(|arch| arch.go_name().to_owned())
}

/// What a preference prefers and a VM has to keep: architecture, machine type, and the storage class of its own disks.
pub(super) async fn prefer(client: &Client, namespace: &str, vm: &mut VirtualMachine) {
    let Some(matcher) = vm.spec.preference.as_ref().filter(|matcher| !matcher.name.is_empty()) else { return };
    let version = ["instancetype.kubevirt.io", "v1beta1"];
    let preference = match matcher.kind.to_lowercase().as_str() {
        "virtualmachinepreference" | "virtualmachinepreferences" => {
            let place = (namespace, matcher.name.as_str());
            read(client, version, "VirtualMachinePreference", "virtualmachinepreferences", place).await
        }
        "" | "virtualmachineclusterpreference" | "virtualmachineclusterpreferences" => {
            let place = ("", matcher.name.as_str());
            read(client, version, "VirtualMachineClusterPreference", "virtualmachineclusterpreferences", place).await
        }
        _ => None,
    };
    if let Some(preference) = preference {
        take_over(&preference["spec"], vm);
    }
}

fn take_over(preferred: &Value, vm: &mut VirtualMachine) {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(template) = &mut vm.spec.template {
        if let Some(architecture) = text(&preferred["preferredArchitecture"])
            && template.spec.architecture.is_empty()
        {
            template.spec.architecture = architecture;
        }
        if let Some(type_) = text(&preferred["machine"]["preferredMachineType"]) {
            ferrovirt_machine::defaults::machine_type(&mut template.spec, &type_);
        }
    }
    let Some(class) = text(&preferred["volumes"]["preferredStorageClassName"]) else { return };
    for volume in &mut vm.spec.data_volume_templates {
        for place in ["pvc", "storage"] {
            let Some(storage) = volume.spec.get_mut(place).filter(|storage| storage.is_object()) else { continue };
            if storage["storageClassName"].is_null() {
                storage["storageClassName"] = json!(class);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_fills_gaps_and_nothing_else() {
        let preferred = json!({
            "preferredArchitecture": "arm64", "machine": { "preferredMachineType": "virt-9" },
            "volumes": { "preferredStorageClassName": "fast" },
        });
        let made = |vm: Value| {
            let mut vm: VirtualMachine = serde_json::from_value(json!({ "spec": vm })).unwrap();
            take_over(&preferred, &mut vm);
            serde_json::to_value(vm.spec).unwrap()
        };
        let open = made(json!({ "template": { "spec": { "domain": {} } },
            "dataVolumeTemplates": [{ "metadata": { "name": "a" }, "spec": { "pvc": {} } }, { "metadata": { "name": "b" }, "spec": { "storage": {} } }] }));
        let template = &open["template"]["spec"];
        assert_eq!(
            (&template["architecture"], &template["domain"]["machine"]["type"]),
            (&json!("arm64"), &json!("virt-9"))
        );
        let disks = &open["dataVolumeTemplates"];
        assert_eq!(disks[0]["spec"], json!({ "pvc": { "storageClassName": "fast" } }));
        assert_eq!(disks[1]["spec"], json!({ "storage": { "storageClassName": "fast" } }));
        let said = json!({ "template": { "spec": { "architecture": "amd64", "domain": { "machine": { "type": "q35" } } } },
            "dataVolumeTemplates": [{ "metadata": { "name": "a" }, "spec": { "pvc": { "storageClassName": "slow" } } }] });
        let kept = made(said.clone());
        assert_eq!(kept["dataVolumeTemplates"][0]["spec"], said["dataVolumeTemplates"][0]["spec"]);
        assert_eq!(kept["template"]["spec"]["architecture"], "amd64");
        assert_eq!(kept["template"]["spec"]["domain"]["machine"]["type"], "q35");
    }
}
