//! `kubectl logs` of a launcher pod: what it wrote, from the node's own files.

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use ferrovirt_apiserver::{ApiServer, Body, Query};
use ferrovirt_node_lite::{LogOptions, LogReader};
use futures::{StreamExt as _, stream};
use http::{Response, StatusCode, Uri};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::{api::core::v1::Pod, jiff::SignedDuration, jiff::Timestamp};
use kube::{Api, Client};
use serde_json::{Value, json};

/// How long a line may take to a client that follows.
const POLL: Duration = Duration::from_millis(200);
/// How often one that follows asks whether the pod is still there.
const ALIVE: u32 = 10;

/// Registers the `log` subresource of pods.
pub fn register(api: &ApiServer, client: Client, data_dir: PathBuf) {
    api.register_subresource(
        "",
        "pods",
        "log",
        Arc::new(move |request| {
            let (client, data_dir, uri) = (client.clone(), data_dir.clone(), request.uri().clone());
            Box::pin(async move { answer(client, data_dir, &uri).await.unwrap_or_else(Refusal::respond) })
        }),
    );
}

/// Why there is no log to see, as the API says it.
struct Refusal {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
}

impl Refusal {
    fn bad(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into(), details: None }
    }

    fn internal(error: impl std::fmt::Display) -> Self {
        let (code, message) = (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the log: {error}"));
        Self { code, reason: "InternalError", message, details: None }
    }

    fn no_pod(name: &str) -> Self {
        let message = format!("pods \"{name}\" not found");
        let details = Some(json!({"kind": "pods", "name": name}));
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message, details }
    }

    fn respond(self) -> Response<Body> {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code.as_u16(),
        });
        if let Some(details) = self.details {
            status["details"] = details;
        }
        let body = Full::new(status.to_string().into()).map_err(|never| match never {}).boxed_unsync();
        response(self.code, "application/json", body)
    }
}

/// What a client asks for.
struct Asked {
    container: Option<String>,
    options: LogOptions,
}

impl Asked {
    fn parse(query: &Query) -> Result<Self, Refusal> {
        let seconds = value::<i64>(query, "sinceSeconds")?;
        let time = value::<Timestamp>(query, "sinceTime")?;
        if seconds.is_some() && time.is_some() {
            return Err(Refusal {
                code: StatusCode::UNPROCESSABLE_ENTITY,
                reason: "Invalid",
                message: "PodLogOptions \"\" is invalid: sinceTime: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified".into(),
                details: None,
            });
        }
        let ago = seconds.and_then(|s| Timestamp::now().checked_sub(SignedDuration::from_secs(s)).ok());
        let options = LogOptions {
            tail_lines: value(query, "tailLines")?,
            since: time.or(ago),
            limit_bytes: value(query, "limitBytes")?,
            timestamps: query.flag("timestamps"),
            follow: query.flag("follow"),
        };
        Ok(Self { container: value(query, "container")?, options })
    }
}

fn value<T: FromStr>(query: &Query, key: &str) -> Result<Option<T>, Refusal> {
    match query.get(key) {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| Refusal::bad(format!("{key}: Invalid value: {text:?}"))),
    }
}

async fn answer(client: Client, data_dir: PathBuf, uri: &Uri) -> Result<Response<Body>, Refusal> {
    let segments: Vec<&str> = uri.path().split('/').filter(|s| !s.is_empty()).collect();
    let ["api", "v1", "namespaces", namespace, "pods", name, "log"] = segments.as_slice() else {
        return Err(Refusal::bad("no such log"));
    };
    let asked = Asked::parse(&Query::parse(uri))?;
    let pods = Api::<Pod>::namespaced(client, namespace);
    let pod = pods.get_opt(name).await.map_err(Refusal::internal)?.ok_or_else(|| Refusal::no_pod(name))?;
    let spec = pod.spec.unwrap_or_default();
    // Those that run beside the others have a log as well.
    let containers: Vec<_> = spec.containers.into_iter().chain(spec.init_containers.into_iter().flatten()).collect();
    let container = match asked.container {
        Some(container) => container,
        None => containers.first().map(|c| c.name.clone()).unwrap_or_default(),
    };
    if !containers.iter().any(|c| c.name == container) {
        return Err(Refusal::bad(format!("container {container} is not valid for pod {name}")));
    }
    let uid = pod.metadata.uid.unwrap_or_default();
    let follow = asked.options.follow;
    let open = {
        let uid = uid.clone();
        move || LogReader::open(&data_dir, &uid, &container, &asked.options)
    };
    let reader = match tokio::task::spawn_blocking(open).await.map_err(Refusal::internal)? {
        Ok(reader) => Some(reader),
        // Nothing was written yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Refusal::internal(error)),
    };
    let body = match reader {
        None => Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync(),
        Some(reader) => {
            let follows = follow.then(|| (pods, (*name).to_owned(), uid));
            let pieces = pieces(reader, follows).map(|bytes| Ok(Frame::data(bytes)));
            StreamBody::new(pieces.boxed()).boxed_unsync()
        }
    };
    Ok(response(StatusCode::OK, "text/plain", body))
}

/// The log a piece at a time, as fast as it is taken; where it is followed, until the pod has ended or is another one.
fn pieces(reader: LogReader, follows: Option<(Api<Pod>, String, String)>) -> impl stream::Stream<Item = Bytes> {
    stream::unfold(Some((reader, 0_u32, follows.is_none())), move |state| {
        let follows = follows.clone();
        async move {
            let (mut reader, mut looks, mut over) = state?;
            loop {
                // Asked before reading, so that the last words of one that ends are not missed.
                if let Some((pods, name, uid)) = follows.as_ref().filter(|_| !over && looks.is_multiple_of(ALIVE)) {
                    over = !is_alive(pods, name, uid).await;
                }
                looks = looks.wrapping_add(1);
                let read = tokio::task::spawn_blocking(move || {
                    let more = reader.more();
                    (more, reader)
                });
                let (more, after) = read.await.ok()?;
                reader = after;
                let more = Bytes::from(more.ok()?);
                let exhausted = reader.is_exhausted();
                if !more.is_empty() {
                    return Some((more, (!exhausted).then_some((reader, looks, over))));
                }
                if over || exhausted {
                    return None;
                }
                tokio::time::sleep(POLL).await;
            }
        }
    })
}

async fn is_alive(pods: &Api<Pod>, name: &str, uid: &str) -> bool {
    match pods.get_opt(name).await {
        Ok(Some(pod)) => {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            pod.metadata.uid.as_deref() == Some(uid) && !matches!(phase.as_str(), "Succeeded" | "Failed")
        }
        Ok(None) => false,
        // It may be: the next look tells.
        Err(_) => true,
    }
}

fn response(code: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_and_bad_ones_refused() {
        let parse = |query: &str| Asked::parse(&Query::parse(&format!("/log?{query}").parse().unwrap()));
        let asked = parse("container=c&tailLines=3&sinceTime=2026-01-01T00%3A00%3A00Z&follow=true").ok().unwrap();
        assert_eq!(asked.container.as_deref(), Some("c"));
        assert!(asked.options.follow && !asked.options.timestamps);
        assert_eq!(asked.options.tail_lines, Some(3));
        assert_eq!(asked.options.since.unwrap().as_second(), 1_767_225_600);
        for (query, code) in [
            ("tailLines=x", 400),
            ("limitBytes=-1", 400),
            ("sinceTime=yesterday", 400),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422),
        ] {
            assert_eq!(parse(query).err().map(|refusal| refusal.code.as_u16()), Some(code), "{query}");
        }
    }
}
