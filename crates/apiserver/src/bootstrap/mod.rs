//! What a server has when it begins to serve: its namespaces, roles, definitions, and what its caller wants to exist.
//!
//! ```text
//!  shipped last (inventory) ─┐
//!  stored now ───────────────┼─> merge ─> written ─> inventory
//!  shipped by this version ──┘
//! ```
//!
//! Some objects are only made if they are not there, because they belong to whoever runs the host: namespaces,
//! configurations, storage classes. The others are ours (see [`is_ours`]) and follow the version that runs.
//!
//! The inventory is no object of the API: who could write it would choose what goes away at the next start.

mod merge;

use std::collections::BTreeMap;

use ferrovirt_store::{Change, Durability, Expect, Key, Write};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::authz;
use crate::controllers::Client;
use crate::object;
use crate::rest::ServiceNetwork;
use crate::server::{Config, Server, StartError};
use crate::status::ApiError;
use crate::storage::{self, parse};

/// Where the inventory is stored. No group of a definition is without a dot.
const STORAGE: &str = "ferrovirt/shipped";
const INVENTORY: &str = "inventory";

/// Brings the store to what this version ships. Nobody is served before, and neither webhooks nor policies are asked: those
/// that answer for them may run on this very host.
pub async fn run(server: &Arc<Server>, config: Config) -> Result<(), StartError> {
    let client = Client::new(server, "apiserver");
    let mut shipping = Shipping { last: read(server), now: BTreeMap::new(), client };
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    shipping.ship(&namespaces).await?;
    // Together, so that they share syncs of the store.
    let mut first = authz::bootstrap_policy();
    first.extend(config.crds);
    shipping.ship(&first).await?;
    // Namespaces before what is in them; webhooks last, since their handlers are registered after the start.
    let rank = |object: &Value| match object::text(object, &["kind"]) {
        "Namespace" => 0,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => 2,
        _ => 1,
    };
    shipping.ship(&[api_service(config.service_network), service_range(config.service_network)]).await?;
    shipping.ship(&priority_classes()).await?;
    if let Some(front_proxy) = &config.front_proxy {
        let wanted = front_proxy.config_map();
        publish(&shipping.client, &wanted).await.map_err(|error| failed(&wanted, &error))?;
    }
    for phase in 0..=2 {
        let objects: Vec<Value> = config.bootstrap.iter().filter(|o| rank(o) == phase).cloned().collect();
        shipping.ship(&objects).await?;
    }
    shipping.retire().await?;
    write(server, &shipping).await
}

