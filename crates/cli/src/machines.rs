//! The table of VMs and of instances: what people ask for first. A VM's addresses and node are its instance's, so both are read.

use std::collections::BTreeMap;

use anyhow::Result;
use ferrovirt_api::Quantity;
use futures::StreamExt;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::Value;

use crate::{age, each, get, guest::size, table::Lines};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Machine,
    Instance,
}

impl Kind {
    pub fn of(resource: &ApiResource) -> Option<Self> {
        match (resource.group.as_str(), resource.kind.as_str()) {
            ("kubevirt.io", "VirtualMachine") => Some(Self::Machine),
            ("kubevirt.io", "VirtualMachineInstance") => Some(Self::Instance),
            _ => None,
        }
    }

    fn resource(self) -> ApiResource {
        let (kind, plural) = match self {
            Self::Machine => ("VirtualMachine", "virtualmachines"),
            Self::Instance => ("VirtualMachineInstance", "virtualmachineinstances"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", kind), plural)
    }
}

/// Which machines are meant.
pub struct Scope<'a> {
    pub client: &'a Client,
    pub kind: Kind,
    /// None for all.
    pub namespace: Option<&'a str>,
    /// None for all.
    pub names: &'a [String],
    pub selector: Option<&'a str>,
    pub wide: bool,
}

/// Namespace and name.
type Key = (String, String);

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

impl Scope<'_> {
    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        match self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
            None => Api::all_with(self.client.clone(), &kind.resource()),
        }
    }

    pub async fn print(&self) -> Result<()> {
        let api = self.api(self.kind);
        let mut found = vec![];
        let outcome = if self.names.is_empty() {
            let params = ListParams { label_selector: self.selector.map(Into::into), ..Default::default() };
            for object in api.list(&params).await?.items {
                found.push(serde_json::to_value(object)?);
            }
            Ok(())
        } else {
            each::of(self.names.to_vec(), async |name| {
                found.push(serde_json::to_value(api.get(&name).await?)?);
                Ok(())
            })
            .await
        };
        let instances = match self.kind {
            Kind::Machine if !found.is_empty() => self.instances().await,
            _ => BTreeMap::new(),
        };
        let now = Timestamp::now();
        let rows: Vec<Vec<String>> =
            found.iter().map(|object| self.row(object, instances.get(&key(object)), now)).collect();
        match rows.is_empty() {
            false => Lines::new(&self.header()).print_all(&rows),
            true if outcome.is_ok() => eprintln!("{}", get::none(&self.kind.resource().plural, self.namespace)),
            true => {}
        }
        outcome
    }

    /// Who may not read instances sees VMs without their addresses.
    async fn instances(&self) -> BTreeMap<Key, Value> {
        let list = self.api(Kind::Instance).list(&ListParams::default()).await.map(|list| list.items);
        let values = list.unwrap_or_default().into_iter().filter_map(|object| serde_json::to_value(object).ok());
        values.map(|value| (key(&value), value)).collect()
    }

    pub async fn watch(&self) -> Result<()> {
        let follow = |kind: Kind| {
            let config = match (self.kind == kind, self.selector) {
                (true, Some(selector)) => watcher::Config::default().labels(selector),
                _ => watcher::Config::default(),
            };
            watcher(self.api(kind), config).default_backoff().map(move |event| (kind, event))
        };
        let own = follow(self.kind).boxed();
        let mut events = match self.kind {
            Kind::Machine => futures::stream::select(own, follow(Kind::Instance)).boxed(),
            Kind::Instance => own,
        };
        let mut board = Board::new(self);
        let mut lines = Lines::new(&self.header());
        while let Some((kind, event)) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error))
                    if kind == self.kind && matches!(error, kube::Error::Api(_)) =>
                {
                    return Err(error.into());
                }
                // Tried again, after a while; instances that may not be read are done without.
                Err(_) => {
                    board.ready(kind);
                    continue;
                }
            };
            for row in board.learn(kind, event, Timestamp::now())? {
                lines.print(&row);
            }
        }
        Ok(())
    }

    fn header(&self) -> Vec<String> {
        let mut header = vec!["NAME", "STATUS", "ADDRESS", "CPUS", "MEMORY", "NODE", "AGE"];
        if self.wide {
            header.extend(["READY", "STRATEGY", "HYPERVISOR", "ALL ADDRESSES"]);
        }
        if self.namespace.is_none() {
            header.insert(0, "NAMESPACE");
        }
        header.into_iter().map(Into::into).collect()
    }

    fn row(&self, object: &Value, instance: Option<&Value>, now: Timestamp) -> Vec<String> {
        let (instance, template) = match self.kind {
            Kind::Machine => (instance.unwrap_or(&Value::Null), &object["spec"]["template"]["spec"]),
            Kind::Instance => (object, &object["spec"]),
        };
        let mut row = row(object, instance, template, now, self.wide);
        if self.namespace.is_none() {
            row.insert(0, key(object).0);
        }
        row
    }
}

