//! APIServices: group versions that somebody else serves, in this process or behind a Service.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use serde_json::Value;

use crate::authn::User;
use crate::front_proxy;
use crate::http::body::{self, Body};
use crate::http::outbound::Destination;
use crate::object::{self, at, text};
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::parse;

pub const STORAGE: &str = "apiregistration.k8s.io/apiservices";
/// How long a server behind an APIService may take to say what it serves.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
const AGGREGATOR: &str = "system:kube-aggregator";

/// One delegated group version.
#[derive(Debug, Clone)]
pub struct Route {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub service: String,
    destination: Destination,
    /// Nobody said yet that it does not answer.
    pub available: bool,
    pub group_priority: i64,
    pub version_priority: i64,
}

impl Route {
    /// Where the group version is served.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

/// By group and version.
type Routes = HashMap<(String, String), Route>;

#[derive(Debug, Default)]
pub struct Aggregation {
    routes: RwLock<Option<Arc<Routes>>>,
    /// Told when an APIService changes.
    pub changed: tokio::sync::Notify,
}

impl Aggregation {
    pub fn invalidate(&self) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_one();
    }

    pub fn find(&self, server: &Server, group: &str, version: &str) -> Option<Route> {
        self.load(server).get(&(group.to_owned(), version.to_owned())).cloned()
    }

    /// All delegated group versions, most preferred first.
    pub fn routes(&self, server: &Server) -> Vec<Route> {
        let mut routes: Vec<Route> = self.load(server).values().cloned().collect();
        routes.sort_by(|a, b| {
            (b.group_priority, &a.group, b.version_priority).cmp(&(a.group_priority, &b.group, a.version_priority))
        });
        routes
    }

    fn load(&self, server: &Server) -> Arc<Routes> {
        if let Some(routes) = &*self.routes.read().unwrap_or_else(PoisonError::into_inner) {
            return routes.clone();
        }
        let mut slot = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| {
            let list = server.store.list(STORAGE, None);
            let routes = list.items.iter().filter_map(|e| parse(e).ok()).filter_map(|o| route(&o));
            Arc::new(routes.map(|r| ((r.group.clone(), r.version.clone()), r)).collect())
        })
        .clone()
    }

    /// `Available`, as far as it can be known without asking anybody.
    pub fn set_condition(&self, server: &Server, api_service: &mut Value) {
        let Some(route) = route(api_service) else {
            let message = "Local APIServices are always available";
            return object::set_condition(api_service, "Available", "True", "Local", message);
        };
        if server.in_process(&route.namespace, &route.service).is_some() {
            object::set_condition(api_service, "Available", "True", "Passed", "all checks passed");
        } else if let Err(error) = route.destination.address(server) {
            object::set_condition(api_service, "Available", "False", error.reason(), &error.to_string());
        }
    }
}

fn route(api_service: &Value) -> Option<Route> {
    let spec = api_service.get("spec")?;
    let service = at(spec, &["service"]).filter(|s| s.is_object())?;
    Some(Route {
        group: text(spec, &["group"]).to_owned(),
        version: text(spec, &["version"]).to_owned(),
        namespace: text(service, &["namespace"]).to_owned(),
        service: text(service, &["name"]).to_owned(),
        destination: Destination::of_api_service(spec),
        available: object::condition(api_service, "Available").is_none_or(|c| c["status"] != "False"),
        group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
        version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
    })
}

/// Whether the server behind a route answers: the reason and the message of the condition if it does not.
pub async fn check(server: &Arc<Server>, route: &Route) -> Result<(), (&'static str, String)> {
    if server.in_process(&route.namespace, &route.service).is_some() {
        return Ok(());
    }
    let (address, port) = route.destination.address(server).map_err(|e| (e.reason(), e.to_string()))?;
    let user = User::new(AGGREGATOR, &["system:masters"]);
    let path = route.path();
    let answer = tokio::time::timeout(DISCOVERY_TIMEOUT, ask(server, route, &user, &path)).await;
    let why = match answer {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_) => "context deadline exceeded".to_owned(),
    };
    let url = format!("https://{address}:{port}{path}");
    Err(("FailedDiscoveryCheck", format!("failing or missing response from {url}: {why}")))
}

/// Hands a request to whoever serves its group version.
pub fn forward(
    server: &Arc<Server>,
    route: &Route,
    user: User,
    mut request: Request<Body>,
) -> BoxFuture<'static, Response<Body>> {
    if let Some(handler) = server.in_process(&route.namespace, &route.service) {
        request.extensions_mut().insert(user);
        return handler(request);
    }
    if !route.available {
        return Box::pin(std::future::ready(body::error(&ApiError::unavailable("service unavailable"))));
    }
    let (server, destination) = (server.clone(), route.destination.clone());
    Box::pin(async move {
        match front_proxy::pass_on(&server, &destination, &user, request).await {
            Ok(response) => response,
            Err(why) => body::error(&ApiError::unavailable(format!("error trying to reach service: {why}"))),
        }
    })
}

/// The resources that a delegated group version has, as its server lists them.
pub async fn resources(server: &Arc<Server>, route: &Route, user: &User) -> Option<Value> {
    tokio::time::timeout(DISCOVERY_TIMEOUT, ask(server, route, user, &route.path())).await.ok()?.ok()
}

/// A document about a delegated group version, such as its OpenAPI, as its server has it.
pub async fn document(server: &Arc<Server>, route: &Route, path: &str) -> Option<Value> {
    let user = User::new(AGGREGATOR, &["system:masters"]);
    tokio::time::timeout(DISCOVERY_TIMEOUT, ask(server, route, &user, path)).await.ok()?.ok()
}

async fn ask(server: &Arc<Server>, route: &Route, user: &User, path: &str) -> Result<Value, String> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header(http::header::ACCEPT, "application/json")
        .body(body::empty())
        .map_err(|e| e.to_string())?;
    let response = match server.in_process(&route.namespace, &route.service) {
        Some(_) => forward(server, route, user.clone(), request).await,
        // Also one that is not available: this is how it becomes available again.
        None => front_proxy::pass_on(server, &route.destination, user, request).await?,
    };
    let status = response.status();
    let bytes = body::read(response.into_body()).await.map_err(|e| e.message().to_owned())?;
    if !status.is_success() {
        return Err(format!("bad status from it: {status}"));
    }
    serde_json::from_slice(&bytes).map_err(|e| format!("its answer is not JSON: {e}"))
}
