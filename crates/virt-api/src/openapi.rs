//! OpenAPI of the aggregated API, from the table of endpoints.

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::{
    Body, answer,
    endpoints::{self, ENDPOINTS, Verb},
};

const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

pub(crate) fn handle(path: &[&str]) -> Response<Body> {
    match path {
        ["v2"] => answer::json(StatusCode::OK, &v2()),
        ["v3"] => {
            let paths: Map<String, Value> = VERSIONS
                .iter()
                .map(|version| {
                    let path = format!("apis/subresources.kubevirt.io/{version}");
                    (path.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{path}") }))
                })
                .collect();
            answer::json(StatusCode::OK, &json!({ "paths": paths }))
        }
        ["v3", "apis", "subresources.kubevirt.io", version] if VERSIONS.contains(version) => {
            let document = json!({
                "openapi": "3.0.0", "info": info(), "paths": paths(version, &|name| {
                    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
                }),
            });
            answer::json(StatusCode::OK, &document)
        }
        _ => answer::not_found("the server could not find the requested resource"),
    }
}

fn v2() -> Value {
    let mut all = Map::new();
    for version in VERSIONS {
        all.extend(paths(version, &|name| json!({ "name": name, "in": "path", "required": true, "type": "string" })));
    }
    json!({ "swagger": "2.0", "info": info(), "paths": all })
}

fn info() -> Value {
    json!({ "title": "Ferrovirt subresources", "version": env!("CARGO_PKG_VERSION") })
}

fn paths(version: &str, parameter: &dyn Fn(&str) -> Value) -> Map<String, Value> {
    let base = format!("/apis/subresources.kubevirt.io/{version}");
    let operation = |id: &str, summary: &str, path: &str| {
        let names = path.split(['{', '}']).skip(1).step_by(2);
        let parameters: Vec<Value> = names.map(parameter).collect();
        json!({
            "operationId": format!("{version}{id}"), "description": summary, "parameters": parameters,
            "responses": { "200": { "description": "OK" }, "401": { "description": "Unauthorized" } },
        })
    };
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        for below in endpoints::paths(endpoint) {
            let path = format!("{base}/namespaces/{{namespace}}/{}/{{name}}/{below}", endpoint.resource);
            let id: String = format!("{}-{below}", endpoint.resource).replace(['{', '}'], "").replace('/', "-");
            let method = match endpoint.verb {
                Verb::Get => "get",
                Verb::Update => "put",
            };
            let operation = operation(&id, endpoint.summary, &path);
            paths.insert(path, json!({ method: operation }));
        }
    }
    let expand = format!("{base}/namespaces/{{namespace}}/expand-vm-spec");
    let summary = "A machine with its instance type and preference filled in";
    paths.insert(expand.clone(), json!({ "put": operation("expand-vm-spec", summary, &expand) }));
    for (name, summary) in [
        ("version", "The version of Ferrovirt"),
        ("healthz", "Whether this service is well"),
        ("guestfs", "The image with libguestfs"),
    ] {
        let path = format!("{base}/{name}");
        paths.insert(path.clone(), json!({ "get": operation(name, summary, &path) }));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_names_its_parameters() {
        let v2 = v2();
        let paths = v2["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 2 * (ENDPOINTS.len() + 2 + 4));
        let forward = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/portforward/{port}/{protocol}";
        let names: Vec<&str> = paths[forward]["get"]["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["namespace", "name", "port", "protocol"]);
        let mut ids: Vec<&str> = paths
            .values()
            .flat_map(|path| path.as_object().unwrap().values())
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "two operations of the same name");
    }
}