/// What was seen, and what was printed of it.
struct Board<'a> {
    scope: &'a Scope<'a>,
    machines: BTreeMap<Key, Value>,
    instances: BTreeMap<Key, Value>,
    waiting: Vec<Kind>,
    printed: BTreeMap<Key, Vec<String>>,
}

impl<'a> Board<'a> {
    fn new(scope: &'a Scope<'a>) -> Self {
        let waiting = match scope.kind {
            Kind::Machine => vec![Kind::Machine, Kind::Instance],
            Kind::Instance => vec![Kind::Instance],
        };
        Self { scope, machines: BTreeMap::new(), instances: BTreeMap::new(), waiting, printed: BTreeMap::new() }
    }

    fn ready(&mut self, kind: Kind) {
        self.waiting.retain(|waiting| *waiting != kind);
    }

    /// The rows that are news.
    fn learn(&mut self, kind: Kind, event: Event<DynamicObject>, now: Timestamp) -> Result<Vec<Vec<String>>> {
        let (changed, gone) = match event {
            Event::Init => return Ok(vec![]),
            Event::InitDone => {
                self.ready(kind);
                (None, None)
            }
            Event::InitApply(object) | Event::Apply(object) => (Some(serde_json::to_value(object)?), None),
            Event::Delete(object) => (None, Some(serde_json::to_value(object)?)),
        };
        let touched = changed.as_ref().or(gone.as_ref()).map(key);
        let map = if kind == Kind::Machine { &mut self.machines } else { &mut self.instances };
        if let Some(object) = changed {
            map.insert(key(&object), object);
        }
        let mut rows = vec![];
        if let Some(object) = gone {
            map.remove(&key(&object));
            if kind == self.scope.kind && self.printed.remove(&key(&object)).is_some() {
                let mut row = self.scope.row(&object, None, now);
                if let Some(status) = row.get_mut(self.status_column()) {
                    "Deleted".clone_into(status);
                }
                return Ok(vec![row]);
            }
        }
        // Until everything was read once, rows would be half.
        if !self.waiting.is_empty() {
            return Ok(rows);
        }
        let own = if self.scope.kind == Kind::Machine { &self.machines } else { &self.instances };
        let keys: Vec<Key> = match touched {
            Some(key) => vec![key],
            None => own.keys().cloned().collect(),
        };
        for key in keys {
            let names = self.scope.names;
            let Some(object) = own.get(&key).filter(|_| names.is_empty() || names.contains(&key.1)) else { continue };
            let row = self.scope.row(object, self.instances.get(&key), now);
            // That it got older is no news.
            let mut compared = row.clone();
            if let Some(age) = compared.get_mut(self.status_column() + 5) {
                age.clear();
            }
            if self.printed.get(&key) != Some(&compared) {
                self.printed.insert(key, compared);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn status_column(&self) -> usize {
        if self.scope.namespace.is_none() { 2 } else { 1 }
    }
}

fn row(object: &Value, instance: &Value, template: &Value, now: Timestamp, wide: bool) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &object["status"];
    let state = [&status["printableStatus"], &status["phase"]].into_iter().filter_map(Value::as_str);
    let state = state.into_iter().find(|state| !state.is_empty()).unwrap_or("Starting").to_owned();
    let addresses = addresses(instance);
    // What an instance type gives is known once there is an instance.
    let template =
        if instance.is_null() && !object["spec"]["instancetype"].is_null() { &Value::Null } else { template };
    let mut row = vec![
        text(&object["metadata"]["name"]),
        state,
        addresses.first().cloned().unwrap_or_default(),
        cpus(instance, template).map(|cpus| cpus.to_string()).unwrap_or_default(),
        memory(instance, template).map(|memory| size(memory.as_bytes()).replace(".0 ", " ")).unwrap_or_default(),
        text(&instance["status"]["nodeName"]),
        age::since(object["metadata"]["creationTimestamp"].as_str().unwrap_or_default(), now),
    ];
    if wide {
        let conditions = instance["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
        let strategy = match object["spec"]["running"].as_bool() {
            Some(true) => "Always".to_owned(),
            Some(false) => "Halted".to_owned(),
            None => text(&object["spec"]["runStrategy"]),
        };
        let hypervisor = text(&template["hypervisor"]);
        row.push(if ready { "True" } else { "False" }.to_owned());
        row.push(strategy);
        row.push(if hypervisor.is_empty() { "qemu-kvm".to_owned() } else { hypervisor });
        row.push(addresses.join(","));
    }
    row
}

fn addresses(instance: &Value) -> Vec<String> {
    let mut addresses: Vec<String> = vec![];
    for interface in instance["status"]["interfaces"].as_array().into_iter().flatten() {
        let listed = interface["ipAddresses"].as_array().into_iter().flatten();
        for address in std::iter::once(&interface["ipAddress"]).chain(listed).filter_map(Value::as_str) {
            // Agents tell prefixes, too.
            let address = address.split('/').next().unwrap_or_default().to_owned();
            if !address.is_empty() && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses
}

/// What the guest has now, what it was made with, or what it would get.
fn cpus(instance: &Value, template: &Value) -> Option<u64> {
    let of = |cpu: &Value| {
        let part = |name: &str| cpu[name].as_u64().filter(|count| *count > 0);
        let parts = ["cores", "sockets", "threads"].map(part);
        parts.iter().any(Option::is_some).then(|| parts.iter().map(|count| count.unwrap_or(1)).product())
    };
    let asked = |spec: &Value| {
        let domain = &spec["domain"];
        let resources = ["limits", "requests"].into_iter().find_map(|which| {
            let quantity = Quantity::parse(domain["resources"][which]["cpu"].as_str()?).ok()?;
            u64::try_from(quantity.value()).ok().filter(|count| *count > 0)
        });
        of(&domain["cpu"]).or(resources)
    };
    let current = of(&instance["status"]["currentCPUTopology"]);
    let one = || (!instance.is_null() || template["domain"].is_object()).then_some(1);
    current.or_else(|| asked(&instance["spec"])).or_else(|| asked(template)).or_else(one)
}

fn memory(instance: &Value, template: &Value) -> Option<Quantity> {
    let quantity = |value: &Value| Quantity::parse(value.as_str()?).ok();
    let asked = |spec: &Value| {
        let domain = &spec["domain"];
        let resources = &domain["resources"];
        let places = [&domain["memory"]["guest"], &resources["requests"]["memory"], &resources["limits"]["memory"]];
        places.into_iter().find_map(quantity)
    };
    let current = quantity(&instance["status"]["memory"]["guestCurrent"]);
    current.or_else(|| asked(&instance["spec"])).or_else(|| asked(template))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:05:00Z".parse().unwrap()
    }

    fn vm(status: &str) -> Value {
        json!({
            "metadata": { "name": "a", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "runStrategy": "Always", "template": { "spec": { "domain": {
                "cpu": { "cores": 2, "sockets": 2 }, "memory": { "guest": "1Gi" },
            } } } },
            "status": { "printableStatus": status },
        })
    }

    fn vmi() -> Value {
        json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": { "hypervisor": "lxc", "domain": { "memory": { "guest": "1Gi" } } },
            "status": {
                "phase": "Running", "nodeName": "node1", "memory": { "guestCurrent": "1536Mi" },
                "currentCPUTopology": { "cores": 1, "sockets": 8, "threads": 1 },
                "conditions": [{ "type": "Ready", "status": "True" }],
                "interfaces": [
                    { "ipAddress": "10.0.0.2", "ipAddresses": ["10.0.0.2", "fd00::2/64"] }, { "ipAddress": "192.0.2.1" },
                ],
            },
        })
    }

    #[test]
    fn a_row_has_what_people_ask_for() {
        let template = |vm: &Value| vm["spec"]["template"]["spec"].clone();
        let vm = vm("Running");
        let shown = |vm: &Value, vmi: &Value, wide| row(vm, vmi, &template(vm), now(), wide).join("|");
        assert_eq!(shown(&vm, &Value::Null, false), "a|Running||4|1 GiB||5m");
        assert_eq!(shown(&vm, &vmi(), false), "a|Running|10.0.0.2|8|1.5 GiB|node1|5m");
        assert_eq!(
            shown(&vm, &vmi(), true),
            "a|Running|10.0.0.2|8|1.5 GiB|node1|5m|True|Always|qemu-kvm|10.0.0.2,fd00::2,192.0.2.1"
        );
        let mut typed = vm.clone();
        typed["spec"]["instancetype"] = json!({ "name": "small" });
        assert_eq!(shown(&typed, &Value::Null, false), "a|Running|||||5m");
        let bare = json!({ "metadata": { "name": "b" } });
        assert_eq!(row(&bare, &Value::Null, &Value::Null, now(), false).join("|"), "b|Starting|||||");
        let asked = json!({ "domain": { "resources": { "requests": { "cpu": "1500m", "memory": "64M" } } } });
        assert_eq!(row(&bare, &Value::Null, &asked, now(), false).join("|"), "b|Starting||2|61 MiB||");
    }

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn a_watch_prints_what_is_new() {
        let client = Client::new(
            tower::service_fn(|_: http::Request<kube::client::Body>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
            }),
            "n",
        );
        let scope = Scope {
            client: &client,
            kind: Kind::Machine,
            namespace: Some("n"),
            names: &[],
            selector: None,
            wide: false,
        };
        let mut board = Board::new(&scope);
        let mut learn = |kind, event| {
            let rows = board.learn(kind, event, now()).unwrap();
            rows.iter().map(|row| row[..3].join("|")).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(learn(Kind::Machine, Event::Init), none);
        assert_eq!(learn(Kind::Machine, Event::InitApply(object(vm("Starting")))), none);
        assert_eq!(learn(Kind::Machine, Event::InitDone), none, "instances are not read yet");
        assert_eq!(learn(Kind::Instance, Event::InitDone), ["a|Starting|"]);
        assert_eq!(learn(Kind::Machine, Event::Apply(object(vm("Starting")))), none, "nothing changed");
        assert_eq!(learn(Kind::Instance, Event::Apply(object(vmi()))), ["a|Starting|10.0.0.2"]);
        assert_eq!(learn(Kind::Machine, Event::Apply(object(vm("Running")))), ["a|Running|10.0.0.2"]);
        assert_eq!(learn(Kind::Machine, Event::Delete(object(vm("Terminating")))), ["a|Deleted|"]);
    }
}
