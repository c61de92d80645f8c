//! What is written into new objects: presets, and the defaults of [`ferrovirt_plan::defaults`].

use base64::Engine;
use ferrovirt_api::{
    merge_patch, names,
    v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus},
};
use ferrovirt_plan::{defaults, presets};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::{Value, json};

use super::{numbers, references, refuse, user, verdict};
use crate::{VirtApi, validate, validate::update};

/// How long an instance has to shut down if it does not say.
const GRACE_PERIOD: i64 = 30;

fn allowed() -> Value {
    json!({ "allowed": true })
}

fn patched(patch: Vec<Value>, warnings: Vec<String>) -> Value {
    if patch.is_empty() {
        return json!({ "allowed": true, "warnings": warnings });
    }
    let patch = base64::engine::general_purpose::STANDARD.encode(Value::from(patch).to_string());
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": warnings })
}

/// A VM gets what must outlive its instances. What was there before is left alone by whoever does not change the spec.
pub(super) async fn virtual_machine(api: &VirtApi, review: &Value, kubevirt: &KubeVirt) -> Value {
    let request = &review["request"];
    let is_new = request["operation"] == "CREATE";
    let mut spec = request["object"]["spec"].clone();
    let settled = !request["object"]["metadata"]["deletionTimestamp"].is_null()
        || (!is_new && spec == request["oldObject"]["spec"]);
    if settled {
        return allowed();
    }
    numbers::to_text(&mut spec);
    let mut object = request["object"].clone();
    object["spec"] = spec.clone();
    let Ok(before) = serde_json::from_value::<Box<VirtualMachine>>(object) else {
        // The schema or the validating webhook says what is wrong with it.
        return allowed();
    };
    let old = serde_json::from_value::<Box<VirtualMachine>>(request["oldObject"].clone()).ok().filter(|_| !is_new);
    let causes = validate::matchers(&before, old.as_deref());
    if !causes.is_empty() {
        return verdict(&causes, vec![]);
    }
    let mut vm = before.clone();
    let namespace = request["namespace"].as_str().unwrap_or_default();
    references::prefer(&api.client, namespace, &mut vm).await;
    references::architecture(&api.client, namespace, &mut vm).await;
    let identity = is_new.then(|| defaults::Identity { uuid: uuid(), serial: uuid() });
    defaults::virtual_machine(&mut vm, &kubevirt.spec.configuration, identity);
    let (Ok(old), Ok(new)) = (serde_json::to_value(&before.spec), serde_json::to_value(&vm.spec)) else {
        return allowed();
    };
    // Only what was filled in is written: the object may have what these types do not know.
    if let Some(change) = merge_patch(&old, &new)
        && ferrovirt_schema::patch::merge_patch(&mut spec, &change).is_err()
    {
        return allowed();
    }
    let changed = spec != request["object"]["spec"];
    let patch = changed.then(|| json!({ "op": "replace", "path": "/spec", "value": spec }));
    patched(patch.into_iter().collect(), vec![])
}

fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// An instance gets everything that it leaves open, a hold until its node lets go of it, and a status to begin with.
pub(super) async fn instance(api: &VirtApi, review: &Value, kubevirt: &KubeVirt) -> Value {
    let request = &review["request"];
    let mut object = request["object"].clone();
    numbers::to_text(&mut object["spec"]);
    let Ok(mut vmi) = serde_json::from_value::<Box<VirtualMachineInstance>>(object) else {
        // The schema or the validating webhook says what is wrong with it.
        return allowed();
    };
    let before = vmi.metadata.clone();
    // What a new instance is becomes known when it runs. Whoever copies one from elsewhere need not know that.
    if !update::is_component(user(review)) {
        vmi.status = VirtualMachineInstanceStatus::default();
    }
    let own = api.presets.of(request["namespace"].as_str().unwrap_or_default()).await;
    let outcome = match presets::apply(&mut vmi, &own) {
        Ok(outcome) => outcome,
        Err(error) => return refuse(&error.to_string(), &[]),
    };
    let firmware = vmi.spec.domain.firmware.get_or_insert_default();
    if firmware.uuid.is_empty() {
        firmware.uuid = uuid();
    }
    let annotations = kubevirt.metadata.annotations.clone().unwrap_or_default();
    let configuration = &kubevirt.spec.configuration;
    if let Err(impossible) = defaults::instance(&mut vmi, configuration, &annotations) {
        return refuse(&impossible.to_string(), &[]);
    }
    vmi.spec.termination_grace_period_seconds.get_or_insert(GRACE_PERIOD);
    let finalizers = vmi.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == names::VIRTUAL_MACHINE_INSTANCE_FINALIZER) {
        finalizers.push(names::VIRTUAL_MACHINE_INSTANCE_FINALIZER.into());
    }
    let status = Box::new(defaults::status(&vmi, configuration, Time(Timestamp::now())));
    let mut patch = vec![
        json!({ "op": "add", "path": "/spec", "value": vmi.spec }),
        json!({ "op": "add", "path": "/status", "value": status }),
    ];
    if vmi.metadata.finalizers != before.finalizers {
        patch.push(json!({ "op": "add", "path": "/metadata/finalizers", "value": vmi.metadata.finalizers }));
    }
    if vmi.metadata.annotations != before.annotations {
        patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": vmi.metadata.annotations }));
    }
    let mut warnings = outcome.overridden;
    if !outcome.applied.is_empty() {
        warnings.insert(0, presets::DEPRECATED.into());
    }
    patched(patch, warnings)
}

/// A migration is found by its instance's name, and held until it has ended.
pub(super) fn migration(review: &Value) -> Value {
    let object = &review["request"]["object"];
    let mut labels = object["metadata"]["labels"].clone();
    if !labels.is_object() {
        labels = json!({});
    }
    labels[names::MIGRATION_SELECTOR_LABEL] = json!(object["spec"]["vmiName"].as_str().unwrap_or_default());
    let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|one| one == names::VIRTUAL_MACHINE_INSTANCE_MIGRATION_FINALIZER) {
        finalizers.push(names::VIRTUAL_MACHINE_INSTANCE_MIGRATION_FINALIZER.into());
    }
    let patch = vec![
        json!({ "op": "add", "path": "/metadata/labels", "value": labels }),
        json!({ "op": "add", "path": "/metadata/finalizers", "value": finalizers }),
    ];
    patched(patch, vec![])
}
