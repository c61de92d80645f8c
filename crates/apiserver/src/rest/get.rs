//! get, also of the status subresource.

use http::{Response, StatusCode};

use super::{Call, respond};
use crate::http::body::Body;
use crate::status::ApiError;
use crate::storage;

pub async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let entry = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
    match call.query.get("resourceVersion") {
        "" => {}
        text => match text.parse() {
            Ok(wanted) => super::list::check_not_ahead(call, wanted)?,
            Err(_) => {
                let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
                return Err(ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: {why}")));
            }
        },
    }
    let entry = call.converted(entry).await?;
    respond::shaped(call, StatusCode::OK, respond::entry(&call.resource, call.version(), &entry)?)
}
