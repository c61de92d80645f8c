//! Uploads, by upstream's protocol: a token from the API, then the image to the upload proxy, which hands it to the importer of the
//! claim. Tokens are signed, name one claim, and are good for minutes.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use ferrovirt_api::cdi::{UploadTokenRequest, names};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::job::{From, PORT, UPLOAD_FILE, UPLOAD_OFFSET};
use crate::plan::{job_of, pod_name};
pub use crate::token::Key;
use crate::token::{Claims, judge, now};

const API: &str = "/apis/upload.cdi.kubevirt.io/v1beta1";
const PROXY: &str = "/v1beta1/upload";

/// Gives out tokens and takes uploads.
pub struct Uploads {
    client: Client,
    key: watch::Receiver<Key>,
}

impl Uploads {
    /// Tokens are good for all that have this key, as long as they do.
    pub fn with_key(client: Client, key: watch::Receiver<Key>) -> Self {
        Self { client, key }
    }

    /// Answers for the API group of upload tokens. Who may ask is decided before.
    pub async fn api(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        if path == API && method == Method::GET {
            return (StatusCode::OK, resources());
        }
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let ["apis", _, _, "namespaces", namespace, "uploadtokenrequests"] = segments.as_slice() else {
            return refuse(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        };
        if method != Method::POST {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "upload tokens can only be created");
        }
        let Ok(mut asked) = serde_json::from_slice::<UploadTokenRequest>(body) else {
            return refuse(StatusCode::BAD_REQUEST, "BadRequest", "the body is not an UploadTokenRequest");
        };
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        let uid = match claims.get_opt(&asked.spec.pvc_name).await {
            Ok(Some(claim)) => claim.uid().unwrap_or_default(),
            Ok(None) => {
                let message = format!("persistentvolumeclaims {:?} not found", asked.spec.pvc_name);
                return refuse(StatusCode::NOT_FOUND, "NotFound", &message);
            }
            Err(error) => {
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &ferrovirt_api::chain(&error));
            }
        };
        asked.status.token = self.key.borrow().sign(namespace, &asked.spec.pvc_name, &uid);
        asked.metadata.namespace = Some((*namespace).to_owned());
        if asked.metadata.name.is_none() {
            asked.metadata.name = asked.metadata.generate_name.take().map(|prefix| format!("{prefix}{}", now()));
        }
        (StatusCode::CREATED, serde_json::to_value(&asked).unwrap_or_default())
    }

    /// Takes uploads until `shutdown`. Certificates change, so each connection asks for its own.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: impl Fn() -> tokio_rustls::TlsAcceptor,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let (uploads, tls) = (self.clone(), tls());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let uploads = uploads.clone();
                    async move { Ok::<_, Infallible>(uploads.take(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(%error, "an upload's connection ended");
                }
            });
        }
    }

    async fn take(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let say = |status: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            response
        };
        if !request.uri().path().starts_with(PROXY) {
            return say(StatusCode::NOT_FOUND, "there is nothing here\n".to_owned());
        }
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        let public = self.key.borrow().public();
        let Some(claims) = token.and_then(|token| judge(&public, token)) else {
            return say(StatusCode::UNAUTHORIZED, "the token is not valid, or not any more\n".to_owned());
        };
        if request.method() == Method::HEAD && !request.headers().contains_key(UPLOAD_FILE) {
            return say(StatusCode::OK, String::new());
        }
        match self.forward(&claims, request).await {
            Ok(response) => response,
            Err(Refusal::Unready(why)) => say(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            Err(Refusal::Broken(error)) => say(StatusCode::BAD_GATEWAY, format!("{error}\n")),
        }
    }

    async fn forward(&self, claims: &Claims, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        let unready = |why: &str| Refusal::Unready(why.to_owned());
        let broken = |error: &dyn std::error::Error| Refusal::Broken(ferrovirt_api::chain(error));
        let held = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claims.namespace);
        let claim = held.get_opt(&claims.name).await.map_err(|error| broken(&error))?;
        let claim = claim.filter(|claim| claim.uid().as_ref() == Some(&claims.uid));
        let claim = claim.ok_or_else(|| unready("the claim is gone"))?;
        let owner = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume");
        let owner = owner.map(|owner| owner.uid.clone()).or(claim.uid()).unwrap_or_default();
        let pods = Api::<Pod>::namespaced(self.client.clone(), &claims.namespace);
        let pod = pods.get_opt(&pod_name(&claims.name, &owner)).await.map_err(|error| broken(&error))?;
        let pod = pod.ok_or_else(|| unready("the claim does not wait for an upload"))?;
        // A pod of the name that is not the claim's is somebody else's, and gets nothing.
        let made = pod.owner_references().iter().any(|reference| reference.uid == owner);
        let waits = matches!(job_of(&pod).map(|job| job.from), Some(From::Upload { claim, .. }) if claim == claims.uid);
        if !made || !waits {
            return Err(unready("the claim does not wait for an upload"));
        }
        let address =
            pod.status.and_then(|status| status.pod_ip).ok_or_else(|| unready("the importer is not ready"))?;
        let stream = TcpStream::connect((address.as_str(), PORT)).await.map_err(|error| broken(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        tokio::spawn(connection);
        // The importer judges the token itself: it has the public key.
        let passed: Vec<_> = [AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HeaderName::from_static(UPLOAD_FILE)]
            .into_iter()
            .filter_map(|name| request.headers().get(&name).cloned().map(|value| (name, value)))
            .collect();
        let asks = request.method() == Method::HEAD;
        let mut inner = Request::new(request.into_body());
        *inner.method_mut() = if asks { Method::HEAD } else { Method::POST };
        *inner.uri_mut() = http::Uri::from_static(PROXY);
        let headers = inner.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("importer"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.extend(passed);
        let response = sender.send_request(inner).await.map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = parts.status;
        let offset = parts.headers.get(UPLOAD_OFFSET).cloned();
        response.headers_mut().extend(offset.map(|offset| (HeaderName::from_static(UPLOAD_OFFSET), offset)));
        Ok(response)
    }
}

enum Refusal {
    Unready(String),
    Broken(String),
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{}/v1beta1", names::UPLOAD_GROUP),
        "resources": [{
            "name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
            "kind": "UploadTokenRequest", "verbs": ["create"], "shortNames": ["utr", "utrs"],
        }],
    })
}

fn refuse(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code.as_u16(),
    });
    (code, status)
}

/// A listener's address as clients should use it.
pub fn proxy_url(listener: &TcpListener) -> io::Result<String> {
    Ok(format!("https://{}", listener.local_addr()?))
}
