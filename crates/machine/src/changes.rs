//! What is different between the machine that runs and the one that is wanted. Pure.
//!
//! Every field of a [`MachineSpec`] belongs to one of three parts: its identity, which makes it this machine; what a running
//! machine can take over; and what is fixed when it starts. [`between`] names all fields, so that a new one has to be put
//! into one of them before it compiles.

use crate::spec::{Credential, Devices, Interface, MachineSpec};

/// What a newer spec means for the machine that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// To be done now, in this order.
    pub now: Vec<Change>,
    /// Parts that differ and stay as they are until the machine starts again, by their names in the spec.
    pub at_restart: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Grace {
        seconds: u64,
    },
    Credentials(Vec<Credential>),
    /// Plugs the cable of an interface in, or out.
    Link {
        interface: String,
        up: bool,
    },
}

impl Change {
    /// Notes in the spec of what runs that this was done.
    pub fn note(&self, running: &mut MachineSpec) {
        match self {
            Self::Grace { seconds } => running.grace_seconds = *seconds,
            Self::Credentials(credentials) => running.credentials.clone_from(credentials),
            Self::Link { interface, up } => {
                for known in running.devices.interfaces.iter_mut().filter(|known| known.name == *interface) {
                    known.link_down = !up;
                }
            }
        }
    }
}

/// From `old`, which runs, to `new`. They are specs of one machine: whoever asks has compared their identities.
pub fn between(old: &MachineSpec, new: &MachineSpec) -> Changes {
    let mut changes = Changes::default();
    let MachineSpec {
        // The identity. The version says how it was told.
        version: _,
        name: _,
        uid: _,
        hypervisor: _,
        // What a running machine takes over.
        grace_seconds,
        credentials,
        devices,
        // What is fixed when it starts.
        arch,
        acceleration,
        domain_type,
        translation_cache_mib,
        memory,
        cpu,
        firmware,
        system_info,
        clock,
        features,
        container,
        io_threads,
        launch_security,
        iommufd,
        on_reboot,
        extra_arguments,
        dhcp,
        host_metrics,
        // What was done before it started, and whether its CPUs ran then, is over.
        start_paused: _,
        prepare: _,
    } = new;
    if *grace_seconds != old.grace_seconds {
        changes.now.push(Change::Grace { seconds: *grace_seconds });
    }
    if *credentials != old.credentials {
        changes.now.push(Change::Credentials(credentials.clone()));
    }
    changes.devices(&old.devices, devices);
    for (name, differs) in [
        ("arch", *arch != old.arch),
        ("acceleration", *acceleration != old.acceleration),
        ("domainType", *domain_type != old.domain_type),
        ("translationCacheMib", *translation_cache_mib != old.translation_cache_mib),
        ("memory", *memory != old.memory),
        ("cpu", *cpu != old.cpu),
        ("firmware", *firmware != old.firmware),
        ("systemInfo", *system_info != old.system_info),
        ("clock", *clock != old.clock),
        ("features", *features != old.features),
        ("container", *container != old.container),
        ("ioThreads", *io_threads != old.io_threads),
        ("launchSecurity", *launch_security != old.launch_security),
        ("iommufd", *iommufd != old.iommufd),
        ("onReboot", *on_reboot != old.on_reboot),
        ("extraArguments", *extra_arguments != old.extra_arguments),
        ("dhcp", *dhcp != old.dhcp),
        ("hostMetrics", *host_metrics != old.host_metrics),
    ] {
        changes.restart_if(name, differs);
    }
    changes
}

