//! A whole Debian: cloud-init, ssh, the guest agent, and what an instance says and does with them.
//!
//! One guest for all cases: it boots for a minute under emulation.

use std::{fs, process::Command, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, command, has_ipv6, host, suite,
    tools::Virtctl,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const NAME: &str = "deb";
const CASES: &[Case] = &[
    ("agent_tells_of_the_guest", agent_tells_of_the_guest),
    ("cloud_init_is_applied_and_its_key_opens_ssh", cloud_init_is_applied_and_its_key_opens_ssh),
    ("guest_takes_its_ipv6_address", guest_takes_its_ipv6_address),
    ("exec_probe_makes_it_ready", exec_probe_makes_it_ready),
    ("credentials_reach_the_guest", credentials_reach_the_guest),
    ("guest_is_asked_through_subresources", guest_is_asked_through_subresources),
    ("virtctl_asks_the_guest_and_logs_in", virtctl_asks_the_guest_and_logs_in),
    ("file_systems_freeze_and_thaw", file_systems_freeze_and_thaw),
    ("restart_is_graceful_and_keeps_identity", restart_is_graceful_and_keeps_identity),
];
/// Both families of addresses; cloud-init alone asks for one.
const NETWORK: &str =
    "version: 2\nethernets:\n  all:\n    match: { name: \"en*\" }\n    dhcp4: true\n    dhcp6: true\n";
/// Emulated, and the machine has other things to do.
const BOOT: Duration = Duration::from_secs(1200);

fn main() -> ExitCode {
    let embedded_only = &[("guest_takes_its_ipv6_address", "the cluster under test has IPv4 alone")];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

/// Starts the guest that all cases share.
fn agent_tells_of_the_guest(host: &Host) -> Result<()> {
    host.ferrovirt(&["image", "import", &host::debian_archive()?.to_string_lossy()])?;
    let cloud_key = make_key(host, "cloud")?;
    let agent_key = make_key(host, "agent")?;
    host.apply(&secret("deb-keys", &json!({ "key": agent_key })))?;
    host.apply(&secret("deb-passwords", &json!({ "demo": "first secret" })))?;
    host.apply(&manifest(&cloud_key))?;
    let vmi = wait_long(host, "to be connected to its agent and know its addresses", |vmi| {
        condition(vmi, "AgentConnected")["status"] == "True"
            && vmi["status"]["interfaces"][0]["infoSource"] == "domain, guest-agent"
    })?;
    let status = &vmi["status"];
    let os = &status["guestOSInfo"];
    ensure!(os["id"] == "debian" && os["versionId"] == "12" && os["kernelRelease"].is_string(), "{os}");
    let interface = &status["interfaces"][0];
    ensure!(interface["interfaceName"].as_str().is_some_and(|name| name.starts_with("en")), "{interface}");
    ensure!(interface["mac"] == vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"], "{interface}");
    Ok(())
}

fn cloud_init_is_applied_and_its_key_opens_ssh(host: &Host) -> Result<()> {
    ensure!(ssh(host, "cloud", "debian", "hostname")? == NAME, "cloud-init did not set the host name");
    let made = wait::until("runcmd", BOOT, || {
        let made = ssh(host, "cloud", "debian", "cat /etc/made-by-runcmd 2>/dev/null || true")?;
        Ok(if made.is_empty() { Seen::Not("no file".into()) } else { Seen::Yes(made) })
    })?;
    ensure!(made == format!("made on {NAME}"), "runcmd wrote {made:?}");
    Ok(())
}

/// By DHCPv6, from the router's word that there is such a thing. It is reached by its pod's address, and finds names.
fn guest_takes_its_ipv6_address(host: &Host) -> Result<()> {
    if !has_ipv6() {
        println!("this machine has no IPv6, and neither have its guests");
        return Ok(());
    }
    host.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "six", "namespace": "default" },
        "spec": {
            // Its probe does not pass yet.
            "selector": { "kubevirt.io/vm": NAME }, "ports": [{ "port": 22 }], "publishNotReadyAddresses": true,
            "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack",
        },
    }))?;
    let has = wait::until("the guest to take its address", BOOT, || {
        let has = ssh(host, "cloud", "debian", "ip -6 -o addr show scope global; ip -6 route show default")?;
        let taken = has.contains("fd10:0:2::2/128") && has.contains("default via fe80:");
        Ok(if taken { Seen::Yes(has) } else { Seen::Not(has) })
    })?;
    ensure!(has.contains("dynamic"), "the address did not come by DHCP: {has}");
    let vmi = host.get("vmi", NAME)?;
    let addresses = vmi["status"]["interfaces"][0]["ipAddresses"].as_array().context("no addresses")?.clone();
    let six = addresses.iter().filter_map(Value::as_str).find(|address| address.contains(':'));
    let six = six.with_context(|| format!("no IPv6 address: {addresses:?}"))?;
    ensure!(ssh_to(host, six, "cloud", "debian", "hostname")? == NAME, "another guest answers at {six}");
    let service = host.get("service", "six")?;
    let address = service["spec"]["clusterIP"].as_str().context("the service has no address")?.to_owned();
    let found = ssh(host, "cloud", "debian", "getent ahostsv6 six.default.svc.cluster.local")?;
    ensure!(found.contains(&address), "the name leads to {found:?}, not to {address}");
    ensure!(ssh_to(host, &address, "cloud", "debian", "hostname")? == NAME, "the service leads elsewhere");
    host.kubectl(&["delete", "service", "six"]).map(drop)
}

