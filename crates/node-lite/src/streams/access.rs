//! What a caller may do, by the API server's own word.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::{Api, PostParams};

use super::Refusal;

/// Who asks. An extension of the request, which no client can set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Whether the caller may create a subresource of a pod.
pub(super) async fn may(
    client: &kube::Client,
    caller: &Caller,
    namespace: &str,
    pod: &str,
    subresource: &str,
) -> Result<bool, Refusal> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(caller.name.clone()),
            uid: caller.uid.clone(),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                name: Some(pod.to_owned()).filter(|name| !name.is_empty()),
                verb: Some("create".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("pods".to_owned()),
                subresource: Some(subresource.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    let allowed = |status: SubjectAccessReviewStatus| status.allowed && status.denied != Some(true);
    Ok(answer.map_err(Refusal::internal)?.status.is_some_and(allowed))
}
