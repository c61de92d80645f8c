//! create.

use std::sync::Arc;

use bytes::Bytes;
use ferrovirt_schema::{Cause, structural};
use http::{Response, StatusCode};
use serde_json::Value;

use super::commit::{self, Outcome};
use super::effects::Kept;
use super::{Call, decode, metadata, respond, strategy};
use crate::admission::{self, Operation};
use crate::http::body::Body;
use crate::object::text;
use crate::registry::Special;
use crate::status::ApiError;

/// Attempts at a free name for `generateName`.
const NAME_ATTEMPTS: usize = 8;

pub async fn create(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let object = decode::object(call, &bytes)?;
    let stored = create_object(call, object).await?;
    respond::object(call, StatusCode::CREATED, &stored).await
}

/// Creates a decoded object and returns it as stored.
pub async fn create_object(call: &Call, mut object: Value) -> Result<Bytes, ApiError> {
    let dry_run = call.dry_run()?;
    metadata::check_namespace(call, &mut object)?;
    structural::default(&call.version().schema(), &mut object);
    strategy::defaults(&call.resource, &mut object);
    strategy::fold(&call.resource, &mut object);
    let claimed = super::update::claimed(call, None, &object);
    admission::kind_lifecycle(call)?;
    admission::namespace_lifecycle(call, &object)?;
    admission::limits::fill(call, &mut object);
    admission::pods::fill(call, &mut object)?;
    admission::mutate(call, Operation::Create, &mut object, None).await?;
    let base = text(&object, &["metadata", "generateName"]).to_owned();
    let generated = text(&object, &["metadata", "name"]).is_empty() && !base.is_empty();
    let version = text(&object, &["metadata", "resourceVersion"]);
    let versioned = Some(version.to_owned()).filter(|version| !version.is_empty() && version != "0");
    metadata::fill(call, &mut object);
    admission::maker::stamp(call, &mut object);
    metadata::normalize(&call.resource, &mut object);
    let taken = strategy::prepare_create(call, &mut object).await?.map(Arc::new);
    structural::prune(&call.version().schema(), &mut object);
    structural::default(&call.version().schema(), &mut object);
    strategy::defaults(&call.resource, &mut object);
    for _ in 0..NAME_ATTEMPTS {
        if generated {
            crate::object::metadata(&mut object).insert("name".into(), metadata::generate_name(&base).into());
            if call.resource.special == Special::Namespace {
                strategy::label_namespace(&mut object);
            }
        }
        commit::validate(call, &object, None)?;
        admission::limits::check(call, &object)?;
        admission::rights::check(call, &object, None)?;
        admission::pod_security::check(call, &object, None)?;
        admission::addresses::check(call, &object, None)?;
        admission::validate(call, Operation::Create, Some(&object), None).await?;
        let room = admission::quota::admit(call, &object, None).await?;
        if let Some(version) = &versioned {
            // Told last, as upstream's storage does, so that whatever else is wrong is told first.
            let why = "resourceVersion should not be set on objects to be created";
            let cause = Cause::invalid("metadata.resourceVersion", &Value::from(version.as_str()), why);
            return Err(ApiError::invalid(call.resource.kind_subject(crate::object::name(&object)), &[cause]));
        }
        super::update::track(call, None, &mut object, claimed.as_ref());
        let kept = Kept::default().and(taken.clone()).and(room);
        match commit::insert(call, &object, dry_run, kept).await? {
            Outcome::Done(bytes) => return Ok(bytes),
            Outcome::Conflict if generated => {}
            Outcome::Conflict => break,
        }
    }
    Err(ApiError::already_exists(call.resource.subject(crate::object::name(&object))))
}
