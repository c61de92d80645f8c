//! May this caller do that? The API server decides, by the caller's own RBAC.

use std::{borrow::Cow, collections::BTreeMap};

use http::{HeaderMap, Response};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};

use crate::{Body, answer};

const GROUP: &str = "subresources.kubevirt.io";
const EXTRA: &str = "x-remote-extra-";

pub(crate) struct Target<'a> {
    pub verb: &'a str,
    pub namespace: &'a str,
    pub resource: &'a str,
    pub name: &'a str,
    /// Empty for a resource that is an action itself.
    pub subresource: Cow<'a, str>,
    pub version: &'a str,
}

/// Ok, or the refusal to send.
pub(crate) async fn check(client: &Client, headers: &HeaderMap, target: &Target<'_>) -> Result<(), Response<Body>> {
    if allowed(client, headers, target).await? {
        return Ok(());
    }
    let Target { verb, namespace, resource, name, subresource, .. } = target;
    let user = first(headers, "x-remote-user").unwrap_or_default();
    let what = match subresource.is_empty() {
        true => (*resource).to_owned(),
        false => format!("{resource}/{subresource}"),
    };
    let message = format!(
        "{resource}.{GROUP} \"{name}\" is forbidden: User \"{user}\" cannot {verb} resource \"{what}\" in API group \
         \"{GROUP}\" in the namespace \"{namespace}\""
    );
    Err(answer::status(http::StatusCode::FORBIDDEN, "Forbidden", &message))
}

/// What the API server says. `Err` if it could not be asked, or if nobody says who the caller is.
pub(crate) async fn allowed(client: &Client, headers: &HeaderMap, target: &Target<'_>) -> Result<bool, Response<Body>> {
    let Some(user) = first(headers, "x-remote-user") else {
        return Err(answer::status(http::StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"));
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user),
            groups: Some(values(headers, "x-remote-group")),
            uid: first(headers, "x-remote-uid"),
            extra: Some(extra(headers)).filter(|extra| !extra.is_empty()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.into()),
                version: Some(target.version.into()),
                resource: Some(target.resource.into()),
                subresource: some(&target.subresource),
                namespace: Some(target.namespace.into()),
                name: some(target.name),
                verb: Some(target.verb.into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await.map_err(answer::from_kube)?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok().map(str::to_owned)).collect()
}

fn first(headers: &HeaderMap, name: &str) -> Option<String> {
    values(headers, name).into_iter().next()
}

/// What else the front proxy says of the caller; authorizers may go by it.
fn extra(headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    let keys = headers.keys().filter_map(|name| name.as_str().strip_prefix(EXTRA));
    keys.map(|key| (unescape(key), values(headers, &format!("{EXTRA}{key}")))).collect()
}

/// Header names cannot hold every key, so the front proxy writes some bytes as `%xx`.
fn unescape(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut out = vec![];
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let escaped = key.get(index + 1..index + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| *byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                index += 3;
            }
            None => {
                out.push(*byte);
                index += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_else_is_known_of_a_caller_goes_along() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-extra-scopes", "a".parse().unwrap());
        headers.append("x-remote-extra-scopes", "b".parse().unwrap());
        headers.append("x-remote-extra-acme.com%2fproject", "p".parse().unwrap());
        let extra = extra(&headers);
        assert_eq!(extra.get("scopes").unwrap(), &["a", "b"]);
        assert_eq!(extra.get("acme.com/project").unwrap(), &["p"]);
    }
}
