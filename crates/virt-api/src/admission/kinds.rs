//! Kinds that are stored beside VMs: what may be said in them, and that nothing happens with some of them yet.

use ferrovirt_api::{
    names,
    v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet},
};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{mutate, refuse, user, verdict};
use crate::{
    VirtApi,
    validate::{
        self, Cluster,
        instancetypes::{self, NOT_APPLIED},
        migrations::{self, NOT_DONE, Refusal},
        update,
    },
};

/// None if there is no such hook.
pub(super) async fn answer_to(api: &VirtApi, hook: &str, review: &Value, cluster: &Cluster<'_>) -> Option<Value> {
    let request = &review["request"];
    let (old, new) = (&request["oldObject"], &request["object"]);
    let spec = &new["spec"];
    Some(match hook {
        "vmipreset-validate" => verdict(&validate::preset(spec), vec![]),
        "virtualmachineinstancetypes-validate" | "virtualmachineclusterinstancetypes-validate" => {
            let mut warnings = instancetypes::instancetype_warnings(spec);
            warnings.push(NOT_APPLIED.into());
            verdict(&instancetypes::instancetype(spec), warnings)
        }
        "virtualmachinepreferences-validate" | "virtualmachineclusterpreferences-validate" => {
            let mut warnings = instancetypes::preference_warnings(spec);
            warnings.push(NOT_APPLIED.into());
            verdict(&instancetypes::preference(spec), warnings)
        }
        "migration-mutate-create" => mutate::migration(review),
        "migration-validate-create" => migration(api, review, cluster).await,
        "migration-validate-update" => match (parse(old), parse(new)) {
            (Ok(old), Ok(new)) => verdict(&migrations::changed(&old, &new), vec![]),
            (Err(error), _) | (_, Err(error)) => refuse(&error, &[]),
        },
        "kubevirt-validate-create" => match other_installation(api, review).await {
            Ok(false) => {
                let (causes, nothing) = (validate::kubevirt::causes(&Value::Null, new), Value::Null);
                verdict(&causes, validate::kubevirt::warnings(&nothing, new))
            }
            Ok(true) => refuse("Kubevirt is already created", &[]),
            Err(error) => refuse(&format!("cannot look for another KubeVirt object: {error}"), &[]),
        },
        "kubevirt-validate-update" => {
            verdict(&validate::kubevirt::causes(old, new), validate::kubevirt::warnings(old, new))
        }
        "kubevirt-validate-delete" => deletion(api, review).await,
        _ => return None,
    })
}

fn parse(value: &Value) -> Result<VirtualMachineInstanceMigration, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

async fn migration(api: &VirtApi, review: &Value, cluster: &Cluster<'_>) -> Value {
    let request = &review["request"];
    let mut migration = match parse(&request["object"]) {
        Ok(migration) => migration,
        Err(error) => return refuse(&error, &[]),
    };
    let namespace = request["namespace"].as_str().unwrap_or_default();
    migration.metadata.namespace.get_or_insert_with(|| namespace.into());
    let by_controller = update::is_component(user(review)) && user(review).ends_with("controller");
    let judged = match migrations::created(&migration, by_controller) {
        Err(refusal) => Err(refusal),
        Ok(()) => match around(api, namespace, &migration.spec.vmi_name).await {
            Ok((vmi, others)) => migrations::possible(&migration, vmi.as_ref(), &others, cluster),
            Err(error) => Err(Refusal::State(format!("cannot look at the instance: {error}"))),
        },
    };
    match judged {
        Ok(()) => verdict(&[], vec![NOT_DONE.into()]),
        Err(Refusal::Causes(causes)) => verdict(&causes, vec![]),
        Err(Refusal::State(message)) => {
            let (reason, field) = ("FieldValueInvalid", "spec.vmiName".to_owned());
            refuse(&message.clone(), &[validate::Cause { reason, field, message }])
        }
    }
}

/// The instance, and the migrations of it.
async fn around(
    api: &VirtApi,
    namespace: &str,
    name: &str,
) -> Result<(Option<VirtualMachineInstance>, Vec<VirtualMachineInstanceMigration>), kube::Error> {
    let vmi = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), namespace).get_opt(name).await?;
    let migrations = Api::<VirtualMachineInstanceMigration>::namespaced(api.client.clone(), namespace);
    // A name that no label can have has no migrations; the API would refuse the question.
    let label = ferrovirt_schema::names::label_value(name).is_empty();
    let others = match label {
        true => {
            let selector = format!("{}={name}", names::MIGRATION_SELECTOR_LABEL);
            migrations.list(&ListParams::default().labels(&selector)).await?.items
        }
        false => vec![],
    };
    Ok((vmi, others))
}

async fn other_installation(api: &VirtApi, review: &Value) -> Result<bool, kube::Error> {
    let all = Api::<ferrovirt_api::v1::KubeVirt>::all(api.client.clone()).list(&ListParams::default()).await?;
    let request = &review["request"];
    let own = |object: &ferrovirt_api::v1::KubeVirt| {
        object.metadata.name.as_deref() == request["name"].as_str()
            && object.metadata.namespace.as_deref() == request["namespace"].as_str()
    };
    Ok(all.items.iter().any(|object| !own(object)))
}

/// An installation whose owner said so is not taken away from under machines.
async fn deletion(api: &VirtApi, review: &Value) -> Value {
    let old = &review["request"]["oldObject"];
    let blocks = old["spec"]["uninstallStrategy"] == "BlockUninstallIfWorkloadsExist";
    if !blocks || old["status"]["phase"] != "Deployed" {
        return json!({ "allowed": true });
    }
    let found = [
        (any::<VirtualMachineInstance>(api).await, "Virtual Machine Instances"),
        (any::<VirtualMachine>(api).await, "Virtual Machines"),
        (any::<VirtualMachineInstanceReplicaSet>(api).await, "Virtual Machine Instance Replica Sets"),
    ];
    for (result, what) in found {
        match result {
            Ok(false) => {}
            Ok(true) => {
                let message = format!(
                    "Rejecting the uninstall request, since there are still {what} present. Either delete all KubeVirt related workloads or change the uninstall strategy before uninstalling KubeVirt."
                );
                return refuse(&message, &[]);
            }
            Err(error) => return refuse(&format!("cannot look for {what}: {error}"), &[]),
        }
    }
    json!({ "allowed": true })
}

async fn any<K>(api: &VirtApi) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let some = Api::<K>::all(api.client.clone()).list(&ListParams::default().limit(2)).await?;
    Ok(!some.items.is_empty())
}
