//! Admission webhooks: `AdmissionReview` in, verdict out. The judgement itself is in [`crate::validate`], which is pure.

use base64::Engine;
use ferrovirt_api::{
    names,
    v1::{KubeVirtConfiguration, VirtualMachineInstance},
};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{
    Body, VirtApi, answer, hypervisors, rights,
    validate::{self, update},
};

pub(crate) async fn handle(api: &VirtApi, hook: &str, request: Request<Body>) -> Response<Body> {
    let review = match request.into_body().collect().await {
        Ok(body) => serde_json::from_slice::<Value>(&body.to_bytes()),
        Err(error) => return answer::bad_request(&format!("cannot read the review: {error}")),
    };
    let review = match review {
        Ok(review) => review,
        Err(error) => return answer::bad_request(&format!("the review is not JSON: {error}")),
    };
    let configuration = api.configuration.current().await;
    let cluster = validate::Cluster(&configuration);
    let verdict = match hook {
        _ if leaving(&review) => json!({ "allowed": true }),
        "virtualmachines-validate" => {
            judge(api, &review, |vm| validate::virtual_machine(vm, &cluster), validate::warnings, "/spec/template/spec")
                .await
        }
        "virtualmachineinstances-validate-create" => {
            judge(api, &review, instance_rules(&review, &cluster), |_| vec![], "/spec").await
        }
        "virtualmachineinstances-validate-update" => judge_change(&review, &cluster),
        "virtualmachinereplicaset-validate" => {
            judge(api, &review, |set| validate::replica_set(set, &cluster), |_| vec![], "/spec/template/spec").await
        }
        "datavolumes-validate" => judge_volume(api, &review).await,
        "virtualmachineinstances-mutate" => default_instance(&review, &configuration),
        _ => return answer::not_found(&format!("there is no webhook /{hook}")),
    };
    // An instance that runs keeps its hypervisor, even if the cluster would not admit it again.
    let settled = leaving(&review) || hook == "virtualmachineinstances-validate-update";
    let refused = match settled {
        true => None,
        false => hypervisors::not_admitted(&configuration, &review["request"]["object"]),
    };
    let mut response = match refused {
        // The rules of the object itself come first: they name everything that is wrong with it.
        Some(cause) if verdict["allowed"] == true => refuse(&cause.message.clone(), &[cause]),
        _ => verdict,
    };
    response["uid"] = review["request"]["uid"].clone();
    answer::json(
        StatusCode::OK,
        &json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }),
    )
}

/// Someone who only takes a finalizer off an object that is going, or touches nothing that is judged, is not told of
/// mistakes in the rest.
fn leaving(review: &Value) -> bool {
    let request = &review["request"];
    let (old, new) = (&request["oldObject"], &request["object"]);
    request["operation"] == "UPDATE"
        && new["kind"] != "VirtualMachineInstance"
        && (!new["metadata"]["deletionTimestamp"].is_null() || old["spec"] == new["spec"])
}

fn user(review: &Value) -> &str {
    review["request"]["userInfo"]["username"].as_str().unwrap_or_default()
}

/// The rules of a new instance; people have some more than our own controllers.
fn instance_rules(
    review: &Value,
    cluster: &validate::Cluster<'_>,
) -> impl Fn(&VirtualMachineInstance) -> Vec<validate::Cause> {
    let component = update::is_component(user(review));
    move |vmi| {
        let mut causes = validate::instance(vmi, cluster);
        if !component {
            causes.extend(update::created(vmi));
        }
        causes
    }
}

/// Whoever copies a disk reads it, so that needs a right where the disk is. What was judged stays as it was judged.
async fn judge_volume(api: &VirtApi, review: &Value) -> Value {
    if review["request"]["operation"] == "UPDATE" {
        return refuse("spec: a DataVolume's spec cannot be changed; make another one", &[]);
    }
    if update::is_component(user(review)) {
        return json!({ "allowed": true });
    }
    match rights::missing_sources(&api.client, review).await {
        Ok(causes) => verdict(&causes, vec![]),
        Err(error) => refuse(&format!("cannot ask what you may do: {error}"), &[]),
    }
}

