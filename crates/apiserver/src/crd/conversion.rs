//! Versions of custom resources that differ in more than their name: a webhook turns one into the other.
//!
//! Objects are stored in the storage version. Whoever reads or writes another version gets entries whose bytes are in that
//! version already, so nothing else has to know.

use std::sync::Arc;
use std::time::Duration;

use ferrovirt_schema::Cause;
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

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Conversion {
    destination: Destination,
}

impl Conversion {
    /// None if the versions of a CRD differ in their name only.
    pub fn of(crd: &Value) -> Option<Arc<Self>> {
        let conversion = at(crd, &["spec", "conversion"])?;
        let config = at(conversion, &["webhook", "clientConfig"])?;
        (text(conversion, &["strategy"]) == "Webhook")
            .then(|| Arc::new(Self { destination: Destination::read(config) }))
    }

    async fn ask(&self, server: &Server, kind: &str, desired: &str, objects: &[Value]) -> Result<Vec<Value>, ApiError> {
        let failed = |why: &str| {
            let from = text(&objects[0], &["apiVersion"]);
            ApiError::internal(format!("conversion webhook for {from}, Kind={kind} failed: {why}"))
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let question = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
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

/// What is wrong with the conversion that a CRD asks for.
pub fn check(crd: &Value) -> Vec<Cause> {
    let conversion = &crd["spec"]["conversion"];
    let mut causes = Vec::new();
    match text(conversion, &["strategy"]) {
        "" | "None" => {
            if conversion["webhook"].is_object() {
                let why = "should not be set when strategy is not set to Webhook";
                causes.push(Cause::forbidden("spec.conversion.webhook", why));
            }
        }
        "Webhook" => {
            let webhook = &conversion["webhook"];
            let client = &webhook["clientConfig"];
            if !client.is_object() {
                let why = "required when strategy is set to Webhook";
                causes.push(Cause::required("spec.conversion.webhook.clientConfig", why));
            } else if client["url"].is_string() == client["service"].is_object() {
                let why = "exactly one of url or service is required";
                causes.push(Cause::required("spec.conversion.webhook.clientConfig", why));
            }
            let versions = strings(webhook.get("conversionReviewVersions"));
            if !versions.iter().any(|version| version == "v1") {
                let why = "must include at least one of v1";
                let given = &webhook["conversionReviewVersions"];
                causes.push(Cause::invalid("spec.conversion.webhook.conversionReviewVersions", given, why));
            }
        }
        other => {
            let given = json!(other);
            causes.push(Cause::not_supported("spec.conversion.strategy", &given, &[json!("None"), json!("Webhook")]));
        }
    }
    causes
}
