//! delete and deletecollection: finalizers, grace, propagation, preconditions.

use std::sync::Arc;

use bytes::Bytes;
use ferrovirt_schema::Cause;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::commit::{self, Outcome};
use super::effects::Kept;
use super::select::Selection;
use super::{Call, decode, respond, strategy, success};
use crate::admission::{self, Operation};
use crate::controllers::{FOREGROUND, ORPHAN};
use crate::crd::conversion;
use crate::http::body::Body;
use crate::http::negotiate::{self, PROTOBUF};
use crate::object::{self, at, field_map, metadata, text};
use crate::registry::Special;
use crate::status::ApiError;
use crate::storage::{self, Entry};

const MAX_ATTEMPTS: usize = 64;

/// Built-in kinds whose last state is the answer, as upstream has it. The others' answer is that they are gone.
const SHOWN: &[&str] = &[
    "csidrivers",
    "csinodes",
    "deviceclasses",
    "jobs",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "replicationcontrollers",
    "resourceclaims",
    "resourcequotas",
    "serviceaccounts",
    "services",
    "storageclasses",
    "volumeattachments",
];

/// DeleteOptions from body and query.
#[derive(Debug, Clone, Default)]
struct Options {
    grace: Option<i64>,
    propagation: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    dry_run: bool,
}

enum Deleted {
    /// Gone for good.
    Removed(Bytes),
    /// Marked; finalizers or a grace period keep it.
    Pending(Bytes),
}

pub async fn delete(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let options = Options::parse(call, &bytes)?;
    let key = storage::key(&call.resource, call.namespace(), call.name());
    for _ in 0..MAX_ATTEMPTS {
        let entry = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
        match delete_one(call, &entry, &options).await? {
            None => {}
            Some(Deleted::Removed(stored))
                if !call.resource.custom && SHOWN.contains(&call.resource.plural.as_str()) =>
            {
                return respond::object(call, StatusCode::OK, &stored).await;
            }
            Some(Deleted::Removed(_)) => return Ok(success(call, call.name(), &entry.meta.uid)),
            Some(Deleted::Pending(stored)) => {
                return respond::object(call, StatusCode::OK, &stored).await;
            }
        }
    }
    Err(ApiError::modified(call.resource.subject(call.name())))
}

pub async fn delete_collection(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let options = Options::parse(call, &bytes)?;
    let selection = Selection::of(call)?;
    let list = call.server.store.list(&call.resource.storage, call.namespace());
    let mut items = Vec::new();
    let mut entries = conversion::entries(&call.server, &call.resource, &call.api_version(), list.items).await?;
    entries.retain(|e| selection.matches(e));
    for entry in &entries {
        let one = call.named(&entry.key);
        for _ in 0..MAX_ATTEMPTS {
            let Some(entry) = one.server.store.get(&one.resource.storage, &entry.key) else {
                break;
            };
            match delete_one(&one, &entry, &options).await {
                Ok(None) => {}
                Ok(Some(Deleted::Removed(bytes) | Deleted::Pending(bytes))) => {
                    items.push(respond::parse(&respond::stored(&one, &bytes).await?)?);
                    break;
                }
                Err(error) if error.code == 404 => break,
                Err(error) => return Err(error),
            }
        }
    }
    let answer = json!({
        "kind": call.resource.list_kind, "apiVersion": call.api_version(),
        "metadata": {"resourceVersion": call.server.store.revision().to_string()}, "items": items,
    });
    respond::encoded(call, StatusCode::OK, answer.to_string().into())
}

/// One attempt. None: somebody changed the object meanwhile.
async fn delete_one(call: &Call, entry: &Arc<Entry>, options: &Options) -> Result<Option<Deleted>, ApiError> {
    let shown = call.converted(entry.clone()).await?;
    let old = respond::entry_value(&call.resource, call.version(), &shown)?;
    options.check(call, &old)?;
    admission::protect(call)?;
    admission::validate(call, Operation::Delete, None, Some(&old)).await?;
    let mut new = old.clone();
    apply_propagation(&mut new, options.propagation.as_deref());
    let grace = grace_period(call, &old, options.grace);
    let finalizers = !object::strings(at(&new, &["metadata", "finalizers"])).is_empty();
    let held = call.resource.special == Special::Namespace
        && at(&new, &["spec", "finalizers"]).and_then(Value::as_array).is_some_and(|f| !f.is_empty());
    if !finalizers && grace == 0 && !held {
        if call.resource.special == Special::Pod
            && let Some(seconds) = metadata(&mut new).get_mut("deletionGracePeriodSeconds")
        {
            *seconds = 0.into();
        }
        return Ok(match commit::remove(call, entry, &new, options.dry_run).await? {
            Outcome::Done(bytes) => Some(Deleted::Removed(bytes)),
            Outcome::Conflict => None,
        });
    }
    mark(call, &old, &mut new, grace);
    if strategy::finished_deletion(&call.resource, &new) {
        return Ok(match commit::remove(call, entry, &new, options.dry_run).await? {
            Outcome::Done(bytes) => Some(Deleted::Removed(bytes)),
            Outcome::Conflict => None,
        });
    }
    Ok(match commit::replace(call, entry, &new, options.dry_run, Kept::default()).await? {
        Outcome::Done(bytes) => Some(Deleted::Pending(bytes)),
        Outcome::Conflict => None,
    })
}

