//! APIServices whose Service is served in this process.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use serde_json::Value;

use crate::authn::User;
use crate::http::body::{self, Body};
use crate::object::{self, at, text};
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::parse;

const STORAGE: &str = "apiregistration.k8s.io/apiservices";

/// One delegated group version.
#[derive(Debug, Clone)]
pub struct Route {
    pub group: String,
    pub version: String,
    namespace: String,
    service: String,
    pub group_priority: i64,
    pub version_priority: i64,
}

/// By group and version.
type Routes = HashMap<(String, String), Route>;

#[derive(Debug, Default)]
pub struct Aggregation {
    routes: RwLock<Option<Arc<Routes>>>,
}

impl Aggregation {
    pub fn invalidate(&self) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = None;
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

    /// `Available`, as far as this process can know it.
    pub fn set_condition(&self, server: &Server, api_service: &mut Value) {
        match route(api_service) {
            None => object::set_condition(
                api_service,
                "Available",
                "True",
                "Local",
                "Local APIServices are always available",
            ),
            Some(route) if server.in_process(&route.namespace, &route.service).is_some() => {
                object::set_condition(api_service, "Available", "True", "Passed", "all checks passed");
            }
            Some(route) => {
                let message = format!("service/{} in \"{}\" is not present", route.service, route.namespace);
                object::set_condition(api_service, "Available", "False", "ServiceNotFound", &message);
            }
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
        group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
        version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
    })
}

/// Hands a request to the handler that serves its group version.
pub fn forward(
    server: &Server,
    route: &Route,
    user: User,
    mut request: Request<Body>,
) -> BoxFuture<'static, Response<Body>> {
    let Some(handler) = server.in_process(&route.namespace, &route.service) else {
        return Box::pin(std::future::ready(body::error(&ApiError::unavailable("service unavailable"))));
    };
    request.extensions_mut().insert(user);
    handler(request)
}

/// The resources that a delegated group version has, as its server lists them.
pub async fn resources(server: &Server, route: &Route, user: &User) -> Option<Value> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("/apis/{}/{}", route.group, route.version))
        .header(http::header::ACCEPT, "application/json")
        .body(body::empty())
        .ok()?;
    let response = forward(server, route, user.clone(), request).await;
    if !response.status().is_success() {
        return None;
    }
    let bytes = body::read(response.into_body()).await.ok()?;
    serde_json::from_slice(&bytes).ok()
}
