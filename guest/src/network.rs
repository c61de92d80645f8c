//! The network: cloud-init's formats (versions 1 and 2) to a plan, the plan to `ip` and `udhcpc`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::boot::Kind;
use crate::cloud::{flag, scalar, strings};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub mac: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub interfaces: Vec<Interface>,
    pub nameservers: Vec<String>,
    pub search: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub nic: String,
    pub dhcp: bool,
    pub addresses: Vec<String>,
    /// (destination, gateway)
    pub routes: Vec<(String, String)>,
    pub mtu: Option<String>,
}

/// Without a configuration, every NIC asks DHCP.
pub fn plan(config: Option<&Value>, nics: &[Nic]) -> Plan {
    let Some(config) = config else {
        let dhcp = |n: &Nic| Interface { nic: n.name.clone(), dhcp: true, ..Interface::default() };
        return Plan { interfaces: nics.iter().map(dhcp).collect(), ..Plan::default() };
    };
    let config = if config["network"].is_object() { &config["network"] } else { config };
    let mut plan = Plan::default();
    let mut free: Vec<&Nic> = nics.iter().collect();
    if scalar(&config["version"]).as_deref() == Some("1") {
        version1(config, &mut free, &mut plan);
    } else {
        version2(config, &mut free, &mut plan);
    }
    plan
}

fn version2(config: &Value, free: &mut Vec<&Nic>, plan: &mut Plan) {
    let Some(ethernets) = config["ethernets"].as_object() else {
        return;
    };
    // Entries that name their NIC choose first; the others take what is left, in order.
    let exact = |name: &str, entry: &Value| !entry["match"]["macaddress"].is_null() || name.starts_with("eth");
    let mut entries: Vec<_> = ethernets.iter().collect();
    entries.sort_by_key(|(name, entry)| !exact(name, entry));
    for (name, entry) in entries {
        let mac = scalar(&entry["match"]["macaddress"]);
        let Some(nic) = take(free, name, mac.as_deref()) else {
            continue;
        };
        let mut interface = Interface { nic, dhcp: flag(&entry["dhcp4"]).unwrap_or(false), ..Interface::default() };
        interface.addresses = strings(&entry["addresses"]);
        interface.mtu = scalar(&entry["mtu"]);
        for key in ["gateway4", "gateway6"] {
            interface.routes.extend(scalar(&entry[key]).map(|g| ("default".to_string(), g)));
        }
        for route in entry["routes"].as_array().into_iter().flatten() {
            let to = scalar(&route["to"]).filter(|t| t != "0.0.0.0/0" && t != "::/0").unwrap_or("default".into());
            interface.routes.extend(scalar(&route["via"]).map(|via| (to, via)));
        }
        plan.nameservers.extend(strings(&entry["nameservers"]["addresses"]));
        plan.search.extend(strings(&entry["nameservers"]["search"]));
        plan.interfaces.push(interface);
    }
}

fn version1(config: &Value, free: &mut Vec<&Nic>, plan: &mut Plan) {
    let one_or_many = |v: &Value| scalar(v).map_or_else(|| strings(v), |s| vec![s]);
    for entry in config["config"].as_array().into_iter().flatten() {
        match scalar(&entry["type"]).as_deref() {
            Some("physical") => {
                let (name, mac) = (scalar(&entry["name"]).unwrap_or_default(), scalar(&entry["mac_address"]));
                let Some(nic) = take(free, &name, mac.as_deref()) else {
                    continue;
                };
                let mut interface = Interface { nic, mtu: scalar(&entry["mtu"]), ..Interface::default() };
                for subnet in entry["subnets"].as_array().into_iter().flatten() {
                    match scalar(&subnet["type"]).as_deref() {
                        Some("dhcp" | "dhcp4") => interface.dhcp = true,
                        Some("static" | "static6") => {
                            interface
                                .addresses
                                .extend(scalar(&subnet["address"]).map(|a| with_prefix(&a, &subnet["netmask"])));
                            interface.routes.extend(scalar(&subnet["gateway"]).map(|g| ("default".to_string(), g)));
                        }
                        _ => {}
                    }
                    plan.nameservers.extend(one_or_many(&subnet["dns_nameservers"]));
                    plan.search.extend(one_or_many(&subnet["dns_search"]));
                }
                plan.interfaces.push(interface);
            }
            Some("nameserver") => {
                plan.nameservers.extend(one_or_many(&entry["address"]));
                plan.search.extend(one_or_many(&entry["search"]));
            }
            _ => {}
        }
    }
}

/// The NIC that an entry means: by address, else by name, else the next one (`enp1s0` is another kernel's name for `eth0`).
fn take(free: &mut Vec<&Nic>, name: &str, mac: Option<&str>) -> Option<String> {
    let at = match mac {
        Some(mac) => free.iter().position(|n| n.mac.eq_ignore_ascii_case(mac))?,
        None => match free.iter().position(|n| n.name == name) {
            Some(at) => at,
            None if !name.starts_with("eth") && !free.is_empty() => 0,
            None => return None,
        },
    };
    Some(free.remove(at).name.clone())
}

fn with_prefix(address: &str, netmask: &Value) -> String {
    match scalar(netmask) {
        Some(mask) if !address.contains('/') => {
            let bits = match mask.parse::<std::net::Ipv4Addr>() {
                Ok(mask) => u32::from(mask).count_ones().to_string(),
                Err(_) => mask,
            };
            format!("{address}/{bits}")
        }
        _ => address.to_string(),
    }
}

