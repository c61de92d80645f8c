//! Real machines, end to end over the socket: the launcher as uid 107 and PID 1 of its own namespaces, Debian's libvirt,
//! and an emulating QEMU. Needs root, `unshare`, `setpriv`, libvirt and QEMU, and fails where they are missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrovirt_machine::node_facts::{FACTS_FILE, LAST_WORDS, NodeFacts};
use ferrovirt_machine::protocol::{
    Answer, Applied, ErrorCode, MachinePhase, Outcome, PauseReason, SOCKET_NAME, ServerFrame, StopReason,
};
use serde_json::{Value, json};
use support::{Client, PATIENCE};

/// The container of the launcher, in short: private /run, a record of the user, our binary where the user may read it.
const CONTAINER: &str = r#"set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/libvirt /run/kubevirt-private
for f in passwd group; do cp /etc/$f /run/$f; done
grep -q '^[^:]*:[^:]*:107:' /run/passwd || echo 'qemu:x:107:107::/:/sbin/nologin' >> /run/passwd
grep -q '^[^:]*:[^:]*:107:' /run/group || echo 'qemu:x:107:' >> /run/group
for f in passwd group; do mount --bind /run/$f /etc/$f; done
cp "$LAUNCHER" /run/launcher
mknod -m 666 /run/tun c 10 200
mount --bind /run/tun /dev/net/tun
ip tuntap add tap0 mode tap user 107 group 107
ip link set tap0 up
mkdir /run/small
mount -t tmpfs -o size=64k,uid=107,gid=107 tmpfs /run/small
chown -R 107:107 /run/libvirt /run/kubevirt-private
exec setpriv --reuid 107 --regid 107 --clear-groups --inh-caps=-all \
    /run/launcher $COMMAND
"#;

/// A boot sector that powers the machine off: port 0x604 is the power management register of `q35`.
const POWER_OFF: [u8; 11] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd, 0x90];
/// A boot sector that waits for the power button (enable register 0x602, status register 0x600, bit 8), then powers off.
const POWER_BUTTON: [u8; 27] = [
    0xfa, 0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, 0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xfa, 0xba, 0x04,
    0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd,
];
/// A boot sector that writes to its second disk, 4 KiB after 4 KiB, through the BIOS (int 13h, function 43h).
const WRITE: [u8; 44] = [
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x70, 0xfb, 0xbe, 0x1c, 0x7c, 0xb2, 0x81, 0xb8, 0x00, 0x43,
    0xcd, 0x13, 0x83, 0x06, 0x24, 0x7c, 0x08, 0xeb, 0xef, 0x10, 0x00, 0x08, 0x00, 0x00, 0x7c, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
/// A boot sector that finds the watchdog on the PCI bus (int 1ah, function b1h), gives it its fast clock, arms it and
/// then forgets about it: it bites after two seconds.
const WATCHDOG: [u8; 37] = [
    0xb8, 0x02, 0xb1, 0xb9, 0xab, 0x25, 0xba, 0x86, 0x80, 0x31, 0xf6, 0xcd, 0x1a, 0xb8, 0x0c, 0xb1, 0xb9, 0x04, 0x00,
    0xbf, 0x60, 0x00, 0xcd, 0x1a, 0xb8, 0x0b, 0xb1, 0xb1, 0x02, 0xbf, 0x68, 0x00, 0xcd, 0x1a, 0xf4, 0xeb, 0xfd,
];
/// A boot sector that writes to its serial port for ever.
const TALK: [u8; 8] = [0xba, 0xf8, 0x03, 0xb0, 0x78, 0xee, 0xeb, 0xfd];
/// A boot sector that halts.
const HALT: [u8; 3] = [0xf4, 0xeb, 0xfd];

struct Launcher {
    process: Child,
    dir: tempfile::TempDir,
}

/// The launcher's binary with these arguments, in its container.
fn container(arguments: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", CONTAINER])
        .env("LAUNCHER", env!("CARGO_BIN_EXE_ferrovirt-launcher"))
        .env("COMMAND", arguments)
        .process_group(0);
    command
}

/// A directory that the launcher's user may write.
fn shared_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("launcher-").tempdir_in("/tmp").unwrap();
    let status = Command::new("chown").arg("107:107").arg(dir.path()).status().unwrap();
    assert!(status.success());
    dir
}

