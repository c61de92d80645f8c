//! The way of every request: recover, authenticate, impersonate, authorize, route.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrovirt_schema::names;
use ferrovirt_serve::{Guest, TooMany};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body as _;
use serde_json::json;

use crate::aggregation::{self, Route};
use crate::audit::Record;
use crate::authn::{AUTHENTICATED, User};
use crate::authz::{Attributes, On};
use crate::http::body::{self, Body};
use crate::http::negotiate;
use crate::http::request::{Query, RequestInfo};
use crate::http::serve::Draining;
use crate::rest::{self, Call};
use crate::server::{self, Server};
use crate::status::ApiError;
use crate::tokens::{self, ISSUER};
use crate::{discovery, fairness, front_proxy, openapi};

/// What Go's server says of a path that nobody serves.
const NOT_FOUND: &str = "404 page not found\n";

/// Boxed: controllers that run inside the pipeline's tasks call it again.
pub fn handle(server: Arc<Server>, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
    Box::pin(async move {
        let path = request.uri().path().to_owned();
        let query = Query::parse(request.uri());
        let info = RequestInfo::parse(request.method(), request.uri(), &query);
        let mut record = server.audit.begin(request.method(), request.uri(), request.headers(), &info);
        let answer = AssertUnwindSafe(run(server.clone(), request, query, info, &mut record)).catch_unwind().await;
        let response = match answer {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => body::error(&error),
            Err(_) => {
                tracing::error!(path, "a request handler panicked");
                body::error(&ApiError::internal("the request could not be handled; the log of the server says more"))
            }
        };
        let response = server.audit.look(&mut record, response).await;
        server.audit.end(record, &response);
        response
    })
}

async fn run(
    server: Arc<Server>,
    mut request: Request<Body>,
    query: Query,
    info: RequestInfo,
    record: &mut Option<Record>,
) -> Result<Response<Body>, ApiError> {
    let asking = authenticate(&server, &mut request)?;
    if let Some(record) = record {
        record.user(&asking, &asking);
    }
    introduce(&request, &asking)?;
    let guest = request.extensions().get::<Guest>().cloned();
    let Some(flow) = fairness::flow(&asking, guest.as_ref(), &info) else {
        return act(server, asking, request, query, info, record).await;
    };
    let turn = server.fairness.enter(flow, width(&server, &info, &query, &request)).await?;
    let upgrade = match guest.filter(|_| request.headers().contains_key(header::UPGRADE)) {
        Some(guest) => Some((turn.stream()?, guest)),
        None => None,
    };
    let response = act(server, asking, request, query, info, record).await?;
    turn.follow(response, upgrade)
}

/// What a request counts for: a list for as many as it may have to read, and a large body for what it may hold while it arrives.
fn width(server: &Server, info: &RequestInfo, query: &Query, request: &Request<Body>) -> usize {
    match &info.target {
        Some(target) if matches!(info.verb, "list" | "deletecollection") => {
            let all = match target.group.as_str() {
                "" => server.store.count(&target.resource),
                group => server.store.count(&format!("{group}/{}", target.resource)),
            };
            let limit = query.get("limit").parse().ok().filter(|limit| *limit > 0);
            server.fairness.width(limit.map_or(all, |limit: usize| limit.min(all)))
        }
        _ if request.body().size_hint().exact().is_none_or(|length| length > body::FREE as u64) => fairness::LARGE_BODY,
        _ => 1,
    }
}

/// What somebody asks for whose turn it is.
async fn act(
    server: Arc<Server>,
    asking: User,
    request: Request<Body>,
    query: Query,
    info: RequestInfo,
    record: &mut Option<Record>,
) -> Result<Response<Body>, ApiError> {
    let request = server.audit.decide(record, &asking, &info, request).await?;
    let known = record.is_some().then(|| asking.clone());
    let user = impersonate(&server, asking, request.headers())?;
    if let (Some(record), Some(asking)) = (record, known) {
        record.user(&asking, &user);
    }
    server.rbac.authorize(&server.store, Attributes::of(&user, &info))?;
    if let Some(route) = delegate(&server, &info) {
        return Ok(aggregation::forward(&server, &route, user, request).await);
    }
    match info.target {
        None if !matches!(info.verb, "get" | "head") => Err(ApiError::method_not_allowed()),
        None => plain(&server, &user, &info.path, request.headers()).await,
        Some(_) if request.method() == http::Method::HEAD => Err(ApiError::method_not_allowed()),
        Some(_) => resource(server, user, info, query, request).await,
    }
}

