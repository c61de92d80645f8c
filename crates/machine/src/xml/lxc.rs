//! A container in the language of libvirt's LXC driver.

use super::element::{Element, element};
use crate::spec::{Attachment, Container, IdRange, Interface, MachineSpec, RebootAction};

/// One scheduling period, in microseconds; a guest with two CPUs may run for two of them in each.
const PERIOD: u64 = 100_000;

/// The domain as text, without a final newline.
pub fn domain_xml(spec: &MachineSpec) -> String {
    let container = spec.container.clone().unwrap_or_default();
    let vcpus = spec.cpu.vcpus.max(1);
    let mut domain = element("domain").attr("type", "lxc");
    domain.push(element("name").text(&spec.name));
    domain.push(element("memory").attr("unit", "b").text(spec.memory.bytes));
    domain.push(element("vcpu").attr("placement", "static").text(vcpus));
    let tune = element("cputune").child(element("period").text(PERIOD));
    domain.push(tune.child(element("quota").text(PERIOD * u64::from(vcpus))));
    domain.push(os(spec, &container));
    let map = |name| id_map(name, container.ids);
    domain.push(element("idmap").child(map("uid")).child(map("gid")));
    // A network of its own even without an interface: otherwise it would share the launcher's.
    domain.push(element("features").child(element("privnet")));
    domain.push(element("on_poweroff").text("destroy"));
    domain.push(element("on_reboot").text(match spec.on_reboot {
        Some(RebootAction::Destroy) => "destroy",
        Some(RebootAction::Restart) | None => "restart",
    }));
    domain.push(devices(spec, &container));
    domain.to_string()
}

fn os(spec: &MachineSpec, container: &Container) -> Element {
    let mut os = element("os").child(element("type").attr("arch", spec.arch.name()).text("exe"));
    let mut words = container.init.iter();
    os.push_all(words.next().map(|program| element("init").text(program)));
    os.push_all(words.map(|argument| element("initarg").text(argument)));
    os
}

fn id_map(name: &'static str, ids: IdRange) -> Element {
    element(name).attr("start", 0).attr("target", ids.first).attr("count", ids.count)
}

fn devices(spec: &MachineSpec, container: &Container) -> Element {
    let mut devices = element("devices");
    devices.push(filesystem(&container.root, "/"));
    let mounts = container.mounts.iter();
    devices.push_all(mounts.map(|mount| filesystem(&mount.source, &mount.target)));
    let interfaces = spec.devices.interfaces.iter().enumerate();
    devices.push_all(interfaces.filter_map(|(index, source)| interface(index, source)));
    devices.push_all(spec.devices.serial.as_ref().map(|_| element("console").attr("type", "pty")));
    devices
}

fn filesystem(source: &str, target: &str) -> Element {
    element("filesystem")
        .attr("type", "mount")
        .attr("accessmode", "passthrough")
        .child(element("source").attr("dir", source))
        .child(element("target").attr("dir", target))
}

/// A pair of virtual cables: libvirt plugs one end into the bridge, the guest has the other.
fn interface(index: usize, source: &Interface) -> Option<Element> {
    let Attachment::Tap { device: Some(bridge) } = &source.attachment else {
        return None;
    };
    let mut out = element("interface").attr("type", "bridge");
    out.push_all(source.mac.as_ref().map(|mac| element("mac").attr("address", mac)));
    out.push(element("source").attr("bridge", bridge));
    out.push(element("guest").attr("dev", format!("eth{index}")));
    out.push_all(source.link_down.then(|| element("link").attr("state", "down")));
    Some(out)
}