fn exec_probe_makes_it_ready(host: &Host) -> Result<()> {
    let vmi = host.get("vmi", NAME)?;
    ensure!(condition(&vmi, "Ready")["status"] == "False", "it is ready before its probe passes: {:#}", vmi["status"]);
    ssh(host, "cloud", "debian", "sudo touch /run/healthy")?;
    wait_long(host, "to be ready", |vmi| condition(vmi, "Ready")["status"] == "True")?;
    ssh(host, "cloud", "debian", "sudo rm /run/healthy")?;
    let vmi = wait_long(host, "to be no longer ready", |vmi| condition(vmi, "Ready")["status"] == "False")?;
    ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
    ssh(host, "cloud", "debian", "sudo touch /run/healthy")?;
    Ok(())
}

fn credentials_reach_the_guest(host: &Host) -> Result<()> {
    wait_long(host, "to have its credentials", |vmi| {
        condition(vmi, "AccessCredentialsSynchronized")["status"] == "True"
    })?;
    ensure!(ssh(host, "agent", "demo", "id -un")? == "demo", "the agent's key opens another account");
    let hash = || ssh(host, "cloud", "debian", "sudo sed -n 's/^demo:\\([^:]*\\):.*/\\1/p' /etc/shadow");
    let first = hash()?;
    ensure!(first.starts_with('$'), "demo has the password hash {first:?}");
    Ok(())
}

fn guest_is_asked_through_subresources(host: &Host) -> Result<()> {
    let info: Value = serde_json::from_str(&host.kubectl(&["get", "--raw", &subresource("guestosinfo")])?)?;
    ensure!(info["hostname"] == NAME && info["os"]["id"] == "debian", "{info}");
    ensure!(info["supportedCommands"].as_array().is_some_and(|all| all.len() > 10), "{info}");
    let list: Value = serde_json::from_str(&host.kubectl(&["get", "--raw", &subresource("filesystemlist")])?)?;
    let root = list["items"].as_array().into_iter().flatten().find(|item| item["mountPoint"] == "/");
    ensure!(root.is_some_and(|root| root["fileSystemType"] == "ext4"), "{list}");
    let users: Value = serde_json::from_str(&host.kubectl(&["get", "--raw", &subresource("userlist")])?)?;
    ensure!(users["items"].is_array(), "{users}");
    Ok(())
}

