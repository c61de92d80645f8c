//! `ferrovirt domain-xml`: the domain XML that a manifest would get, without a cluster.
//!
//! What only a node knows comes from `--context`, in the form of upstream's converter tests: then the result is what upstream's
//! converter makes of the same input. Without it a node with hardware virtualization is assumed, and the result is what our
//! launcher would define.

use std::{collections::BTreeSet, fs, io::Read};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use ferrovirt_machine::{
    convert::{ContainerDisk, Context, EfiConfiguration, FieldError, KernelFiles, machine_spec},
    defaults, features, hypervisor,
    spec::{Arch, DiskFormat, IdRange},
};
use serde_json::Value;

/// Stands for what the API server would have given the object.
const SOME_UID: &str = "00000000-0000-4000-8000-000000000001";

/// Stands for the user ids that a node would give a container.
const SOME_IDS: IdRange = IdRange { first: 0x2000_0000, count: 1 << 16 };

#[derive(Args)]
pub struct DomainXmlArgs {
    /// Manifest of a VirtualMachine or VirtualMachineInstance, YAML or JSON, `-` for standard input
    #[arg(short, long = "filename", required = true)]
    file: String,
    /// Hypervisor, whatever the manifest says
    #[arg(long)]
    hypervisor: Option<String>,
    /// Architecture of the guest [default: the manifest's, else this machine's]
    #[arg(long, value_parser = arch)]
    arch: Option<Arch>,
    /// What comes from the node, as JSON or YAML in the form of KubeVirt's converter context
    #[arg(long)]
    context: Option<String>,
}

pub fn run(arguments: &DomainXmlArgs) -> Result<()> {
    let file = &arguments.file;
    let context = match &arguments.context {
        Some(path) if path == "-" && file == "-" => bail!("only one of -f and --context can be standard input"),
        Some(path) => documents(path)?.into_iter().next(),
        None => None,
    };
    let mut printed = 0;
    for document in documents(file)? {
        let Some(vmi) = instance(document).with_context(|| format!("cannot read {file}"))? else {
            continue;
        };
        let xml = convert(vmi, arguments, context.as_ref())?;
        println!("{xml}");
        printed += 1;
    }
    if printed == 0 {
        bail!("{file} has no VirtualMachine and no VirtualMachineInstance");
    }
    Ok(())
}

fn convert(mut vmi: VirtualMachineInstance, arguments: &DomainXmlArgs, context: Option<&Value>) -> Result<String> {
    let said = Arch::parse(&vmi.spec.architecture);
    let arch = arguments.arch.or(said).or_else(|| Arch::parse(std::env::consts::ARCH)).unwrap_or_default();
    if let Some(name) = &arguments.hypervisor {
        vmi.spec.hypervisor = Some(name.clone());
    }
    let driver = hypervisor::find(vmi.spec.hypervisor.as_deref().unwrap_or(hypervisor::DEFAULT))
        .map_err(|message| anyhow!("{message}"))?;
    let context = match context {
        Some(data) => {
            defaults::object(&mut vmi);
            defaults::for_arch(&mut vmi.spec, arch);
            Context::upstream(data, arch).context("the context cannot be read")?
        }
        None => {
            vmi.metadata.namespace.get_or_insert_with(|| "default".into());
            vmi.metadata.uid.get_or_insert_with(|| SOME_UID.into());
            for gap in features::unsupported(&vmi) {
                eprintln!("warning: this would be refused: {gap}");
            }
            defaults::apply(&mut vmi, arch);
            assumed(&vmi, arch)
        }
    };
    let spec = machine_spec(&vmi, &context).map_err(|errors| refusal(&vmi, &errors))?;
    Ok(driver.domain_xml(&spec))
}

/// A node with all that the instance needs.
fn assumed(vmi: &VirtualMachineInstance, arch: Arch) -> Context {
    let mut context = Context {
        arch,
        allow_emulation: true,
        hypervisor_device_available: true,
        mem_balloon_stats_period: 10,
        free_page_reporting: true,
        efi_configuration: Some(EfiConfiguration {
            efi_code: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(),
            efi_vars: "/usr/share/OVMF/OVMF_VARS_4M.fd".into(),
            ..EfiConfiguration::default()
        }),
        ..Context::default()
    };
    if arch == Arch::Aarch64 {
        context.efi_configuration = Some(EfiConfiguration {
            efi_code: "/usr/share/AAVMF/AAVMF_CODE.fd".into(),
            efi_vars: "/usr/share/AAVMF/AAVMF_VARS.fd".into(),
            ..EfiConfiguration::default()
        });
    }
    let base = &context.layout.container_disks;
    let driver = hypervisor::find(vmi.spec.hypervisor.as_deref().unwrap_or(hypervisor::DEFAULT));
    if driver.is_ok_and(|driver| driver.guest() == hypervisor::Guest::Container) {
        let images = vmi.spec.volumes.iter().filter(|volume| volume.container_disk.is_some());
        context.container_trees =
            images.map(|volume| (volume.name.clone(), format!("{base}/{}", volume.name))).collect();
        context.guest_ids = SOME_IDS;
    }
    for volume in vmi.spec.volumes.iter().filter(|volume| volume.container_disk.is_some()) {
        let path = format!("{base}/{}/disk/disk.img", volume.name);
        let image = ContainerDisk { path, format: DiskFormat::Qcow2, size: None };
        context.container_disks.insert(volume.name.clone(), image);
    }
    let kernel = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    context.kernel_boot = kernel.and_then(|boot| boot.container.as_ref()).map(|container| {
        let place = |path: &str| format!("{base}/kernel-boot/{}", path.trim_start_matches('/'));
        KernelFiles { kernel: place(&container.kernel_path), initrd: place(&container.initrd_path) }
    });
    for interface in &vmi.spec.domain.devices.interfaces {
        context.domain_attachment_by_interface_name.insert(interface.name.clone(), "tap".into());
    }
    context
}

