//! Discovery: which groups, versions and resources there are; one document at a time, or all at once (aggregated).

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::aggregation::{self, Route};
use crate::authn::User;
use crate::http::body::{self, Body};
use crate::http::negotiate;
use crate::registry::{Resource, Snapshot, Version};
use crate::server::Server;
use crate::status::ApiError;

/// A group version, with what serves it.
struct GroupVersions {
    group: String,
    versions: Vec<(String, Option<Route>)>,
}

/// Answers `/api`, `/apis` and what is below them down to a version. None: not a discovery path.
pub async fn handle(
    server: &Arc<Server>,
    user: &User,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, ApiError>> {
    let root = path.trim_matches('/');
    if matches!(root, "api" | "apis")
        && let Some(version) = aggregated_version(headers)
    {
        return Some(Ok(aggregated(server, user, root == "api", version, headers).await));
    }
    plain(server, path, headers)
}

/// The version of aggregated discovery that the client prefers, if it knows it at all.
fn aggregated_version(headers: &HeaderMap) -> Option<&'static str> {
    ["v2", "v2beta1"].into_iter().find(|version| {
        let wanted = [("as", "APIGroupDiscoveryList"), ("g", "apidiscovery.k8s.io"), ("v", *version)];
        negotiate::wants(headers, "application/json", &wanted)
    })
}

fn plain(server: &Server, path: &str, headers: &HeaderMap) -> Option<Result<Response<Body>, ApiError>> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let document = match parts.as_slice() {
        ["api"] => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]})
        }
        ["apis"] => {
            let mut groups = groups(server);
            groups.iter_mut().for_each(|g| g.versions.retain(|(_, r)| !r.as_ref().is_some_and(|r| hidden(server, r))));
            groups.retain(|g| !g.group.is_empty() && !g.versions.is_empty());
            let groups: Vec<Value> = groups.iter().map(group_document).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["api", "v1"] => resource_list(&server.registry.snapshot(), "", "v1"),
        ["apis", group] => {
            let all = groups(server);
            let found = all.iter().find(|g| g.group == *group)?;
            let mut document = group_document(found);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            document
        }
        ["apis", group, version] => {
            let snapshot = server.registry.snapshot();
            snapshot.in_version(group, version).next()?;
            resource_list(&snapshot, group, version)
        }
        _ => return None,
    };
    let mut response = body::json(StatusCode::OK, &Value::Null);
    body::compress(headers, &mut response, document.to_string().into());
    Some(Ok(response))
}

fn groups(server: &Server) -> Vec<GroupVersions> {
    let snapshot = server.registry.snapshot();
    let mut all: Vec<GroupVersions> = snapshot
        .groups()
        .into_iter()
        .map(|(group, versions)| GroupVersions {
            group: group.to_owned(),
            versions: versions.into_iter().map(|v| (v.to_owned(), None)).collect(),
        })
        .collect();
    for route in server.aggregation.routes(server) {
        match all.iter_mut().find(|g| g.group == route.group) {
            Some(group) => match group.versions.iter_mut().find(|(v, _)| *v == route.version) {
                Some(slot) => slot.1 = Some(route),
                None => group.versions.push((route.version.clone(), Some(route))),
            },
            None => all.push(GroupVersions {
                group: route.group.clone(),
                versions: vec![(route.version.clone(), Some(route))],
            }),
        }
    }
    all
}

/// A delegated group version whose server does not answer.
fn hidden(server: &Server, route: &Route) -> bool {
    !route.available && server.in_process(&route.namespace, &route.service).is_none()
}

fn group_document(group: &GroupVersions) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(version, _)| json!({"groupVersion": format!("{}/{version}", group.group), "version": version}))
        .collect();
    json!({"name": group.group, "preferredVersion": versions.first(), "versions": versions})
}

/// Subresources of a version, each with the kind it answers with and its verbs.
fn subresources(resource: &Resource, version: &Version) -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let own = || json!({"group": resource.group, "version": version.name, "kind": resource.kind});
    let mut list = Vec::new();
    if version.status {
        list.push(("status", own(), vec!["get", "patch", "update"]));
    }
    if version.scale.is_some() {
        list.push((
            "scale",
            json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            vec!["get", "patch", "update"],
        ));
    }
    for name in version.subresources {
        let (kind, verbs) = match *name {
            "binding" => (json!({"group": "", "version": "v1", "kind": "Binding"}), vec!["create"]),
            "eviction" => (json!({"group": "policy", "version": "v1", "kind": "Eviction"}), vec!["create"]),
            "token" => {
                (json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}), vec!["create"])
            }
            "finalize" => (own(), vec!["update"]),
            "approval" => (own(), vec!["get", "patch", "update"]),
            "exec" => (json!({"group": "", "version": "v1", "kind": "PodExecOptions"}), vec!["create", "get"]),
            "attach" => (json!({"group": "", "version": "v1", "kind": "PodAttachOptions"}), vec!["create", "get"]),
            "portforward" => {
                (json!({"group": "", "version": "v1", "kind": "PodPortForwardOptions"}), vec!["create", "get"])
            }
            _ => (own(), vec!["get"]),
        };
        list.push((name, kind, verbs));
    }
    if !resource.custom {
        list.sort_by_key(|(name, _, _)| *name);
    }
    list
}

