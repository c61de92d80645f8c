//! `make bench-api`: one load generator against the API of `ferrovirt up` and against kube-apiserver with etcd.
//!
//! Both in the same run, on the same disk, one after the other, each with the machine for itself. Through TLS and RBAC:
//! the user of the load is bound to a role like any other. Ratios count, not absolute numbers.
//!
//! ```text
//! start empty ─> role, namespaces ─> serial creates ─> 64 clients until 10,000 objects ─> lists
//!             ─> 100 watchers, in turns with the other server, which stands still meanwhile
//!             ─> memory ─> stop, start again with what is stored, until /readyz
//! ```
//!
//! In turns, because delays of milliseconds are also about what else the machine, and the machine below it, do at the time.

mod http;
mod load;
mod report;
mod servers;
mod watcher;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::time::Instant;

use http::Client;
use report::{Figures, Table};
use servers::{Ferrovirt, Kubernetes, Target};

/// How much is done. Less with `--objects`, for trying.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub objects: usize,
    pub serial: usize,
    pub clients: usize,
    pub lists: usize,
    pub watchers: usize,
    /// Writes that the watchers see in a round, and the time between two of them.
    pub watched: usize,
    pub rounds: usize,
    pub pause: Duration,
}

/// How long a server may take to become ready.
const READY: Duration = Duration::from_secs(120);
/// What a server does once after its start (ours tries the hypervisors of the node) is over when the machine idles for so long.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_WITHIN: Duration = Duration::from_secs(30);
/// The same for a server that stood still.
const AWAKE_WITHIN: Duration = Duration::from_secs(5);
/// Not before the last allocations are given back, and not forever.
const SETTLE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        // As bench-scale: the numbers are there, and a goal is missed.
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("bench-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all goals are met.
fn run() -> Result<bool> {
    let (plan, json, peer) = parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let table = runtime.block_on(bench(plan, &peer))?;
    if matches!(peer, Peer::Ferrovirt(_)) {
        table.note()?;
    }
    print!("{}", table.text());
    if let Some(path) = json {
        std::fs::write(&path, table.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(table.met())
}

/// What we are measured against: the directory of its programs.
enum Peer {
    Kubernetes(PathBuf),
    /// Another build of ours.
    Ferrovirt(PathBuf),
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(Plan, Option<PathBuf>, Peer)> {
    let mut plan = Plan {
        objects: 10_000,
        serial: 300,
        clients: 64,
        lists: 7,
        watchers: 100,
        watched: 200,
        rounds: 9,
        pause: Duration::from_millis(25),
    };
    let (mut json, mut peer) = (None, None);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--json" => json = Some(PathBuf::from(value)),
            "--kubernetes" => peer = Some(Peer::Kubernetes(PathBuf::from(value))),
            "--versus" => peer = Some(Peer::Ferrovirt(PathBuf::from(value))),
            "--rounds" => plan.rounds = value.parse().context("--rounds is not a number")?,
            "--objects" => plan.objects = value.parse().context("--objects is not a number")?,
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    let peer = peer.context("--kubernetes DIRECTORY says where kube-apiserver and etcd are")?;
    Ok((plan, json, peer))
}

async fn bench(plan: Plan, peer: &Peer) -> Result<Table> {
    let work = tempfile::Builder::new().prefix("fv-bench-api-").tempdir_in("/tmp")?;
    match peer {
        Peer::Kubernetes(programs) => {
            let name = "kube-apiserver and etcd";
            turns(plan, Measured::new(name, Kubernetes::new(programs, work.path())?), work.path()).await
        }
        Peer::Ferrovirt(programs) => {
            let base = Ferrovirt::of(programs, &work.path().join("base"))?;
            turns(plan, Measured::new("the other ferrovirt", base), work.path()).await
        }
    }
}

async fn turns<T: Target>(plan: Plan, mut peer: Measured<T>, work: &Path) -> Result<Table> {
    let mut ours = Measured::new("ferrovirt", Ferrovirt::new(work)?);
    peer.load(plan).await?;
    ours.load(plan).await?;
    eprintln!("{} times {} writes to {} watchers, in turns", plan.rounds, plan.watched, plan.watchers);
    for round in 0..plan.rounds {
        peer.watch(plan, round).await?;
        ours.watch(plan, round).await?;
    }
    let name = peer.name;
    Ok(Table { plan, name, peer: peer.finish().await?, ours: ours.finish().await? })
}

/// A server, and what was measured of it so far. It stands still between the calls.
struct Measured<T: Target> {
    name: &'static str,
    target: T,
    serial: Duration,
    creates: f64,
    list: Duration,
    /// Of the 99th percentiles of the watchers' rounds.
    watch: Vec<Duration>,
}

impl<T: Target> Measured<T> {
    fn new(name: &'static str, target: T) -> Self {
        Self { name, target, serial: Duration::ZERO, creates: 0.0, list: Duration::ZERO, watch: Vec::new() }
    }

    async fn load(&mut self, plan: Plan) -> Result<()> {
        eprintln!("{}:", self.name);
        self.target.start()?;
        ready(&self.target).await?;
        quiet(QUIET_WITHIN).await?;
        load::prepare(&self.target.admin()?, servers::GROUP).await?;
        let user = self.target.user()?;
        eprintln!("  creating {} objects one by one", plan.serial);
        self.serial = load::serial(&user, plan.serial).await.context(self.name)?;
        eprintln!("  creating {} objects with {} clients", plan.objects, plan.clients);
        self.creates = load::parallel(&user, plan.clients, plan.objects).await.context(self.name)?;
        eprintln!("  listing them");
        self.list = load::lists(&user, plan).await.context(self.name)?;
        self.target.stand_still(true)
    }

    async fn watch(&mut self, plan: Plan, round: usize) -> Result<()> {
        self.target.stand_still(false)?;
        let user = self.target.user()?;
        quiet(AWAKE_WITHIN).await?;
        let (most, text) = load::watch(&user, plan, round).await.context(self.name)?;
        eprintln!("  {:<24} {text}", self.name);
        self.watch.push(most);
        self.target.stand_still(true)
    }

    async fn finish(mut self) -> Result<Figures> {
        self.target.stand_still(false)?;
        tokio::time::sleep(SETTLE).await;
        let memory = self.target.memory()?;
        eprintln!("{}: starting again", self.name);
        self.target.stop()?;
        let begun = Instant::now();
        self.target.start()?;
        ready(&self.target).await?;
        let ready = begun.elapsed();
        self.target.stop()?;
        let watch = load::percentile(&mut self.watch, 50)?;
        let Self { serial, creates, list, .. } = self;
        Ok(Figures { serial, creates, list, watch, memory, ready })
    }
}

/// Until nine tenths of the processors' time are left over. A machine on which others work is measured all the same.
async fn quiet(within: Duration) -> Result<()> {
    let begun = Instant::now();
    // What the other server left to be written would be written while this one syncs.
    tokio::task::spawn_blocking(rustix::fs::sync).await?;
    loop {
        let before = processors()?;
        tokio::time::sleep(QUIET).await;
        let after = processors()?;
        let (idle, all) = (after.0 - before.0, after.1 - before.1);
        if idle * 10 >= all * 9 {
            return Ok(());
        }
        if begun.elapsed() > within {
            eprintln!("  others use {} % of the processors: the figures say little", 100 - idle * 100 / all.max(1));
            return Ok(());
        }
    }
}

/// Idle ticks and all ticks of all processors since the start of the machine.
fn processors() -> Result<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks = line.split_whitespace().skip(1).map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    // user nice system idle iowait ...
    Ok((ticks.iter().skip(3).take(2).sum(), ticks.iter().take(8).sum()))
}

/// Until the server says that it is.
async fn ready<T: Target>(target: &T) -> Result<()> {
    let begun = Instant::now();
    loop {
        if let Ok(admin) = target.admin()
            && let Ok(client) = Client::connect(&admin).await
            && let Ok((status, _)) = client.request("GET", "/readyz", None).await
            && status.is_success()
        {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < READY, "not ready after {} s; {}", READY.as_secs(), target.log());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