impl Launcher {
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(arguments: &str) -> Self {
        let dir = shared_dir();
        let command = format!("run --socket-dir {} --linger 300 {arguments}", dir.path().display());
        let process = container(&command).spawn().unwrap();
        Self { process, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET_NAME)
    }

    async fn subscribed(&self) -> Client {
        let mut client = Client::hello(&self.socket()).await;
        client.ask_ok(json!({"type": "subscribe"})).await;
        client
    }

    /// A machine that boots from this boot sector.
    fn spec(&self, boot_sector: &[u8]) -> Value {
        let mut sector = boot_sector.to_vec();
        sector.resize(510, 0);
        sector.extend([0x55, 0xaa]);
        sector.resize(1 << 20, 0);
        let base = self.path("base.raw");
        fs::write(&base, sector).unwrap();
        json!({
            "version": 1, "name": "default_vm", "uid": "u1", "hypervisor": "qemu-kvm",
            "acceleration": "emulation", "translationCacheMib": 16,
            "memory": {"bytes": 64 << 20},
            "cpu": {"vcpus": 1, "topology": {"sockets": 1, "cores": 1, "threads": 1}},
            "firmware": {"machineType": "q35"},
            "features": {"acpi": true},
            "graceSeconds": 1,
            "devices": {
                "balloon": {"model": "none"},
                "serial": {"socket": "/run/kubevirt-private/u1/virt-serial0", "target": "serial"},
                "disks": [
                    {"name": "root", "source": {"type": "file", "path": self.path("disks/root.qcow2")}, "format": "qcow2",
                     "bus": "virtio", "target": "vda", "bootOrder": 1,
                     "backing": {"source": {"type": "file", "path": base}, "format": "raw"}},
                    {"name": "seed", "source": {"type": "file", "path": self.path("disks/seed.iso")}, "format": "raw",
                     "bus": "virtio", "target": "vdb", "readOnly": true},
                ],
            },
            "prepare": [
                {"type": "overlay", "path": self.path("disks/root.qcow2"), "backing": base, "backingFormat": "raw"},
                {"type": "cloudInit", "path": self.path("disks/seed.iso"), "label": "cidata",
                 "files": [{"name": "meta-data", "content": {"text": "{}"}}, {"name": "user-data", "content": {"text": ""}}]},
            ],
        })
    }

    /// The process in the launcher's namespace whose name starts like this.
    fn find(&self, name: &str) -> i32 {
        let mut found = Vec::new();
        descend(self.process.id(), name, &mut found);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0]
    }

    async fn exit_code(mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "the launcher does not exit");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return;
        }
        // The end of PID 1 ends its namespace. Killing `unshare` is not enough: changing the user has cleared the
        // launcher's parent-death signal.
        let mut found = Vec::new();
        descend(self.process.id(), "launcher", &mut found);
        found.into_iter().for_each(kill);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn descend(pid: u32, name: &str, found: &mut Vec<i32>) {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm.starts_with(name) {
        found.push(i32::try_from(pid).unwrap());
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_whitespace() {
        descend(child.parse().unwrap(), name, found);
    }
}

fn kill(pid: i32) {
    send("-KILL", pid);
}

fn send(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn uid_of(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_machine_lives_and_survives_its_daemon() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&HALT)})).await;
    let state =
        client.state(|state| state.phase != MachinePhase::Starting && state.phase != MachinePhase::Waiting).await;
    assert_eq!((state.phase, state.virt_type.as_deref()), (MachinePhase::Running, Some("qemu")), "{state:?}");
    assert!(state.machine_type.as_ref().unwrap().starts_with("pc-q35-"), "{state:?}");
    let qemu = launcher.find("qemu-system");
    assert_eq!(uid_of(qemu), "107");

    let xml = xml(&mut client).await;
    assert!(xml.contains("root.qcow2") && xml.contains("virt-serial0"), "{xml}");

    client.ask_ok(json!({"type": "pause"})).await;
    let state = client.state(|state| state.phase == MachinePhase::Paused).await;
    assert_eq!(state.pause_reason, Some(PauseReason::User));
    client.ask_ok(json!({"type": "unpause"})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;

    kill(launcher.find("libvirtd"));
    client.state(|state| state.message.as_ref().is_some_and(|message| message.contains("daemon"))).await;
    let state = client.state(|state| state.message.is_none()).await;
    assert_eq!(state.phase, MachinePhase::Running);
    assert_eq!(launcher.find("qemu-system"), qemu, "the hypervisor went on");
    client.ask_ok(json!({"type": "reset"})).await;

    // A halted boot sector never hears the power button, so the grace period decides.
    client.ask_ok(json!({"type": "shutdown", "graceSeconds": 1})).await;
    let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.stop_reason, Some(StopReason::Destroyed), "{state:?}");
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 0);
}

