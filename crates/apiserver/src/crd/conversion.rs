//! Versions of custom resources that differ in more than their name: a webhook turns one into the other.
//!
//! Objects are stored in the storage version. Whoever reads or writes another version gets entries whose bytes are in that
//! version already, so nothing else has to know.

use std::sync::Arc;
use std::time::Duration;

use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use crate::http::outbound::Destination;
use crate::object::{at, strings, text};
use crate::registry::Resource;
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::{Entry, parse};

/// As long as upstream waits.
const LIMIT: Duration = Duration::from_secs(30);
/// Objects in one question.
const CHUNK: usize = 500;
/// The versions of the question. They only differ in their name.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Conversion {
    destination: Destination,
    /// The first version of the question that the webhook and this server both know.
    review: &'static str,
}

impl Conversion {
    /// None if the versions of a CRD differ in their name only.
    pub fn of(crd: &Value) -> Option<Arc<Self>> {
        let conversion = at(crd, &["spec", "conversion"])?;
        let config = at(conversion, &["webhook", "clientConfig"])?;
        let asked = strings(at(conversion, &["webhook", "conversionReviewVersions"]));
        let review = asked.iter().find_map(|one| REVIEWS.into_iter().find(|known| one == known)).unwrap_or(REVIEWS[0]);
        (text(conversion, &["strategy"]) == "Webhook")
            .then(|| Arc::new(Self { destination: Destination::read(config), review }))
    }

