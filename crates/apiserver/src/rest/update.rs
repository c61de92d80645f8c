//! update, and the part that update and patch share.

use std::borrow::Cow;

use bytes::Bytes;
use ferrovirt_schema::apply::{Manager, track_update};
use ferrovirt_schema::{Cause, structural};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::commit::{self, Outcome};
use super::effects::Kept;
use super::{Call, decode, metadata, respond, strategy};
use crate::admission::{self, Operation};
use crate::http::body::Body;
use crate::object::{self, at, text};
use crate::registry::Special;
use crate::status::ApiError;
use crate::storage::{self, Entry};

/// A patch that keeps losing against other writers gives up after this many rounds.
const MAX_ATTEMPTS: usize = 64;

pub async fn update(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let mut object = decode::object(call, &bytes)?;
    metadata::check_namespace(call, &mut object)?;
    let name = object::name(&object);
    if name != call.name() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name()
        )));
    }
    let version = text(&object, &["metadata", "resourceVersion"]);
    let unconditional = version.is_empty();
    if !unconditional && version.parse::<u64>().is_err() {
        let why = "must be the version that this server gave to the object";
        let cause = Cause::invalid("metadata.resourceVersion", &json!(version), why);
        return Err(ApiError::invalid(call.resource.kind_subject(call.name()), &[cause]));
    }
    if unconditional && !call.resource.unconditional_update {
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiError::invalid(call.resource.subject(call.name()), &[cause]));
    }
    let stored = modify(call, unconditional, |_| Ok(object.clone())).await?;
    respond::object(call, StatusCode::OK, &stored).await
}

/// Reads, changes, writes; again if somebody else was faster and `retry` allows it.
///
/// `change` makes the new object from the present one, both in the request's version.
pub async fn modify(
    call: &Call,
    retry: bool,
    change: impl Fn(&Value) -> Result<Value, ApiError>,
) -> Result<Bytes, ApiError> {
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let attempts = if retry { MAX_ATTEMPTS } else { 1 };
    for _ in 0..attempts {
        let entry = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
        let shown = call.converted(entry.clone()).await?;
        let mut old = respond::entry_value(&call.resource, call.version(), &shown)?;
        // What was written only for completeness is not there for those who look at the object.
        decode::tidy(call, &mut old);
        let new = change(&old)?;
        match apply(call, &entry, &old, new).await? {
            Outcome::Done(bytes) => return Ok(bytes),
            Outcome::Conflict => {}
        }
    }
    Err(ApiError::modified(call.resource.subject(call.name())))
}

/// As [`modify`], for changes the server itself makes on behalf of a subresource: spec and status together, no admission.
pub async fn modify_internal(
    call: &Call,
    change: impl Fn(&Value) -> Result<Value, ApiError>,
) -> Result<Bytes, ApiError> {
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let dry_run = call.dry_run()?;
    for _ in 0..MAX_ATTEMPTS {
        let entry = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
        let shown = call.converted(entry.clone()).await?;
        let old = respond::entry_value(&call.resource, call.version(), &shown)?;
        let new = change(&old)?;
        match commit::replace(call, &entry, &new, dry_run, Kept::default()).await? {
            Outcome::Done(bytes) => return Ok(bytes),
            Outcome::Conflict => {}
        }
    }
    Err(ApiError::modified(call.resource.subject(call.name())))
}

/// Takes a changed object through everything between decoding and the store.
async fn apply(call: &Call, entry: &Entry, old: &Value, mut new: Value) -> Result<Outcome, ApiError> {
    let dry_run = call.dry_run()?;
    check_preconditions(call, old, &new)?;
    metadata::keep(old, &mut new);
    split(call, old, &mut new);
    decode::tidy(call, &mut new);
    let schema = call.version().schema();
    structural::default(&schema, &mut new);
    strategy::defaults(&call.resource, &mut new);
    strategy::fold(&call.resource, &mut new);
    let claimed = claimed(call, Some(old), &new);
    admission::pods::refill(call, &mut new);
    admission::mutate(call, Operation::Update, &mut new, Some(old)).await?;
    let taken = strategy::prepare_update(call, old, &mut new).await?;
    structural::prune(&schema, &mut new);
    structural::default(&schema, &mut new);
    metadata::keep(old, &mut new);
    admission::maker::keep(call, old, &mut new);
    metadata::normalize(&call.resource, &mut new);
    bump_generation(call, old, &mut new);
    commit::validate(call, &new, Some(old))?;
    admission::limits::check_update(call, old, &new)?;
    admission::growth::check(call, old, &new)?;
    admission::maker::check_change(call, old, &new)?;
    admission::rights::check(call, &new, Some(old))?;
    admission::pod_security::check(call, &new, Some(old))?;
    admission::addresses::check(call, &new, Some(old))?;
    admission::validate(call, Operation::Update, Some(&new), Some(old)).await?;
    let room = admission::quota::admit(call, &new, Some(old)).await?;
    track(call, Some(old), &mut new, claimed.as_ref());
    if strategy::finished_deletion(&call.resource, &new) {
        return commit::remove(call, entry, &new, dry_run).await;
    }
    commit::replace(call, entry, &new, dry_run, Kept::default().and(taken).and(room)).await
}

