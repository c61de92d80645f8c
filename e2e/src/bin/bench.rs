//! `make bench`: what we cost beside a raw QEMU with the same command line, measured in the same run.
//!
//! ```text
//! bench [--runs 5] [--vms 10] [--json FILE]
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ferrovirt_e2e::{Host, Options, figures, manifest, process, raw_qemu::RawQemu, wait};
use serde_json::{Value, json};

struct Arguments {
    runs: usize,
    vms: usize,
    json: Option<PathBuf>,
}

/// One line of the table. Times in seconds, sizes in MiB.
struct Row {
    what: &'static str,
    unit: &'static str,
    ours: Vec<f64>,
    /// The same thing done by raw QEMU.
    raw: Vec<f64>,
    goal: Goal,
}

enum Goal {
    AtMost(f64),
    /// So much above raw QEMU.
    Above(f64),
    None,
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let first_start = first_starts(arguments.runs)?;
    let host = Host::start()?;
    let again = restarts(&host, arguments.runs)?;
    let idle = mebibytes(host.up_process()?.memory()?.rss);
    let boots = boots(&host, arguments.runs)?;
    eprintln!("{} VMs side by side", arguments.vms);
    let crowd = crowd(&host, arguments.vms)?;
    host.down()?;

    let row = |what, unit, ours, raw, goal| Row { what, unit, ours, raw, goal };
    let rows = [
        row("up to ready, first start", "s", first_start, vec![], Goal::AtMost(1.0)),
        row("up to ready, with data", "s", again, vec![], Goal::AtMost(1.0)),
        row("RSS of up, no VM", "MiB", vec![idle], vec![], Goal::AtMost(100.0)),
        row("RSS of up, all VMs", "MiB", vec![crowd.up_rss], vec![], Goal::AtMost(100.0)),
        row("apply to QEMU exec", "s", boots.exec, vec![], Goal::AtMost(1.0)),
        row("apply to user space", "s", boots.user_space, boots.raw, Goal::Above(1.5)),
        row("PSS per VM outside QEMU", "MiB", vec![crowd.pss_per_vm], vec![], Goal::AtMost(30.0)),
        row("PSS per VM of QEMU", "MiB", vec![crowd.qemu_pss], vec![], Goal::None),
    ];
    print_table(&rows, &arguments);
    for row in &rows {
        figures::note(row.what, row.unit, median(&row.ours))?;
    }
    if let Some(path) = &arguments.json {
        let by_program = &crowd.by_program;
        let report = json!({
            "runs": arguments.runs,
            "vms": arguments.vms,
            "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "pssPerVmByProgramMiB": by_program,
        });
        fs::write(path, format!("{report:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// `up` on an empty data directory: makes a CA, copies its programs, writes its first objects.
fn first_starts(runs: usize) -> Result<Vec<f64>> {
    let mut times = vec![];
    for run in 1..=runs {
        eprintln!("first start {run}/{runs}");
        let host = Host::prepare(Options { no_image: true, ..Options::default() })?;
        let started = Instant::now();
        host.up()?;
        times.push(started.elapsed().as_secs_f64());
        host.down()?;
    }
    Ok(times)
}

fn restarts(host: &Host, runs: usize) -> Result<Vec<f64>> {
    let mut times = vec![];
    for run in 1..=runs {
        eprintln!("start with data {run}/{runs}");
        host.down()?;
        let started = Instant::now();
        host.up()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(times)
}

#[derive(Default)]
struct Boots {
    exec: Vec<f64>,
    user_space: Vec<f64>,
    raw: Vec<f64>,
}

/// One VM after the other, and after each a raw QEMU: what else the machine does hits both alike.
fn boots(host: &Host, runs: usize) -> Result<Boots> {
    let mut boots = Boots::default();
    for run in 1..=runs {
        eprintln!("boot {run}/{runs}");
        let name = format!("bench-{run}");
        let manifest = host.work_dir().join("bench.json");
        fs::write(&manifest, manifest::vm(&name, "Always").to_string())?;
        let known = pids();
        let started = Instant::now();
        let mut apply = host.command("ferrovirt");
        let mut apply =
            apply.args(["apply", "-f", &manifest.to_string_lossy()]).stdout(std::process::Stdio::null()).spawn()?;
        let (model, exec) = follow_exec(&name, &known, started)?;
        let serial = serial(&host.data_dir())?;
        let user_space = follow_console(serial, started)?;
        if !apply.wait()?.success() {
            bail!("`ferrovirt apply` failed");
        }
        boots.exec.push(exec);
        boots.user_space.push(user_space);

        let directory = tempfile::Builder::new().prefix("raw-").tempdir_in(host.work_dir())?;
        let raw = RawQemu::like(&model, directory.path())?;
        host.ferrovirt(&["delete", "vm", &name])?;
        let started = Instant::now();
        let mut child = raw.start()?;
        let output = child.stdout.take().context("QEMU has no output")?;
        let seen = follow_console(output, started);
        child.kill()?;
        child.wait()?;
        boots.raw.push(seen?);
    }
    Ok(boots)
}

/// Waits for the QEMU of a VM: a process that was not there before and whose program is QEMU.
fn follow_exec(name: &str, known: &[i32], started: Instant) -> Result<(process::Process, f64)> {
    while started.elapsed() < wait::BOOT {
        for pid in pids().into_iter().filter(|pid| !known.contains(pid)) {
            let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if program.starts_with("qemu-system") {
                let seen = started.elapsed().as_secs_f64();
                let process = process::Process::read(pid);
                if let Some(process) = process::qemu(process.as_slice(), "default", name) {
                    return Ok((process.clone(), seen));
                }
            }
        }
        // The grain of this measurement. Looking more often would take the time from what is measured.
        thread::sleep(Duration::from_millis(5));
    }
    bail!("no QEMU runs for {name} after {} s", wait::BOOT.as_secs())
}

/// Reads a guest's console until its user space says hello.
fn follow_console(console: impl Read, started: Instant) -> Result<f64> {
    let mut lines = BufReader::new(console).split(b'\n');
    while let Some(line) = lines.next().transpose()? {
        if String::from_utf8_lossy(&line).contains(manifest::USER_SPACE) {
            return Ok(started.elapsed().as_secs_f64());
        }
    }
    bail!("the guest ended before its user space was up")
}

/// The serial port of the only VM there is. Asking the API for it would come too late for the first lines.
fn serial(data_dir: &Path) -> Result<UnixStream> {
    wait::until("a serial port", wait::SOON, || {
        let pods = entries(&data_dir.join("pods"));
        let directories = pods.iter().flat_map(|pod| entries(&pod.join("volumes/kubernetes.io~empty-dir/private")));
        for directory in directories {
            let opened = File::open(&directory)?;
            if let Ok(stream) = UnixStream::connect(format!("/proc/self/fd/{}/virt-serial0", opened.as_raw_fd())) {
                stream.set_read_timeout(Some(wait::BOOT))?;
                return Ok(wait::Seen::Yes(stream));
            }
        }
        Ok(wait::Seen::Not("none".into()))
    })
}

struct Crowd {
    up_rss: f64,
    pss_per_vm: f64,
    qemu_pss: f64,
    by_program: BTreeMap<String, f64>,
}

/// Many VMs at once, and the memory of all that is not QEMU.
fn crowd(host: &Host, vms: usize) -> Result<Crowd> {
    let names: Vec<String> = (1..=vms).map(|number| format!("crowd-{number}")).collect();
    for name in &names {
        host.apply(&manifest::vm(name, "Always"))?;
    }
    for name in &names {
        host.wait_running(name)?;
    }
    let up = host.up_process()?;
    let mut by_program: BTreeMap<String, f64> = BTreeMap::new();
    for process in host.processes().iter().filter(|process| process.pid != up.pid) {
        // Copies carry their version and content in the name.
        let program = process.program().split("-0").next().unwrap_or_default().to_owned();
        *by_program.entry(program).or_default() += mebibytes(process.memory()?.pss) / vms as f64;
    }
    let qemu_pss =
        by_program.iter().filter(|(program, _)| program.starts_with("qemu-system")).map(|(_, pss)| pss).sum();
    let pss_per_vm = by_program.values().sum::<f64>() - qemu_pss;
    let up_rss = mebibytes(up.memory()?.rss);
    let mut delete = vec!["delete", "vm"];
    delete.extend(names.iter().map(String::as_str));
    host.ferrovirt(&delete)?;
    Ok(Crowd { up_rss, pss_per_vm, qemu_pss, by_program })
}

fn print_table(rows: &[Row], arguments: &Arguments) {
    println!("\nmedians of {} runs; memory with {} VMs running", arguments.runs, arguments.vms);
    println!("{:<28}{:>12}{:>12}{:>8}{:>20}  ", "", "ferrovirt", "raw QEMU", "ratio", "goal");
    for row in rows {
        let (ours, raw) = (median(&row.ours), row.raw());
        let unit = row.unit;
        let raw_text = raw.map_or("–".into(), |raw| format!("{raw:.2} {unit}"));
        let ratio = raw.map_or("–".into(), |raw| format!("{:.2}", ours / raw));
        let goal = match row.goal {
            Goal::AtMost(goal) => format!("≤ {goal} {unit}"),
            Goal::Above(goal) => format!("≤ raw + {goal} {unit}"),
            Goal::None => "–".into(),
        };
        let verdict = match row.met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        println!("{:<28}{:>12}{raw_text:>12}{ratio:>8}{goal:>20}  {verdict}", row.what, format!("{ours:.2} {unit}"));
    }
}

impl Row {
    fn raw(&self) -> Option<f64> {
        (!self.raw.is_empty()).then(|| median(&self.raw))
    }

    fn met(&self) -> Option<bool> {
        let ours = median(&self.ours);
        match self.goal {
            Goal::AtMost(goal) => Some(ours <= goal),
            Goal::Above(goal) => self.raw().map(|raw| ours - raw <= goal),
            Goal::None => None,
        }
    }

    fn json(&self) -> Value {
        let goal = match self.goal {
            Goal::AtMost(goal) => json!({ "atMost": goal }),
            Goal::Above(goal) => json!({ "aboveRawAtMost": goal }),
            Goal::None => Value::Null,
        };
        json!({
            "what": self.what,
            "unit": self.unit,
            "median": median(&self.ours),
            "runs": self.ours,
            "rawMedian": self.raw(),
            "rawRuns": self.raw,
            "ratio": self.raw().map(|raw| median(&self.ours) / raw),
            "goal": goal,
            "met": self.met(),
        })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 { at(middle) } else { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 }
}

fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

fn pids() -> Vec<i32> {
    entries(Path::new("/proc")).iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn arguments() -> Result<Arguments> {
    let mut parsed = Arguments { runs: 5, vms: 10, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--runs" => parsed.runs = value.parse().context("--runs needs a number")?,
            "--vms" => parsed.vms = value.parse().context("--vms needs a number")?,
            "--json" => parsed.json = Some(value.into()),
            _ => bail!("unknown argument {word}; there are --runs N, --vms N and --json FILE"),
        }
    }
    if parsed.runs == 0 || parsed.vms == 0 {
        bail!("there must be at least one run and one VM");
    }
    Ok(parsed)
}