/// A user that came with the connection or the caller, or a token. Credentials that nobody vouched for are refused.
fn authenticate(server: &Server, request: &mut Request<Body>) -> Result<User, ApiError> {
    // Nobody behind this server has to see the credential.
    let credential = request.headers_mut().remove(header::AUTHORIZATION);
    if let Some(user) = request.extensions_mut().remove::<User>() {
        return Ok(user.authenticated());
    }
    let Some(credential) = credential else {
        return Ok(User::anonymous());
    };
    let token = credential
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .filter(|token| token.len() <= tokens::MAX_TOKEN)
        .ok_or_else(ApiError::unauthorized)?;
    if let Some(user) = server.static_tokens.find(token) {
        return Ok(user.clone());
    }
    // A stranger's token has to be checked at some cost, before there is anybody whose share that would be.
    let stranger = request.extensions().get::<Guest>().map(Guest::address).filter(|_| !server.tokens.knows(token));
    if stranger.is_some_and(|address| !server.attempts.may_try(address, Instant::now())) {
        return Err(ApiError::too_many_requests(
            "too many wrong bearer tokens from this address, please try again later",
        ));
    }
    let now = jiff::Timestamp::now().as_second();
    match server.tokens.check(&server.store, token, &[ISSUER.to_owned()], now) {
        Ok((user, _)) => {
            if let Some(address) = stranger {
                server.attempts.was_right(address);
            }
            Ok(user)
        }
        Err(error) => {
            tracing::debug!(%error, "a bearer token was refused");
            Err(ApiError::unauthorized())
        }
    }
}

/// Tells the listener whose connection this is: what a stranger may hold is less.
fn introduce(request: &Request<Body>, asking: &User) -> Result<(), ApiError> {
    match request.extensions().get::<Guest>().filter(|guest| !guest.is_known()) {
        Some(guest) if asking.in_group(AUTHENTICATED) => guest
            .known(&asking.name)
            .map_err(|TooMany| ApiError::too_many_requests("too many connections of one user, please try again later")),
        _ => Ok(()),
    }
}

/// `Impersonate-User` and its companions, each of which needs the verb `impersonate`.
fn impersonate(server: &Server, user: User, headers: &HeaderMap) -> Result<User, ApiError> {
    let value = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let Some(name) = value("impersonate-user") else {
        if headers.keys().any(|k| k.as_str().starts_with("impersonate-")) {
            return Err(ApiError::bad_request("impersonation of groups, uid or extra needs a user"));
        }
        return Ok(user);
    };
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let on = On::Resource { group, resource, subresource, namespace, name };
        server.rbac.authorize(&server.store, Attributes { user: &user, verb: "impersonate", on })
    };
    let mut acting = User { name: name.clone(), ..User::default() };
    match service_account(&name) {
        Some((namespace, account)) => {
            check("", "serviceaccounts", "", namespace, account)?;
            acting.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        }
        None => check("", "users", "", "", &name)?,
    }
    let groups: Vec<String> =
        headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok().map(str::to_owned)).collect();
    for group in &groups {
        check("", "groups", "", "", group)?;
    }
    if !groups.is_empty() {
        acting.groups = groups;
    }
    if let Some(uid) = value("impersonate-uid") {
        check("authentication.k8s.io", "uids", "", "", &uid)?;
        acting.uid = Some(uid);
    }
    for (header, value) in headers {
        if let (Some(key), Ok(value)) = (header.as_str().strip_prefix("impersonate-extra-"), value.to_str()) {
            let key = front_proxy::unescaped(key);
            check("authentication.k8s.io", "userextras", &key, "", value)?;
            acting.extra.entry(key).or_default().push(value.to_owned());
        }
    }
    if acting.name != "system:anonymous" && !acting.in_group(AUTHENTICATED) {
        acting.groups.push(AUTHENTICATED.to_owned());
    }
    Ok(acting)
}

/// Namespace and name of the account whose user name this is. A name that only looks like one is that of a plain user.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty()).then_some((namespace, name))
}

/// The delegated group version that a path belongs to.
fn delegate(server: &Server, info: &RequestInfo) -> Option<Route> {
    let (group, version) = match &info.target {
        Some(target) => (target.group.as_str(), target.version.as_str()),
        None => {
            let mut parts = info.path.split('/').filter(|p| !p.is_empty());
            if parts.next() != Some("apis") {
                return None;
            }
            (parts.next()?, parts.next()?)
        }
    };
    if group.is_empty() {
        return None;
    }
    server.aggregation.find(server, group, version)
}

