//! `kubectl logs` of a launcher pod: what it wrote, from the node's own files.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use ferrovirt_apiserver::{ApiServer, Body};
use ferrovirt_node_lite::{LogOptions, read_log};
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, Client};

/// Registers the `log` subresource of pods.
pub fn register(api: &ApiServer, client: Client, data_dir: PathBuf) {
    api.register_subresource(
        "",
        "pods",
        "log",
        Arc::new(move |request| {
            let (client, data_dir, uri) = (client.clone(), data_dir.clone(), request.uri().clone());
            Box::pin(async move {
                match answer(client, data_dir, &uri).await {
                    Ok(bytes) => respond(StatusCode::OK, "text/plain", bytes),
                    Err((code, message)) => {
                        let status = serde_json::json!({
                            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                            "reason": "BadRequest", "message": message, "code": code.as_u16(),
                        });
                        respond(code, "application/json", status.to_string().into_bytes())
                    }
                }
            })
        }),
    );
}

async fn answer(client: Client, data_dir: PathBuf, uri: &Uri) -> Result<Vec<u8>, (StatusCode, String)> {
    let segments: Vec<&str> = uri.path().split('/').filter(|s| !s.is_empty()).collect();
    let ["api", "v1", "namespaces", namespace, "pods", name, "log"] = segments.as_slice() else {
        return Err((StatusCode::NOT_FOUND, "no such log".into()));
    };
    let query: HashMap<String, String> = uri.query().unwrap_or_default().split('&').filter_map(pair).collect();
    let pod = Api::<Pod>::namespaced(client, namespace).get(name).await;
    let pod = pod.map_err(|error| (StatusCode::NOT_FOUND, error.to_string()))?;
    let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
    let container = match query.get("container") {
        Some(container) => container.clone(),
        None => containers.first().map(|c| c.name.clone()).unwrap_or_default(),
    };
    if !containers.iter().any(|c| c.name == container) {
        return Err((StatusCode::BAD_REQUEST, format!("container {container} is not valid for pod {name}")));
    }
    let seconds = query.get("sinceSeconds").and_then(|s| s.parse::<i64>().ok());
    let options = LogOptions {
        tail_lines: query.get("tailLines").and_then(|n| n.parse().ok()),
        since: seconds.and_then(|s| Timestamp::now().checked_sub(k8s_openapi::jiff::SignedDuration::from_secs(s)).ok()),
        limit_bytes: query.get("limitBytes").and_then(|n| n.parse().ok()),
        timestamps: query.get("timestamps").is_some_and(|t| t == "true"),
    };
    let uid = pod.metadata.uid.unwrap_or_default();
    let read = tokio::task::spawn_blocking(move || read_log(&data_dir, &uid, &container, &options)).await;
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Ok(Err(error)) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    Some((key.into(), value.into()))
}

fn respond(code: StatusCode, kind: &'static str, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}
