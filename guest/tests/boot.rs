//! The demo image, booted for real: raw QEMU without KVM, a cloud-init disk made by our ISO writer, a person at the serial console.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ferrovirt_disks::budget::Budget;
use ferrovirt_disks::cloudinit::{CloudInit, DataSource};
use ferrovirt_disks::containerdisk::find_disk;
use ferrovirt_disks::store::ImageStore;
use ferrovirt_disks::unpacker::Unpacker;

/// Generous, because test machines are shared; a healthy boot takes five seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const PROMPT: &str = ":~$ ";

const USER_DATA: &str = "#cloud-config
hostname: boxy
password: s3cret
chpasswd: {expire: false}
ssh_authorized_keys: ['@KEY@']
ssh_keys: {ed25519_private: \"@HOST@\"}
write_files:
- {path: /etc/written, content: by write_files, permissions: 0640}
bootcmd: ['echo boot >> /root/boots']
packages: [nginx]
runcmd:
- echo \"runcmd as $(id -un) on $(hostname)\"
- [sh, -c, 'echo once >> /root/runs']
- 'sleep 1000 &'
";

const STATIC_NETWORK: &str = "
version: 2
ethernets:
  enp1s0:
    addresses: [10.0.2.77/24]
    gateway4: 10.0.2.2
    nameservers: {addresses: [10.0.2.3]}
";

#[test]
fn a_guest_boots_is_configured_keeps_its_files_and_powers_off() {
    let dir = tempfile::tempdir().unwrap();
    let disk = overlay(dir.path());
    let iso = dir.path().join("cidata.iso");
    let mut data = CloudInit {
        instance_id: "i-1".into(),
        hostname: "from-meta-data".into(),
        user_data: Some(
            USER_DATA.replace("@KEY@", &ssh_key(dir.path(), "key")).replace("@HOST@", &host_key(dir.path())),
        ),
        ..CloudInit::default()
    };
    data.write(&iso, DataSource::NoCloud).unwrap();

    let mut vm = Vm::start(dir.path(), &disk, Some(&iso), Bus::Virtio);
    vm.wait_for("\nferrovirt-guest: user space is up\r\n");
    vm.wait_for("cloud-init data: NoCloud on /dev/vdb, instance i-1");
    vm.wait_for("packages is ignored");
    vm.wait_for_all(&["runcmd as root on boxy", "ferrovirt-guest: ready", "boxy login:"]);
    println!("login prompt after {:?}", vm.started.elapsed());

    vm.send("demo\n");
    vm.wait_for("Password:");
    vm.send("wrong\n");
    vm.wait_for("Login incorrect");
    vm.log_in("boxy", "demo", "s3cret");
    assert_eq!(vm.run("id -un; id -Gn; hostname"), "demo\r\ndemo sudo\r\nboxy");
    assert_eq!(vm.run("sudo cat /etc/written; sudo stat -c %a /etc/written"), "by write_files640");
    assert_eq!(vm.run("grep -c ssh-ed25519 .ssh/authorized_keys"), "1");
    assert_eq!(vm.run("sudo grep root: /etc/shadow | cut -d: -f2"), "*");
    vm.run("until ip -4 addr show eth0 | grep -q inet; do sleep 0.1; done");
    assert!(vm.run("ip -4 addr show eth0").contains("10.0.2.15/24"));
    assert!(vm.run("ip route").contains("default via 10.0.2.2"));
    assert_eq!(ssh(dir.path(), vm.ssh_port, "hostname; sudo id -u"), "boxy\n0\n");
    // By sftp, and by the protocol of old clients.
    for (flag, name) in [("-s", "new"), ("-O", "old")] {
        let file = dir.path().join(name);
        std::fs::write(&file, name.repeat(50_000)).unwrap();
        scp(dir.path(), vm.ssh_port, flag, &[&file.to_string_lossy(), "demo@127.0.0.1:"]);
        scp(
            dir.path(),
            vm.ssh_port,
            flag,
            &[&format!("demo@127.0.0.1:{name}"), &dir.path().join("back").to_string_lossy()],
        );
        assert!(std::fs::read(dir.path().join("back")).unwrap() == std::fs::read(&file).unwrap(), "{name}");
    }
    vm.run("echo kept > note; sudo sync");

    // A reboot keeps files and runs nothing twice.
    vm.send("sudo reboot\n");
    vm.wait_for("user space is up");
    vm.log_in("boxy", "demo", "s3cret");
    assert_eq!(vm.run("cat note; sudo cat /root/runs /root/boots"), "kept\r\nonce\r\nboot\r\nboot");
    vm.send("sudo poweroff\n");
    vm.wait_for_exit();

    // A new instance id is a first boot again; the power button ends it in order.
    data.instance_id = "i-2".into();
    data.network_config = Some(STATIC_NETWORK.into());
    data.write(&iso, DataSource::NoCloud).unwrap();
    let mut vm = Vm::start(dir.path(), &disk, Some(&iso), Bus::Virtio);
    vm.wait_for_all(&["ferrovirt-guest: ready", "boxy login:"]);
    vm.answer_login("demo", "s3cret");
    assert_eq!(vm.run("cat note; sudo cat /root/runs"), "kept\r\nonce\r\nonce");
    vm.monitor("system_powerdown");
    vm.wait_for("power button pressed, powering off");
    vm.wait_for_exit();
}

#[test]
fn other_disks_and_data_sources_work() {
    let dir = tempfile::tempdir().unwrap();
    let iso = dir.path().join("config-2.iso");
    let data = CloudInit {
        instance_id: "c-1".into(),
        hostname: "drive".into(),
        user_data: Some("#!/bin/sh\necho \"script on $(hostname)\"\n".into()),
        ..CloudInit::default()
    };
    data.write(&iso, DataSource::ConfigDrive).unwrap();
    let mut vm = Vm::start(dir.path(), &overlay(dir.path()), Some(&iso), Bus::Scsi);
    vm.wait_for("cloud-init data: ConfigDrive on /dev/s");
    vm.wait_for_all(&["script on drive", "drive login:"]);
    vm.monitor("system_powerdown");
    vm.wait_for_exit();
}

#[test]
fn without_data_the_console_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::start(dir.path(), &overlay(dir.path()), None, Bus::Virtio);
    vm.wait_for("no cloud-init data disk (cidata or config-2) found");
    vm.wait_for_all(&["ferrovirt-guest: ready", "localhost login:"]);
}

