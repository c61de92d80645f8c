//! What this aggregated API serves.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::{Body, answer};

const GROUP: &str = "subresources.kubevirt.io";
const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

const RESOURCES: &[(&str, &[&str])] = &[
    ("virtualmachines/start", &["update"]),
    ("virtualmachines/stop", &["update"]),
    ("virtualmachines/restart", &["update"]),
    ("virtualmachineinstances/console", &["get"]),
    ("virtualmachineinstances/vnc", &["get"]),
];

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
    let resources: Vec<Value> = RESOURCES
        .iter()
        .map(
            |(name, verbs)| json!({ "name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": verbs }),
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
