//! Admission webhooks: `AdmissionReview` in, verdict out. The judgement itself is in [`crate::validate`], which is pure, and so is
//! what is written into objects, in [`ferrovirt_plan::defaults`].

mod kinds;
mod mutate;
mod numbers;
mod references;

use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    Body, VirtApi, answer, eviction, hypervisors, rights,
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
    // Objects are large, and so is what works on them: none of it belongs on the stack of whoever asks.
    let Some(mut response) = Box::pin(answer_to(api, hook, &review)).await else {
        return answer::not_found(&format!("there is no webhook /{hook}"));
    };
    response["uid"] = review["request"]["uid"].clone();
    answer::json(
        StatusCode::OK,
        &json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }),
    )
}

async fn answer_to(api: &VirtApi, hook: &str, review: &Value) -> Option<Value> {
    let kubevirt = api.configuration.object().await;
    let configuration = &kubevirt.spec.configuration;
    let cluster = validate::Cluster(configuration);
    let verdict = match hook {
        "virtualmachines-mutate" => return Some(Box::pin(mutate::virtual_machine(api, review, &kubevirt)).await),
        "virtualmachineinstances-mutate" => Box::pin(mutate::instance(api, review, &kubevirt)).await,
        "virtualmachines-validate" | "virtualmachinereplicaset-validate" if leaving(review) => {
            return Some(json!({ "allowed": true }));
        }
        "virtualmachines-validate" => {
            let creates = review["request"]["operation"] == "CREATE";
            let by = validate::By { component: update::is_component(user(review)), creates };
            let old = serde_json::from_value::<Box<VirtualMachine>>(review["request"]["oldObject"].clone()).ok();
            let vmi = match Box::pin(running_instance(api, &review["request"])).await {
                Ok(vmi) => vmi,
                Err(error) => return Some(refuse(&format!("cannot look at the VM's instance: {error}"), &[])),
            };
            let rules = |vm: &VirtualMachine| {
                let mut causes = validate::virtual_machine(vm, &cluster, by);
                if causes.is_empty() {
                    causes.extend(old.iter().filter(|_| !creates).flat_map(|old| validate::while_kept(old, vm)));
                    causes.extend(validate::volume_requests(vm, vmi.as_deref(), &cluster));
                }
                causes
            };
            Box::pin(judge(api, review, rules, |vm| validate::warnings(vm, &cluster), "/spec/template/spec")).await
        }
        "virtualmachineinstances-validate-create" => {
            let rules = instance_rules(review, &cluster);
            Box::pin(judge(api, review, rules, |_| vec![], "/spec")).await
        }
        // An instance that runs keeps its hypervisor, even if the cluster would not admit it again.
        "virtualmachineinstances-validate-update" => return Some(judge_change(review, &cluster)),
        "virtualmachinereplicaset-validate" => {
            let rules = |set: &_| validate::replica_set(set, &cluster);
            let warnings = |set: &_| validate::replica_set_warnings(set, &cluster);
            Box::pin(judge(api, review, rules, warnings, "/spec/template/spec")).await
        }
        eviction::HOOK => return Some(eviction::review(api, review, configuration).await),
        "datavolumes-validate" if leaving(review) => return Some(json!({ "allowed": true })),
        "datavolumes-validate" => return Some(judge_volume(api, review).await),
        other => return Box::pin(kinds::answer_to(api, other, review, &cluster)).await,
    };
    // The rules of the object itself come first: they name everything that is wrong with it.
    Some(match hypervisors::not_admitted(configuration, &review["request"]["object"]) {
        Some(cause) if verdict["allowed"] == true => refuse(&cause.message.clone(), &[cause]),
        _ => verdict,
    })
}

/// The instance of a VM that is asked to change its volumes while it runs.
async fn running_instance(api: &VirtApi, request: &Value) -> Result<Option<Box<VirtualMachineInstance>>, kube::Error> {
    let object = &request["object"];
    let asked = object["status"]["volumeRequests"].as_array().is_some_and(|requests| !requests.is_empty());
    let (Some(name), Some(namespace)) = (object["metadata"]["name"].as_str(), request["namespace"].as_str()) else {
        return Ok(None);
    };
    if !asked || object["status"]["ready"] != true {
        return Ok(None);
    }
    let vmi = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), namespace).get_opt(name).await?;
    Ok(vmi.filter(|vmi| vmi.metadata.deletion_timestamp.is_none()).map(Box::new))
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
        let request = &review["request"];
        let changed = request["oldObject"]["spec"] != request["object"]["spec"];
        let cause = changed.then(|| update::resized(&request["oldObject"], &request["object"])).flatten();
        return verdict(&cause.into_iter().collect::<Vec<_>>(), vec![]);
    }
    let parse = |value: &Value| serde_json::from_value::<Box<VirtualMachineInstance>>(value.clone());
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
    let object: Box<T> = match serde_json::from_value(review["request"]["object"].clone()) {
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
    // Clients that show no causes show this line, so it names the fields too, behind the words that some look for.
    let told = causes.get(..TOLD).unwrap_or(causes);
    let mut messages: Vec<String> = told
        .iter()
        .map(|cause| match cause.message.contains(&cause.field) {
            true => cause.message.clone(),
            false => format!("{} ({})", cause.message, cause.field),
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