async fn xml(client: &mut Client) -> String {
    match client.ask_ok(json!({"type": "domainXml"})).await {
        Answer::DomainXml { xml } => xml,
        answer => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn a_machine_that_runs_becomes_what_a_newer_spec_says() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&HALT);
    spec["devices"]["interfaces"] =
        json!([{ "name": "default", "model": "virtio", "attachment": { "type": "tap", "device": "tap0" } }]);
    client.ask_ok(json!({"type": "apply", "generation": 1, "spec": spec})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    assert!(!xml(&mut client).await.contains("<link state='down'/>"));
    let qemu = launcher.find("qemu-system");

    for (generation, down) in [(2, true), (3, false)] {
        spec["devices"]["interfaces"][0]["linkDown"] = down.into();
        spec["memory"]["bytes"] = (128 << 20).into();
        client.ask_ok(json!({"type": "apply", "generation": generation, "spec": spec})).await;
        let is_new = |applied: &Applied| applied.generation == generation;
        let state = client.state(|state| state.applied.as_ref().is_some_and(is_new)).await;
        let applied = state.applied.unwrap();
        assert_eq!((applied.problem, applied.at_restart), (None, vec!["memory".to_owned()]));
        assert_eq!(xml(&mut client).await.contains("<link state='down'/>"), down);
    }
    // What cannot be done is told, and the machine goes on.
    spec["devices"]["interfaces"][0]["linkDown"] = true.into();
    spec["uid"] = "another".into();
    let reply = client.ask(json!({"type": "apply", "generation": 4, "spec": spec})).await;
    let ServerFrame::Answer { result: Outcome::Error(error), .. } = reply else { panic!("{reply:?}") };
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(launcher.find("qemu-system"), qemu);
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 0);
}

#[tokio::test]
async fn a_guest_powers_off_while_nobody_is_connected() {
    let launcher = Launcher::start();
    let mut client = Client::hello(&launcher.socket()).await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&POWER_OFF)})).await;
    drop(client);
    assert_eq!(launcher.exit_code().await, 0);
}

#[tokio::test]
async fn a_killed_hypervisor_is_a_crash() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&HALT)})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    kill(launcher.find("qemu-system"));
    let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.stop_reason, Some(StopReason::Crashed), "{state:?}");
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 1);
}

#[tokio::test]
async fn a_machine_that_cannot_start_says_why() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&HALT);
    spec["devices"]["disks"][1]["source"]["path"] = "/absent.img".into();
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.stop_reason, Some(StopReason::StartFailed));
    assert!(state.message.as_ref().unwrap().contains("absent.img"), "{state:?}");
    drop(client);
    assert_eq!(launcher.exit_code().await, 1);
}

#[tokio::test]
async fn a_termination_signal_ends_the_machine() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&HALT)})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    let pid = launcher.find("launcher").to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    client.state(|state| state.phase == MachinePhase::ShuttingDown).await;
    let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.stop_reason, Some(StopReason::Destroyed));
    drop(client);
    assert_eq!(launcher.exit_code().await, 0);
}

#[tokio::test]
async fn a_machine_uses_the_tap_it_is_given() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&HALT);
    spec["devices"]["interfaces"] = json!([{
        "name": "default", "attachment": {"type": "tap", "device": "tap0"}, "model": "virtio-non-transitional",
        "mac": "02:00:00:00:00:01",
    }]);
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    let state =
        client.state(|state| state.phase == MachinePhase::Running || state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.phase, MachinePhase::Running, "{state:?}");
    let qemu = launcher.find("qemu-system");
    let descriptors = fs::read_dir(format!("/proc/{qemu}/fdinfo")).unwrap();
    let tap = descriptors
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .any(|info| info.lines().any(|line| line.starts_with("iff:") && line.ends_with("tap0")));
    assert!(tap, "QEMU holds tap0");
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 0);
}

