//! Services: guests find each other by name, the host finds them by port, and a restart changes nothing of that.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, suite, wait};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("guests_find_a_service_by_name", guests_find_a_service_by_name),
    ("a_guest_reaches_itself_through_its_service", a_guest_reaches_itself_through_its_service),
    ("node_ports_answer_on_this_machine", node_ports_answer_on_this_machine),
    ("a_service_finds_a_port_by_its_name", a_service_finds_a_port_by_its_name),
    ("a_paused_guest_leaves_its_services", a_paused_guest_leaves_its_services),
    ("a_service_without_endpoints_refuses", a_service_without_endpoints_refuses),
    ("a_load_balancer_without_addresses_says_so", a_load_balancer_without_addresses_says_so),
    ("a_service_follows_its_guest_over_a_restart", a_service_follows_its_guest_over_a_restart),
];

const NODE_PORT: u16 = 31980;

fn main() -> ExitCode {
    let embedded_only = &[("a_load_balancer_without_addresses_says_so", "a cluster's load balancers are its own")];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

fn a_load_balancer_without_addresses_says_so(host: &Host) -> Result<()> {
    let ports = json!([{ "port": 80 }]);
    host.apply(&service("outside", json!({ "type": "LoadBalancer", "selector": { "no": "pod" }, "ports": ports })))?;
    wait::until("the reason", wait::SOON, || {
        let events = host.kubectl(&["get", "events", "--field-selector=involvedObject.name=outside"])?;
        Ok(match events.contains("--load-balancer-ips") {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(events),
        })
    })?;
    let shown = host.kubectl(&["get", "service", "outside"])?;
    ensure!(shown.contains("<pending>"), "{shown}");
    Ok(())
}

fn guests_find_a_service_by_name(host: &Host) -> Result<()> {
    let mut web = manifest::vm("web", "Always");
    web["spec"]["template"]["spec"]["hostname"] = json!("first");
    web["spec"]["template"]["spec"]["subdomain"] = json!("inner");
    web["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["ports"] =
        json!([{ "name": "page", "port": 8080 }]);
    let volumes = &mut web["spec"]["template"]["spec"]["volumes"];
    volumes[1]["cloudInitNoCloud"]["userData"] = json!(
        "#cloud-config\nhostname: web\nuser: demo\npassword: ferrovirt\nchpasswd: { expire: false }\nruncmd:\n  \
         - mkdir -p /srv\n  - echo hello from web > /srv/index.html\n  - busybox httpd -p 8080 -h /srv\n"
    );
    host.apply(&web)?;
    host.apply(&manifest::vm("client", "Always"))?;
    let selector = json!({ "kubevirt.io/vm": "web" });
    host.apply(&service(
        "web",
        json!({ "type": "NodePort", "selector": selector,
                "ports": [{ "port": 80, "targetPort": 8080, "nodePort": NODE_PORT }] }),
    ))?;
    host.apply(&service("inner", json!({ "clusterIP": "None", "selector": selector })))?;
    host.apply(&service("nobody", json!({ "selector": { "no": "pod" }, "ports": [{ "port": 80 }] })))?;
    for name in ["web", "client"] {
        host.wait_running(name)?;
    }
    for url in ["http://web", "http://web.default.svc.cluster.local", "http://first.inner:8080"] {
        fetch(host, "client", url)?;
    }
    let address = pod_address(host, "web")?;
    fetch(host, "client", &format!("http://{address}:8080"))
}

/// Its packet comes back to it, and must not look like its own.
fn a_guest_reaches_itself_through_its_service(host: &Host) -> Result<()> {
    fetch(host, "web", "http://web.default.svc.cluster.local")
}

fn node_ports_answer_on_this_machine(host: &Host) -> Result<()> {
    let node: Value = serde_json::from_str(&host.kubectl(&["get", "nodes", "-o", "json"])?)?;
    let addresses = node["items"][0]["status"]["addresses"].as_array().context("the node has no addresses")?;
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP");
    let internal = internal.and_then(|address| address["address"].as_str()).context("the node has no address")?;
    // kube-proxy gives node ports to the node's addresses, and not to loopback.
    let addresses = if host.cluster().is_some() { vec![internal] } else { vec!["127.0.0.1", internal] };
    for address in addresses {
        let target = SocketAddr::new(address.parse()?, NODE_PORT);
        let body = get(target).with_context(|| format!("{target} does not answer"))?;
        ensure!(body.contains("hello from web"), "{target} says {body:?}");
    }
    Ok(())
}

fn a_service_finds_a_port_by_its_name(host: &Host) -> Result<()> {
    let ports = json!([{ "port": 80, "targetPort": "page" }]);
    host.apply(&service("named", json!({ "selector": { "kubevirt.io/vm": "web" }, "ports": ports })))?;
    fetch(host, "client", "http://named")
}

fn a_paused_guest_leaves_its_services(host: &Host) -> Result<()> {
    ready_endpoints(host, "web", 1)?;
    host.ferrovirt(&["pause", "vm", "web"])?;
    ready_endpoints(host, "web", 0)?;
    let pod = host.pod_of(&host.get("vmi", "web")?)?;
    let conditions = pod["status"]["conditions"].as_array().context("the pod has no conditions")?;
    let gate = conditions.iter().find(|one| one["type"] == "kubevirt.io/virtual-machine-unpaused");
    ensure!(gate.is_some_and(|gate| gate["status"] == "False" && gate["reason"] == "Paused"), "{conditions:?}");
    host.ferrovirt(&["unpause", "vm", "web"])?;
    ready_endpoints(host, "web", 1)?;
    fetch(host, "client", "http://web")
}

/// Waits until so many addresses behind a service take connections.
fn ready_endpoints(host: &Host, service: &str, count: usize) -> Result<()> {
    let selector = format!("kubernetes.io/service-name={service}");
    wait::until(&format!("{count} ready endpoints of {service}"), wait::SOON, || {
        let slices: Value =
            serde_json::from_str(&host.kubectl(&["get", "endpointslices", "-l", &selector, "-o", "json"])?)?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let addresses: std::collections::BTreeSet<String> = endpoints
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .map(|endpoint| endpoint["targetRef"]["name"].to_string())
            .collect();
        Ok(match addresses.len() == count {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(format!("{addresses:?}")),
        })
    })
}

fn a_service_without_endpoints_refuses(host: &Host) -> Result<()> {
    let mut console = host.console("client")?;
    console.login("client")?;
    let said = console.shell("timeout 60 wget -O- http://nobody 2>&1")?;
    ensure!(said.contains("refused"), "it should say so at once: {said}");
    console.line("exit")?;
    console.leave()
}

fn a_service_follows_its_guest_over_a_restart(host: &Host) -> Result<()> {
    let before = host.get("vmi", "web")?["metadata"]["uid"].clone();
    host.ferrovirt(&["restart", "web"])?;
    wait::until("a new instance", wait::BOOT, || {
        let now = host.get("vmi", "web").map(|vmi| vmi["metadata"]["uid"].clone()).unwrap_or_default();
        Ok(match now.is_string() && now != before {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(now.to_string()),
        })
    })?;
    host.wait_running("web")?;
    fetch(host, "client", "http://web")?;
    fetch(host, "client", "http://first.inner:8080")
}

fn service(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

fn pod_address(host: &Host, name: &str) -> Result<IpAddr> {
    let vmi = host.get("vmi", name)?;
    Ok(vmi["status"]["interfaces"][0]["ipAddress"].as_str().context("the VMI has no address")?.parse()?)
}

/// Asks from inside a guest until the page comes: the server's guest may still boot.
fn fetch(host: &Host, from: &str, url: &str) -> Result<()> {
    let mut console = host.console(from)?;
    console.login(from)?;
    wait::until(&format!("{url} from {from}"), wait::BOOT, || {
        let said = console.shell(&format!("timeout 20 wget -qO- {url} 2>&1"))?;
        Ok(match said.contains("hello from web") {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(said),
        })
    })?;
    console.line("exit")?;
    console.leave()
}

fn get(target: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(30))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut body = String::new();
    stream.read_to_string(&mut body)?;
    Ok(body)
}