/// Sets or shortens the deletion time. It never moves away.
fn mark(call: &Call, old: &Value, new: &mut Value, grace: i64) {
    let already = at(old, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string);
    let before = at(old, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    if already && before.is_none_or(|b| grace >= b) {
        return;
    }
    // Any number is a grace period. Time ends before the largest of them.
    let time = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_secs(grace));
    let time = time.unwrap_or(jiff::Timestamp::MAX);
    let generation = at(old, &["metadata", "generation"]).and_then(Value::as_i64);
    let meta = metadata(new);
    meta.insert("deletionTimestamp".into(), object::format_time(time).into());
    // Whose contents go first is marked by its own rules.
    let container = matches!(call.resource.special, Special::Namespace | Special::Crd);
    if !container {
        meta.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if let Some(generation) = generation.filter(|_| !already && !container) {
        meta.insert("generation".into(), (generation + 1).into());
    }
    if call.resource.special == Special::Namespace {
        field_map(new, "status").insert("phase".into(), "Terminating".into());
    }
}

/// Only pods end gracefully: the node that runs one has to stop it first.
fn grace_period(call: &Call, pod: &Value, asked: Option<i64>) -> i64 {
    if call.resource.special != Special::Pod {
        return 0;
    }
    let unscheduled = text(pod, &["spec", "nodeName"]).is_empty();
    let finished = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    let wanted = asked
        .unwrap_or_else(|| at(pod, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(30));
    match asked {
        Some(0) => 0,
        _ if unscheduled || finished => 0,
        _ => wanted.max(1),
    }
}

fn apply_propagation(object: &mut Value, policy: Option<&str>) {
    let Some(policy) = policy else { return };
    let mut finalizers = object::strings(at(object, &["metadata", "finalizers"]));
    finalizers.retain(|f| f != FOREGROUND && f != ORPHAN);
    match policy {
        "Foreground" => finalizers.push(FOREGROUND.to_owned()),
        "Orphan" => finalizers.push(ORPHAN.to_owned()),
        _ => {}
    }
    if finalizers.is_empty() {
        metadata(object).remove("finalizers");
    } else {
        metadata(object).insert("finalizers".into(), json!(finalizers));
    }
}

impl Options {
    fn parse(call: &Call, bytes: &Bytes) -> Result<Self, ApiError> {
        let body: Value = if bytes.is_empty() {
            json!({})
        } else {
            match negotiate::content_type(&call.headers) {
                PROTOBUF => decode::protobuf(bytes)?,
                "application/yaml" => serde_saphyr::from_str(&String::from_utf8_lossy(bytes))
                    .map_err(|e| ApiError::bad_request(e.to_string()))?,
                _ => super::parse_json(bytes)?,
            }
        };
        let kind = text(&body, &["kind"]);
        if !matches!(kind, "" | "DeleteOptions") {
            let version = text(&body, &["apiVersion"]);
            return Err(ApiError::bad_request(format!("no kind {kind:?} is registered for version {version:?}")));
        }
        let query_or = |key: &str| match call.query.get(key) {
            "" => body[key].as_str().map(str::to_owned),
            text => Some(text.to_owned()),
        };
        let grace = match call.query.get("gracePeriodSeconds") {
            "" => body["gracePeriodSeconds"].as_i64(),
            text => Some(
                text.parse()
                    .map_err(|_| ApiError::bad_request(format!("gracePeriodSeconds: {text:?} is not a number")))?,
            ),
        };
        let policy = query_or("propagationPolicy").filter(|p| !p.is_empty());
        let orphan = body["orphanDependents"].as_bool();
        let mut causes: Vec<Cause> =
            super::options::dry_run(&object::strings(body.get("dryRun"))).into_iter().collect();
        if let (Some(policy), Some(_)) = (&policy, orphan) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            causes.push(Cause::invalid("propagationPolicy", &json!(policy), why));
        }
        if let Some(policy) = &policy
            && !matches!(policy.as_str(), "Background" | "Foreground" | "Orphan")
        {
            let known = ["Foreground", "Background", "Orphan", "nil"].map(|p| json!(p));
            causes.push(Cause::not_supported("propagationPolicy", &json!(policy), &known));
        }
        super::options::refuse("DeleteOptions", &causes)?;
        let mut propagation = policy.or(orphan.map(|orphan| if orphan { "Orphan" } else { "Background" }.to_owned()));
        if propagation.is_none() && super::workloads::orphans(&call.resource) {
            propagation = Some("Orphan".to_owned());
            if call.resource.kind == "Job" {
                call.warn("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning".to_owned());
            }
        }
        let dry_run = call.dry_run()? || object::strings(body.get("dryRun")).iter().any(|d| d == "All");
        let precondition = |key: &str| at(&body, &["preconditions", key]).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            grace,
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run,
        })
    }

    fn check(&self, call: &Call, object: &Value) -> Result<(), ApiError> {
        let subject = call.resource.kind_subject(call.name());
        let (uid, version) = (text(object, &["metadata", "uid"]), text(object, &["metadata", "resourceVersion"]));
        if let Some(wanted) = self.uid.as_deref().filter(|w| *w != uid) {
            let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}");
            return Err(ApiError::conflict(subject, &why));
        }
        if let Some(wanted) = self.resource_version.as_deref().filter(|w| *w != version) {
            let why = format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {version}"
            );
            return Err(ApiError::conflict(subject, &why));
        }
        Ok(())
    }
}
