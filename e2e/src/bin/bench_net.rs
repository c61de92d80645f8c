//! `make bench-net`: iperf3 between two guests, against two raw QEMU processes with the same command lines whose taps are
//! ports of one bridge.
//!
//! The guests get iperf3 on a disk of its own, made of Debian's packages; nothing of this machine is used.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Console, Host, figures, manifest, raw_qemu::RawQemu, wait};
use serde_json::{Value, json};

const ROUNDS: usize = 3;
const SECONDS: u32 = 8;
/// What iperf3 is made of; the guest has most of the C library.
const PACKAGES: [&str; 5] = ["iperf3", "libiperf0", "libsctp1", "libssl3", "libc6"];
const BINDINGS: [&str; 2] = ["masquerade", "bridge"];

fn main() -> Result<()> {
    let done = bench();
    for link in [bridge(), tap(0), tap(1)] {
        let _ = Command::new("ip").args(["link", "delete", &link]).output();
    }
    done
}

fn bridge() -> String {
    format!("bn{}", std::process::id())
}

fn tap(number: usize) -> String {
    format!("bn{}t{number}", std::process::id())
}

fn bench() -> Result<()> {
    // For comparisons of two builds, which take their peers from each other and repeat the whole.
    let quick = std::env::args().any(|word| word == "--quick");
    let host = Host::start()?;
    let tools = tools_disk(&host.work_dir().join("tools"))?;
    host.ferrovirt(&["image-upload", "dv", "tools", "--size", "64Mi", "--image-path", &tools.to_string_lossy()])?;
    let mut rates: Vec<(&str, f64)> = vec![];
    let mut models = vec![];
    for binding in BINDINGS {
        let names = ["server", "client"].map(|role| format!("{role}-{binding}"));
        for name in &names {
            host.apply(&guest(name, binding))?;
        }
        let mut consoles = vec![];
        for name in &names {
            host.wait_running(name)?;
            consoles.push(prepared(host.console(name)?, name)?);
        }
        let vmi = host.get("vmi", &names[0])?;
        let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().context("no address")?.to_owned();
        let rate = measure(&mut consoles, &address).with_context(|| format!("between guests with {binding}"))?;
        rates.push((binding, rate));
        if binding == BINDINGS[0] {
            for (number, name) in names.iter().enumerate() {
                let directory = host.work_dir().join(format!("raw{number}"));
                fs::create_dir_all(&directory)?;
                let mut raw = RawQemu::like(&host.qemu(name)?, &directory)?;
                raw.plug(&tap(number));
                models.push(raw);
            }
        }
        drop(consoles);
        for name in &names {
            host.kubectl(&["delete", "vm", name])?;
        }
    }
    for (binding, rate) in &rates {
        figures::note(&format!("iperf3, {binding}"), "Mbit/s", *rate)?;
    }
    if quick {
        return host.down();
    }
    let raw = raw_rate(&models).context("between raw QEMU processes")?;
    host.down()?;
    println!("iperf3 between two guests, best of {ROUNDS} runs of {SECONDS} s");
    println!("{:<28}{raw:>8.0} Mbit/s", "raw QEMU, two taps, a bridge");
    for (binding, rate) in rates {
        println!("{:<28}{rate:>8.0} Mbit/s, {:.2} of that", format!("ferrovirt, {binding}"), rate / raw);
    }
    Ok(())
}

/// The same two machines without us.
fn raw_rate(models: &[RawQemu]) -> Result<f64> {
    run(&["ip", "link", "add", &bridge(), "type", "bridge"])?;
    run(&["ip", "link", "set", &bridge(), "up"])?;
    let mut consoles = vec![];
    for (number, model) in models.iter().enumerate() {
        run(&["ip", "tuntap", "add", &tap(number), "mode", "tap"])?;
        run(&["ip", "link", "set", &tap(number), "master", &bridge(), "up"])?;
        let name = ["server-masquerade", "client-masquerade"][number];
        let mut console = prepared(Console::of(model.start()?)?, name)?;
        // Nobody gives addresses there, and a client that looks for one takes ours away.
        console.shell(&format!(
            "sudo killall udhcpc; sudo ip addr add 10.0.9.{}/24 dev eth0; sudo ip link set eth0 up",
            number + 1
        ))?;
        consoles.push(console);
    }
    measure(&mut consoles, "10.0.9.1")
}

/// A guest that is logged in and has its tools at hand.
fn prepared(mut console: Console, name: &str) -> Result<Console> {
    console.login(name)?;
    let said = console.shell("sudo mount -o ro /dev/vdc /mnt && ls /mnt/bin")?;
    ensure!(said.contains("iperf3"), "{name} has no tools: {said}");
    Ok(console)
}

fn measure(consoles: &mut [Console], address: &str) -> Result<f64> {
    const PROGRAM: &str = "LD_LIBRARY_PATH=/mnt/lib /mnt/bin/iperf3";
    let [server, client] = consoles else { anyhow::bail!("there are not two guests") };
    server.shell(&format!("{PROGRAM} -s -D"))?;
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let report = wait::until("a measurement", wait::BOOT, || {
            let said = client.shell(&format!("{PROGRAM} -c {address} -t {SECONDS} -f m 2>&1 | tail -n 4"))?;
            Ok(match said.contains("receiver") {
                true => wait::Seen::Yes(said),
                false => wait::Seen::Not(said),
            })
        })?;
        let line = report.lines().find(|line| line.contains("receiver")).context("no result")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let rate = words.iter().position(|word| *word == "Mbits/sec").and_then(|at| words.get(at.checked_sub(1)?));
        best = best.max(rate.context("no rate")?.parse()?);
    }
    Ok(best)
}

fn guest(name: &str, binding: &str) -> Value {
    let mut vm = manifest::vm(name, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "model": "virtio" }]);
    if let Some(disks) = spec["domain"]["devices"]["disks"].as_array_mut() {
        disks.push(json!({ "name": "tools", "disk": { "bus": "virtio" }, "shareable": true }));
    }
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(json!({ "name": "tools", "persistentVolumeClaim": { "claimName": "tools" } }));
    }
    vm
}

/// A small file system with iperf3 and its libraries.
fn tools_disk(work: &Path) -> Result<PathBuf> {
    fs::create_dir_all(work.join("tree/bin"))?;
    fs::create_dir_all(work.join("tree/lib"))?;
    let script = format!(
        "cd '{work}' && apt-get -qq -o APT::Sandbox::User=root download {packages} && for deb in *.deb; do dpkg-deb -x $deb all; \
         done && cp all/usr/bin/iperf3 tree/bin/ && cp -L all/usr/lib/*/lib*.so.* all/lib/*/libm.so.6 tree/lib/ && \
         truncate -s 32M tools.img && mke2fs -q -t ext4 -d tree tools.img",
        work = work.display(),
        packages = PACKAGES.join(" "),
    );
    run(&["sh", "-c", &script])?;
    Ok(work.join("tools.img"))
}

fn run(command: &[&str]) -> Result<()> {
    let (program, arguments) = command.split_first().context("no program")?;
    let status = Command::new(program).args(arguments).status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