#[tokio::test]
async fn a_seeded_launcher_does_not_probe() {
    const MARK: &str = "<!-- seeded -->";
    let dir = shared_dir();
    let output = container(&format!("probe --out {}", dir.path().display())).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let hypervisor = &report["hypervisors"][0];
    assert_eq!(hypervisor["name"], "qemu-kvm");
    let emulation = hypervisor["virtTypes"].as_array().unwrap().iter().find(|found| found["type"] == "qemu").unwrap();
    assert!(emulation["machineTypes"].as_array().unwrap().contains(&json!("q35")), "{emulation}");
    assert!(emulation["cpuModels"].as_array().unwrap().contains(&json!({"name": "qemu64", "usable": true})));

    let facts: NodeFacts = serde_json::from_slice(&fs::read(dir.path().join(FACTS_FILE)).unwrap()).unwrap();
    let labels = facts.labels(&Default::default());
    assert!(labels.contains_key("machine-type.node.kubevirt.io/q35"), "{labels:?}");
    if cfg!(target_arch = "x86_64") {
        assert!(facts.host_model.is_some() && facts.cpu_features.iter().any(|name| name == "sse2"), "{facts:?}");
        assert!(facts.cpu_models.iter().any(|name| name == "Nehalem"), "{facts:?}");
    }
    assert!(facts.to_text(LAST_WORDS).is_some(), "{} bytes", serde_json::to_string(&facts).unwrap().len());

    // A probe would write the file anew, without the mark.
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap() + MARK;
        fs::write(&path, text).unwrap();
    }
    let launcher = Launcher::start_with(&format!("--capabilities-cache {}", dir.path().display()));
    let mut client = launcher.subscribed().await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&HALT)})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    let cache = format!("/proc/{}/root/run/libvirt/cache/libvirt/qemu/cache/capabilities", launcher.find("launcher"));
    let cached: Vec<_> = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!cached.is_empty());
    for path in cached {
        assert!(fs::read_to_string(&path).unwrap().ends_with(MARK), "{} was probed again", path.display());
    }
}

#[tokio::test]
async fn a_hung_daemon_does_not_keep_a_machine_alive() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    client.ask_ok(json!({"type": "sync", "spec": launcher.spec(&HALT)})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    send("-STOP", launcher.find("libvirtd"));
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    launcher.exit_code().await;
}

#[tokio::test]
async fn a_guest_hears_the_power_button() {
    for paused in [false, true] {
        let launcher = Launcher::start();
        let mut client = launcher.subscribed().await;
        let mut spec = launcher.spec(&POWER_BUTTON);
        spec["startPaused"] = paused.into();
        client.ask_ok(json!({"type": "sync", "spec": spec})).await;
        let up = if paused { MachinePhase::Paused } else { MachinePhase::Running };
        client.state(|state| state.phase == up).await;
        // The firmware does not listen yet: the launcher has to ask more than once.
        client.ask_ok(json!({"type": "shutdown", "graceSeconds": 50})).await;
        let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
        assert_eq!(state.stop_reason, Some(StopReason::GuestShutdown), "{state:?}");
        client.ask_ok(json!({"type": "release"})).await;
        assert_eq!(launcher.exit_code().await, 0);
    }
}

