//! Disks: the device side. Where their content comes from is in [`super::volumes`].

use std::collections::BTreeMap;

use ferrovirt_api::v1;

use super::{Context, Conversion, arch, cpu, io_threads, pci, resource, volumes};
use crate::spec::{
    Arch, BlockSize, CacheMode, Disk, DiskAddress, DiskBus, DiskDevice, DiskFormat, DiskSource, ErrorPolicy, IoMode,
    Tray,
};

/// Socket of the persistent reservation helper.
const RESERVATION_SOCKET: &str = "/var/run/kubevirt/daemons/pr/pr-helper.sock";
const MAX_BLOCK_SIZE_S390X: u64 = 4096;
const MAX_NAMES: u32 = 26 * 26 * 26;

pub(super) fn convert(c: &mut Conversion<'_>) -> Vec<Disk> {
    let threads = io_threads::plan(c.vmi);
    let mut next_automatic = 1;
    let mut next_dedicated = threads.as_ref().map_or(1, |threads| threads.automatic + 1);
    let multi_queue = c.vmi.spec.domain.devices.block_multi_queue == Some(true);
    let queues = multi_queue.then(|| cpu::vcpus(&cpu::topology(&c.vmi.spec.domain)).max(1));
    let mut namer = DeviceNamer::new(c.vmi);

    let mut disks = Vec::new();
    for (index, source) in c.vmi.spec.domain.devices.disks.iter().enumerate() {
        let field = format!("spec.domain.devices.disks[{index}]");
        let Some(mut disk) = device(c, &field, source, &mut namer) else {
            continue;
        };
        if disk.bus == DiskBus::Virtio {
            disk.queues = queues;
            disk.iommu = c.uses_iommu();
        }
        match c.vmi.spec.volumes.iter().position(|volume| volume.name == source.name) {
            Some(position) => match c.ctx.hotplug_volumes.contains_key(&source.name) {
                true => volumes::plug(c, position, &mut disk),
                false => volumes::attach(c, position, &mut disk),
            },
            None if source.cdrom.is_some() => eject(&mut disk),
            None => c.refuse(format!("{field}.name"), format!("there is no volume {:?}", source.name)),
        }
        if source.cdrom.is_none() {
            claim_size(c, &mut disk);
        }
        disk.block_size = block_size(c, &field, source);
        disk.error_policy = error_policy(c, &field, source);
        if let Some(threads) = threads.as_ref().filter(|_| disk.bus == DiskBus::Virtio) {
            if !threads.pool.is_empty() {
                disk.io_thread_pool.clone_from(&threads.pool);
            } else if io_threads::is_dedicated(source) {
                disk.io_thread = Some(next_dedicated);
                next_dedicated += 1;
            } else {
                disk.io_thread = Some(next_automatic);
                next_automatic = next_automatic % threads.automatic.max(1) + 1;
            }
        }
        if is_there(c.ctx, &disk) {
            disks.push(disk);
        }
    }
    disks
}

/// False for a disk of a running machine whose volume has not arrived yet.
fn is_there(ctx: &Context, disk: &Disk) -> bool {
    let plugged = ctx.hotplug_volumes.get(&disk.name);
    let is_mounted = plugged.is_some_and(|status| matches!(status.phase.as_str(), "MountedToPod" | "Ready"));
    let is_permanent = ctx.permanent_volumes.is_empty() || ctx.permanent_volumes.contains_key(&disk.name);
    is_mounted || is_permanent || disk.source == DiskSource::Empty {}
}

pub(super) fn bus_of(disk: &v1::Disk) -> &str {
    let lun = disk.lun.as_ref().map(|lun| &lun.bus);
    lun.or(disk.disk.as_ref().map(|disk| &disk.bus)).or(disk.cdrom.as_ref().map(|cdrom| &cdrom.bus)).map_or("", |b| b)
}

