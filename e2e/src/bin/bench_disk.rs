//! `make bench-disk`: how fast images arrive and disks are cloned, against curl and qemu-img on the same machine, and how
//! fast a guest's disk is, against raw QEMU with the same command line.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Console, Host, Options, figures, manifest, outside,
    raw_qemu::RawQemu,
    servers::Web,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const ROUNDS: usize = 3;

/// For comparisons of two builds, which take their peers from each other and repeat the whole: less of everything.
fn quick() -> bool {
    std::env::args().any(|word| word == "--quick")
}

/// Of the disk; most of it is data.
fn size() -> u64 {
    if quick() { 1 << 30 } else { 2 << 30 }
}

fn main() -> Result<()> {
    let rounds = if quick() { 1 } else { ROUNDS };
    let host = Host::start()?;
    let work = host.work_dir().join("bench");
    let image = make_image(&work)?;
    let web = Web::start(&work, None)?;
    let address = outside::address(&host)?;
    let url = |round: usize| format!("http://{}:{}/{round}.qcow2", address, web.port);

    let (mut floors, mut imports, mut memory) = (vec![], vec![], 0);
    for round in 0..rounds {
        // Another name each time, so that the node's cache has nothing to give.
        fs::hard_link(&image, work.join(format!("www/{round}.qcow2")))?;
        if !quick() {
            floors.push(floor(&work, &url(round))?);
        }
        let name = format!("import{round}");
        let (seconds, peak) = fill(&host, &name, &json!({ "http": { "url": url(round) } }))?;
        imports.push(seconds);
        memory = memory.max(peak);
        if round + 1 < rounds {
            host.kubectl(&["delete", "dv", &name])?;
        }
    }
    let last = format!("import{}", rounds - 1);
    let (again, _) = fill(&host, "again", &json!({ "http": { "url": url(rounds - 1) } }))?;
    let cloned = clone(&host, "clone", &json!({ "pvc": { "namespace": "default", "name": last } }))?;
    let disks = guest_disk(&host, 2 * rounds)?;
    host.down()?;
    let shared = shared_clone(&image)?;

    let best = |list: &[f64]| list.iter().copied().fold(f64::INFINITY, f64::min);
    figures::note("import from http", "s", best(&imports))?;
    figures::note("import, memory", "MiB", memory as f64 / 1024.0)?;
    figures::note("import from the node's cache", "s", again)?;
    figures::note("clone, byte by byte", "s", cloned)?;
    if let Some((clone, _)) = shared {
        figures::note("clone on XFS", "s", clone)?;
    }
    for (what, ours, _) in &disks {
        figures::note(what, "MB/s", *ours)?;
    }
    println!("image: {} MiB of qcow2, disk of {} MiB", fs::metadata(&image).map_or(0, |m| m.len() >> 20), size() >> 20);
    println!("curl, then qemu-img convert, then sync   {:7.2} s (best of {rounds})", best(&floors));
    println!(
        "DataVolume from http                     {:7.2} s, {:.2} of that",
        best(&imports),
        best(&imports) / best(&floors)
    );
    println!("memory of the importer                   {:7.1} MiB at most", memory as f64 / 1024.0);
    println!("the same image once more, from the node  {again:7.2} s");
    println!("clone of the disk, byte by byte          {cloned:7.2} s");
    match shared {
        Some((clone, floor)) => {
            println!("clone of the disk on XFS                 {clone:7.3} s; cp --reflink takes {floor:.3} s");
        }
        None => println!("clone on a file system that shares blocks: not measured, there is no mkfs.xfs"),
    }
    for (what, ours, raw) in disks {
        println!("{what:<41}{ours:7.0} MB/s, {:.2} of raw QEMU's {raw:.0}", ours / raw);
    }
    Ok(())
}

/// The same on a file system that shares blocks: seconds for a clone, and for `cp --reflink` of the same file.
fn shared_clone(image: &Path) -> Result<Option<(f64, f64)>> {
    let known = Command::new("mkfs.xfs").arg("-V").output().is_ok();
    if !known {
        return Ok(None);
    }
    let host = Host::prepare(Options { no_image: true, ..Options::default() })?;
    let mounted = Mounted::new(&host.work_dir().join("disk.xfs"), &host.data_dir())?;
    host.up()?;
    let path = image.to_string_lossy();
    host.ferrovirt(&["image-upload", "dv", "origin", "--size", &size().to_string(), "--image-path", &path])?;
    let mut clones = vec![];
    for round in 0..ROUNDS {
        let source = json!({ "pvc": { "namespace": "default", "name": "origin" } });
        clones.push(clone(&host, &format!("clone{round}"), &source)?);
    }
    let claim = host.get("pvc", "origin")?;
    let volume = host.get("pv", claim["spec"]["volumeName"].as_str().context("not bound")?)?;
    let disk = Path::new(volume["spec"]["local"]["path"].as_str().context("no path")?).join("disk.img");
    let started = Instant::now();
    run(Command::new("cp").arg("--reflink=always").arg(&disk).arg(mounted.0.join("copy")))?;
    let floor = started.elapsed().as_secs_f64();
    host.down()?;
    drop(mounted);
    Ok(Some((clones.into_iter().fold(f64::INFINITY, f64::min), floor)))
}

/// A file system in a file, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(file: &Path, place: &Path) -> Result<Self> {
        fs::File::create(file)?.set_len(3 * size())?;
        fs::create_dir_all(place)?;
        run(Command::new("mkfs.xfs").arg("-q").arg(file))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(file).arg(place))?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// What dd says in a guest, and in the same machine without us: MB/s of writes and of reads.