fn check_preconditions(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    let subject = call.resource.subject(call.name());
    let mut causes = Vec::new();
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if let Some(given) =
            at(new, &["metadata", key]).filter(|v| !v.is_null() && Some(*v) != at(old, &["metadata", key]))
        {
            let cause = Cause::invalid(format!("metadata.{key}"), given, "field is immutable");
            // Said twice of built-in kinds, by what is common to all and by their own rules.
            causes.extend(std::iter::repeat_n(cause, if call.resource.custom { 1 } else { 2 }));
        }
    }
    let (had, has) = (text(old, &["metadata", "uid"]), text(new, &["metadata", "uid"]));
    if !has.is_empty() && has != had && call.verb == "patch" {
        let cause = Cause::invalid("metadata.uid", &json!(has), "field is immutable");
        causes.extend(std::iter::repeat_n(cause, if call.resource.custom { 1 } else { 2 }));
    }
    if !causes.is_empty() {
        return Err(ApiError::invalid(call.resource.kind_subject(call.name()), &causes));
    }
    if !has.is_empty() && has != had {
        let why = format!("Precondition failed: UID in precondition: {has}, UID in object meta: {had}");
        return Err(ApiError::conflict(subject, &why));
    }
    let version = text(new, &["metadata", "resourceVersion"]);
    if !version.is_empty() && version != text(old, &["metadata", "resourceVersion"]) {
        return Err(ApiError::modified(subject));
    }
    Ok(())
}

/// The main endpoint leaves status alone; the status endpoint leaves everything else alone.
fn split(call: &Call, old: &Value, new: &mut Value) {
    let set = |target: &mut Value, key: &str, value: Option<&Value>| {
        if let Some(map) = target.as_object_mut() {
            match value {
                Some(value) => map.insert(key.to_owned(), value.clone()),
                None => map.remove(key),
            };
        }
    };
    match call.subresource() {
        "status" => {
            let mut result = old.clone();
            set(&mut result, "status", new.get("status"));
            if call.resource.custom {
                set(&mut result["metadata"], "managedFields", at(new, &["metadata", "managedFields"]));
            } else {
                // Built-in kinds take labels and annotations on this endpoint too.
                set(&mut result, "metadata", new.get("metadata"));
                // Whose pod it is is not for its node to say.
                if call.resource.special == Special::Pod {
                    set(&mut result["metadata"], "ownerReferences", at(old, &["metadata", "ownerReferences"]));
                }
            }
            *new = result;
        }
        // Who may decide on a request may not answer it, and the other way round.
        "approval" => {
            let conditions = at(new, &["status", "conditions"]).cloned();
            let mut result = old.clone();
            object::field_map(&mut result, "status");
            set(&mut result["status"], "conditions", conditions.as_ref());
            set(&mut result, "metadata", new.get("metadata"));
            *new = result;
        }
        "finalize" => {
            let finalizers = at(new, &["spec", "finalizers"]).cloned();
            let mut result = old.clone();
            set(&mut result["spec"], "finalizers", finalizers.as_ref());
            set(&mut result, "metadata", new.get("metadata"));
            *new = result;
        }
        _ if call.version().status => set(new, "status", old.get("status")),
        _ => {}
    }
}

fn bump_generation(call: &Call, old: &Value, new: &mut Value) {
    if !call.resource.generation {
        return;
    }
    let skipped =
        |key: &str| matches!(key, "apiVersion" | "kind" | "metadata") || (key == "status" && call.version().status);
    let differ = |old: &Value, new: &Value| {
        let content = |value: &'_ Value| -> usize {
            value.as_object().into_iter().flatten().filter(|(k, _)| !skipped(k)).count()
        };
        let members = new.as_object().into_iter().flatten().filter(|(k, _)| !skipped(k));
        content(old) != content(new) || members.into_iter().any(|(k, v)| old.get(k) != Some(v))
    };
    // What is written in any case may be in the one and not yet in the other.
    let changed = differ(old, new) && (call.resource.custom || differ(&whole(call, old), &whole(call, new)));
    if changed {
        let generation = at(old, &["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0) + 1;
        object::metadata(new).insert("generation".into(), generation.into());
    }
}

/// An object with everything that is written in any case.
fn whole(call: &Call, object: &Value) -> Value {
    let mut whole = object.clone();
    decode::tidy(call, &mut whole);
    decode::complete(call, &mut whole);
    whole
}

/// What a built-in object was before it was written. A new one was an empty struct, which has more in it than nothing.
fn before<'a>(call: &'a Call, old: Option<&Value>) -> Cow<'a, Value> {
    match (old, decode::go_form(call)) {
        (None, Some(known)) => Cow::Borrowed(&known.empty),
        (old, _) => Cow::Owned(whole(call, old.unwrap_or(&json!({"metadata": {}})))),
    }
}