/// Upstream's own virtctl, and ours under its name.
fn virtctl_asks_the_guest_and_logs_in(host: &Host) -> Result<()> {
    let path = |name: &str| host.work_dir().join(name).to_string_lossy().into_owned();
    let (identity, known) = (path("cloud"), path("known-hosts"));
    for tool in Virtctl::both(host)? {
        let ask = |verb: &str| -> Result<Value> {
            let said = tool.say(host, &[verb, NAME])?;
            serde_json::from_str(&said).with_context(|| format!("{} {verb}: {said}", tool.label))
        };
        let info = ask("guestosinfo")?;
        ensure!(info["hostname"] == NAME && info["os"]["id"] == "debian", "{}: {info}", tool.label);
        let list = ask("fslist")?;
        let root = list["items"].as_array().into_iter().flatten().find(|item| item["mountPoint"] == "/");
        ensure!(root.is_some_and(|root| root["fileSystemType"] == "ext4"), "{}: {list}", tool.label);
        ensure!(ask("userlist")?["items"].is_array(), "{}: no list of users", tool.label);
        let options = ["-t", "-o StrictHostKeyChecking=no", "-t", "-o BatchMode=yes", "-t", "-o ConnectTimeout=60"];
        let mut arguments = vec!["ssh", "debian@vmi/deb", "--identity-file", &identity, "--known-hosts", &known];
        arguments.extend(options);
        arguments.extend(["--command", "hostname"]);
        let said = tool.say(host, &arguments)?;
        ensure!(said.trim() == NAME, "{}: `hostname` in the guest says {said:?}", tool.label);
        let (there, back) = (path("there"), path("back"));
        fs::write(&there, tool.label)?;
        for (from, to) in [(there.as_str(), "debian@vmi/deb:copy"), ("debian@vmi/deb:copy", back.as_str())] {
            let mut arguments = vec!["scp", from, to, "--identity-file", &identity, "--known-hosts", &known];
            arguments.extend(options);
            tool.say(host, &arguments)?;
        }
        ensure!(fs::read_to_string(&back)? == tool.label, "{}: the file came back changed", tool.label);
    }
    Ok(())
}

fn file_systems_freeze_and_thaw(host: &Host) -> Result<()> {
    // Thaws by itself.
    put(host, "freeze", &json!({ "unfreezeTimeout": "5s" }))?;
    wait_long(host, "to be frozen", |vmi| vmi["status"]["fsFreezeStatus"] == "frozen")?;
    wait_long(host, "to thaw by itself", |vmi| vmi["status"]["fsFreezeStatus"].is_null())?;
    put(host, "freeze", &json!({ "unfreezeTimeout": "10m" }))?;
    wait_long(host, "to be frozen", |vmi| vmi["status"]["fsFreezeStatus"] == "frozen")?;
    put(host, "unfreeze", &json!({}))?;
    wait_long(host, "to be thawed", |vmi| vmi["status"]["fsFreezeStatus"].is_null())?;
    ssh(host, "cloud", "debian", "sudo touch /var/written && sync").map(drop)
}

fn restart_is_graceful_and_keeps_identity(host: &Host) -> Result<()> {
    let before = host.get("vmi", NAME)?;
    let inside =
        ssh(host, "cloud", "debian", "cat /sys/class/net/en*/address; sudo cat /sys/class/dmi/id/product_uuid")?;
    host.ferrovirt(&["restart", NAME])?;
    let after = wait_long(host, "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
    })?;
    for path in ["/spec/domain/devices/interfaces/0/macAddress", "/spec/domain/firmware/uuid"] {
        let (old, new) = (before.pointer(path), after.pointer(path));
        let same = old.and_then(Value::as_str).is_some_and(|old| inside.contains(old)) && old == new;
        ensure!(same, "{path} was {old:?}, is {new:?}, and the guest saw {inside}");
    }
    let line = host.qemu(NAME)?.arguments.join(" ");
    for part in inside.split_whitespace() {
        ensure!(line.contains(part), "{part} is not in QEMU's command line: {line}");
    }
    // The guest powered off because it was asked, long before it would have been killed.
    let format = "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}";
    let events = host.kubectl(&["get", "events", "-o", format])?;
    ensure!(events.contains("Stopped: The VirtualMachineInstance was shut down."), "{events}");
    if std::env::var_os("FERROVIRT_LONG").is_some() {
        wait_long(host, "to be connected to its agent", |vmi| condition(vmi, "AgentConnected")["status"] == "True")?;
    }
    Ok(())
}

