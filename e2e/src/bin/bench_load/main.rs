//! `make bench-load`: what services, quotas and many objects cost those who write.
//!
//! Two servers of one build in the same run, on the same disk: one with nothing but namespaces, and one with thousands of services
//! with endpoints, a quota in every namespace and as many objects as there may be. The same load goes to both in turns, while the
//! other stands still. Ratios count, not absolute numbers. With `--versus DIRECTORY` the programs there are measured as well.
//!
//! ```text
//! start both ─> fill one ─> in turns: 64 clients create, some change, some list in chunks ─> services ─> memory
//! ```

#[path = "../bench_api/http.rs"]
mod http;

mod host;
mod load;
mod report;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use tokio::time::Instant;

use host::Host;
use http::Client;
use load::Round;
use report::{Figures, Table};

/// How much there is, and how much is done. Less with `--scale`, for trying, and without some of it after that.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub services: usize,
    pub namespaces: usize,
    pub objects: usize,
    pub clients: usize,
    /// Creates in a round.
    pub creates: usize,
    pub rounds: usize,
    /// Services that are created one after the other.
    pub serial: usize,
}

impl Plan {
    const WHOLE: Self =
        Self { services: 5_000, namespaces: 200, objects: 10_000, clients: 64, creates: 4_000, rounds: 7, serial: 100 };

    fn scaled(self, percent: usize) -> Self {
        let part = |number: usize| (number * percent / 100).max(1);
        Self {
            services: part(self.services),
            namespaces: part(self.namespaces),
            objects: part(self.objects),
            creates: part(self.creates),
            ..self
        }
    }
}

/// How long a server may take to become ready.
const READY: Duration = Duration::from_secs(120);
/// Until allocations are given back and controllers have seen everything.
const SETTLE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        // The numbers are there, and a goal is missed.
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("bench-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    plan: Plan,
    json: Option<PathBuf>,
    versus: Option<PathBuf>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut parsed = Arguments { plan: Plan::WHOLE, json: None, versus: None };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--json" => parsed.json = Some(value.into()),
            "--versus" => parsed.versus = Some(value.into()),
            "--services" => parsed.plan.services = value.parse().context("--services is a number")?,
            "--objects" => parsed.plan.objects = value.parse().context("--objects is a number")?,
            "--scale" => parsed.plan = Plan::WHOLE.scaled(value.parse().context("--scale is a percentage")?),
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    Ok(parsed)
}

/// Whether all goals are met.
fn run() -> Result<bool> {
    let Arguments { plan, json, versus } = parse(std::env::args().skip(1))?;
    let programs = std::env::var_os("FERROVIRT_BIN_DIR").context("set FERROVIRT_BIN_DIR, or use make bench-load")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ours = runtime.block_on(bench(plan, "this build", programs.into()))?;
    let older = match versus {
        Some(programs) => Some(runtime.block_on(bench(plan, "the other build", programs))?),
        None => None,
    };
    let table = Table { plan, ours, older };
    print!("{}", table.text());
    if let Some(path) = json {
        std::fs::write(&path, table.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(table.met())
}

/// Measures one build: with everything, and without.
async fn bench(plan: Plan, name: &str, programs: PathBuf) -> Result<Figures> {
    let work = tempfile::Builder::new().prefix("fv-bench-load-").tempdir_in("/tmp")?;
    let mut without = Host::start(&programs, &work.path().join("without"))?;
    ready(&without).await?;
    load::prepare(&without.admin()?, plan, host::GROUP).await.context("preparing the one without")?;
    without.stand_still(true)?;
    let mut with = Host::start(&programs, &work.path().join("with"))?;
    ready(&with).await?;
    load::prepare(&with.admin()?, plan, host::GROUP).await.context("preparing the one with")?;
    eprintln!("{name}: filling with {} services, {} quotas, {} objects", plan.services, plan.namespaces, plan.objects);
    let begun = Instant::now();
    load::fill(&with.admin()?, plan).await.context("filling")?;
    let filling = begun.elapsed();
    tokio::time::sleep(SETTLE).await;
    let filled = with.memory()?;

    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..plan.rounds {
        for (host, rounds) in [&without, &with].into_iter().zip(&mut rounds) {
            host.stand_still(false)?;
            let user = host.user()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            let before = host.processor_time()?;
            let done = load::round(&user, plan, round).await.with_context(|| host.log())?;
            let spent = host.processor_time()?.saturating_sub(before);
            rounds.push(Round { cost: spent / u32::try_from(plan.creates.max(1))?, ..done });
            host.stand_still(true)?;
        }
        if let [Some(without), Some(with)] = [rounds[0].last(), rounds[1].last()] {
            let Round { creates, .. } = with;
            let cost = |round: &Round| round.cost.as_micros();
            eprintln!(
                "  {:.0} creates a second at {} µs without, {creates:.0} at {} µs with",
                without.creates,
                cost(without),
                cost(with)
            );
        }
    }
    let mut services = [Duration::ZERO; 2];
    for (host, time) in [&without, &with].into_iter().zip(&mut services) {
        host.stand_still(false)?;
        *time = load::services(&host.admin()?, plan).await?;
        host.stand_still(true)?;
    }
    with.stand_still(false)?;
    tokio::time::sleep(SETTLE).await;
    let memory = with.memory()?;
    let quotas = load::check_quotas(&with.admin()?, plan).await?;
    with.stop()?;
    without.stand_still(false)?;
    without.stop()?;
    let [without, with] = rounds;
    Ok(Figures { without, with, services, filling, filled, memory, quotas })
}

/// Until the server says that it is.
async fn ready(host: &Host) -> Result<()> {
    let begun = Instant::now();
    loop {
        if let Ok(admin) = host.admin()
            && let Ok(client) = Client::connect(&admin).await
            && let Ok((status, _)) = client.request("GET", "/readyz", None).await
            && status.is_success()
        {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < READY, "not ready after {} s; {}", READY.as_secs(), host.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
