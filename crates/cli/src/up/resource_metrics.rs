//! `metrics.k8s.io`, for `kubectl top`: what this machine and its pods use, from their cgroups. On a cluster the metrics server does
//! this, under the same names.
//!
//! Nothing is counted while nobody asks. A rate needs two looks: the first is the one of the last request, if that was not long ago,
//! and is taken now if it was.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ferrovirt_apiserver::{ApiServer, Body, Query};
use ferrovirt_node_lite::{
    cgroup::Used,
    usage::{self, Snapshot},
};
use http::{Method, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Where upstream's metrics server is.
pub const NAMESPACE: &str = "kube-system";
pub const SERVICE: &str = "metrics-server";
const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";
/// The shortest time that a rate is taken over, and the longest.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The API group, and who may read it: those who may read pods, as upstream's installation says.
pub fn objects() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let labels = ["admin", "edit", "view"].map(|role| (format!("{rbac}/aggregate-to-{role}"), json!("true")));
    vec![
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1beta1.metrics.k8s.io" },
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": { "namespace": NAMESPACE, "name": SERVICE, "port": 443 },
            },
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
            "metadata": {
                "name": "system:aggregated-metrics-reader", "labels": labels.into_iter().collect::<serde_json::Map<_, _>>(),
            },
            "rules": [{ "apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"] }],
        }),
    ]
}

/// Serves the group. The API server has asked already whether the caller may.
pub fn register(api: &ApiServer, client: Client, instance: &str, node: &str) {
    let metrics =
        Arc::new(Metrics { client, instance: instance.to_owned(), node: node.to_owned(), looks: Mutex::default() });
    let handler = move |request: http::Request<Body>| -> futures::future::BoxFuture<'static, Response<Body>> {
        let metrics = metrics.clone();
        Box::pin(async move {
            let (code, answer) = metrics.answer(request.method(), request.uri()).await;
            respond(code, &answer)
        })
    };
    api.register_in_process(NAMESPACE, SERVICE, Arc::new(handler));
}

struct Metrics {
    client: Client,
    instance: String,
    node: String,
    /// The last two looks; who asks meanwhile waits for them.
    looks: Mutex<Option<Looks>>,
}

#[derive(Debug, Clone)]
struct Looks {
    before: Snapshot,
    now: Snapshot,
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked<'a> {
    Resources,
    Nodes { name: Option<&'a str> },
    Pods { namespace: Option<&'a str>, name: Option<&'a str> },
}

impl<'a> Asked<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let ["apis", "metrics.k8s.io", "v1beta1", rest @ ..] = parts.as_slice() else { return None };
        Some(match rest {
            [] => Self::Resources,
            ["nodes"] => Self::Nodes { name: None },
            ["nodes", name] => Self::Nodes { name: Some(name) },
            ["pods"] => Self::Pods { namespace: None, name: None },
            ["namespaces", namespace, "pods"] => Self::Pods { namespace: Some(namespace), name: None },
            ["namespaces", namespace, "pods", name] => Self::Pods { namespace: Some(namespace), name: Some(name) },
            _ => return None,
        })
    }
}