fn manifest(cloud_key: &str) -> Value {
    let user_data = format!(
        "#cloud-config\nhostname: {NAME}\nssh_authorized_keys:\n  - {cloud_key}\nusers:\n  - default\n  \
         - name: demo\n    shell: /bin/bash\nruncmd:\n  - echo \"made on $(hostname)\" > /etc/made-by-runcmd\n"
    );
    let secret = |name: &str| json!({ "secret": { "secretName": name } });
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "runStrategy": "Always",
            "template": { "metadata": { "labels": { "kubevirt.io/vm": NAME } }, "spec": {
                "domain": {
                    "memory": { "guest": "512Mi" },
                    "devices": {
                        "disks": [
                            { "name": "root", "disk": { "bus": "virtio" } },
                            { "name": "cloudinit", "disk": { "bus": "virtio" } },
                        ],
                        "interfaces": [{ "name": "default", "masquerade": {} }],
                        "rng": {},
                    },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "terminationGracePeriodSeconds": 240,
                "readinessProbe": {
                    "exec": { "command": ["/bin/test", "-e", "/run/healthy"] },
                    "periodSeconds": 2, "timeoutSeconds": 20, "failureThreshold": 1,
                },
                "accessCredentials": [
                    { "sshPublicKey": {
                        "source": secret("deb-keys"), "propagationMethod": { "qemuGuestAgent": { "users": ["demo"] } },
                    } },
                    { "userPassword": {
                        "source": secret("deb-passwords"), "propagationMethod": { "qemuGuestAgent": {} },
                    } },
                ],
                "volumes": [
                    { "name": "root", "containerDisk": { "image": "ferrovirt/debian-guest:latest" } },
                    { "name": "cloudinit", "cloudInitNoCloud": { "userData": user_data, "networkData": NETWORK } },
                ],
            } },
        },
    })
}

fn secret(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "default" }, "stringData": data })
}

fn condition<'a>(vmi: &'a Value, kind: &str) -> &'a Value {
    let conditions = vmi["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn wait_long(host: &Host, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    wait::until(&format!("vmi/{NAME} {what}"), BOOT, || {
        Ok(match host.object("vmi", NAME)? {
            Some(vmi) if holds(&vmi) => Seen::Yes(vmi),
            Some(vmi) => Seen::Not(format!("{:#}", vmi["status"])),
            None => Seen::Not("no such object".into()),
        })
    })
}

fn subresource(name: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/{NAME}/{name}")
}

fn put(host: &Host, name: &str, body: &Value) -> Result<()> {
    let file = host.work_dir().join("body.json");
    fs::write(&file, body.to_string())?;
    host.kubectl(&["replace", "--raw", &subresource(name), "-f", &file.to_string_lossy()]).map(drop)
}

/// A key pair in the test's directory; returns the public half.
fn make_key(host: &Host, name: &str) -> Result<String> {
    let path = host.work_dir().join(name);
    command::run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path), "")?.success()?;
    Ok(fs::read_to_string(path.with_extension("pub"))?.trim().to_owned())
}

/// Runs a command in the guest. Its ssh server comes up after its agent.
fn ssh(host: &Host, key: &str, user: &str, line: &str) -> Result<String> {
    let vmi = host.get("vmi", NAME)?;
    let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().context("the VMI has no address")?.to_owned();
    ssh_to(host, &address, key, user, line)
}

fn ssh_to(host: &Host, address: &str, key: &str, user: &str, line: &str) -> Result<String> {
    wait::until(&format!("ssh of {user}"), BOOT, || {
        let mut ssh = Command::new("ssh");
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"])
            .args(["-o", "ConnectTimeout=60", "-o", "IdentitiesOnly=yes", "-F", "none", "-i"])
            .arg(host.work_dir().join(key))
            .arg(format!("{user}@{address}"))
            .arg(line);
        let outcome = command::run(&mut ssh, "")?;
        Ok(match outcome.code {
            // ssh's own failures: nobody listens yet, or the key is not there yet.
            Some(255) => Seen::Not(outcome.to_string()),
            _ => Seen::Yes(outcome.success()?.trim().to_owned()),
        })
    })
}
