//! What callers send along with a request to a subresource.

use http::{Request, Response};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::{Body, answer};

/// The options in a request's body. No body means no options.
pub(crate) async fn read<T: DeserializeOwned + Default>(request: Request<Body>) -> Result<T, Response<Body>> {
    let body = bytes(request).await?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(&body)
        .map_err(|error| answer::bad_request(&format!("Can not unmarshal Request body to struct, error: {error}")))
}

pub(crate) async fn bytes(request: Request<Body>) -> Result<bytes::Bytes, Response<Body>> {
    let body = request.into_body().collect().await;
    Ok(body.map_err(|error| answer::bad_request(&format!("cannot read the request: {error}")))?.to_bytes())
}

pub(crate) fn is_dry_run(values: &[String]) -> Result<bool, BadOption> {
    match values.iter().find(|value| *value != "All") {
        Some(value) => Err(BadOption(value.clone())),
        None => Ok(!values.is_empty()),
    }
}

/// A value of `dryRun` that does not exist.
pub(crate) struct BadOption(String);

impl From<BadOption> for Response<Body> {
    fn from(BadOption(value): BadOption) -> Self {
        answer::bad_request(&format!("dryRun: Unsupported value: {value:?}: supported values: \"All\""))
    }
}
