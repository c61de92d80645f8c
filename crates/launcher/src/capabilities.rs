//! What libvirt's XML says, in the few places where the launcher needs to know.

use std::path::PathBuf;

use ferrovirt_machine::node_facts::NodeFacts;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde::Serialize;

/// What `probe` prints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// As the kernel spells it.
    pub arch: String,
    pub libvirt_version: String,
    /// Ticks of the CPU's clock in a second, and whether guests can have another number.
    pub tsc: Option<(u64, bool)>,
    pub hypervisors: Vec<HypervisorReport>,
}

impl Report {
    /// What the node's agent is to say of its node: by hardware if that works here, else by emulation.
    pub fn facts(&self, hypervisor: &str) -> Option<NodeFacts> {
        let types = &self.hypervisors.iter().find(|report| report.name == hypervisor)?.virt_types;
        let best = types.iter().find(|report| report.virt_type == "kvm").or(types.first())?;
        let mut facts = NodeFacts {
            emulated: best.virt_type == "qemu",
            machine_types: best.machine_types.clone(),
            protection: best.protection.clone(),
            ..NodeFacts::default()
        };
        // Named models and their features are for the architectures that have them.
        if self.arch != "aarch64" {
            let (usable, others): (Vec<_>, Vec<_>) = best.cpu_models.iter().partition(|model| model.usable);
            let names = |models: Vec<&CpuModel>| models.into_iter().map(|model| model.name.clone()).collect();
            let required = best.host_model_features.iter().filter(|feature| feature.policy == "require");
            (facts.cpu_models, facts.other_models) = (names(usable), names(others));
            facts.cpu_features.clone_from(&best.host_features);
            facts.host_model.clone_from(&best.host_model);
            facts.host_model_features = required.map(|feature| feature.name.clone()).collect();
            facts.vendor = best.host_vendor.clone().unwrap_or_default();
            facts.hyperv.clone_from(&best.hyperv);
            facts.tsc = self.tsc;
        }
        Some(facts)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HypervisorReport {
    /// Key of the registry, such as `qemu-kvm`.
    pub name: String,
    pub version: String,
    pub virt_types: Vec<VirtTypeReport>,
}

/// What one virtualization type offers; a type that does not work here is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtTypeReport {
    #[serde(rename = "type")]
    pub virt_type: String,
    pub emulator: String,
    /// The machine type behind the default alias.
    pub default_machine: String,
    pub machine_types: Vec<String>,
    pub max_vcpus: u32,
    /// What the host's CPU looks like to a guest with `host-model`.
    pub host_model: Option<String>,
    pub host_vendor: Option<String>,
    /// What that guest sees beyond the model, by policy.
    pub host_model_features: Vec<CpuFeature>,
    /// All that it sees.
    pub host_features: Vec<String>,
    /// Interfaces of Hyper-V.
    pub hyperv: Vec<String>,
    /// Ways to keep a guest's memory from its host.
    pub protection: Vec<String>,
    pub cpu_models: Vec<CpuModel>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CpuFeature {
    pub name: String,
    pub policy: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CpuModel {
    pub name: String,
    /// Whether the host's CPU can run it.
    pub usable: bool,
}

/// Virtualization type and machine type of a running domain.
pub fn domain_facts(xml: &str) -> (Option<String>, Option<String>) {
    let (mut virt_type, mut machine) = (None, None);
    walk(xml, |path, start, _| match path {
        ["domain"] => virt_type = attribute(start, "type"),
        ["domain", "os", "type"] => machine = attribute(start, "machine"),
        _ => {}
    });
    (virt_type, machine)
}

/// The terminal behind the console of a running domain.
pub fn console_terminal(xml: &str) -> Option<PathBuf> {
    let mut terminal = None;
    walk(xml, |path, start, _| {
        if path == ["domain", "devices", "console"] && terminal.is_none() {
            terminal = attribute(start, "tty");
        }
    });
    terminal.map(PathBuf::from)
}

/// Host architecture and the machine types per guest architecture that is the host's own.
pub fn host_capabilities(xml: &str) -> (String, Vec<String>) {
    let mut arch = String::new();
    let mut machines = Vec::new();
    let mut guest_arch = None;
    walk(xml, |path, start, text| match (path, text) {
        (["capabilities", "host", "cpu", "arch"], Some(text)) => arch = text.to_owned(),
        (["capabilities", "guest", "arch"], None) => guest_arch = attribute(start, "name"),
        (["capabilities", "guest", "arch", "machine"], Some(text)) if guest_arch.as_deref() == Some(arch.as_str()) => {
            machines.push(text.to_owned());
        }
        _ => {}
    });
    machines.sort();
    machines.dedup();
    (arch, machines)
}

/// The clock of the host's CPU: its frequency, and whether it can be scaled.
pub fn tsc(capabilities: &str) -> Option<(u64, bool)> {
    let mut found = None;
    walk(capabilities, |path, start, text| {
        let counter = path == ["capabilities", "host", "cpu", "counter"] && text.is_none();
        if counter && attribute(start, "name").as_deref() == Some("tsc") {
            let frequency = attribute(start, "frequency").and_then(|number| number.parse().ok());
            found = frequency.map(|number| (number, attribute(start, "scaling").as_deref() == Some("yes")));
        }
    });
    found
}

/// The CPU of `host-model`, as a CPU that libvirt can be asked about.
pub fn host_model_cpu(report: &VirtTypeReport) -> Option<String> {
    let model = report.host_model.as_ref()?;
    let escaped = |text: &str| quick_xml::escape::escape(text).into_owned();
    let vendor = report.host_vendor.as_ref().map(|vendor| format!("<vendor>{}</vendor>", escaped(vendor)));
    let features = report
        .host_model_features
        .iter()
        .map(|feature| format!("<feature policy='{}' name='{}'/>", escaped(&feature.policy), escaped(&feature.name)));
    let features: String = features.collect();
    Some(format!(
        "<cpu><model fallback='forbid'>{}</model>{}{features}</cpu>",
        escaped(model),
        vendor.unwrap_or_default()
    ))
}

/// The features of an expanded CPU that a guest can have.
pub fn cpu_features(xml: &str) -> Vec<String> {
    let mut features = vec![];
    walk(xml, |path, start, text| {
        let wanted = path == ["cpu", "feature"] && text.is_none();
        if wanted && attribute(start, "policy").is_none_or(|policy| policy == "require") {
            features.extend(attribute(start, "name"));
        }
    });
    features.sort();
    features.dedup();
    features
}

/// The part of the domain capabilities that is about one virtualization type.
pub fn domain_capabilities(xml: &str) -> VirtTypeReport {
    let mut report = VirtTypeReport::default();
    let mut mode = None;
    let mut list = None;
    walk(xml, |path, start, text| match (path, text) {
        (["domainCapabilities", "path"], Some(text)) => report.emulator = text.to_owned(),
        (["domainCapabilities", "domain"], Some(text)) => report.virt_type = text.to_owned(),
        (["domainCapabilities", "machine"], Some(text)) => report.default_machine = text.to_owned(),
        (["domainCapabilities", "vcpu"], None) => {
            report.max_vcpus = attribute(start, "max").and_then(|max| max.parse().ok()).unwrap_or(0);
        }
        (["domainCapabilities", "cpu", "mode"], None) => mode = attribute(start, "name"),
        (["domainCapabilities", "cpu", "mode", "model"], Some(text)) => match mode.as_deref() {
            Some("host-model") => report.host_model = Some(text.to_owned()),
            Some("custom") => report
                .cpu_models
                .push(CpuModel { name: text.to_owned(), usable: attribute(start, "usable").as_deref() != Some("no") }),
            _ => {}
        },
        (["domainCapabilities", "cpu", "mode", "vendor"], Some(text)) if mode.as_deref() == Some("host-model") => {
            report.host_vendor = Some(text.to_owned());
        }
        (["domainCapabilities", "cpu", "mode", "feature"], None) if mode.as_deref() == Some("host-model") => {
            let (name, policy) = (attribute(start, "name"), attribute(start, "policy"));
            report
                .host_model_features
                .extend(name.map(|name| CpuFeature { name, policy: policy.unwrap_or_else(|| "require".to_owned()) }));
        }
        (["domainCapabilities", "features", "hyperv" | "launchSecurity", "enum"], None) => {
            list = attribute(start, "name")
        }
        (["domainCapabilities", "features", "hyperv", "enum", "value"], Some(text))
            if list.as_deref() == Some("features") =>
        {
            report.hyperv.push(text.to_owned());
        }
        (["domainCapabilities", "features", "launchSecurity", "enum", "value"], Some("sev-snp")) => {
            report.protection.push("sev-snp".to_owned());
        }
        (["domainCapabilities", "features", way @ ("sev" | "tdx" | "s390-pv")], None)
            if attribute(start, "supported").as_deref() == Some("yes") =>
        {
            report.protection.push((*way).to_owned());
        }
        (["domainCapabilities", "features", "sev", "maxESGuests"], Some(text)) if text != "0" => {
            report.protection.push("sev-es".to_owned());
        }
        _ => {}
    });
    report
}

/// `9000000` as `9.0.0`.
pub fn version_text(version: u64) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1_000 % 1_000, version % 1_000)
}

/// Calls `visit` once per element when it starts, and again with its text if it has one. A document that breaks off is
/// read as far as it goes: these are libvirt's own words about itself.
fn walk(xml: &str, mut visit: impl FnMut(&[&str], &BytesStart<'_>, Option<&str>)) {
    let mut reader = Reader::from_str(xml);
    let mut stack: Vec<(String, BytesStart<'static>)> = Vec::new();
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                stack.push((name_of(&start), start.into_owned()));
                visit_top(&stack, &mut visit, None);
            }
            Ok(Event::Empty(start)) => {
                stack.push((name_of(&start), start.into_owned()));
                visit_top(&stack, &mut visit, None);
                stack.pop();
            }
            Ok(Event::Text(text)) => {
                let text = text.trim().to_owned();
                if !text.is_empty() {
                    visit_top(&stack, &mut visit, Some(&text));
                }
            }
            Ok(Event::End(_)) => {
                stack.pop();
            }
            Ok(Event::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

fn visit_top(
    stack: &[(String, BytesStart<'static>)],
    visit: &mut impl FnMut(&[&str], &BytesStart<'_>, Option<&str>),
    text: Option<&str>,
) {
    let path: Vec<&str> = stack.iter().map(|(name, _)| name.as_str()).collect();
    if let Some((_, start)) = stack.last() {
        visit(&path, start, text);
    }
}

fn name_of(start: &BytesStart<'_>) -> String {
    start.name().as_ref().to_owned()
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = start.try_get_attribute(name).ok()??;
    Some(attribute.value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_domain() {
        let xml = "<domain type='kvm' id='1'><name>x</name><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os></domain>";
        assert_eq!(domain_facts(xml), (Some("kvm".into()), Some("pc-q35-7.2".into())));
        assert_eq!(domain_facts("<domain"), (None, None));
    }

    #[test]
    fn machine_types_of_the_own_architecture() {
        let xml = "<capabilities><host><cpu><arch>x86_64</arch></cpu></host>\
            <guest><arch name='i686'><machine maxCpus='1'>isapc</machine></arch></guest>\
            <guest><arch name='x86_64'><machine>q35</machine><machine>pc</machine><domain type='qemu'/></arch></guest>\
            </capabilities>";
        assert_eq!(host_capabilities(xml), ("x86_64".into(), vec!["pc".into(), "q35".into()]));
    }

    #[test]
    fn capabilities_of_a_virtualization_type() {
        let xml = "<domainCapabilities><path>/usr/bin/qemu</path><domain>kvm</domain><machine>pc-1</machine>\
            <vcpu max='255'/><cpu><mode name='host-model' supported='yes'><model fallback='forbid'>EPYC</model></mode>\
            <mode name='custom' supported='yes'><model usable='yes'>qemu64</model><model usable='no'>Denverton</model></mode>\
            </cpu></domainCapabilities>";
        let report = domain_capabilities(xml);
        assert_eq!(report.host_model.as_deref(), Some("EPYC"));
        assert_eq!(
            (report.max_vcpus, report.emulator.as_str(), report.virt_type.as_str()),
            (255, "/usr/bin/qemu", "kvm")
        );
        assert_eq!(
            report.cpu_models,
            [CpuModel { name: "qemu64".into(), usable: true }, CpuModel { name: "Denverton".into(), usable: false }]
        );
    }

    #[test]
    fn a_node_says_what_its_best_virtualization_offers() {
        let xml = "<domainCapabilities><domain>kvm</domain><cpu><mode name='host-model' supported='yes'>\
            <model fallback='forbid'>Nehalem</model><vendor>Intel</vendor><feature policy='require' name='vmx'/>\
            <feature policy='disable' name='mpx'/></mode><mode name='custom' supported='yes'>\
            <model usable='unknown'>a</model><model usable='no'>b</model></mode></cpu>\
            <features><sev supported='yes'><maxESGuests>5</maxESGuests></sev><tdx supported='no'/>\
            <hyperv supported='yes'><enum name='features'><value>relaxed</value><value>stimer</value></enum></hyperv>\
            <launchSecurity supported='yes'><enum name='sectype'><value>sev</value><value>sev-snp</value></enum></launchSecurity>\
            </features></domainCapabilities>";
        let mut kvm = domain_capabilities(xml);
        kvm.machine_types = vec!["q35".into()];
        assert_eq!(
            host_model_cpu(&kvm).as_deref(),
            Some(
                "<cpu><model fallback='forbid'>Nehalem</model><vendor>Intel</vendor><feature policy='require' name='vmx'/>\
                 <feature policy='disable' name='mpx'/></cpu>"
            )
        );
        kvm.host_features = cpu_features(
            "<cpu mode='custom'><model>Nehalem</model><feature policy='require' name='vmx'/>\
            <feature policy='require' name='sse'/><feature policy='disable' name='mpx'/></cpu>",
        );
        let emulated = VirtTypeReport { virt_type: "qemu".into(), ..VirtTypeReport::default() };
        let hypervisor = HypervisorReport { name: "q".into(), version: String::new(), virt_types: vec![emulated, kvm] };
        let tsc = tsc(
            "<capabilities><host><cpu><counter name='tsc' frequency='2000' scaling='yes'/></cpu></host></capabilities>",
        );
        let mut report = Report { arch: "x86_64".into(), tsc, hypervisors: vec![hypervisor], ..Report::default() };
        let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let expected = NodeFacts {
            emulated: false,
            machine_types: strings(&["q35"]),
            cpu_models: strings(&["a"]),
            other_models: strings(&["b"]),
            cpu_features: strings(&["sse", "vmx"]),
            host_model: Some("Nehalem".into()),
            host_model_features: strings(&["vmx"]),
            vendor: "Intel".into(),
            hyperv: strings(&["relaxed", "stimer"]),
            protection: strings(&["sev", "sev-es", "sev-snp"]),
            tsc: Some((2000, true)),
        };
        assert_eq!(report.facts("q"), Some(expected));
        assert_eq!(report.facts("other"), None);
        report.arch = "aarch64".into();
        assert!(report.facts("q").is_some_and(|facts| facts.cpu_models.is_empty() && !facts.machine_types.is_empty()));
    }

    #[test]
    fn versions_are_readable() {
        assert_eq!(version_text(9_000_000), "9.0.0");
        assert_eq!(version_text(7_002_022), "7.2.22");
    }
}