fn device(c: &mut Conversion<'_>, field: &str, source: &v1::Disk, namer: &mut DeviceNamer) -> Option<Disk> {
    let bus = match bus_of(source) {
        "virtio" => DiskBus::Virtio,
        "sata" => DiskBus::Sata,
        "scsi" => DiskBus::Scsi,
        "usb" => DiskBus::Usb,
        other => {
            c.refuse(format!("{field}.bus"), format!("unknown bus {other:?}"));
            return None;
        }
    };
    let (target, unit) = namer.name(&source.name, bus);
    let mut disk = Disk {
        name: source.name.clone(),
        bus,
        target,
        cache: cache(c, field, source),
        io: io(c, field, source),
        boot_order: source.boot_order.and_then(|order| u32::try_from(order).ok()),
        ..Disk::default()
    };
    let discard = !c.ctx.volumes_discard_ignore.contains(&source.name);
    let scsi_address = (bus == DiskBus::Scsi).then_some(DiskAddress::Drive { controller: 0, bus: 0, target: 0, unit });
    if let Some(target) = &source.disk {
        disk.device = DiskDevice::Disk;
        disk.discard = discard;
        disk.read_only = target.readonly;
        if target.readonly && bus == DiskBus::Sata && !c.ctx.as_upstream {
            // libvirt would refuse the machine later, and less kindly.
            c.refuse(format!("{field}.disk.readonly"), "SATA disks cannot be read-only; use virtio, scsi or a cdrom");
        }
        disk.address = scsi_address;
        disk.serial = Some(source.serial.clone()).filter(|serial| !serial.is_empty());
        if bus == DiskBus::Virtio {
            disk.model = Some(c.virtio_disk_model().into());
        }
        if !target.pci_address.is_empty() {
            let field = format!("{field}.disk.pciAddress");
            match pci::parse(&target.pci_address) {
                _ if bus != DiskBus::Virtio => c.refuse(field, "only virtio disks can have a PCI address"),
                Some(address) => disk.address = Some(DiskAddress::Pci(address)),
                None => c.refuse(field, format!("{:?} is no PCI address", target.pci_address)),
            }
        }
        if source.shareable == Some(true) {
            disk.shareable = true;
            if *disk.cache.get_or_insert(CacheMode::None) != CacheMode::None {
                c.refuse(format!("{field}.cache"), "a shareable disk needs cache none");
            }
        }
    } else if let Some(lun) = &source.lun {
        disk.device = DiskDevice::Lun;
        disk.discard = discard;
        disk.read_only = lun.readonly;
        disk.address = scsi_address;
        disk.reservations = lun.reservation.then(|| RESERVATION_SOCKET.into());
    } else if let Some(cdrom) = &source.cdrom {
        disk.device = DiskDevice::Cdrom;
        disk.read_only = cdrom.readonly.unwrap_or(true);
        disk.tray = match cdrom.tray.as_str() {
            "" => None,
            "open" => Some(Tray::Open),
            _ => Some(Tray::Closed),
        };
    }
    Some(disk)
}

/// A CD drive without a disc. libvirt wants it to be of some type, and upstream says `block`.
fn eject(disk: &mut Disk) {
    disk.source = DiskSource::Empty {};
    disk.format = DiskFormat::Raw;
    disk.discard = true;
}

fn cache(c: &mut Conversion<'_>, field: &str, source: &v1::Disk) -> Option<CacheMode> {
    match source.cache.as_str() {
        "" => None,
        "none" => Some(CacheMode::None),
        "writethrough" => Some(CacheMode::Writethrough),
        "writeback" => Some(CacheMode::Writeback),
        other => {
            c.refuse(format!("{field}.cache"), format!("unknown cache mode {other:?}"));
            None
        }
    }
}

fn io(c: &mut Conversion<'_>, field: &str, source: &v1::Disk) -> Option<IoMode> {
    match source.io.as_str() {
        "" => None,
        // libvirt does not know this word: it stands for saying nothing.
        "default" => c.ctx.as_upstream.then_some(IoMode::Default),
        "native" => Some(IoMode::Native),
        "threads" => Some(IoMode::Threads),
        other => {
            c.refuse(format!("{field}.io"), format!("unknown I/O mode {other:?}"));
            None
        }
    }
}

fn error_policy(c: &mut Conversion<'_>, field: &str, source: &v1::Disk) -> Option<ErrorPolicy> {
    match source.error_policy.as_deref() {
        None | Some("stop") => Some(ErrorPolicy::Stop),
        Some("ignore") => Some(ErrorPolicy::Ignore),
        Some("report") => Some(ErrorPolicy::Report),
        Some("enospace") => Some(ErrorPolicy::Enospace),
        Some(other) => {
            c.refuse(format!("{field}.errorPolicy"), format!("unknown error policy {other:?}"));
            None
        }
    }
}

fn block_size(c: &mut Conversion<'_>, field: &str, source: &v1::Disk) -> Option<BlockSize> {
    let custom = source.block_size.as_ref()?.custom.as_ref()?;
    if c.ctx.arch == Arch::S390x && custom.logical.max(custom.physical) > MAX_BLOCK_SIZE_S390X {
        c.refuse(format!("{field}.blockSize.custom"), format!("s390x allows at most {MAX_BLOCK_SIZE_S390X}"));
    }
    let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    Some(BlockSize {
        logical: small(custom.logical),
        physical: small(custom.physical),
        discard_granularity: custom.discard_granularity.map(small),
    })
}