fn refusal(vmi: &VirtualMachineInstance, errors: &[FieldError]) -> anyhow::Error {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let lines: BTreeSet<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
    anyhow!("{name} cannot become a domain:{}", lines.into_iter().collect::<String>())
}

fn documents(file: &str) -> Result<Vec<Value>> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
        file => fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?,
    };
    if let Ok(value) = serde_json::from_str(&text) {
        return Ok(vec![value]);
    }
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("{file} is not valid YAML: {error}"))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The instance that a document is or would make; `None` for documents of other kinds.
fn instance(document: Value) -> Result<Option<VirtualMachineInstance>> {
    // Without a kind, as test data has it, the shape tells.
    let kind = match document["kind"].as_str() {
        None if document["spec"]["domain"].is_object() => Some("VirtualMachineInstance"),
        None if document["spec"]["template"].is_object() => Some("VirtualMachine"),
        kind => kind,
    };
    match kind {
        Some("VirtualMachineInstance") => Ok(Some(serde_json::from_value(document)?)),
        Some("VirtualMachine") => {
            let vm: VirtualMachine = serde_json::from_value(document)?;
            let template = vm.spec.template.unwrap_or_default();
            let mut vmi = VirtualMachineInstance { spec: template.spec, ..VirtualMachineInstance::default() };
            vmi.metadata = template.metadata;
            vmi.metadata.name = vm.metadata.name;
            vmi.metadata.namespace = vm.metadata.namespace;
            Ok(Some(vmi))
        }
        Some(_) => Ok(None),
        None => bail!("kind is missing"),
    }
}

fn arch(name: &str) -> Result<Arch, String> {
    Arch::parse(name).ok_or_else(|| "must be amd64, arm64 or s390x".into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(arch: Option<Arch>) -> DomainXmlArgs {
        DomainXmlArgs { file: String::new(), hypervisor: None, arch, context: None }
    }

    #[test]
    fn machines_are_found_among_other_objects() {
        let template = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"domain": {}}});
        let vm = json!({"kind": "VirtualMachine", "metadata": {"name": "a"}, "spec": {"template": template}});
        let vmi = instance(vm).unwrap().unwrap();
        assert_eq!(vmi.metadata.name.as_deref(), Some("a"));
        assert!(vmi.metadata.annotations.is_some_and(|annotations| annotations.contains_key("a")));
        assert!(instance(json!({"spec": {"domain": {}}})).unwrap().is_some());
        assert!(instance(json!({"kind": "Secret"})).unwrap().is_none());
        assert!(instance(json!({"metadata": {}})).is_err());
    }

    #[test]
    fn the_examples_become_domains() {
        for (text, words) in [
            (include_str!("../../../examples/demo.yaml"), "<domain type=\"kvm\""),
            (include_str!("../../../examples/debian.yaml"), "<domain type=\"kvm\""),
            (include_str!("../../../examples/demo-lxc.yaml"), "<domain type=\"lxc\""),
        ] {
            let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
            let machines = documents.into_iter().filter_map(|document| instance(document).unwrap());
            let all: Vec<String> =
                machines.map(|vmi| convert(vmi, &arguments(Some(Arch::X86_64)), None).unwrap()).collect();
            assert!(!all.is_empty() && all.iter().all(|xml| xml.contains(words)), "{all:?}");
        }
    }

    #[test]
    fn a_node_with_all_that_is_needed_is_assumed() {
        let vmi = json!({
            "metadata": {"name": "a"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "root"}]}},
                "volumes": [{"name": "root", "containerDisk": {"image": "x"}}],
            },
        });
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        for arch in [Arch::X86_64, Arch::Aarch64, Arch::S390x] {
            let xml = convert(vmi.clone(), &arguments(Some(arch)), None).unwrap();
            assert!(xml.contains(&format!("arch=\"{}\"", arch.name())), "{xml}");
            assert!(xml.contains("<interface type=\"ethernet\">"), "{xml}");
        }
        let mut unknown = vmi;
        unknown.spec.hypervisor = Some("acrn".into());
        assert!(convert(unknown, &arguments(None), None).unwrap_err().to_string().contains("available: qemu-kvm"));
    }
}
