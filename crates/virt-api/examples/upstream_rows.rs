//! Answers upstream's unit tests with our code: `scripts/upstream-rows.sh` builds those with functions that ask this program.
//!
//! A question is a line of JSON on standard input, its answer a line on standard output: what a launcher pod looks like, or what a webhook
//! says. The objects of the cluster come with the question.

use std::{
    collections::BTreeSet,
    io::{BufRead, Write},
    sync::Arc,
};

use anyhow::{Context, Result};
use ferrovirt_api::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstanceSpec};
use ferrovirt_machine::{node_call::NodeCall, protocol::ProtocolError};
use ferrovirt_plan::{
    auto_limits, kept_state, pod,
    storage::{Claim, Storage, Waiting},
};
use ferrovirt_virt_api::{Body, BoxError, BoxStream, Nodes, StreamKind, VirtApi, validate};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, ResourceQuota};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    kubevirt: KubeVirt,
    /// What else is in the cluster.
    #[serde(default)]
    objects: Vec<Value>,
    /// An instance whose pod is asked for.
    vmi: Option<VirtualMachineInstance>,
    #[serde(default)]
    launcher_image: String,
    /// Upstream's figure of the memory around the guest. Ours is another on purpose, and the rows are about what is done with it.
    overhead: Option<u64>,
    /// A spec whose own rules are asked for, and where it stands.
    spec: Option<VirtualMachineInstanceSpec>,
    #[serde(default)]
    path: String,
    /// A webhook, and what it is asked.
    #[serde(default)]
    hook: String,
    #[serde(default)]
    review: Value,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str::<Question>(&line?).context("the question") {
            Ok(Question { vmi: Some(vmi), kubevirt, objects, launcher_image, overhead, .. }) => {
                render(&vmi, &kubevirt, &objects, launcher_image, overhead)
            }
            Ok(Question { spec: Some(spec), path, kubevirt, .. }) => {
                let causes = validate::spec(&spec, &path, &validate::Cluster(&kubevirt.spec.configuration));
                let told = causes
                    .iter()
                    .map(|one| json!({ "reason": one.reason, "field": one.field, "message": one.message }));
                Ok(json!({ "causes": told.collect::<Vec<Value>>() }))
            }
            Ok(question) => runtime.block_on(admit(question)),
            Err(error) => Err(error),
        };
        let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// The objects of a kind, in a namespace.
fn of_kind<T: serde::de::DeserializeOwned>(objects: &[Value], kind: &str, namespace: &str) -> Result<Vec<T>> {
    let found = objects.iter().filter(|object| object["kind"] == kind);
    let found = found.filter(|object| object["metadata"]["namespace"].as_str().unwrap_or(namespace) == namespace);
    found.map(|object| serde_json::from_value(object.clone()).with_context(|| kind.to_owned())).collect()
}

/// As the controller does it, for an instance that went through admission.
fn render(
    vmi: &VirtualMachineInstance,
    kubevirt: &KubeVirt,
    objects: &[Value],
    launcher_image: String,
    overhead: Option<u64>,
) -> Result<Value> {
    let configuration = &kubevirt.spec.configuration;
    let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
    let claims: Vec<PersistentVolumeClaim> = of_kind(objects, "PersistentVolumeClaim", &namespace)?;
    let quotas: Vec<ResourceQuota> = of_kind(objects, "ResourceQuota", &namespace)?;
    let namespaces: Vec<Namespace> = of_kind(objects, "Namespace", "")?;
    let own = namespaces.iter().find(|one| one.metadata.name.as_ref() == Some(&namespace));
    let labels = own.and_then(|one| one.metadata.labels.clone()).unwrap_or_default();
    let limits =
        auto_limits::of(quotas.iter(), &labels, configuration.auto_cpu_limit_namespace_label_selector.as_ref());
    let known =
        claims.iter().map(|claim| (claim.metadata.name.clone().unwrap_or_default(), Claim::read(claim, None, None)));
    let storage = Storage { claims: known.collect(), ..Storage::default() };
    if let Some(Waiting::Missing(claim)) = storage.waiting(&vmi.spec) {
        return Ok(json!({ "missing": claim }));
    }
    let block = storage.claims.iter().filter(|(_, claim)| claim.block);
    let block_claims: BTreeSet<String> = block.map(|(name, _)| name.clone()).collect();
    let developer = configuration.developer_configuration.clone().unwrap_or_default();
    let image_volumes = ferrovirt_plan::cluster_defaults::feature_gate(configuration, "ImageVolume");
    let mut config = pod::Config {
        copy_images_with: (!image_volumes).then(|| launcher_image.clone()),
        launcher_image,
        allow_emulation: developer.use_emulation,
        auto_cpu_limit: limits.cpu,
        auto_memory_limit: limits.memory,
        block_claims,
        state_claim: kept_state::find(vmi, &claims).and_then(|claim| claim.metadata.name.clone()),
        pull_secrets: kubevirt.spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
        ..pod::Config::configured(configuration)
    };
    if let Some(theirs) = overhead {
        let ours = pod::memory_overhead(vmi, config.allow_emulation && !config.device_available);
        // Half a byte more, for what is cut off.
        config.overhead_ratio = Some(config.overhead_ratio.unwrap_or(1.0) * (theirs as f64 + 0.5) / ours as f64);
    }
    Ok(json!({ "pod": pod::render(vmi, &config) }))
}