/// Everything that is not a resource.
async fn plain(server: &Arc<Server>, user: &User, path: &str, headers: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match first {
        "healthz" | "livez" | "readyz" if server.stop.is_cancelled() => {
            Ok(body::text(StatusCode::INTERNAL_SERVER_ERROR, "shutting down"))
        }
        "healthz" | "livez" | "readyz" => match path.trim_matches('/').split_once('/') {
            None | Some((_, "ping" | "log" | "etcd")) => Ok(body::text(StatusCode::OK, "ok")),
            Some(_) => Ok(body::text(StatusCode::NOT_FOUND, NOT_FOUND)),
        },
        "version" => Ok(body::json(StatusCode::OK, &version())),
        "metrics" => Ok(metrics(server).await),
        "openapi" => openapi::handle(server, path, headers).await,
        ".well-known" | "openid" => match (path.trim_end_matches('/'), server.tokens.keys()) {
            ("/.well-known/openid-configuration", Some(_)) => Ok(body::json(StatusCode::OK, &tokens::discovery())),
            ("/openid/v1/jwks", Some(keys)) => {
                Ok(body::respond(StatusCode::OK, "application/jwk-set+json", keys.to_string()))
            }
            _ => Err(ApiError::no_route()),
        },
        "" => Ok(body::json(
            StatusCode::OK,
            &json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/readyz", "/version", "/.well-known/openid-configuration"]}),
        )),
        _ => match discovery::handle(server, user, path, headers).await {
            Some(answer) => answer,
            None if is_of_ours(server, path) => Err(ApiError::no_route()),
            None => Ok(body::text(StatusCode::NOT_FOUND, NOT_FOUND)),
        },
    }
}

/// A version that a group of this server's own does not have.
fn is_of_ours(server: &Server, path: &str) -> bool {
    match path.split('/').filter(|p| !p.is_empty()).collect::<Vec<_>>().as_slice() {
        ["api", _] => true,
        ["apis", group, _] => server.registry.snapshot().iter().any(|r| r.group == *group && !r.custom),
        _ => false,
    }
}

fn version() -> serde_json::Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": server::VERSION, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
    })
}

async fn metrics(server: &Server) -> Response<Body> {
    let mut text = String::from(
        "# HELP apiserver_storage_objects Number of stored objects by resource.\n# TYPE apiserver_storage_objects gauge\n",
    );
    for resource in server.store.resources() {
        text.push_str(&format!(
            "apiserver_storage_objects{{resource=\"{resource}\"}} {}\n",
            server.store.count(&resource)
        ));
    }
    let stats = server.store.stats();
    text.push_str(&format!(
        "# TYPE apiserver_storage_size_bytes gauge\napiserver_storage_size_bytes {}\n",
        stats.log_bytes
    ));
    text.push_str(&format!(
        "# HELP apiserver_storage_history_bytes Past states that are kept for lists in chunks.\n# TYPE apiserver_storage_history_bytes gauge\napiserver_storage_history_bytes {}\n",
        stats.history_bytes
    ));
    text.push_str(&format!(
        "# TYPE apiserver_registered_watchers gauge\napiserver_registered_watchers {}\n",
        stats.watchers
    ));
    let more = server.more_metrics.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    for more in more {
        text.push_str(&more().await);
    }
    body::respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

/// A request to a resource of the registry.
async fn resource(
    server: Arc<Server>,
    user: User,
    info: RequestInfo,
    query: Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Some(target) = info.target else {
        return Err(ApiError::no_route());
    };
    let snapshot = server.registry.snapshot();
    let found = snapshot.find(&target.group, &target.resource).filter(|r| r.version(&target.version).is_some());
    let Some(resource) = found.cloned() else {
        return Err(ApiError::no_route());
    };
    let wrong_scope = !resource.namespaced && target.namespace.is_some() && target.resource != "namespaces";
    if wrong_scope {
        return Err(ApiError::no_route());
    }
    if let Some(subresource) = &target.subresource {
        if let Some(handler) = server.subresource(&target.group, &target.resource, subresource) {
            let mut request = request;
            request.extensions_mut().insert(user);
            return Ok(handler(request).await);
        }
        let version = resource.version(&target.version);
        if !version.is_some_and(|v| v.has_subresource(subresource)) {
            return Err(ApiError::no_route());
        }
    }
    let (parts, request_body) = request.into_parts();
    let accept = negotiate::accept(&parts.headers, !resource.custom)?;
    if resource.is_virtual() && accept.shape != negotiate::Shape::Object {
        return Err(ApiError::not_acceptable(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ));
    }
    let stop = parts.extensions.get::<Draining>().map_or_else(|| server.stop.clone(), |d| d.0.clone());
    let call = Call {
        server,
        user,
        verb: info.verb,
        target,
        resource,
        query,
        headers: parts.headers,
        accept,
        stop,
        warnings: Mutex::default(),
        annotations: Mutex::default(),
    };
    Ok(rest::handle(call, request_body).await)
}