#[test]
fn the_archive_is_a_container_disk() {
    let disk = image();
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path(), Unpacker::here(Budget::default())).unwrap();
    store.import(&disk.with_file_name("demo-guest.tar"), None).unwrap();
    let image = store.resolve("ferrovirt/demo-guest").unwrap();
    let found = find_disk(&image.rootfs, None).unwrap();
    assert_eq!(found.strip_prefix(&image.rootfs).unwrap(), Path::new("disk/demo.qcow2"));
    assert!(std::fs::read(found).unwrap() == std::fs::read(disk).unwrap());
}

/// Makes a key pair; returns the public half.
fn ssh_key(dir: &Path, name: &str) -> String {
    let key = dir.join(name);
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.expect("ssh-keygen is needed").success());
    std::fs::read_to_string(key.with_extension("pub")).unwrap().trim().to_string()
}

/// Makes the guest's own key, and lets [`ssh`] expect it; returns the private half as one line of YAML.
fn host_key(dir: &Path) -> String {
    std::fs::write(dir.join("known"), format!("guest {}\n", ssh_key(dir, "host"))).unwrap();
    std::fs::read_to_string(dir.join("host")).unwrap().replace('\n', "\\n")
}

/// Trusts the host key that the guest was given, and no other.
fn strict(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["-F", "none", "-o", "StrictHostKeyChecking=yes", "-o", "HostKeyAlias=guest", "-o", "BatchMode=yes"])
        .args(["-o", "ConnectTimeout=60", "-o", &format!("UserKnownHostsFile={}", dir.join("known").display()), "-i"])
        .arg(dir.join("key"));
    command
}

