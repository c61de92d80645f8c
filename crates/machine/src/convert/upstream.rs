//! Reading upstream's converter context from JSON.
//!
//! There is no one spelling of it: the given test data has Go's field names in camel case, a dump of the Go value has them as
//! they are, and the types that come from protocol buffers have underscores. Go's own decoder does not care for case, so this
//! does not either.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Context, Layout, pci};
use crate::spec::{Arch, HostDevice, HostDeviceSource, PciAddress};

/// Fields of the types inside the context.
const NESTED: [&str; 42] = [
    "acpi",
    "address",
    "alias",
    "boot",
    "bootOrder",
    "bus",
    "cpus",
    "device",
    "display",
    "distances",
    "domain",
    "driver",
    "efiCode",
    "efiVars",
    "family",
    "format",
    "function",
    "id",
    "iommufd",
    "managed",
    "manufacturer",
    "mode",
    "model",
    "name",
    "nodeset",
    "numaCells",
    "order",
    "product",
    "ramfb",
    "secureLoader",
    "siblings",
    "sku",
    "slot",
    "source",
    "type",
    "unit",
    "userDefined",
    "usesFirmwareAutoSelection",
    "uuid",
    "value",
    "vendor",
    "version",
];
/// Fields whose value is one of our own types, or a list of them.
const TYPED: [&str; 6] =
    ["efiConfiguration", "smbios", "topology", "genericHostDevices", "gpuHostDevices", "sriovDevices"];

pub(super) fn context(data: &Value, arch: Arch) -> Result<Context, serde_json::Error> {
    let mut fields = data.as_object().cloned().unwrap_or_default();
    if let Some(Value::Object(extra)) = fields.remove(&format!("{}_extra", arch.go_name())) {
        fields.extend(extra);
    }
    let known = serde_json::to_value(Context::default())?;
    let known: Vec<&str> = known.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
    let mut fields = canonical(fields, &known);
    for name in TYPED {
        if let Some(value) = fields.remove(name) {
            fields.insert(name.into(), nested(value));
        }
    }
    if let Some(Value::Object(images)) = fields.remove("disksInfo") {
        // Its keys are names of volumes.
        let images = images.into_iter().map(|(name, image)| (name, nested(image))).collect();
        fields.insert("disksInfo".into(), Value::Object(images));
    }
    let mut devices = |name: &str| -> Result<Vec<HostDevice>, serde_json::Error> {
        let devices: Option<Vec<WireHostDevice>> = serde_json::from_value(fields.remove(name).unwrap_or_default())?;
        Ok(devices.unwrap_or_default().into_iter().map(HostDevice::from).collect())
    };
    let (generic, gpu, sriov) = (devices("genericHostDevices")?, devices("gpuHostDevices")?, devices("sriovDevices")?);
    fields.retain(|_, value| !value.is_null());
    Ok(Context {
        arch,
        layout: Layout::upstream(),
        as_upstream: true,
        generic_host_devices: generic,
        gpu_host_devices: gpu,
        sriov_devices: sriov,
        ..serde_json::from_value(Value::Object(fields))?
    })
}

/// Keys in our spelling; what is not ours stays as it is.
fn canonical(fields: Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    let spell = |key: String| match known.iter().find(|name| folded(name) == folded(&key)) {
        Some(name) => (*name).to_owned(),
        None => key,
    };
    fields.into_iter().map(|(key, value)| (spell(key), value)).collect()
}

fn nested(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = canonical(fields, &NESTED).into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(key, value)| (key, nested(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(nested).collect()),
        other => other,
    }
}

fn folded(key: &str) -> String {
    key.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// A host device as upstream's domain has it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WireHostDevice {
    #[serde(rename = "type")]
    kind: String,
    managed: String,
    mode: String,
    model: String,
    display: String,
    ramfb: String,
    source: WireSource,
    #[serde(alias = "boot")]
    boot_order: Option<WireBootOrder>,
    address: Option<WireAddress>,
    alias: Option<WireAlias>,
    driver: Option<WireDriver>,
    acpi: Option<WireAcpi>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireSource {
    address: WireAddress,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireAddress {
    domain: String,
    bus: String,
    slot: String,
    function: String,
    uuid: String,
    device: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireBootOrder {
    order: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireAlias {
    Plain(String),
    Named { name: String },
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireDriver {
    iommufd: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireAcpi {
    nodeset: String,
}

impl From<WireHostDevice> for HostDevice {
    fn from(wire: WireHostDevice) -> Self {
        let set = |text: String| Some(text).filter(|text| !text.is_empty());
        let source = match wire.kind.as_str() {
            "mdev" => HostDeviceSource::Mediated { uuid: wire.source.address.uuid },
            "usb" => HostDeviceSource::Usb { bus: wire.source.address.bus, device: wire.source.address.device },
            _ => HostDeviceSource::Pci { address: wire.source.address.pci().unwrap_or_default() },
        };
        let alias = match wire.alias {
            Some(WireAlias::Plain(name) | WireAlias::Named { name }) => {
                name.strip_prefix("ua-").map(ToOwned::to_owned).unwrap_or(name)
            }
            None => String::new(),
        };
        Self {
            alias,
            source,
            managed: set(wire.managed),
            mode: set(wire.mode),
            model: set(wire.model),
            display: set(wire.display),
            ram_framebuffer: set(wire.ramfb),
            boot_order: wire.boot_order.map(|boot| boot.order),
            guest_address: wire.address.and_then(|address| address.pci()),
            iommufd: wire.driver.and_then(|driver| set(driver.iommufd)),
            node_set: wire.acpi.and_then(|acpi| set(acpi.nodeset)),
        }
    }
}

impl WireAddress {
    fn pci(&self) -> Option<PciAddress> {
        let digits = |text: &str| text.trim_start_matches("0x").to_owned();
        let [domain, bus, slot, function] = [&self.domain, &self.bus, &self.slot, &self.function].map(|t| digits(t));
        pci::parse(&format!("{domain:0>4}:{bus:0>2}:{slot:0>2}.{function}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spelling_does_not_matter() {
        let plain = json!({
            "cpuSet": [1, 2],
            "topology": {"numaCells": [{"id": 1, "cpus": [{"id": 2, "siblings": [2, 3]}]}]},
            "gpuHostDevices": [{
                "type": "pci", "managed": "no", "alias": {"name": "gpu-a", "userDefined": true},
                "source": {"address": {"type": "pci", "domain": "0x0000", "bus": "0x81", "slot": "0x01", "function": "0x0"}},
            }],
        });
        let go = json!({
            "CPUSet": [1, 2],
            "Topology": {"numa_cells": [{"id": 1, "cpus": [{"id": 2, "siblings": [2, 3]}]}]},
            "GPUHostDevices": [{
                "Type": "pci", "Managed": "no", "Alias": {"Name": "gpu-a", "UserDefined": true}, "BootOrder": null,
                "Source": {"Address": {"Type": "pci", "Domain": "0x0000", "Bus": "0x81", "Slot": "0x01", "Function": "0x0"}},
            }],
        });
        let read = |data| context(data, Arch::X86_64).ok();
        assert!(read(&plain).is_some_and(|context| context.gpu_host_devices[0].alias == "gpu-a"));
        assert_eq!(read(&plain), read(&go));
    }
}