async fn admit(question: Question) -> Result<Value> {
    let mut objects = question.objects;
    let mut kubevirt = serde_json::to_value(&question.kubevirt)?;
    (kubevirt["apiVersion"], kubevirt["kind"]) = (json!("kubevirt.io/v1"), json!("KubeVirt"));
    objects.push(kubevirt);
    let objects = Arc::new(objects);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| serve(objects.clone(), request));
    let api = VirtApi::new(Client::new(service, "default"), Arc::new(Nowhere));
    let body = Full::from(question.review.to_string()).map_err(|never| match never {}).boxed_unsync();
    let request = Request::post(format!("/{}", question.hook)).body(body)?;
    let answer = api.handle(request).await.into_body().collect().await.map_err(anyhow::Error::from_boxed)?;
    Ok(serde_json::from_slice(&answer.to_bytes())?)
}

/// A cluster that has these objects and lets everybody do everything.
async fn serve(objects: Arc<Vec<Value>>, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
    let uri = request.uri().clone();
    let query = uri.query().unwrap_or_default().to_owned();
    if query.contains("watch=true") {
        std::future::pending::<()>().await;
    }
    if request.method() != http::Method::GET {
        let mut object: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
        object["status"] = json!({ "allowed": true });
        return answer(200, &object);
    }
    let segments: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let (version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] => ((*version).to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => (String::new(), &[][..]),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
        rest => (None, rest),
    };
    let plural = rest.first().copied().unwrap_or_default();
    let found = objects.iter().filter(|object| {
        object["apiVersion"] == version
            && object["kind"].as_str().is_some_and(|kind| format!("{}s", kind.to_lowercase()) == plural)
            && namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
    });
    match rest {
        [_, name, ..] => match found.clone().find(|object| object["metadata"]["name"] == *name) {
            Some(object) => answer(200, object),
            None => {
                let message = format!("{plural} \"{name}\" not found");
                let status = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": message });
                answer(404, &status)
            }
        },
        _ => {
            let items: Vec<&Value> = found.collect();
            answer(200, &json!({ "metadata": { "resourceVersion": "1" }, "items": items }))
        }
    }
}

fn answer(code: u16, object: &Value) -> Result<Response<Body>, BoxError> {
    let body = Full::from(object.to_string()).map_err(|never| match never {}).boxed_unsync();
    Ok(Response::builder().status(code).header("content-type", "application/json").body(body)?)
}

/// No guest runs here.
struct Nowhere;

impl Nodes for Nowhere {
    fn open(&self, _: VirtualMachineInstance, _: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>> {
        Box::pin(async { Err("no node".into()) })
    }

    fn call(&self, _: VirtualMachineInstance, _: NodeCall) -> BoxFuture<'static, Result<bytes::Bytes, ProtocolError>> {
        Box::pin(std::future::pending())
    }
}