impl Changes {
    fn devices(&mut self, old: &Devices, new: &Devices) {
        let Devices {
            interfaces,
            emulator,
            channels,
            host_devices,
            panics,
            controllers,
            video,
            graphics,
            balloon,
            disks,
            inputs,
            serial,
            watchdog,
            rng,
            filesystems,
            usb_redirections,
            sound,
            tpm,
            vsock,
        } = new;
        self.interfaces(&old.interfaces, interfaces);
        for (name, differs) in [
            ("devices.emulator", *emulator != old.emulator),
            ("devices.channels", *channels != old.channels),
            ("devices.hostDevices", *host_devices != old.host_devices),
            ("devices.panics", *panics != old.panics),
            ("devices.controllers", *controllers != old.controllers),
            ("devices.video", *video != old.video),
            ("devices.graphics", *graphics != old.graphics),
            ("devices.balloon", *balloon != old.balloon),
            ("devices.disks", *disks != old.disks),
            ("devices.inputs", *inputs != old.inputs),
            ("devices.serial", *serial != old.serial),
            ("devices.watchdog", *watchdog != old.watchdog),
            ("devices.rng", *rng != old.rng),
            ("devices.filesystems", *filesystems != old.filesystems),
            ("devices.usbRedirections", *usb_redirections != old.usb_redirections),
            ("devices.sound", *sound != old.sound),
            ("devices.tpm", *tpm != old.tpm),
            ("devices.vsock", *vsock != old.vsock),
        ] {
            self.restart_if(name, differs);
        }
    }

    /// Cables can be plugged; the rest of an interface, and which there are, is fixed.
    fn interfaces(&mut self, old: &[Interface], new: &[Interface]) {
        let same_but_for_the_cable =
            |(old, new): (&Interface, &Interface)| Interface { link_down: old.link_down, ..new.clone() } == *old;
        if old.len() != new.len() || !old.iter().zip(new).all(same_but_for_the_cable) {
            self.at_restart.push("devices.interfaces");
        }
        for interface in new {
            let before = old.iter().find(|before| before.name == interface.name);
            if before.is_some_and(|before| before.link_down != interface.link_down) {
                self.now.push(Change::Link { interface: interface.name.clone(), up: !interface.link_down });
            }
        }
    }

    fn restart_if(&mut self, name: &'static str, differs: bool) {
        if differs {
            self.at_restart.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn spec(changed: &Value) -> MachineSpec {
        let mut spec = json!({ "uid": "u", "graceSeconds": 30, "memory": { "bytes": 1 },
            "devices": { "interfaces": [{ "name": "a", "model": "virtio" }, { "name": "b", "model": "virtio" }] } });
        for (key, value) in changed.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    fn check(changed: Value, now: &[Change], at_restart: &[&str]) {
        let (mut running, wanted) = (spec(&json!({})), spec(&changed));
        let changes = between(&running, &wanted);
        assert_eq!((&changes.now[..], &changes.at_restart[..]), (now, at_restart), "{changed}");
        changes.now.iter().for_each(|change| change.note(&mut running));
        let left = between(&running, &wanted);
        assert_eq!((left.now, left.at_restart), (vec![], changes.at_restart), "what was done is not done again");
    }

    #[test]
    fn what_runs_takes_over_what_it_can() {
        check(json!({}), &[], &[]);
        // None of these says anything about what runs.
        check(json!({ "startPaused": true, "version": 1 }), &[], &[]);
        check(json!({ "graceSeconds": 5 }), &[Change::Grace { seconds: 5 }], &[]);
        let passwords = json!([{ "type": "passwords", "dir": "/x" }]);
        let wanted = vec![Credential::Passwords { dir: "/x".into() }];
        check(json!({ "credentials": passwords }), &[Change::Credentials(wanted)], &[]);
        let down = json!({ "interfaces": [{ "name": "a", "model": "virtio" },
            { "name": "b", "model": "virtio", "linkDown": true }] });
        check(json!({ "devices": down }), &[Change::Link { interface: "b".into(), up: false }], &[]);
    }

    #[test]
    fn the_rest_waits_for_a_restart() {
        check(json!({ "memory": { "bytes": 2 }, "arch": "aarch64" }), &[], &["arch", "memory"]);
        let other = json!({ "interfaces": [{ "name": "a", "model": "e1000", "linkDown": true }] });
        // A cable can be pulled out of what is there, whatever it shall become.
        let pulled = Change::Link { interface: "a".into(), up: false };
        check(json!({ "devices": other }), &[pulled], &["devices.interfaces"]);
        let new = json!({ "interfaces": [{ "name": "a", "model": "virtio" }, { "name": "b", "model": "virtio" },
            { "name": "c", "linkDown": true }], "disks": [{ "name": "root" }] });
        check(json!({ "devices": new }), &[], &["devices.interfaces", "devices.disks"]);
    }
}