/// The NICs of this machine, in the kernel's order.
pub fn nics(on: Kind) -> Vec<Nic> {
    let mut out: Vec<Nic> = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            // Only real devices have this link: not lo, not bridges. A container has none, only ends of cables.
            let real = path.join("device").exists();
            let cable = on == Kind::Container && !path.ends_with("lo");
            (real || cable).then_some(())?;
            let mac = std::fs::read_to_string(path.join("address")).ok()?;
            Some(Nic { name: path.file_name()?.to_str()?.to_string(), mac: mac.trim().to_string() })
        })
        .collect();
    out.sort_by_key(|n| (n.name.len(), n.name.clone()));
    out
}

/// Configures everything that is fixed, and starts DHCP clients without waiting for them.
pub fn apply(plan: &Plan, hostname: &str) -> Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    let mut resolv: String = plan.nameservers.iter().map(|n| format!("nameserver {n}\n")).collect();
    if !plan.search.is_empty() {
        resolv.push_str(&format!("search {}\n", plan.search.join(" ")));
    }
    std::fs::create_dir_all("/run/dhcp")?;
    std::fs::write("/run/resolv.conf", resolv)?;
    for i in &plan.interfaces {
        if let Some(mtu) = &i.mtu {
            ip(&["link", "set", &i.nic, "mtu", mtu])?;
        }
        ip(&["link", "set", &i.nic, "up"])?;
        for address in &i.addresses {
            ip(&[family(address), "addr", "add", address, "dev", &i.nic])?;
        }
        for (to, via) in &i.routes {
            ip(&[family(via), "route", "add", to, "via", via, "dev", &i.nic])?;
        }
        if i.dhcp {
            std::fs::write(format!("/run/dhcp/{}.wanted", i.nic), "")?;
            let log = std::fs::File::options().create(true).append(true).open("/var/log/udhcpc.log")?;
            Command::new("/sbin/udhcpc")
                .args(["-f", "-t", "8", "-T", "1", "-A", "5", "-s", "/etc/udhcpc.script", "-i", &i.nic])
                .args(["-x", &format!("hostname:{hostname}")])
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .context("cannot start udhcpc")?;
        }
    }
    Ok(())
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

fn ip(args: &[&str]) -> Result<()> {
    let out = Command::new("/sbin/ip").args(args).output().context("cannot run ip")?;
    if !out.status.success() {
        crate::say(format_args!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn two() -> Vec<Nic> {
        [("eth0", "02:00:00:00:00:01"), ("eth1", "02:00:00:00:00:02")]
            .map(|(name, mac)| Nic { name: name.into(), mac: mac.into() })
            .to_vec()
    }

    /// One line per interface: what would be done.
    fn check(config: Value, wanted: &[&str]) {
        let plan = plan((!config.is_null()).then_some(&config), &two());
        let mut lines: Vec<String> = plan
            .interfaces
            .iter()
            .map(|i| {
                let routes: Vec<String> = i.routes.iter().map(|(to, via)| format!("{to}>{via}")).collect();
                let dhcp = if i.dhcp { "dhcp" } else { "static" };
                format!("{} {dhcp} {} {}", i.nic, i.addresses.join(","), routes.join(",")).trim_end().to_string()
            })
            .collect();
        if !plan.nameservers.is_empty() {
            lines.push(format!("dns {}", plan.nameservers.join(",")));
        }
        assert_eq!(lines, wanted);
    }

    #[test]
    fn plans() {
        check(Value::Null, &["eth0 dhcp", "eth1 dhcp"]);
        check(json!({"version": 2, "ethernets": {"eth1": {"dhcp4": true}}}), &["eth1 dhcp"]);
        check(json!({"network": {"version": 2, "ethernets": {"enp1s0": {"dhcp4": true}}}}), &["eth0 dhcp"]);
        check(
            json!({"version": 2, "ethernets": {"a": {"dhcp4": true}, "b": {"match": {"macaddress": "02:00:00:00:00:01"},
                "addresses": ["10.0.0.2/24", "fd00::2/64"], "gateway4": "10.0.0.1", "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.9"}],
                "nameservers": {"addresses": ["10.0.0.53"]}}}}),
            &["eth0 static 10.0.0.2/24,fd00::2/64 default>10.0.0.1,10.9.0.0/16>10.0.0.9", "eth1 dhcp", "dns 10.0.0.53"],
        );
        check(
            json!({"version": 2, "ethernets": {"x": {"match": {"macaddress": "02:00:00:00:00:99"}, "dhcp4": true}}}),
            &[],
        );
        check(
            json!({"version": 1, "config": [
                {"type": "physical", "name": "eth0", "subnets": [{"type": "static", "address": "10.0.0.2", "netmask": "255.255.254.0", "gateway": "10.0.0.1"}]},
                {"type": "physical", "name": "x", "mac_address": "02:00:00:00:00:02", "subnets": [{"type": "dhcp"}]},
                {"type": "nameserver", "address": ["1.2.3.4"]}]}),
            &["eth0 static 10.0.0.2/23 default>10.0.0.1", "eth1 dhcp", "dns 1.2.3.4"],
        );
    }
}
