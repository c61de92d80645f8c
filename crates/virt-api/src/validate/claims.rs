//! Devices that come by resource claims: who claims what, and that it is claimed once.

use std::collections::BTreeMap;

use ferrovirt_api::v1::VirtualMachineInstanceSpec;
use ferrovirt_schema::names;

use super::{Cluster, Findings};

/// What a graphics card and any other host device have in common.
struct Device<'a> {
    device: &'a str,
    claim: &'a str,
    request: &'a str,
}

impl Device<'_> {
    fn claimed(&self) -> bool {
        self.device.is_empty() && (!self.claim.is_empty() || !self.request.is_empty())
    }
}

struct Kind<'a> {
    key: &'static str,
    name: &'static str,
    gate: &'static str,
    mixes: bool,
    devices: Vec<Device<'a>>,
}

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    declared(spec, &format!("{path}.resourceClaims"), found);
    let gpus = spec.domain.devices.gpus.iter();
    let hosts = spec.domain.devices.host_devices.iter();
    let kinds = [
        Kind {
            key: "gpus",
            name: "GPU",
            gate: "GPUsWithDRA",
            mixes: false,
            devices: gpus
                .map(|gpu| Device { device: &gpu.device_name, claim: &gpu.claim_name, request: &gpu.request_name })
                .collect(),
        },
        Kind {
            key: "hostDevices",
            name: "HostDevice",
            gate: "HostDevicesWithDRA",
            mixes: true,
            devices: hosts
                .map(|host| Device { device: &host.device_name, claim: &host.claim_name, request: &host.request_name })
                .collect(),
        },
    ];
    let mut claims = vec![];
    let mut owners: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for kind in &kinds {
        let field = format!("{path}.domain.devices.{}", kind.key);
        let pairs = devices(kind, &field, cluster, found);
        claims.extend(pairs.iter().filter_map(|(pair, _)| pair.split_once('/').map(|(claim, _)| claim.to_owned())));
        merge(&mut owners, pairs, &format!("{}s", kind.name), &field, found);
    }
    if cluster.gate("NetworkDevicesWithDRA") {
        let networks = spec.networks.iter().enumerate().filter_map(|(index, network)| {
            let claim = network.resource_claim.as_ref()?;
            Some((format!("{}/{}", claim.claim_name, claim.request_name), index))
        });
        merge(&mut owners, networks.collect(), "Networks", &format!("{path}.networks"), found);
    }
    if claims.iter().any(|claim| !spec.resource_claims.iter().any(|declared| declared.name == *claim)) {
        found.invalid(
            format!("{path}.resourceClaims"),
            "vmi.spec.resourceClaims must specify all claims used in vmi.spec.domain.devices.gpus and vmi.spec.domain.devices.hostDevices",
        );
    }
}

fn declared(spec: &VirtualMachineInstanceSpec, base: &str, found: &mut Findings) {
    let mut seen = vec![];
    for (index, claim) in spec.resource_claims.iter().enumerate() {
        let field = format!("{base}[{index}]");
        let name = format!("{field}.name");
        let problems = names::dns_label(&claim.name);
        if claim.name.is_empty() {
            found.required(name.clone(), format!("{name} is a required field"));
        } else if seen.contains(&&claim.name) {
            found.duplicate(name, format!("duplicate resourceClaims name {:?}", claim.name));
        } else if !problems.is_empty() {
            let message = format!("{name} does not conform to the kubernetes DNS_LABEL rules: {}", problems.join(", "));
            found.invalid(name, message);
        }
        seen.push(&claim.name);
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(_), Some(_)) => found.invalid(
                field.clone(),
                "at most one of resourceClaimName or resourceClaimTemplateName may be specified",
            ),
            (None, None) => {
                found.invalid(field.clone(), "must specify one of: resourceClaimName, resourceClaimTemplateName");
            }
            _ => {}
        }
        let names_of = [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ];
        for (key, name) in names_of {
            for problem in name.iter().flat_map(|name| names::dns_subdomain(name)) {
                found.invalid(format!("{field}.{key}"), problem);
            }
        }
    }
}

/// What each device claims, with the first place of each.
fn devices(kind: &Kind<'_>, field: &str, cluster: &Cluster<'_>, found: &mut Findings) -> Vec<(String, usize)> {
    let (key, name) = (kind.key, kind.name);
    let claimed = kind.devices.iter().filter(|device| device.claimed()).count();
    if !kind.mixes && claimed > 0 && claimed < kind.devices.len() {
        let message = format!(
            "vmi.spec.domain.devices.{key} contains both DRA and non-DRA {name}s; each {name} must be either DRA or non-DRA"
        );
        found.invalid(field.to_owned(), message);
        return vec![];
    }
    for device in kind.devices.iter().filter(|device| !device.claimed()) {
        if device.device.is_empty() {
            let message = format!(
                "vmi.spec.domain.devices.{key} contains {name}s without deviceName or claimRequest; each {name} must specify either a deviceName or a claimRequest"
            );
            found.required(field.to_owned(), message);
        } else if !device.claim.is_empty() || !device.request.is_empty() {
            let message =
                format!("vmi.spec.domain.devices.{key} contains {name}s with both deviceName and claimRequest");
            found.invalid(field.to_owned(), message);
        }
    }
    if claimed > 0 && !cluster.gate(kind.gate) {
        let message =
            format!("vmi.spec.domain.devices.{key} contains DRA enabled {name}s but feature gate is not enabled");
        found.invalid(field.to_owned(), message);
        return vec![];
    }
    let mut pairs: Vec<(String, usize)> = vec![];
    for (index, device) in kind.devices.iter().enumerate().filter(|(_, device)| device.claimed()) {
        let at = format!("{field}[{index}]");
        if device.claim.is_empty() {
            found.required(format!("{at}.claimName"), format!("claimName is required for DRA {name}"));
        }
        if device.request.is_empty() {
            found.required(format!("{at}.requestName"), format!("requestName is required for DRA {name}"));
        }
        if device.claim.is_empty() || device.request.is_empty() {
            continue;
        }
        let pair = format!("{}/{}", device.claim, device.request);
        if pairs.iter().any(|(other, _)| *other == pair) {
            found.duplicate(at, format!("duplicate claimName/requestName pair {pair:?}"));
        } else {
            pairs.push((pair, index));
        }
    }
    pairs
}

/// Across kinds, too, one request goes to one device.
fn merge(
    owners: &mut BTreeMap<String, (String, usize)>,
    pairs: Vec<(String, usize)>,
    kind: &str,
    field: &str,
    found: &mut Findings,
) {
    for (pair, index) in pairs {
        if let Some((other, place)) = owners.get(&pair) {
            let message =
                format!("duplicate claimName/requestName pair {pair:?} between {other}[{place}] and {kind}[{index}]");
            found.duplicate(format!("{field}[{index}]"), message);
        } else {
            owners.insert(pair, (kind.to_owned(), index));
        }
    }
}