fn resource_list(snapshot: &Snapshot, group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for (resource, version) in snapshot.in_version(group, version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        if !resource.is_virtual() {
            entry["storageVersionHash"] = storage_hash(resource).into();
        }
        resources.push(entry);
        for (name, kind, verbs) in subresources(resource, version) {
            let mut entry = json!({
                "name": format!("{}/{name}", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": kind["kind"], "verbs": verbs,
            });
            if kind["group"] != resource.group.as_str() {
                entry["group"] = kind["group"].clone();
                entry["version"] = kind["version"].clone();
            }
            resources.push(entry);
        }
    }
    let group_version = crate::object::api_version(group, version);
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}

/// Opaque to clients; equal as long as objects are stored the same way, and the same as kube-apiserver's.
fn storage_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    // kube-apiserver still stores some as it did before their first version.
    let version = match (resource.storage_group.as_str(), resource.kind.as_str()) {
        ("apiextensions.k8s.io", _) => "v1beta1",
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding") => "v1beta1",
        _ => &resource.storage_version,
    };
    let text = format!("{}/{version}/{}", resource.storage_group, resource.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

async fn aggregated(
    server: &Arc<Server>,
    user: &User,
    core: bool,
    version: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let snapshot = server.registry.snapshot();
    let mut items = Vec::new();
    let mut groups = groups(server);
    groups.retain(|g| g.group.is_empty() == core);
    for group in &groups {
        let mut versions = Vec::new();
        for (name, route) in &group.versions {
            let (resources, freshness) = match route {
                None => (local_discovery(&snapshot, &group.group, name), "Current"),
                Some(route) if hidden(server, route) => (Vec::new(), "Stale"),
                Some(route) => match aggregation::resources(server, route, user).await {
                    Some(list) => (delegated_discovery(&list, route), "Current"),
                    None => (Vec::new(), "Stale"),
                },
            };
            versions.push(json!({"version": name, "resources": resources, "freshness": freshness}));
        }
        let meta = if core { json!({}) } else { json!({"name": group.group}) };
        items.push(json!({"metadata": meta, "versions": versions}));
    }
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items});
    let content_type = match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    let mut response = body::json(StatusCode::OK, &Value::Null);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    body::compress(headers, &mut response, document.to_string().into());
    response
}

fn local_discovery(snapshot: &Snapshot, group: &str, version: &str) -> Vec<Value> {
    snapshot
        .in_version(group, version)
        .map(|(resource, version)| {
            let subresources: Vec<Value> = subresources(resource, version)
                .into_iter()
                .map(|(name, kind, verbs)| json!({"subresource": name, "responseKind": kind, "verbs": verbs}))
                .collect();
            let mut entry = json!({
                "resource": resource.plural,
                "responseKind": {"group": resource.group, "version": version.name, "kind": resource.kind},
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": resource.singular, "verbs": resource.verbs,
            });
            for (key, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
                if !list.is_empty() {
                    entry[key] = json!(list);
                }
            }
            if !subresources.is_empty() {
                entry["subresources"] = json!(subresources);
            }
            entry
        })
        .collect()
}

/// An `APIResourceList` in the form of aggregated discovery.
fn delegated_discovery(list: &Value, route: &Route) -> Vec<Value> {
    let all: Vec<&Value> = list["resources"].as_array().into_iter().flatten().collect();
    let kind = |r: &Value| {
        let or = |key: &str, other: &str| match r[key].as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => other.to_owned(),
        };
        json!({"group": or("group", &route.group), "version": or("version", &route.version), "kind": r["kind"]})
    };
    let name = |r: &Value| r["name"].as_str().unwrap_or_default().to_owned();
    let scope = |r: &Value| {
        if r["namespaced"] == true { "Namespaced" } else { "Cluster" }
    };
    let mut entries: Vec<Value> = Vec::new();
    for resource in all.iter().filter(|r| !name(r).contains('/')) {
        entries.push(json!({
            "resource": name(resource), "responseKind": kind(resource), "scope": scope(resource),
            "singularResource": resource["singularName"], "verbs": resource["verbs"],
        }));
    }
    for resource in &all {
        let full = name(resource);
        let Some((parent, sub)) = full.split_once('/') else {
            continue;
        };
        let index = match entries.iter().position(|e| e["resource"] == parent) {
            Some(index) => index,
            // A group of subresources only, such as subresources.kubevirt.io.
            None => {
                entries.push(json!({"resource": parent, "responseKind": {"group": "", "version": "", "kind": ""}, "scope": scope(resource), "singularResource": "", "verbs": []}));
                entries.len() - 1
            }
        };
        let subresource = json!({"subresource": sub, "responseKind": kind(resource), "verbs": resource["verbs"]});
        let slot = &mut entries[index]["subresources"];
        match slot.as_array_mut() {
            Some(list) => list.push(subresource),
            None => *slot = json!([subresource]),
        }
    }
    entries
}