impl Metrics {
    async fn answer(&self, method: &Method, uri: &Uri) -> (StatusCode, Value) {
        let path = uri.path();
        if method != Method::GET {
            return refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "these are numbers, which can only be read",
            );
        }
        match Asked::parse(path) {
            Some(Asked::Resources) => (StatusCode::OK, resources()),
            Some(asked) => match self.collect(&asked, Query::parse(uri).get("labelSelector")).await {
                Ok(answer) => answer,
                Err(why) => refusal(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceUnavailable",
                    &format!("cannot look at the machine: {why}"),
                ),
            },
            None => refusal(StatusCode::NOT_FOUND, "NotFound", &format!("{GROUP_VERSION} does not serve {path}")),
        }
    }

    async fn collect(&self, asked: &Asked<'_>, selector: &str) -> Result<(StatusCode, Value), String> {
        let selector = Some(selector.to_owned()).filter(|selector| !selector.is_empty());
        let params = ListParams { label_selector: selector, ..Default::default() };
        let looks = self.looks().await?;
        let items: Vec<Value> = match asked {
            Asked::Resources => vec![],
            Asked::Nodes { .. } => {
                let nodes = Api::<Node>::all(self.client.clone()).list(&params).await.map_err(|e| e.to_string())?;
                let here = nodes.items.iter().filter(|node| node.name_any() == self.node);
                here.map(|node| node_metrics(node, &looks)).collect()
            }
            Asked::Pods { namespace, .. } => {
                let api: Api<Pod> = match namespace {
                    Some(namespace) => Api::namespaced(self.client.clone(), namespace),
                    None => Api::all(self.client.clone()),
                };
                let pods = api.list(&params).await.map_err(|e| e.to_string())?;
                pods.items.iter().filter_map(|pod| pod_metrics(pod, &looks)).collect()
            }
        };
        let (kind, plural, name) = match asked {
            Asked::Nodes { name } => ("NodeMetrics", "nodes", *name),
            Asked::Pods { name, .. } => ("PodMetrics", "pods", *name),
            Asked::Resources => ("", "", None),
        };
        let Some(name) = name else {
            let list =
                json!({ "kind": format!("{kind}List"), "apiVersion": GROUP_VERSION, "metadata": {}, "items": items });
            return Ok((StatusCode::OK, list));
        };
        match items.into_iter().find(|item| item["metadata"]["name"] == name) {
            Some(item) => Ok((StatusCode::OK, item)),
            None => {
                let message =
                    format!("{plural}.metrics.k8s.io {name:?} not found: there is none, or nothing of it runs");
                Ok(refusal(StatusCode::NOT_FOUND, "NotFound", &message))
            }
        }
    }

    /// Two looks that are far enough from each other, the second of now.
    async fn looks(&self) -> Result<Looks, String> {
        let mut kept = self.looks.lock().await;
        if let Some(looks) = kept.as_ref().filter(|looks| looks.now.at.elapsed() < SHORTEST) {
            return Ok(looks.clone());
        }
        let before = match kept.as_ref().filter(|looks| looks.now.at.elapsed() < LONGEST) {
            Some(looks) => looks.now.clone(),
            None => {
                let first = self.look().await?;
                tokio::time::sleep_until(tokio::time::Instant::from_std(first.at + SHORTEST)).await;
                first
            }
        };
        let looks = Looks { before, now: self.look().await? };
        *kept = Some(looks.clone());
        Ok(looks)
    }

    async fn look(&self) -> Result<Snapshot, String> {
        let pods =
            Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let uids: Vec<String> = pods.items.into_iter().filter_map(|pod| pod.metadata.uid).collect();
        let instance = self.instance.clone();
        let looked = tokio::task::spawn_blocking(move || usage::look(&instance, uids.iter().map(String::as_str))).await;
        looked.map_err(|error| error.to_string())?.map_err(|error| ferrovirt_api::chain(&error))
    }
}

fn resources() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({ "name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"] });
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION,
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })
}

/// Processor and memory, in upstream's units.
fn used(before: Option<&Used>, now: &Used, elapsed: Duration) -> Value {
    // A pod that is younger than the first look has used all of it since.
    let spent = now.cpu_nanos.saturating_sub(before.map_or(0, |before| before.cpu_nanos));
    let per_second = u128::from(spent) * 1_000_000_000 / elapsed.as_nanos().max(1);
    json!({ "cpu": format!("{per_second}n"), "memory": format!("{}Ki", now.memory_bytes / 1024) })
}

fn elapsed(from: Instant, to: Instant) -> Duration {
    to.saturating_duration_since(from)
}