/// Whether an object follows the version that runs. Of a storage class the administrator decides whether it is the default
/// and lets volumes grow; the rest of it never changes.
fn is_ours(object: &Value) -> bool {
    const KINDS: &[&str] = &[
        "APIService",
        DEFINITION,
        "MutatingWebhookConfiguration",
        "PriorityClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ];
    merge::is_rbac(object) || KINDS.contains(&object::text(object, &["kind"]))
}

const DEFINITION: &str = "CustomResourceDefinition";

fn is_definition(object: &Value) -> bool {
    object["kind"] == DEFINITION
}

/// What was shipped, by kind, namespace and name.
type Inventory = BTreeMap<String, Value>;

struct Shipping {
    client: Client,
    last: Inventory,
    now: Inventory,
}

impl Shipping {
    async fn ship(&mut self, objects: &[Value]) -> Result<(), StartError> {
        let (client, last) = (&self.client, &self.last);
        let shipped = objects.iter().map(|object| async move {
            let (key, now) = (key(object), is_ours(object).then(|| entry(object)));
            let done = reconcile(client, last.get(&key), now.as_ref(), object).await;
            done.map(|()| now.map(|now| (key, now))).map_err(|error| failed(object, &error))
        });
        let shipped = futures::future::try_join_all(shipped).await?;
        self.now.extend(shipped.into_iter().flatten());
        Ok(())
    }

    /// Takes away what this version does not ship any more. Definitions stay, for there may be objects of theirs.
    async fn retire(&self) -> Result<(), StartError> {
        for (_, last) in self.last.iter().filter(|(key, last)| !self.now.contains_key(*key) && !is_definition(last)) {
            let retired = async {
                let Some(current) = self.client.get(last).await? else { return Ok(()) };
                tracing::info!(object = key(last), "this version does not ship it any more");
                match merge::without(&current, last) {
                    Some(rest) if rest == current => Ok(()),
                    Some(rest) => self.client.update(&rest).await.map(drop),
                    None => self.client.delete_object(last).await,
                }
            };
            retired.await.map_err(|error| failed(last, &error))?;
        }
        Ok(())
    }
}

/// Creates an object, or brings it up to date if it is ours: then there is an entry for the inventory.
async fn reconcile(client: &Client, last: Option<&Value>, now: Option<&Value>, wanted: &Value) -> Result<(), ApiError> {
    let (Some(current), Some(now)) = (client.create_if_absent(wanted).await?, now) else { return Ok(()) };
    let merged = if is_definition(wanted) {
        (last != Some(now) || !merge::contains(&current["spec"], &wanted["spec"])).then(|| {
            let mut definition = current.clone();
            definition["spec"] = wanted["spec"].clone();
            definition
        })
    } else {
        // Of before there was an inventory. What nobody else wrote to is as it was shipped.
        let unrecorded = (last.is_none() && ours_alone(&current)).then_some(&current);
        if last.is_none() && unrecorded.is_none() && merge::is_rbac(wanted) && !merge::opted_out(&current) {
            say_what_stays(&current, wanted);
        }
        merge::merge(&current, last.or(unrecorded), wanted)
    };
    let Some(merged) = merged else { return Ok(()) };
    match client.update(&merged).await {
        // A part of it cannot be changed, such as the role of a binding.
        Err(error) if error.code == 422 && !is_definition(wanted) => {
            client.delete_object(wanted).await?;
            client.create_if_absent(wanted).await.map(drop)
        }
        result => result.map(drop),
    }
}

/// True if no other program than this server wrote to an object. The server's own writes name none.
fn ours_alone(current: &Value) -> bool {
    let managers = object::at(current, &["metadata", "managedFields"]).and_then(Value::as_array);
    managers.is_some_and(|all| !all.is_empty() && all.iter().all(|entry| entry["manager"] == "unknown"))
}

/// Somebody changed a role before there was an inventory: what it has besides may be theirs, or ours of earlier.
fn say_what_stays(current: &Value, wanted: &Value) {
    if let Some(rest) = merge::without(current, wanted) {
        let what = if rest["rules"].is_array() { &rest["rules"] } else { &rest["subjects"] };
        tracing::warn!(
            object = key(current), left = %what,
            "it was changed by hand and gives more than this version ships; take away what nobody meant to give"
        );
    }
}

fn key(object: &Value) -> String {
    let part = |path: &[&str]| object::text(object, path).to_owned();
    let namespace = part(&["metadata", "namespace"]);
    format!("{}/{namespace}/{}", part(&["kind"]), object::name(object))
}

/// What is remembered of an object. Definitions are large, and of them it is enough to know whether they are the same.
fn entry(object: &Value) -> Value {
    if !is_definition(object) {
        return object.clone();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, object["spec"].to_string().as_bytes());
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"apiVersion": object["apiVersion"], "kind": DEFINITION, "metadata": {"name": object::name(object)}, "spec": digest})
}

fn read(server: &Server) -> Inventory {
    let stored = server.store.get(STORAGE, &Key::new("", INVENTORY)).and_then(|entry| parse(&entry).ok());
    let shipped = stored.map(|mut stored| stored["shipped"].take()).unwrap_or_default();
    serde_json::from_value(shipped).unwrap_or_default()
}

async fn write(server: &Server, shipping: &Shipping) -> Result<(), StartError> {
    if shipping.now == shipping.last {
        return Ok(());
    }
    let failed =
        |message: String| StartError::Bootstrap { what: "the inventory of what is shipped".to_owned(), message };
    let object = json!({"kind": "Inventory", "metadata": {"name": INVENTORY}, "shipped": shipping.now});
    let encoded = storage::encode(&object, "internal").map_err(|error| failed(error.message().to_owned()))?;
    let write = Write {
        resource: STORAGE.into(),
        key: Key::new("", INVENTORY),
        expect: Expect::Any,
        durability: Durability::Synced,
        change: Change::Put(encoded),
    };
    server.store.commit(write).await.map(drop).map_err(|error| failed(error.to_string()))
}

/// The service by which programs inside find this server.
fn api_service(network: ServiceNetwork) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": network.api_address().to_string(),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    })
}

/// The addresses that services get, as an object.
fn service_range(network: ServiceNetwork) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": [network.to_string()]},
    })
}

/// The two classes that Kubernetes itself has.
fn priority_classes() -> [Value; 2] {
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)].map(|(name, value)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            "description": "Used for system critical pods that must not be moved or stopped for others.",
        })
    })
}

/// Creates a config map, or brings its data up to date.
async fn publish(client: &Client, wanted: &Value) -> Result<(), ApiError> {
    let Some(mut current) = client.create_if_absent(wanted).await? else {
        return Ok(());
    };
    if current["data"] != wanted["data"] {
        current["data"] = wanted["data"].clone();
        client.update(&current).await?;
    }
    Ok(())
}

fn failed(object: &Value, error: &ApiError) -> StartError {
    StartError::Bootstrap {
        what: format!("{} {}", object::text(object, &["kind"]), object::name(object)),
        message: error.message().to_owned(),
    }
}