fn judge_change(review: &Value, cluster: &validate::Cluster<'_>) -> Value {
    if let Some(cause) = update::elsewhere(review, cluster) {
        return refuse(&cause.message.clone(), &[cause]);
    }
    if update::is_component(user(review)) {
        return json!({ "allowed": true });
    }
    let parse = |value: &Value| serde_json::from_value::<VirtualMachineInstance>(value.clone());
    match (parse(&review["request"]["oldObject"]), parse(&review["request"]["object"])) {
        (Ok(old), Ok(new)) => verdict(&update::changed(&old, &new), vec![]),
        (Err(error), _) | (_, Err(error)) => refuse(&error.to_string(), &[]),
    }
}

async fn judge<T>(
    api: &VirtApi,
    review: &Value,
    rules: impl Fn(&T) -> Vec<validate::Cause>,
    warnings: impl Fn(&T) -> Vec<String>,
    spec: &str,
) -> Value
where
    T: serde::de::DeserializeOwned,
{
    let object: T = match serde_json::from_value(review["request"]["object"].clone()) {
        Ok(object) => object,
        Err(error) => return refuse(&error.to_string(), &[]),
    };
    let mut causes = rules(&object);
    if !update::is_component(user(review)) {
        match rights::missing(&api.client, review, spec).await {
            Ok(missing) => causes.extend(missing),
            Err(error) => return refuse(&format!("cannot ask what you may do: {error}"), &[]),
        }
    }
    verdict(&causes, warnings(&object))
}

/// So many causes are told. An answer has a largest size, beyond which nobody would learn anything, and people read the first.
const TOLD: usize = 100;

fn verdict(causes: &[validate::Cause], warnings: Vec<String>) -> Value {
    if causes.is_empty() {
        return json!({ "allowed": true, "warnings": warnings });
    }
    // Clients that show no causes show this line, so it names the fields too.
    let told = causes.get(..TOLD).unwrap_or(causes);
    let mut messages: Vec<String> = told
        .iter()
        .map(|cause| match cause.message.contains(&cause.field) {
            true => cause.message.clone(),
            false => format!("{}: {}", cause.field, cause.message),
        })
        .collect();
    if told.len() < causes.len() {
        messages.push(format!("and {} more", causes.len() - told.len()));
    }
    refuse(&messages.join(", "), told)
}

fn refuse(message: &str, causes: &[validate::Cause]) -> Value {
    let causes: Vec<Value> = causes
        .iter()
        .map(|cause| json!({ "reason": cause.reason, "field": cause.field, "message": cause.message }))
        .collect();
    json!({
        "allowed": false,
        "status": {
            "status": "Failure", "message": message, "reason": "Invalid", "code": 422,
            "details": { "causes": causes },
        },
    })
}

/// What an instance gets without asking: a hold until its node lets go of it, and a network.
fn default_instance(review: &Value, configuration: &KubeVirtConfiguration) -> Value {
    let Ok(mut vmi) = serde_json::from_value::<VirtualMachineInstance>(review["request"]["object"].clone()) else {
        // The schema or the validating webhook says what is wrong with it.
        return json!({ "allowed": true });
    };
    let before = vmi.clone();
    let finalizers = vmi.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == names::VIRTUAL_MACHINE_INSTANCE_FINALIZER) {
        finalizers.push(names::VIRTUAL_MACHINE_INSTANCE_FINALIZER.into());
    }
    ferrovirt_plan::cluster_defaults::apply(&mut vmi.spec, configuration);
    ferrovirt_plan::enlightenments::complete(&mut vmi.spec);
    ferrovirt_plan::disks::add_default(&mut vmi.spec);
    if vmi.spec.termination_grace_period_seconds.is_none() {
        vmi.spec.termination_grace_period_seconds = Some(30);
    }
    let mut patch = vec![];
    // What a new instance is becomes known when it runs. Whoever copies one from elsewhere need not know that.
    if !review["request"]["object"]["status"].is_null() && !update::is_component(user(review)) {
        patch.push(json!({ "op": "remove", "path": "/status" }));
    }
    if vmi.metadata.finalizers != before.metadata.finalizers {
        patch.push(json!({ "op": "add", "path": "/metadata/finalizers", "value": vmi.metadata.finalizers }));
    }
    if vmi.spec != before.spec {
        patch.push(json!({ "op": "replace", "path": "/spec", "value": vmi.spec }));
    }
    let patch = base64::engine::general_purpose::STANDARD.encode(Value::from(patch).to_string());
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })
}
