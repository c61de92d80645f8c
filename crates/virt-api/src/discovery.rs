//! What this aggregated API serves.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::{Body, answer, endpoints::ENDPOINTS};

const GROUP: &str = "subresources.kubevirt.io";
/// Served beside it: tokens for uploads into DataVolumes.
const UPLOADS: &str = ferrovirt_api::cdi::names::UPLOAD_GROUP;
const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Name and verbs of everything, objects' actions first.
fn names() -> Vec<(String, &'static str)> {
    let mut names: Vec<(String, &'static str)> = ENDPOINTS
        .iter()
        .map(|endpoint| (format!("{}/{}", endpoint.resource, endpoint.subresource), endpoint.verb.name()))
        .collect();
    names.push(("expand-vm-spec".into(), "update"));
    names
}

pub(crate) fn serves(version: &str) -> bool {
    VERSIONS.contains(&version)
}

pub(crate) fn group() -> Response<Body> {
    let version = |v: &str| json!({ "groupVersion": format!("{GROUP}/{v}"), "version": v });
    answer::json(
        StatusCode::OK,
        &json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
            "versions": VERSIONS.map(version), "preferredVersion": version(VERSIONS[0]),
        }),
    )
}

pub(crate) fn resources(version: &str) -> Response<Body> {
    let resources: Vec<Value> = names()
        .iter()
        .map(
            |(name, verb)| json!({ "name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": [verb] }),
        )
        .collect();
    answer::json(
        StatusCode::OK,
        &json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{GROUP}/{version}"), "resources": resources,
        }),
    )
}

/// True if a client wants everything in one answer. The API server's aggregator does.
pub(crate) fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accept.flat_map(|value| value.split(',')).any(|media| {
        let has = |parameter: &str| media.split(';').any(|part| part.trim() == parameter);
        has("as=APIGroupDiscoveryList") && has("v=v2")
    })
}

/// The same in the aggregated form. From the other one the aggregator makes resources whose `verbs` are null, which not every
/// client can read.
pub(crate) fn aggregated(with_uploads: bool) -> Response<Body> {
    let mut parents: Vec<(&str, Vec<Value>)> = vec![];
    for endpoint in ENDPOINTS {
        let verbs = [endpoint.verb.name()];
        let entry = json!({ "subresource": endpoint.subresource, "responseKind": no_kind(), "verbs": verbs });
        match parents.iter_mut().find(|(known, _)| *known == endpoint.resource) {
            Some((_, subresources)) => subresources.push(entry),
            None => parents.push((endpoint.resource, vec![entry])),
        }
    }
    let resources: Vec<Value> = parents
        .into_iter()
        .map(|(resource, subresources)| {
            json!({
                "resource": resource, "responseKind": no_kind(), "scope": "Namespaced", "singularResource": "",
                "verbs": [], "subresources": subresources,
            })
        })
        .collect();
    let version = |v: &str| json!({ "version": v, "resources": resources, "freshness": "Current" });
    let mut groups = vec![json!({ "metadata": { "name": GROUP }, "versions": VERSIONS.map(version) })];
    if with_uploads {
        let kind = json!({ "group": UPLOADS, "version": "v1beta1", "kind": "UploadTokenRequest" });
        let resource = json!({
            "resource": "uploadtokenrequests", "singularResource": "uploadtokenrequest", "responseKind": kind,
            "scope": "Namespaced", "shortNames": ["utr", "utrs"], "verbs": ["create"],
        });
        let version = json!({ "version": "v1beta1", "resources": [resource], "freshness": "Current" });
        groups.push(json!({ "metadata": { "name": UPLOADS }, "versions": [version] }));
    }
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups,
    });
    let mut response = answer::json(StatusCode::OK, &list);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    response
}

fn no_kind() -> Value {
    json!({ "group": "", "version": "", "kind": "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aggregated_form_is_for_those_who_name_it() {
        let wants = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            wants_aggregated(&headers)
        };
        assert!(wants("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
        assert!(wants(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList, \
             application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        ));
        assert!(!wants("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"));
        assert!(!wants("application/json"));
    }
}