/// The fields that a request itself sets, before admission and the server add theirs: an object with `managedFields`.
pub fn claimed(call: &Call, old: Option<&Value>, new: &Value) -> Option<Value> {
    // The kinds that the server adds to.
    let added_to = matches!(
        call.resource.special,
        Special::Namespace | Special::Pod | Special::Service | Special::Claim | Special::ApiService
    ) || (call.resource.group == "batch" && call.resource.kind == "Job");
    if !added_to || applies(call) {
        return None;
    }
    let (created, old, mut new) = (old.is_none(), before(call, old), whole(call, new));
    if created && call.resource.special == Special::Pod && text(&new, &["spec", "serviceAccountName"]) == "default" {
        // The account that a pod gets if it names none is given by the server.
        let spec = object::field_map(&mut new, "spec");
        spec.remove("serviceAccountName");
        spec.remove("serviceAccount");
    }
    track_update(&call.version().schema(), Some(&*old), &mut new, &manager(call));
    Some(new["metadata"]["managedFields"].take())
}

fn applies(call: &Call) -> bool {
    call.verb == "patch" && matches!(super::patch::Kind::of(call), Ok(super::patch::Kind::Apply))
}

/// Records in `managedFields` who set what. Apply has done so itself. Of what is `claimed`, only what is still there counts,
/// and what others added belongs to nobody.
pub fn track(call: &Call, old: Option<&Value>, new: &mut Value, claimed: Option<&Value>) {
    decode::tidy(call, new);
    decode::complete(call, new);
    record(call, old, new, claimed);
    decode::settle(call, new);
}

fn record(call: &Call, old: Option<&Value>, new: &mut Value, claimed: Option<&Value>) {
    if applies(call) {
        return;
    }
    let manager = manager(call);
    let before = (!call.resource.custom).then(|| before(call, old));
    track_update(&call.version().schema(), before.as_deref().or(old), new, &manager);
    let mine = |entry: &&Value| {
        entry["manager"] == *manager.name
            && entry["operation"] == "Update"
            && entry["subresource"].as_str() == manager.subresource.as_deref()
    };
    // The endpoint does not let its users write the status, so nobody owns what is there.
    let unowned = call.version().status && call.subresource().is_empty();
    let meta = object::metadata(new);
    let Some(entries) = meta.get_mut("managedFields").and_then(Value::as_array_mut) else { return };
    if unowned {
        for fields in entries.iter_mut().filter(|entry| mine(&&**entry)).filter_map(|e| e["fieldsV1"].as_object_mut()) {
            fields.remove("f:status");
        }
        entries.retain(|entry| entry["fieldsV1"].as_object().is_none_or(|fields| !fields.is_empty()));
    }
    if let Some(claimed) = claimed {
        match claimed.as_array().and_then(|list| list.iter().find(mine)) {
            Some(wanted) => entries
                .iter_mut()
                .filter(|entry| mine(&&**entry))
                .for_each(|entry| intersect(&mut entry["fieldsV1"], &wanted["fieldsV1"])),
            None => entries.retain(|entry| !mine(&entry)),
        }
    }
    if entries.is_empty() {
        meta.remove("managedFields");
    }
}

/// Leaves the members that both have.
fn intersect(fields: &mut Value, wanted: &Value) {
    if let Some(map) = fields.as_object_mut() {
        map.retain(|key, _| wanted.get(key).is_some());
        map.iter_mut().for_each(|(key, below)| intersect(below, &wanted[key]));
    }
}

/// Who writes: the `fieldManager` parameter, or the program's name in `User-Agent`.
pub fn manager(call: &Call) -> Manager {
    let agent = call.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
    let name = match call.query.get("fieldManager") {
        "" => agent.split('/').next().unwrap_or(agent),
        name => name,
    };
    let subresource = call.target.subresource.clone().filter(|s| !s.is_empty());
    Manager {
        name: name.chars().take(128).collect(),
        api_version: call.api_version(),
        subresource,
        time: object::now(),
    }
}