    async fn ask(&self, server: &Server, kind: &str, desired: &str, objects: &[Value]) -> Result<Vec<Value>, ApiError> {
        let failed = |why: &str| {
            let from = text(&objects[0], &["apiVersion"]);
            ApiError::internal(format!("conversion webhook for {from}, Kind={kind} failed: {why}"))
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let question = json!({
            "apiVersion": format!("apiextensions.k8s.io/{}", self.review), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
        });
        let answer = self.destination.ask(server, &question, LIMIT).await.map_err(|why| failed(&why))?;
        let response = &answer["response"];
        if response["uid"] != uid.as_str() {
            return Err(failed("its answer is to another question"));
        }
        if text(response, &["result", "status"]) != "Success" {
            let message = text(response, &["result", "message"]);
            return Err(failed(if message.is_empty() { "it did not say why" } else { message }));
        }
        let converted = response["convertedObjects"].as_array().cloned().unwrap_or_default();
        if converted.len() != objects.len() {
            return Err(failed(&format!("{} objects came back for {}", converted.len(), objects.len())));
        }
        converted
            .into_iter()
            .zip(objects)
            .map(|(new, old)| settle(new, old, desired).map_err(|why| failed(&why)))
            .collect()
    }
}

/// A webhook may change labels and annotations, and nothing else that says which object it is.
fn settle(mut new: Value, old: &Value, desired: &str) -> Result<Value, String> {
    if text(&new, &["apiVersion"]) != desired || new["kind"] != old["kind"] {
        return Err(format!("{} {} came back instead of {desired}", new["apiVersion"], new["kind"]));
    }
    for key in ["name", "namespace", "uid"] {
        if text(&new, &["metadata", key]) != text(old, &["metadata", key]) {
            return Err(format!("it changed metadata.{key}"));
        }
    }
    let mut metadata = old["metadata"].clone();
    for key in ["labels", "annotations"] {
        if let (Some(map), kept) = (metadata.as_object_mut(), at(&new, &["metadata", key])) {
            match kept {
                Some(kept) => map.insert(key.to_owned(), kept.clone()),
                None => map.remove(key),
            };
        }
    }
    new["metadata"] = metadata;
    Ok(new)
}

/// An object in another version, by its `apiVersion`.
pub async fn value(server: &Server, resource: &Resource, object: &Value, desired: &str) -> Result<Value, ApiError> {
    match &resource.conversion {
        Some(conversion) if text(object, &["apiVersion"]) != desired => {
            let converted = conversion.ask(server, &resource.kind, desired, std::slice::from_ref(object)).await?;
            Ok(converted.into_iter().next().unwrap_or_default())
        }
        _ => {
            let mut object = object.clone();
            object["apiVersion"] = desired.into();
            Ok(object)
        }
    }
}

/// Stored entries with their bytes in another version. Those that are in it already are the same entries.
pub async fn entries(
    server: &Server,
    resource: &Resource,
    desired: &str,
    mut items: Vec<Arc<Entry>>,
) -> Result<Vec<Arc<Entry>>, ApiError> {
    let Some(conversion) = &resource.conversion else { return Ok(items) };
    let mut strangers = Vec::new();
    for (index, entry) in items.iter().enumerate() {
        let object = parse(entry)?;
        if text(&object, &["apiVersion"]) != desired {
            strangers.push((index, object));
        }
    }
    for chunk in strangers.chunks(CHUNK) {
        let objects: Vec<Value> = chunk.iter().map(|(_, object)| object.clone()).collect();
        let converted = conversion.ask(server, &resource.kind, desired, &objects).await?;
        for ((index, _), object) in chunk.iter().zip(converted) {
            items[*index] = Arc::new(with_bytes(&items[*index], &object, desired)?);
        }
    }
    Ok(items)
}

pub async fn entry(
    server: &Server,
    resource: &Resource,
    desired: &str,
    entry: Arc<Entry>,
) -> Result<Arc<Entry>, ApiError> {
    if resource.conversion.is_none() {
        return Ok(entry);
    }
    let mut converted = entries(server, resource, desired, vec![entry.clone()]).await?;
    Ok(converted.pop().unwrap_or(entry))
}

fn with_bytes(entry: &Entry, object: &Value, desired: &str) -> Result<Entry, ApiError> {
    let encoded = crate::storage::encode(object, desired)?;
    let bytes = crate::storage::spliced(&encoded, Some(entry.revision));
    Ok(Entry { bytes, meta: encoded.meta, ..entry.clone() })
}

/// What is wrong with the conversion that a CRD asks for. The fields are named as upstream names them, by an older form.
pub fn check(crd: &Value) -> Vec<Cause> {
    const CLIENT: &str = "spec.conversion.webhookClientConfig";
    const VERSIONS: &str = "spec.conversion.conversionReviewVersions";
    let conversion = &crd["spec"]["conversion"];
    let webhook = &conversion["webhook"];
    let (client, versions) = (&webhook["clientConfig"], strings(webhook.get("conversionReviewVersions")));
    let mut causes = Vec::new();
    match text(conversion, &["strategy"]) {
        "Webhook" => {
            if !client.is_object() {
                causes.push(Cause::required(CLIENT, "required when strategy is set to Webhook"));
            } else if client["url"].is_string() == client["service"].is_object() {
                causes.push(Cause::required(CLIENT, "exactly one of url or service is required"));
            }
            if versions.is_empty() {
                causes.push(Cause::required(VERSIONS, ""));
                return causes;
            }
            for (index, version) in versions.iter().enumerate() {
                let mut invalid =
                    |why| causes.push(Cause::invalid(format!("{VERSIONS}[{index}]"), &json!(version), why));
                if versions[..index].contains(version) {
                    invalid("duplicate version".to_owned());
                    continue;
                }
                names::dns_label_1035(version).into_iter().for_each(invalid);
            }
            if !REVIEWS.iter().any(|known| versions.iter().any(|version| version == known)) {
                let why = format!("must include at least one of {}", REVIEWS.join(", "));
                causes.push(Cause::invalid(VERSIONS, &json!(versions), why));
            }
            return causes;
        }
        "" | "None" => {}
        other => {
            let supported = ["None", "Webhook"].map(Value::from);
            causes.push(Cause::not_supported("spec.conversion.strategy", &json!(other), &supported));
        }
    }
    let why = "should not be set when strategy is not set to Webhook";
    causes.extend(client.is_object().then(|| Cause::forbidden(CLIENT, why)));
    causes.extend((!versions.is_empty()).then(|| Cause::forbidden(VERSIONS, why)));
    causes
}
