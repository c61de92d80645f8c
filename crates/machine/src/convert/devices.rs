//! The smaller devices, each in a few lines.

use ferrovirt_api::names;

use super::{Conversion, arch, disks, filesystems, volumes};
use crate::spec::{
    Arch, Balloon, Channel, Controller, ControllerKind, Devices, Graphics, HostMetrics, Input, Rng, SerialConsole,
    Sound, Tpm, Video, Vsock, Watchdog, WatchdogAction,
};

const GUEST_AGENT_CHANNEL: &str = "org.qemu.guest_agent.0";
const METRICS_CHANNEL: &str = "org.github.vhostmd.1";
const USB_REDIRECTIONS: u32 = 4;
const VIDEO_MEMORY_KIB: u32 = 16384;

/// All devices but disks and interfaces.
pub(super) fn convert(c: &mut Conversion<'_>) -> Devices {
    let vmi = c.vmi;
    let source = &vmi.spec.domain.devices;
    let host = c.ctx;
    let host_devices = [&host.generic_host_devices, &host.gpu_host_devices, &host.sriov_devices];
    Devices {
        emulator: c.ctx.emulates_foreign(vmi).then(|| format!("/usr/bin/qemu-system-{}", c.ctx.arch.name())),
        host_devices: host_devices.into_iter().flatten().cloned().collect(),
        channels: channels(c),
        panics: source.panic_devices.iter().map(|panic| panic.model.clone()).collect(),
        controllers: controllers(c),
        video: has_graphics(c).then(|| video(c)),
        graphics: has_graphics(c).then(|| Graphics { socket: socket(c, "virt-vnc") }),
        balloon: Some(balloon(c)),
        inputs: inputs(c),
        serial: serial(c),
        watchdog: watchdog(c),
        rng: source.rng.as_ref().map(|_| Rng {
            model: c.virtio_model().into(),
            source: "/dev/urandom".into(),
            iommu: c.uses_iommu(),
            address: None,
        }),
        usb_redirections: match source.client_passthrough {
            Some(_) => (0..USB_REDIRECTIONS).map(|index| socket(c, &format!("virt-usbredir-{index}"))).collect(),
            None => Vec::new(),
        },
        filesystems: filesystems::convert(c),
        sound: sound(c),
        tpm: tpm(c),
        vsock: vmi.status.vsockcid.map(|cid| Vsock { model: "virtio-non-transitional".into(), cid }),
        ..Devices::default()
    }
}

fn channels(c: &Conversion<'_>) -> Vec<Channel> {
    // The management daemon decides where the agent's socket lies.
    let mut channels = vec![Channel { name: GUEST_AGENT_CHANNEL.into(), path: None }];
    if c.vmi.spec.domain.devices.downward_metrics.is_some() {
        channels.push(Channel { name: METRICS_CHANNEL.into(), path: Some(metrics_channel(c)) });
    }
    channels
}

fn metrics_channel(c: &Conversion<'_>) -> String {
    format!("{}/downwardmetrics-channel/downwardmetrics.sock", c.ctx.layout.private)
}

/// What the guest is told of its host, and where. The node agent adds the host's name.
pub(super) fn host_metrics(c: &Conversion<'_>) -> Option<HostMetrics> {
    let spec = &c.vmi.spec;
    let disk = spec.volumes.iter().any(|volume| volume.downward_metrics.is_some());
    let disk = disk.then(|| volumes::metrics_disk(&c.ctx.layout));
    let channel = spec.domain.devices.downward_metrics.is_some().then(|| metrics_channel(c));
    let product = spec.hypervisor.clone().unwrap_or_else(|| crate::hypervisor::DEFAULT.into());
    (disk.is_some() || channel.is_some()).then(|| HostMetrics { host_name: String::new(), product, disk, channel })
}

fn controllers(c: &Conversion<'_>) -> Vec<Controller> {
    let iommu = c.uses_iommu();
    let usb = if arch::usb_needed(c.ctx.arch, c.vmi) { "qemu-xhci" } else { "none" };
    let mut controllers = vec![controller(ControllerKind::Usb, usb)];
    if disks::needs_scsi_controller(c) {
        let (io_thread, queues) = disks::scsi_thread(c).unzip();
        let model = arch::scsi_model(c.ctx.arch, c.virtio_model());
        controllers.push(Controller { io_thread, queues, iommu, ..controller(ControllerKind::Scsi, &model) });
    }
    let hole64 = annotation(c, names::DISABLE_PCI_HOLE64).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if hole64 && arch::can_disable_pci_hole64(c.ctx.arch) {
        controllers.push(Controller { pci_hole64_kib: Some(0), ..controller(ControllerKind::Pci, "pcie-root") });
    }
    if has_serial(c) {
        controllers.push(Controller { iommu, ..controller(ControllerKind::VirtioSerial, c.virtio_model()) });
    }
    controllers
}

fn controller(kind: ControllerKind, model: &str) -> Controller {
    Controller { kind, model: Some(model.into()), ..Controller::default() }
}

fn balloon(c: &Conversion<'_>) -> Balloon {
    if c.vmi.spec.domain.devices.autoattach_mem_balloon == Some(false) {
        return Balloon { model: "none".into(), ..Balloon::default() };
    }
    Balloon {
        model: c.virtio_model().into(),
        stats_period: c.ctx.mem_balloon_stats_period,
        free_page_reporting: Some(c.ctx.free_page_reporting),
        iommu: c.uses_iommu(),
        address: None,
    }
}

