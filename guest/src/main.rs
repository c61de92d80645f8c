//! The user space of the demo guest: one static binary in several roles, next to busybox and a small ssh server.
//!
//! ```text
//! kernel -> /init (initrd role): load disk drivers, mount the root, switch to it
//!        -> busybox init -> `guest-init boot` (sysinit): devices, cloud-init data, network
//!                             `-> `guest-init final`: commands of the user, then "ready"
//!                        -> getty on ttyS0 and tty1
//!                        -> `guest-init power-button` (respawned): a clean power-off on the ACPI button
//! sudo   -> `sudo` role: for members of the group sudo
//!
//! in a container: busybox init -> `guest-init boot container`: as above, but the node's kernel has done its part, and the
//! cloud-init data is a directory
//! ```
//!
//! It understands the part of cloud-init's formats that demos and tests use, with cloud-init's meaning; a real cloud image brings the
//! real one.

mod boot;
mod cloud;
mod devices;
mod final_stage;
mod host_key;
mod initrd;
mod modules;
mod network;
mod power;
mod sudo;
mod users;

use std::path::Path;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let role = Path::new(&name).file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
    let rest: Vec<String> = args.collect();
    match (role.as_str(), rest.first().map(String::as_str)) {
        ("init", _) if std::process::id() == 1 => initrd::run(),
        ("sudo", _) => sudo::run(&rest),
        (_, Some("boot")) => boot::run(boot::Kind::of(rest.get(1).map(String::as_str))),
        (_, Some("final")) => final_stage::run(),
        (_, Some("power-button")) => power::run(),
        _ => bail!("this is part of the boot of the guest; there is nothing to call it for"),
    }
}

/// A line for the console, in the form that people and tests look for.
fn say(text: impl std::fmt::Display) {
    println!("ferrovirt-guest: {text}");
}
