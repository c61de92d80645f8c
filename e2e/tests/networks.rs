//! Networks: a guest behind its pod's address, a guest in the place of its pod, and a second interface on a network of
//! their own. They reach each other, a service by name and the outside of the cluster, before and after a restart.

use std::{
    fs,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Console, Host, Options, command, has_ipv6, manifest, outside, servers::Web, suite, wait};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("guests_reach_everything", guests_reach_everything),
    ("neighbours_see_each_other", neighbours_see_each_other),
    ("guests_have_ipv6", guests_have_ipv6),
    ("and_again_after_a_restart", and_again_after_a_restart),
    ("a_missing_plugin_does_not_keep_a_vm", a_missing_plugin_does_not_keep_a_vm),
];

fn main() -> ExitCode {
    let embedded_only = &[
        ("guests_have_ipv6", "the cluster under test has IPv4 alone"),
        ("a_missing_plugin_does_not_keep_a_vm", "releasing a pod's network is the container runtime's there"),
    ];
    let code = suite(Options { embedded_only, ..Options::default() }, CASES);
    // The plugin makes the bridge of a network and leaves it to whoever configured it.
    let _ = Command::new("ip").args(["link", "delete", &bridge()]).stderr(Stdio::null()).status();
    code
}

/// The bridge of the second network.
fn bridge() -> String {
    format!("side{}", std::process::id())
}

/// `behind` has its pod's address translated to its own, `instead` has the pod's address itself. Both are on `side`.
fn guests_reach_everything(host: &Host) -> Result<()> {
    let config = json!({
        "cniVersion": "1.0.0", "name": bridge(), "type": "bridge", "bridge": bridge(),
        "ipam": {
            "type": "host-local", "dataDir": host.work_dir().join("side"), "ranges": [[{ "subnet": "10.76.0.0/24" }]],
        },
    });
    host.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "side", "namespace": "default" }, "spec": { "config": config.to_string() },
    }))?;
    for (name, binding) in [("behind", "masquerade"), ("instead", "bridge")] {
        host.apply(&guest(name, binding))?;
        host.apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
            "spec": { "selector": { "kubevirt.io/vm": name }, "ports": [{ "port": 80 }] },
        }))?;
    }
    let instead = host.wait_running("instead")?;
    host.wait_running("behind")?;
    let mut console = log_in(host, "instead")?;
    let address = address(&instead, "default")?;
    let own = console.shell("ip -4 addr show dev eth0")?;
    ensure!(own.contains(&format!("inet {address}/")), "the guest is not {address}: {own}");
    console.line("exit")?;
    console.leave()?;
    look_around(host)
}

/// Two guests that both stand in the place of their pods share one segment, and one asks for the other's address.
fn neighbours_see_each_other(host: &Host) -> Result<()> {
    host.apply(&guest("next-door", "bridge"))?;
    host.wait_running("next-door")?;
    let mut console = log_in(host, "next-door")?;
    ask(&mut console, &address(&host.get("vmi", "instead")?, "default")?, "this is instead")?;
    console.leave()?;
    host.kubectl(&["delete", "vm", "next-door"])?;
    host.wait_gone("vmi", "next-door")
}

/// The router is advertised, a pod's address leads to its guest, and so does the name of a service that has no other
/// family of addresses.
fn guests_have_ipv6(host: &Host) -> Result<()> {
    if !has_ipv6() {
        println!("this machine has no IPv6, and neither have its guests");
        return Ok(());
    }
    host.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "six", "namespace": "default" },
        "spec": {
            "selector": { "kubevirt.io/vm": "behind" }, "ports": [{ "port": 80 }],
            "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack",
        },
    }))?;
    host.apply(&guest("beyond", "masquerade"))?;
    host.wait_running("beyond")?;
    let mut console = log_in(host, "beyond")?;
    wait::until("a router", wait::BOOT, || {
        let routes = console.shell("ip -6 route")?;
        Ok(match routes.contains("default via fe80:") {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(routes),
        })
    })?;
    let vmi = host.get("vmi", "behind")?;
    let addresses = vmi["status"]["interfaces"][0]["ipAddresses"].as_array().context("no addresses")?.clone();
    let six = addresses.iter().filter_map(Value::as_str).find(|address| address.contains(':'));
    let six = six.with_context(|| format!("no IPv6 address: {addresses:?}"))?;
    for target in [format!("[{six}]"), "six".to_owned()] {
        ask(&mut console, &target, "this is behind")?;
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", "beyond"])?;
    host.wait_gone("vmi", "beyond")
}

/// Both are other instances then, with other addresses; names lead to them all the same.
fn and_again_after_a_restart(host: &Host) -> Result<()> {
    for name in ["behind", "instead"] {
        host.ferrovirt(&["stop", name])?;
    }
    for name in ["behind", "instead"] {
        host.wait_gone("vmi", name)?;
    }
    host.restart()?;
    if host.cluster().is_none() {
        remove_rules(host)?;
    }
    for name in ["behind", "instead"] {
        host.ferrovirt(&["start", name])?;
    }
    look_around(host)?;
    for name in ["behind", "instead"] {
        host.kubectl(&["delete", "vm", name])?;
        host.wait_gone("vmi", name)?;
    }
    Ok(())
}