fn guest_disk(host: &Host, rounds: usize) -> Result<Vec<(&'static str, f64, f64)>> {
    let (name, size) = ("writer", "256Mi");
    host.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
    }))?;
    let mut vm = manifest::vm(name, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    if let Some(disks) = spec["domain"]["devices"]["disks"].as_array_mut() {
        disks.push(json!({ "name": "data", "disk": { "bus": "virtio" } }));
    }
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(json!({ "name": "data", "persistentVolumeClaim": { "claimName": name } }));
    }
    host.apply(&vm)?;
    host.wait_running(name)?;
    let mut console = host.console(name)?;
    console.login(name)?;
    let directory = host.work_dir().join("raw");
    fs::create_dir_all(&directory)?;
    let raw = RawQemu::like(&host.qemu(name)?, &directory)?;
    let mut other = Console::of(raw.start()?)?;
    other.login(name)?;
    let mut out = vec![];
    for (what, command) in [
        ("guest writes", "dd if=/dev/zero of=/dev/vdc bs=1M count=200 conv=fsync"),
        ("guest reads", "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vdc of=/dev/null bs=1M count=200"),
    ] {
        // The guest's dd does not say how long it took.
        let command =
            format!("sudo sh -c 'read a b < /proc/uptime; {command}; read c b < /proc/uptime; echo from $a to $c'");
        let command = command.as_str();
        let (mut ours, mut theirs): (f64, f64) = (0.0, 0.0);
        // One after the other, so that what else the machine does hits both alike.
        for _ in 0..rounds {
            ours = ours.max(rate(&console.shell(command)?)?);
            theirs = theirs.max(rate(&other.shell(command)?)?);
        }
        out.push((what, ours, theirs));
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", name])?;
    Ok(out)
}

/// `from 12.01 to 13.51`
fn rate(said: &str) -> Result<f64> {
    let times = said.rsplit_once("from ").and_then(|(_, times)| times.split_once(" to "));
    let (from, to) = times.with_context(|| format!("dd said {said}"))?;
    let seconds = to.parse::<f64>()? - from.parse::<f64>()?;
    Ok(200.0 * 1.048_576 / seconds)
}

/// Noise with some holes: nothing that a compressor or a zero check could shorten much.
fn make_image(work: &Path) -> Result<PathBuf> {
    fs::create_dir_all(work.join("www"))?;
    let raw = work.join("disk.raw");
    let mut file = fs::File::create(&raw)?;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut block = vec![0; 1 << 20];
    for _ in 0..size() >> 20 {
        for cell in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            cell.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    drop(file);
    let image = work.join("image.qcow2");
    run(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(&raw).arg(&image))?;
    fs::remove_file(raw)?;
    run(&mut Command::new("sync"))?;
    Ok(image)
}

fn floor(work: &Path, url: &str) -> Result<f64> {
    let (image, disk) = (work.join("floor.qcow2"), work.join("floor.raw"));
    let started = Instant::now();
    run(Command::new("curl").args(["-sSf", "-o"]).arg(&image).arg(url))?;
    run(Command::new("qemu-img").args(["convert", "-O", "raw"]).arg(&image).arg(&disk))?;
    run(Command::new("sync").arg(&disk))?;
    let seconds = started.elapsed().as_secs_f64();
    fs::remove_file(image)?;
    fs::remove_file(disk)?;
    Ok(seconds)
}

/// Seconds until the volume is there, and the most memory that its importer had, in KiB.
fn volume(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": size().to_string() } } } },
    })
}

/// Seconds from a DataVolume's creation to its success, both as a watch tells of them: a client's own start takes longer than
/// some clones.
fn clone(host: &Host, name: &str, source: &Value) -> Result<f64> {
    let mut watch = host.command("kubectl");
    let phases = r#"jsonpath={.metadata.name}={.status.phase}{"\n"}"#;
    let mut watch = watch.args(["get", "dv", "--watch", "-o", phases]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("no output")?).lines();
    // The volumes that are there come first: from here on it hears everything.
    lines.next().context("the watch ended")??;
    host.apply(&volume(name, source))?;
    let (mut created, mut succeeded) = (None, None);
    for line in lines {
        let line = line?;
        let Some(phase) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) else { continue };
        created.get_or_insert_with(Instant::now);
        ensure!(phase != "Failed", "{name} failed");
        if phase == "Succeeded" {
            succeeded = Some(Instant::now());
            break;
        }
    }
    watch.kill()?;
    watch.wait()?;
    let (created, succeeded) = (created.context("never created")?, succeeded.context("the watch ended")?);
    Ok((succeeded - created).as_secs_f64())
}

fn fill(host: &Host, name: &str, source: &Value) -> Result<(f64, u64)> {
    let started = Instant::now();
    host.apply(&volume(name, source))?;
    let mut peak = 0;
    wait::until(&format!("{name} to be filled"), 5 * wait::BOOT, || {
        for process in
            host.processes().iter().filter(|process| process.arguments.get(1).is_some_and(|w| w == "importer"))
        {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
            let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let most = most.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
            peak = peak.max(most.unwrap_or(0));
        }
        let volume = host.get("dv", name)?;
        let phase = volume["status"]["phase"].as_str().unwrap_or_default().to_owned();
        ensure!(phase != "Failed", "{name} failed: {}", volume["status"]);
        Ok(if phase == "Succeeded" { Seen::Yes(()) } else { Seen::Not(phase) })
    })?;
    Ok((started.elapsed().as_secs_f64(), peak))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