#[tokio::test]
async fn a_full_disk_pauses_the_machine_until_there_is_room() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&WRITE);
    let path = "/run/small/disk.img";
    // The firmware only knows disks that it may boot from.
    spec["devices"]["disks"][1] = json!({
        "name": "small", "source": {"type": "file", "path": path}, "format": "raw", "bus": "virtio", "target": "vdb",
        "bootOrder": 2, "errorPolicy": "stop",
    });
    spec["prepare"].as_array_mut().unwrap().truncate(1);
    // Larger than its file system: the launcher itself would make one that fits.
    let pid = launcher.find("launcher").to_string();
    let inside = |arguments: &[&str]| {
        assert!(Command::new("nsenter").args(["-t", &pid, "--mount"]).args(arguments).status().unwrap().success());
    };
    inside(&["truncate", "--size", "1M", path]);
    inside(&["chown", "107:107", path]);
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    let state = client.state(|state| state.phase == MachinePhase::Paused && state.message.is_some()).await;
    assert_eq!(state.pause_reason, Some(PauseReason::IoError), "{state:?}");
    assert!(state.message.as_ref().unwrap().contains("small"), "{state:?}");

    inside(&["mount", "-o", "remount,size=2m", "/run/small"]);
    client.ask_ok(json!({"type": "unpause"})).await;
    let state = client.state(|state| state.phase == MachinePhase::Running).await;
    assert_eq!((state.pause_reason, state.message), (None, None));
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 0);
}

/// A guest that hangs is ended by its watchdog, if that was asked for.
#[tokio::test]
async fn a_watchdog_bites() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&WATCHDOG);
    spec["devices"]["watchdog"] = json!({"alias": "dog", "model": "i6300esb", "action": "poweroff"});
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    let state = client.state(|state| state.phase == MachinePhase::Stopped).await;
    assert_eq!(state.stop_reason, Some(StopReason::Crashed), "{state:?}");
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 1);
}

#[tokio::test]
async fn a_machine_shows_its_screen_and_its_counters_and_has_no_agent() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&HALT);
    spec["devices"]["video"] = json!({"model": "vga", "vramKib": 16384, "heads": 1});
    spec["devices"]["graphics"] = json!({"socket": "/run/kubevirt-private/u1/virt-vnc"});
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;

    let stats = client.ask_ok(json!({"type": "guest", "call": "stats"})).await;
    let Answer::Stats { counters } = stats else { panic!("{stats:?}") };
    assert!(counters["cpu.time"].as_u64() > Some(0) && counters["block.0.name"] == "vda", "{counters:?}");
    let screenshot = client.ask_ok(json!({"type": "guest", "call": "screenshot"})).await;
    let Answer::Screenshot { png } = screenshot else { panic!("{screenshot:?}") };
    // A PNG's first bytes in base64.
    assert!(png.starts_with("iVBORw0KGgo"), "{}", &png[..40]);
    for call in ["ping", "report", "unfreeze"] {
        let reply = client.ask(json!({"type": "guest", "call": call})).await;
        let ServerFrame::Answer { result: Outcome::Error(error), .. } = reply else { panic!("{call}: {reply:?}") };
        assert_eq!(error.code, ErrorCode::NoAgent, "{call}: {error}");
    }
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    launcher.exit_code().await;
}

#[tokio::test]
async fn a_copy_of_the_console_is_kept_and_stays_small() {
    let launcher = Launcher::start();
    let mut client = launcher.subscribed().await;
    let mut spec = launcher.spec(&TALK);
    let log = launcher.path("console/virt-serial0-log");
    spec["devices"]["serial"]["log"] = json!(log);
    client.ask_ok(json!({"type": "sync", "spec": spec})).await;
    client.state(|state| state.phase == MachinePhase::Running).await;
    let mut shown = Command::new(env!("CARGO_BIN_EXE_ferrovirt-launcher"))
        .args(["console-log", "--logfile", &log])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begin = [0; 4096];
    shown.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    assert!(begin.ends_with(b"xxxx"), "{:?}", String::from_utf8_lossy(&begin));
    // It is told to end and does so by itself.
    send("-TERM", i32::try_from(shown.id()).unwrap());
    drop(shown.stdout.take());
    let _ = shown.wait().unwrap();
    let written = || fs::metadata(&log).map(|metadata| (metadata.len(), metadata.blocks() * 512)).unwrap();
    let is_kept_small = |(length, there): (u64, u64)| length > 4 << 20 && there < 3 << 20;
    let deadline = Instant::now() + PATIENCE;
    while !is_kept_small(written()) {
        let (length, there) = written();
        assert!(Instant::now() < deadline, "{length} bytes written, {there} on disk");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    client.ask_ok(json!({"type": "kill"})).await;
    client.state(|state| state.phase == MachinePhase::Stopped).await;
    client.ask_ok(json!({"type": "release"})).await;
    assert_eq!(launcher.exit_code().await, 0);
}