/// As a firewall does that is started anew. The host puts its rules back by itself.
/// The network can never be attached, and never be released; the VM goes all the same.
fn a_missing_plugin_does_not_keep_a_vm(host: &Host) -> Result<()> {
    let config = json!({ "cniVersion": "1.0.0", "name": "nowhere", "type": "no-such-plugin" });
    host.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "nowhere", "namespace": "default" }, "spec": { "config": config.to_string() },
    }))?;
    let mut vm = guest("lost", "masquerade");
    vm["spec"]["template"]["spec"]["networks"][1]["multus"]["networkName"] = json!("nowhere");
    host.apply(&vm)?;
    wait::until("the reason", wait::SOON, || {
        let pods = host.kubectl(&["get", "pods", "-l", "kubevirt.io/vm=lost", "-o", "json"])?;
        Ok(match pods.contains("no CNI plugin") {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(pods),
        })
    })?;
    host.kubectl(&["delete", "vm", "lost", "--timeout=60s"])?;
    host.wait_gone("vmi", "lost")?;
    let events = host.kubectl(&["get", "events", "-o", "json"])?;
    ensure!(events.contains("NetworkNotReleased"), "nobody was told: {events}");
    Ok(())
}

fn remove_rules(host: &Host) -> Result<()> {
    let table = format!("ferrovirt-{}", host.instance());
    for table in [table.clone(), format!("{table}-services")] {
        wait::until(&format!("the rules {table}"), wait::SOON, || {
            let removed = command::run(Command::new("nft").args(["delete", "table", "ip", &table]), "")?;
            Ok(if removed.succeeded() { wait::Seen::Yes(()) } else { wait::Seen::Not(removed.to_string()) })
        })?;
    }
    wait::until("the rules to be back", wait::SOON, || {
        let tables = command::output("nft", &["list", "tables", "ip"])?;
        let back = tables.lines().any(|line| line == format!("table ip {table}"));
        Ok(if back { wait::Seen::Yes(()) } else { wait::Seen::Not(tables) })
    })
}

/// Each guest asks everybody.
fn look_around(host: &Host) -> Result<()> {
    let directory = host.work_dir().join("outside");
    fs::create_dir_all(directory.join("www"))?;
    fs::write(directory.join("www/index.html"), "this is outside\n")?;
    let web = Web::start(&directory, None)?;
    let outside = format!("{}:{}", outside::address(host)?, web.port);
    for (name, other) in [("behind", "instead"), ("instead", "behind")] {
        host.wait_running(name)?;
        let vmi = host.wait_running(other)?;
        let mut console = log_in(host, name)?;
        let expected = format!("this is {other}");
        for network in ["default", "side"] {
            ask(&mut console, &address(&vmi, network)?, &expected)?;
        }
        for host_name in [other.to_owned(), format!("{other}.default.svc.cluster.local")] {
            ask(&mut console, &host_name, &expected)?;
        }
        ask(&mut console, &outside, "this is outside")?;
        console.line("exit")?;
        console.leave()?;
    }
    Ok(())
}

fn guest(name: &str, binding: &str) -> Value {
    let mut vm = manifest::vm(name, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["interfaces"] = json!([
        { "name": "default", binding: {}, "model": "virtio" },
        { "name": "side", "bridge": {}, "model": "virtio" },
    ]);
    spec["networks"] =
        json!([{ "name": "default", "pod": {} }, { "name": "side", "multus": { "networkName": "side" } }]);
    spec["volumes"][1]["cloudInitNoCloud"]["userData"] = json!(format!(
        "#cloud-config\nhostname: {name}\nuser: demo\npassword: ferrovirt\nchpasswd: {{ expire: false }}\nruncmd:\n  \
         - mkdir -p /srv\n  - echo this is {name} > /srv/index.html\n  - busybox httpd -p 80 -h /srv\n"
    ));
    // The demo guest is no client of DHCPv6, so its address, which is the same for all guests, stands here.
    let ipv6 = if binding == "masquerade" { "\n    addresses: [\"fd10:0:2::2/120\"]" } else { "" };
    spec["volumes"][1]["cloudInitNoCloud"]["networkData"] =
        json!(format!("version: 2\nethernets:\n  eth0:\n    dhcp4: true{ipv6}\n  eth1:\n    dhcp4: true\n"));
    vm
}

fn address(vmi: &Value, network: &str) -> Result<String> {
    let interfaces = vmi["status"]["interfaces"].as_array().context("the VMI has no interfaces")?;
    let interface = interfaces.iter().find(|interface| interface["name"] == network);
    let address = interface.and_then(|interface| interface["ipAddress"].as_str());
    Ok(address.with_context(|| format!("no address on {network}: {}", vmi["status"]["interfaces"]))?.to_owned())
}

fn log_in(host: &Host, name: &str) -> Result<Console> {
    let mut console = host.console(name)?;
    console.login(name)?;
    Ok(console)
}

/// Until the page comes: the server's guest may still boot.
fn ask(console: &mut Console, target: &str, expected: &str) -> Result<()> {
    wait::until(&format!("{expected:?} at {target}"), wait::BOOT, || {
        let said = console.shell(&format!("timeout 20 wget -qO- http://{target} 2>&1"))?;
        Ok(match said.contains(expected) {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(said),
        })
    })
}
