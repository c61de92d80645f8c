//! libvirt's own verdict on our domains: it defines each of them, and its schema allows all but what is listed here.
//!
//! No machine starts and no daemon runs: `virsh` loads the QEMU driver into itself. It does so as an ordinary user, because
//! the driver of root wants a user that not every machine has.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use ferrovirt_machine::{
    hypervisor,
    xml::{Element, domain_xml, parse},
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use serde_json::Value;

use crate::random::{context, instance, machine};

const CASES: usize = 60;
const CASES_WHEN_LONG: usize = 1000;
/// Whoever the tests run as: root becomes this user, who owns nothing.
const NOBODY: &str = "65534";

#[test]
fn libvirt_accepts_random_machines() {
    let cases = if std::env::var_os("FERROVIRT_LONG").is_some() { CASES_WHEN_LONG } else { CASES };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let context = context("amd64", false);
    let mut runner = TestRunner::deterministic();
    let mut commands = String::new();
    for index in 0..cases {
        let mut object: Value = instance("[A-Za-z0-9]{1,12}").new_tree(&mut runner).unwrap().current();
        object["metadata"]["name"] = format!("vm{index}").into();
        object["metadata"]["uid"] = format!("00000000-0000-4000-8000-{index:012}").into();
        readonly_sata_is_refused_by_us(&mut object);
        let xml = domain_xml(&machine(&object, &context));
        let plain = directory.path().join(format!("{index}.xml"));
        fs::write(&plain, &xml).unwrap();
        let mut tree = parse(&xml).unwrap();
        without_quirks(&mut tree);
        let strict = directory.path().join(format!("{index}-strict.xml"));
        fs::write(&strict, tree.to_string()).unwrap();
        commands += &format!("define {}\ndefine --validate {}\n", plain.display(), strict.display());
    }
    commands += "list --all --name\n";
    let (defined, complaints) = virsh(directory.path(), &commands);
    assert_eq!(complaints, "", "first of them in {}", keep(&complaints, directory));
    assert_eq!(defined, cases);
}

/// Debian has no `ch` driver to ask; the schema is the same for all drivers, and QEMU's reads what they have in common. Whoever
/// has one (scripts/selftest-debian13.sh) finds the domains in the directory of `FERROVIRT_CH_DOMAINS`.
#[test]
fn cloud_hypervisor_domains_fit_the_schema() {
    let driver = hypervisor::hypervisor("cloud-hypervisor").unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let context = context("amd64", true);
    let mut runner = TestRunner::deterministic();
    let mut commands = String::new();
    for index in 0..CASES {
        let mut object: Value = instance("[A-Za-z0-9]{1,12}").new_tree(&mut runner).unwrap().current();
        object["metadata"]["name"] = format!("vm{index}").into();
        readonly_sata_is_refused_by_us(&mut object);
        let xml = driver.domain_xml(&machine(&object, &context));
        if let Some(kept) = std::env::var_os("FERROVIRT_CH_DOMAINS") {
            fs::write(Path::new(&kept).join(format!("{index}.xml")), &xml).unwrap();
        }
        let mut tree = parse(&xml).unwrap();
        tree.take_attribute("type");
        let devices = tree.elements_mut().iter_mut().find(|element| element.name() == "devices").unwrap();
        devices.elements_mut().retain(|device| device.name() != "emulator");
        let text = tree.to_string().replacen("<domain>", "<domain type=\"qemu\">", 1);
        let text = text.replace("<driver name=\"ch\"", "<driver name=\"qemu\"");
        let file = directory.path().join(format!("{index}.xml"));
        fs::write(&file, text).unwrap();
        commands += &format!("define --validate {}\n", file.display());
    }
    commands += "list --all --name\n";
    let (defined, complaints) = virsh(directory.path(), &commands);
    assert_eq!(complaints, "", "first of them in {}", keep(&complaints, directory));
    assert_eq!(defined, CASES);
}

fn readonly_sata_is_refused_by_us(object: &mut Value) {
    for disk in object["spec"]["domain"]["devices"]["disks"].as_array_mut().into_iter().flatten() {
        if let Some(target) = disk["disk"].as_object_mut() {
            target.remove("readonly");
        }
    }
}

/// What KubeVirt writes and libvirt reads, though its schema does not have it. docs/hypervisors.md lists the same.
fn without_quirks(element: &mut Element) {
    let name = element.name().to_owned();
    let groups = ["bios", "baseBoard", "chassis", "system"];
    let is_clock_without_offset = |child: &Element| child.name() == "clock" && child.attribute("offset").is_none();
    element.elements_mut().retain(|child| match name.as_str() {
        // Empty groups of SMBIOS strings.
        "sysinfo" => !(groups.contains(&child.name()) && child.elements().is_empty()),
        // KubeVirt's notes about the volume behind a disk.
        "disk" => !matches!(child.name(), "filesystemOverhead" | "capacity"),
        // A tap has no source.
        "interface" => !(child.name() == "source" && child.attribute("dev").is_none()),
        "domain" => !is_clock_without_offset(child),
        _ => true,
    });
    // A block device's source is named after its volume.
    if name == "source" && element.attribute("dev").is_some() {
        element.take_attribute("name");
    }
    element.elements_mut().iter_mut().for_each(without_quirks);
}

/// How many domains there are in the end, and what was said against the others.
fn virsh(directory: &Path, commands: &str) -> (usize, String) {
    let home = directory.join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o777)).unwrap();
    let uri = format!("qemu:///embed?root={}", home.join("root").display());
    let mut command = Command::new("virsh");
    if is_root() {
        command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "virsh"]);
    }
    command.args(["-q", "-c", &uri]).env("HOME", &home).env("XDG_RUNTIME_DIR", &home).env("LC_ALL", "C");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let commands = commands.to_owned();
    // Both pipes fill up, so somebody has to write while we read.
    let writer = std::thread::spawn(move || input.write_all(commands.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let defined = String::from_utf8_lossy(&output.stdout).matches("ns_vm").count();
    (defined, complaints.join("\n"))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

/// Keeps the files of a failure for whoever looks into it.
fn keep(complaints: &str, directory: tempfile::TempDir) -> String {
    if complaints.is_empty() { String::new() } else { directory.keep().display().to_string() }
}
