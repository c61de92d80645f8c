//! The world outside, for pods. They do not reach what listens on this machine, and should not; servers of tests do. So there
//! is a router in a network namespace of its own that leads every connection to it back to this machine.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{Host, command};

/// The process that keeps the namespace. It ends when its input does, which is when this process ends.
struct Router {
    _keeper: Child,
    address: String,
}

static ROUTER: Mutex<Option<Router>> = Mutex::new(None);

/// How pods reach a server on this machine.
pub fn address(host: &Host) -> Result<String> {
    if host.cluster().is_some() {
        let nodes: Value = serde_json::from_str(&host.kubectl(&["get", "nodes", "-o", "json"])?)?;
        let addresses = nodes["items"][0]["status"]["addresses"].as_array().context("no addresses")?.clone();
        let internal = addresses.iter().find(|address| address["type"] == "InternalIP").context("no address")?;
        return Ok(internal["address"].as_str().context("no address")?.to_owned());
    }
    let mut router = ROUTER.lock().map_err(|_| anyhow::anyhow!("the router could not be made"))?;
    if router.is_none() {
        *router = Some(Router::start()?);
    }
    Ok(router.as_ref().map(|router| router.address.clone()).unwrap_or_default())
}

impl Router {
    fn start() -> Result<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; read -r forever"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let mut ready = String::new();
        BufReader::new(keeper.stdout.take().context("no output")?).read_line(&mut ready)?;
        let id = std::process::id();
        let (link, inside) = (format!("out{id}"), keeper.id().to_string());
        let network = format!("198.{}.{}", 18 + (id >> 14 & 1), id & 0xff);
        let base = (id >> 8 & 0x3f) * 4;
        let (here, there) = (format!("{network}.{}", base + 1), format!("{network}.{}", base + 2));
        let ip = |arguments: &str| command::output("ip", &arguments.split(' ').collect::<Vec<_>>());
        ip(&format!("link add {link} type veth peer name eth0 netns {inside}"))?;
        ip(&format!("addr add {here}/30 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        let script = format!(
            "ip link set lo up && ip addr add {there}/30 dev eth0 && ip link set eth0 up && \
             echo 1 > /proc/sys/net/ipv4/ip_forward && nft -f - <<'END'\n\
             table ip back {{\n chain in {{\n type nat hook prerouting priority -100;\n dnat to {here}\n }}\n \
             chain out {{\n type nat hook postrouting priority 100;\n masquerade\n }}\n}}\nEND"
        );
        command::output("nsenter", &["-t", &inside, "-n", "sh", "-c", &script])?;
        Ok(Self { _keeper: keeper, address: there })
    }
}