fn video(c: &Conversion<'_>) -> Video {
    let heads = Some(1);
    if let Some(video) = &c.vmi.spec.domain.devices.video {
        return Video { model: video.type_.clone(), heads, vram_kib: Some(VIDEO_MEMORY_KIB) };
    }
    let is_efi = c.vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let is_efi = is_efi.is_some_and(|bootloader| bootloader.efi.is_some());
    match c.ctx.arch {
        Arch::X86_64 if c.ctx.bochs_for_efi_guests && is_efi => Video { model: "bochs".into(), heads, vram_kib: None },
        Arch::X86_64 => Video { model: "vga".into(), heads, vram_kib: Some(VIDEO_MEMORY_KIB) },
        Arch::Aarch64 | Arch::S390x => Video { model: "virtio".into(), heads, vram_kib: None },
    }
}

fn inputs(c: &mut Conversion<'_>) -> Vec<Input> {
    let vmi = c.vmi;
    let source = &vmi.spec.domain.devices.inputs;
    let mut inputs = Vec::new();
    for (index, input) in source.iter().enumerate() {
        let field = format!("spec.domain.devices.inputs[{index}]");
        let bus = if input.bus.is_empty() { "usb" } else { &input.bus };
        if bus != "usb" && bus != "virtio" {
            c.refuse(format!("{field}.bus"), format!("unknown bus {bus:?}"));
        }
        if input.type_ != "tablet" {
            c.refuse(format!("{field}.type"), format!("unknown input device {:?}", input.type_));
        }
        inputs.push(Input {
            kind: input.type_.clone(),
            bus: bus.into(),
            model: (bus == "virtio").then(|| "virtio".into()),
            alias: Some(input.name.clone()),
            address: None,
        });
    }
    if !wants_graphics(c) {
        return inputs;
    }
    let plain = |kind: &str, bus: &str| Input { kind: kind.into(), bus: bus.into(), ..Input::default() };
    match c.ctx.arch {
        Arch::X86_64 => {}
        Arch::Aarch64 => {
            if !source.iter().any(|input| input.type_ == "tablet") {
                inputs.push(plain("tablet", "usb"));
            }
            inputs.push(plain("keyboard", "usb"));
        }
        Arch::S390x => inputs.push(plain("keyboard", "virtio")),
    }
    inputs
}

pub(super) fn serial(c: &Conversion<'_>) -> Option<SerialConsole> {
    let path = socket(c, "virt-serial0");
    let log = c.ctx.serial_console_log.then(|| format!("{path}-log"));
    has_serial(c).then(|| SerialConsole { socket: path, log, target: "serial".into() })
}

fn watchdog(c: &mut Conversion<'_>) -> Option<Watchdog> {
    let vmi = c.vmi;
    let source = vmi.spec.domain.devices.watchdog.as_ref()?;
    let (model, action) = match c.ctx.arch {
        Arch::X86_64 => ("i6300esb", source.i6300esb.as_ref().map(|watchdog| watchdog.action.clone())),
        Arch::S390x => ("diag288", source.diag288.as_ref().map(|watchdog| watchdog.action.clone())),
        Arch::Aarch64 => {
            c.refuse("spec.domain.devices.watchdog", "arm64 machines have no watchdog");
            return None;
        }
    };
    let Some(action) = action else {
        c.refuse("spec.domain.devices.watchdog", format!("{:?} names no {model} device", source.name));
        return None;
    };
    let Some(action) = WatchdogAction::parse(&action) else {
        let field = format!("spec.domain.devices.watchdog.{model}.action");
        c.refuse(field, format!("{action:?} is none of poweroff, reset and shutdown"));
        return None;
    };
    Some(Watchdog { alias: source.name.clone(), model: model.into(), action, address: None })
}

fn sound(c: &mut Conversion<'_>) -> Option<Sound> {
    let vmi = c.vmi;
    let source = vmi.spec.domain.devices.sound.as_ref()?;
    let model = match source.model.as_str() {
        "" => "ich9",
        model @ ("ich9" | "ac97") => model,
        other => {
            c.refuse("spec.domain.devices.sound.model", format!("unknown model {other:?}"));
            return None;
        }
    };
    Some(Sound { alias: source.name.clone(), model: model.into() })
}

fn tpm(c: &Conversion<'_>) -> Option<Tpm> {
    let source = c.vmi.spec.domain.devices.tpm.as_ref()?;
    if source.enabled == Some(false) {
        return None;
    }
    let persistent = source.persistent == Some(true);
    // The CRB interface keeps its state over migration; TIS is what older guests know.
    let model = if persistent { "tpm-crb" } else { "tpm-tis" };
    Some(Tpm { model: model.into(), version: "2.0".into(), persistent })
}

fn has_graphics(c: &Conversion<'_>) -> bool {
    // QEMU for a foreign architecture may come without a video card.
    wants_graphics(c) && !c.ctx.allow_cross_arch_emulation
}

fn wants_graphics(c: &Conversion<'_>) -> bool {
    c.vmi.spec.domain.devices.autoattach_graphics_device != Some(false)
}

fn has_serial(c: &Conversion<'_>) -> bool {
    c.vmi.spec.domain.devices.autoattach_serial_console != Some(false)
}

fn socket(c: &Conversion<'_>, name: &str) -> String {
    format!("{}/{}/{name}", c.ctx.layout.private, c.vmi.metadata.uid.as_deref().unwrap_or_default())
}

fn annotation<'a>(c: &Conversion<'a>, key: &str) -> Option<&'a str> {
    c.vmi.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