fn described(
    kind: &str,
    name: String,
    namespace: Option<String>,
    labels: &BTreeMap<String, String>,
    looks: &Looks,
) -> Value {
    let now = Timestamp::now();
    let seconds = elapsed(looks.before.at, looks.now.at).as_secs_f64();
    let mut metadata =
        json!({ "name": name, "creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "labels": labels });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    json!({
        "kind": kind, "apiVersion": GROUP_VERSION, "metadata": metadata,
        "timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "window": format!("{seconds:.3}s"),
    })
}

fn node_metrics(node: &Node, looks: &Looks) -> Value {
    let mut metrics = described("NodeMetrics", node.name_any(), None, node.labels(), looks);
    metrics["usage"] = used(Some(&looks.before.node), &looks.now.node, elapsed(looks.before.at, looks.now.at));
    metrics
}

/// None for a pod that has no processes here.
fn pod_metrics(pod: &Pod, looks: &Looks) -> Option<Value> {
    let uid = pod.metadata.uid.as_deref()?;
    let now = looks.now.pods.get(uid)?;
    // The containers of a pod share one cgroup here; it is told as the first one's.
    let container = pod.spec.as_ref()?.containers.first()?.name.clone();
    let usage = used(looks.before.pods.get(uid), now, elapsed(looks.before.at, looks.now.at));
    let mut metrics = described("PodMetrics", pod.name_any(), pod.namespace(), pod.labels(), looks);
    metrics["containers"] = json!([{ "name": container, "usage": usage }]);
    Some(metrics)
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, status)
}

fn respond(code: StatusCode, answer: &Value) -> Response<Body> {
    let body = Full::new(bytes::Bytes::from(answer.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_upstreams() {
        let root = "/apis/metrics.k8s.io/v1beta1";
        for (path, expected) in [
            ("", Some(Asked::Resources)),
            ("/nodes", Some(Asked::Nodes { name: None })),
            ("/nodes/a", Some(Asked::Nodes { name: Some("a") })),
            ("/pods", Some(Asked::Pods { namespace: None, name: None })),
            ("/namespaces/n/pods", Some(Asked::Pods { namespace: Some("n"), name: None })),
            ("/namespaces/n/pods/p", Some(Asked::Pods { namespace: Some("n"), name: Some("p") })),
            ("/secrets", None),
        ] {
            assert_eq!(Asked::parse(&format!("{root}{path}")), expected, "{path}");
        }
        assert_eq!(Asked::parse("/apis/other/v1beta1/nodes"), None);
    }

    fn looks() -> Looks {
        let at = Instant::now();
        let of = |cpu, memory| Used { cpu_nanos: cpu, memory_bytes: memory };
        let snapshot = |at, node, pod| Snapshot { at, node, pods: BTreeMap::from([("u".to_owned(), pod)]) };
        Looks {
            before: snapshot(at, of(1_000_000_000, 0), of(0, 0)),
            now: snapshot(at + Duration::from_secs(2), of(4_000_000_000, 1 << 30), of(500_000_000, 1 << 20)),
        }
    }

    #[test]
    fn what_is_used_is_told_in_upstreams_form() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "compute" }] },
        }))
        .unwrap();
        let told = pod_metrics(&pod, &looks()).unwrap();
        assert_eq!(
            told["containers"],
            json!([{ "name": "compute", "usage": { "cpu": "250000000n", "memory": "1024Ki" } }])
        );
        assert_eq!((&told["metadata"]["namespace"], &told["metadata"]["labels"]["a"]), (&json!("n"), &json!("b")));
        assert_eq!(told["window"], "2.000s");
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "m" } })).unwrap();
        assert_eq!(node_metrics(&node, &looks())["usage"], json!({ "cpu": "1500000000n", "memory": "1048576Ki" }));
        let mut gone = pod;
        gone.metadata.uid = Some("other".into());
        assert!(pod_metrics(&gone, &looks()).is_none());
    }

    #[test]
    fn readers_of_pods_may_read_what_they_use() {
        let objects = objects();
        let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
        assert_eq!(role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    }
}