/// What the volume's claim offers, as the VMI's status has it.
fn claim_size(c: &Conversion<'_>, disk: &mut Disk) {
    let status = c.vmi.status.volume_status.iter().find(|status| status.name == disk.name);
    let Some(claim) = status.and_then(|status| status.persistent_volume_claim_info.as_ref()) else {
        return;
    };
    disk.filesystem_overhead.clone_from(&claim.filesystem_overhead);
    let sizes = (resource(&claim.capacity, "storage"), resource(&claim.requests, "storage"));
    if let (Some(capacity), Some(request)) = sizes {
        disk.capacity = Some(capacity.min(request).as_bytes());
    }
}

/// Hands out `vda`, `sda`, …; a disk that was named before keeps its name.
#[derive(Default)]
struct DeviceNamer {
    known: BTreeMap<String, String>,
    /// By prefix.
    used: BTreeMap<&'static str, Vec<String>>,
}

impl DeviceNamer {
    fn new(vmi: &v1::VirtualMachineInstance) -> Self {
        let mut namer = Self::default();
        for disk in &vmi.spec.domain.devices.disks {
            let status =
                vmi.status.volume_status.iter().rfind(|status| status.name == disk.name && !status.target.is_empty());
            if let Some(status) = status {
                namer.known.insert(disk.name.clone(), status.target.clone());
                namer.used.entry(prefix(bus_of(disk))).or_default().push(status.target.clone());
            }
        }
        namer
    }

    /// The name, and its number among those of the same prefix.
    fn name(&mut self, disk: &str, bus: DiskBus) -> (String, u32) {
        let prefix = prefix(bus.name());
        let mut names = (0..MAX_NAMES).map(|index| (device_name(prefix, index), index));
        if let Some(known) = self.known.get(disk) {
            // If nothing of ours has such a name: believe it, and count from nought.
            return names.find(|(name, _)| name == known).unwrap_or_else(|| (known.clone(), 0));
        }
        let used = self.used.entry(prefix).or_default();
        let (name, index) = names.find(|(name, _)| !used.contains(name)).unwrap_or_default();
        used.push(name.clone());
        self.known.insert(disk.into(), name.clone());
        (name, index)
    }
}

fn prefix(bus: &str) -> &'static str {
    if bus == "virtio" { "vd" } else { "sd" }
}

/// a … z, aa … az, ba …
fn device_name(prefix: &str, mut index: u32) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'a' + u8::try_from(index % 26).unwrap_or(0)));
        if index < 26 {
            break;
        }
        index = index / 26 - 1;
    }
    prefix.chars().chain(letters.into_iter().rev()).collect()
}

pub(super) fn needs_scsi_controller(c: &Conversion<'_>) -> bool {
    let devices = &c.vmi.spec.domain.devices;
    !devices.disable_hotplug || devices.disks.iter().any(|disk| bus_of(disk) == "scsi")
}

/// The thread and the number of queues of the SCSI controller, if a disk on it wants a thread of its own.
pub(super) fn scsi_thread(c: &Conversion<'_>) -> Option<(u32, u32)> {
    let automatic = io_threads::plan(c.vmi)?.automatic;
    let disks = &c.vmi.spec.domain.devices.disks;
    if automatic == 0 || !disks.iter().any(|disk| bus_of(disk) == "scsi" && io_threads::is_dedicated(disk)) {
        return None;
    }
    let shared = disks.iter().filter(|disk| bus_of(disk) == "virtio" && !io_threads::is_dedicated(disk)).count();
    let thread = u32::try_from(shared).unwrap_or(0) % automatic + 1;
    Some((thread, cpu::vcpus(&cpu::topology(&c.vmi.spec.domain)).max(1)))
}

impl Conversion<'_> {
    pub(super) fn virtio_model(&self) -> &'static str {
        let transitional = self.vmi.spec.domain.devices.use_virtio_transitional == Some(true);
        arch::virtio_model(self.ctx.arch, transitional)
    }

    /// Upstream asks the context for disks, and the VMI for everything else.
    pub(super) fn virtio_disk_model(&self) -> &'static str {
        match self.ctx.as_upstream {
            true => arch::virtio_model(self.ctx.arch, self.ctx.use_virtio_transitional),
            false => self.virtio_model(),
        }
    }

    /// Encrypted guests reach virtio only through the IOMMU.
    pub(super) fn uses_iommu(&self) -> bool {
        self.ctx.use_launch_security_sev || self.ctx.use_launch_security_pv
    }
}

#[cfg(test)]
mod tests {
    use super::device_name;

    #[test]
    fn names_count_like_spreadsheet_columns() {
        for (index, expected) in [(0, "vda"), (25, "vdz"), (26, "vdaa"), (51, "vdaz"), (52, "vdba"), (702, "vdaaa")] {
            assert_eq!(device_name("vd", index), expected);
        }
    }
}