fn ssh(dir: &Path, port: u16, command: &str) -> String {
    let out = strict("ssh", dir).args(["-p", &port.to_string(), "demo@127.0.0.1", command]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn scp(dir: &Path, port: u16, flag: &str, files: &[&str]) {
    let out = strict("scp", dir).args([flag, "-P", &port.to_string()]).args(files).output().unwrap();
    assert!(out.status.success(), "{flag}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Where the image is; it is built when it is missing, and checked for freshness by the script itself.
fn image() -> PathBuf {
    let repo = Path::new("..");
    let dir = match std::env::var_os("FERROVIRT_GUEST_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let dir = Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/ferrovirt/guest");
            let status = Command::new(repo.join("scripts/guest-image.sh")).arg(&dir).status().unwrap();
            assert!(status.success(), "the guest image does not build");
            dir
        }
    };
    dir.join("demo.qcow2")
}

fn overlay(dir: &Path) -> PathBuf {
    let path = dir.join("disk.qcow2");
    let status = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
        .args([&image(), &path])
        .status()
        .unwrap();
    assert!(status.success());
    path
}

#[derive(Clone, Copy, PartialEq)]
enum Bus {
    Virtio,
    Scsi,
}

struct Vm {
    qemu: Child,
    console: UnixStream,
    output: Receiver<Vec<u8>>,
    /// Everything seen so far, and how much of it earlier waits have used up.
    seen: String,
    used: usize,
    monitor: PathBuf,
    started: Instant,
    ssh_port: u16,
}

impl Vm {
    fn start(dir: &Path, disk: &Path, data: Option<&Path>, bus: Bus) -> Self {
        let (serial, monitor) = (dir.join("serial"), dir.join("monitor"));
        for socket in [&serial, &monitor] {
            let _ = std::fs::remove_file(socket);
        }
        let mut command = Command::new("qemu-system-x86_64");
        // 128 MiB is the least that the guest promises to work with.
        command.args(["-machine", "q35", "-accel", "tcg,tb-size=64", "-m", "128", "-nodefaults", "-display", "none"]);
        command.arg("-serial").arg(format!("unix:{},server=on,wait=on", serial.display()));
        command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        // A port that was free a moment ago; QEMU fails to start in the unlikely case that it no longer is.
        let ssh_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        command.arg("-netdev").arg(format!("user,id=net,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"));
        command.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        command.args(["-device", "virtio-rng-pci", "-device", "virtio-scsi-pci"]);
        let mut drive = |id: &str, options: String, scsi: &str| {
            command.arg("-drive").arg(format!("if=none,id={id},{options}"));
            let kind = if bus == Bus::Scsi { scsi } else { "virtio-blk-pci" };
            command.arg("-device").arg(format!("{kind},drive={id}"));
        };
        drive("root", format!("format=qcow2,file={}", disk.display()), "scsi-hd");
        if let Some(data) = data {
            drive("data", format!("format=raw,readonly=on,file={}", data.display()), "scsi-cd");
        }
        let started = Instant::now();
        let mut qemu = command.stdin(Stdio::null()).spawn().expect("qemu-system-x86_64 is needed");
        let console = loop {
            match UnixStream::connect(&serial) {
                Ok(stream) => break stream,
                Err(e) => {
                    assert!(qemu.try_wait().unwrap().is_none(), "QEMU ended early");
                    assert!(started.elapsed() < PATIENCE, "no serial console: {e}");
                    std::thread::yield_now();
                }
            }
        };
        let (send, output) = channel();
        let mut reader = console.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Vm { qemu, console, output, seen: String::new(), used: 0, monitor, started, ssh_port }
    }

    /// Waits for a text after the last one waited for; returns what came between.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen[self.used..].find(text) {
                let between = self.seen[self.used..self.used + at].to_string();
                self.used += at + text.len();
                return between;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{text:?} did not come; the console:\n{}", self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("QEMU ended before {text:?}; the console:\n{}", self.seen)
                }
            }
        }
    }

    fn send(&mut self, text: &str) {
        self.console.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for texts that come in any order, such as the login prompt and what the user's commands say: they run side by side.
    fn wait_for_all(&mut self, texts: &[&str]) {
        let begin = self.used;
        let mut end = begin;
        for text in texts {
            self.used = begin;
            self.wait_for(text);
            end = end.max(self.used);
        }
        self.used = end;
    }

    fn log_in(&mut self, host: &str, user: &str, password: &str) {
        self.wait_for(&format!("{host} login:"));
        self.answer_login(user, password);
    }

    fn answer_login(&mut self, user: &str, password: &str) {
        self.send(&format!("{user}\n"));
        self.wait_for("Password:");
        self.send(&format!("{password}\n"));
        self.wait_for(PROMPT);
    }

    /// Runs a line in the logged-in shell; returns its output.
    fn run(&mut self, line: &str) -> String {
        self.send(&format!("{line}\n"));
        self.wait_for("\r\n");
        let output = self.wait_for(&format!("demo@boxy{PROMPT}"));
        output.trim_end().to_string()
    }

    fn monitor(&self, command: &str) {
        let mut stream = UnixStream::connect(&self.monitor).unwrap();
        writeln!(stream, "{command}").unwrap();
        // The monitor answers with its banner and prompts; once the second prompt is there, the command was taken.
        let mut text = String::new();
        let mut buffer = [0u8; 1024];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        while text.matches("(qemu)").count() < 2 {
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0, "the monitor closed: {text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    }

    fn wait_for_exit(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while let Ok(bytes) = self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        assert!(Instant::now() < deadline, "the guest did not power off; the console:\n{}", self.seen);
        assert!(self.qemu.wait().unwrap().success());
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
