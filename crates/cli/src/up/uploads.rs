//! The upload proxy of this host, and the API group that gives out its tokens.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use ferrovirt_apiserver::{ApiServer, Body, ServingCertificate};
use ferrovirt_cdi::upload::{Key, Uploads, proxy_url};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{objects::UPLOAD_SERVICE, services::NAMESPACE};

const MAX_REQUEST: usize = 1 << 20;

/// With whose rights uploads are served, and the key that signs their tokens.
pub struct Clients {
    pub proxy: Client,
    pub up: Client,
    pub key: Key,
}

/// Starts to take uploads on a port of its own, and says in the CDIConfig where.
pub async fn start(
    api: &ApiServer,
    clients: Clients,
    address: IpAddr,
    certificate: &ServingCertificate,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Clients { proxy, up, key } = clients;
    let uploads = Arc::new(Uploads::with_key(proxy, tokio::sync::watch::channel(key).1));
    let handler = uploads.clone();
    api.register_in_process(
        NAMESPACE,
        UPLOAD_SERVICE,
        Arc::new(move |request| {
            let uploads = handler.clone();
            Box::pin(async move {
                let (parts, body) = request.into_parts();
                let Some(body) = read(body).await else {
                    return respond(StatusCode::PAYLOAD_TOO_LARGE, &json!({}));
                };
                let (status, answer) = uploads.api(&parts.method, parts.uri.path(), &body).await;
                respond(status, &answer)
            })
        }),
    );
    let listener = TcpListener::bind((address, 0)).await.context("cannot listen for uploads")?;
    let url = match address.is_unspecified() {
        // What listens everywhere is reached where the node is, and its certificate says so.
        true => {
            let place = SocketAddr::new(ferrovirt_node_lite::detect_node_ip(), listener.local_addr()?.port());
            format!("https://{place}")
        }
        false => proxy_url(&listener)?,
    };
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "CDIConfig"),
        "cdiconfigs",
    );
    let configs = Api::<DynamicObject>::all_with(up, &kind);
    let patch = json!({ "status": { "uploadProxyURL": url } });
    configs
        .patch("config", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .context("cannot say where uploads go")?;
    let tls = server_config(certificate)?;
    tokio::spawn(uploads.serve(listener, Uploads::limits(), move || tls.clone(), shutdown));
    Ok(())
}

/// The whole body, unless it is larger than any request for a token.
async fn read(mut body: Body) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(frame.ok()?.data_ref()?);
        if bytes.len() > MAX_REQUEST {
            return None;
        }
    }
    Some(bytes)
}

fn server_config(certificate: &ServingCertificate) -> Result<Arc<rustls::ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate.clone()));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn respond(status: StatusCode, answer: &Value) -> Response<Body> {
    let body = Full::new(bytes::Bytes::from(answer.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
