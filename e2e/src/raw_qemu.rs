//! QEMU without us: the same machine as a running VM's, started by hand.
//!
//! What a benchmark compares with. The command line is the running one's; only what ties it to its launcher is changed:
//! file descriptors that libvirt opened, paths inside the launcher's mount namespace, and the wait for libvirt's go.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{command, process::Process};

/// Where launchers keep the scratch layers of their disks.
const SCRATCH: &str = "/var/run/kubevirt-ephemeral-disks/disk-data/";

pub struct RawQemu {
    program: String,
    arguments: Vec<String>,
    /// Scratch layers and what they lie on: made anew for every start, so that each boot is a first boot.
    layers: Vec<(PathBuf, PathBuf)>,
}

impl RawQemu {
    /// Takes a running QEMU as the model. Its disks are copied to `directory`, so it may end afterwards.
    pub fn like(model: &Process, directory: &Path) -> Result<Self> {
        let (program, arguments) = model.arguments.split_first().context("QEMU has no command line")?;
        let mut raw = Self { program: program.clone(), arguments: vec![], layers: vec![] };
        let mut images = vec![];
        let mut words = arguments.iter();
        while let Some(option) = words.next() {
            let Some(option) = option.strip_prefix('-') else { bail!("{option} is no option of QEMU") };
            if matches!(option, "S" | "no-shutdown" | "no-user-config" | "nodefaults") {
                raw.add_flag(option);
                continue;
            }
            let value = words.next().with_context(|| format!("-{option} has no value"))?;
            if option == "blockdev"
                && let Some(file) = file_of(value)
            {
                let target = directory.join(format!("disk-{}", images.len()));
                if file.starts_with(SCRATCH) {
                    let below = images.last().cloned().context("a scratch layer lies on nothing")?;
                    raw.layers.push((target.clone(), below));
                } else {
                    let inside = format!("/proc/{}/root{file}", model.pid);
                    fs::copy(&inside, &target).with_context(|| format!("cannot copy {inside}"))?;
                }
                raw.add(option, &value.replace(&file, &target.to_string_lossy()));
                images.push(target);
            } else if let Some(value) = alone(option, value) {
                raw.add(option, &value);
            }
        }
        raw.add("display", "none");
        Ok(raw)
    }

    /// Plugs its first interface into a tap device of this machine.
    pub fn plug(&mut self, tap: &str) {
        let place = self.arguments.iter().position(|word| word == "-netdev");
        let Some(value) = place.and_then(|place| self.arguments.get_mut(place + 1)) else { return };
        let id = serde_json::from_str::<Value>(value).map(|netdev| netdev["id"].clone()).unwrap_or_default();
        *value = json!({ "type": "tap", "id": id, "ifname": tap, "script": "no", "downscript": "no" }).to_string();
    }

    /// Starts it with fresh scratch layers and its serial port on the standard streams.
    pub fn start(&self) -> Result<Child> {
        for (layer, below) in &self.layers {
            let (layer, below) = (layer.to_string_lossy(), below.to_string_lossy());
            command::output("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &below, &layer])?;
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("cannot start {}", self.program))
    }

    fn add(&mut self, option: &str, value: &str) {
        self.arguments.extend([format!("-{option}"), value.to_owned()]);
    }

    /// `-S` waits for libvirt to say "go" and `-no-shutdown` to say "end"; nobody would.
    fn add_flag(&mut self, option: &str) {
        if !matches!(option, "S" | "no-shutdown") {
            self.arguments.push(format!("-{option}"));
        }
    }
}

/// What an option becomes without a launcher around it. `None` if it goes.
fn alone(option: &str, value: &str) -> Option<String> {
    let id = || value.split(',').find_map(|part| part.strip_prefix("id="));
    match option {
        // The last one is a descriptor of libvirt's, for the log of the serial port.
        "mon" | "vnc" | "add-fd" => None,
        "object" if value.contains("\"secret\"") => None,
        "chardev" => match id()? {
            "charmonitor" => None,
            "charserial0" => Some("stdio,id=charserial0,signal=off".into()),
            id => Some(format!("null,id={id}")),
        },
        // Nothing is plugged in: the tap belongs to the launcher's network.
        "netdev" => {
            let netdev: Value = serde_json::from_str(value).ok()?;
            Some(json!({ "type": "hubport", "hubid": 0, "id": netdev["id"] }).to_string())
        }
        "name" => Some("raw".into()),
        _ => Some(value.to_owned()),
    }
}

fn file_of(blockdev: &str) -> Option<String> {
    let blockdev: Value = serde_json::from_str(blockdev).ok()?;
    (blockdev["driver"] == "file").then(|| blockdev["filename"].as_str().map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_lose_what_ties_them_to_a_launcher() {
        for (option, value, expected) in [
            ("mon", "chardev=charmonitor,id=monitor,mode=control", None),
            ("chardev", "socket,id=charmonitor,fd=16,server=on,wait=off", None),
            ("chardev", "socket,id=charserial0,fd=14,server=on,wait=off", Some("stdio,id=charserial0,signal=off")),
            ("chardev", "socket,id=charchannel0,fd=15,server=on,wait=off", Some("null,id=charchannel0")),
            ("netdev", r#"{"type":"tap","fd":"19","id":"n0"}"#, Some(r#"{"hubid":0,"id":"n0","type":"hubport"}"#)),
            ("object", r#"{"qom-type":"secret","id":"masterKey0"}"#, None),
            ("object", r#"{"qom-type":"rng-random"}"#, Some(r#"{"qom-type":"rng-random"}"#)),
            ("add-fd", "set=0,fd=17,opaque=serial0-log", None),
            ("m", "128", Some("128")),
        ] {
            assert_eq!(alone(option, value).as_deref(), expected, "-{option} {value}");
        }
    }
}
