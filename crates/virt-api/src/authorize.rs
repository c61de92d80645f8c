//! May this caller do that? The API server decides, by the caller's own RBAC.

use http::{HeaderMap, Response};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};

use crate::{Body, answer};

pub(crate) struct Target<'a> {
    pub verb: &'a str,
    pub namespace: &'a str,
    pub resource: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
}

/// Ok, or the refusal to send.
pub(crate) async fn check(client: &Client, headers: &HeaderMap, target: &Target<'_>) -> Result<(), Response<Body>> {
    let values = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|v| v.to_str().ok().map(str::to_owned)).collect()
    };
    let Some(user) = values("x-remote-user").into_iter().next() else {
        return Err(answer::status(http::StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"));
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.clone()),
            groups: Some(values("x-remote-group")),
            resource_attributes: Some(ResourceAttributes {
                group: Some("subresources.kubevirt.io".into()),
                version: Some("v1".into()),
                resource: Some(target.resource.into()),
                subresource: Some(target.subresource.into()),
                namespace: Some(target.namespace.into()),
                name: Some(target.name.into()),
                verb: Some(target.verb.into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await.map_err(answer::from_kube)?;
    if review.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    let Target { verb, namespace, resource, name, subresource } = target;
    let message = format!(
        "{resource}.subresources.kubevirt.io \"{name}\" is forbidden: User \"{user}\" cannot {verb} resource \
         \"{resource}/{subresource}\" in API group \"subresources.kubevirt.io\" in the namespace \"{namespace}\""
    );
    Err(answer::status(http::StatusCode::FORBIDDEN, "Forbidden", &message))
}
