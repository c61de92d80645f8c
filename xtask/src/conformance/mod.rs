//! `cargo xtask conformance`: runs the conformance tests of Kubernetes' own e2e suite that apply to an embedded host.
//!
//! ```text
//! e2e.test --list-tests ──> plan (tests.txt) ──┬─> shards that run at the same time ─┬─> summary.json, summary.txt
//!                                              └─> [Serial] tests, one by one ───────┘
//! ```

mod plan;
mod report;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use plan::Rules;
use report::Summary;

const USAGE: &str = "see `cargo xtask help`";

const RULES: &str = "scripts/conformance/tests.txt";
const MARK: &str = "[Conformance]";

struct Options {
    suite: PathBuf,
    kubeconfig: PathBuf,
    results: PathBuf,
    shards: usize,
    only: Option<regex::Regex>,
}

pub fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<bool> {
    let options = parse(args)?;
    fs::create_dir_all(&options.results).with_context(|| format!("creating {}", options.results.display()))?;
    let rules = fs::read_to_string(root.join(RULES)).with_context(|| format!("reading {RULES}"))?;
    let mut tests = list(&options)?;
    if let Some(only) = &options.only {
        tests.retain(|test| only.is_match(test));
    }
    let plan = Rules::parse(&rules)?.plan(&tests);
    println!("{} tests to run at a time, {} alone", plan.parallel.len(), plan.serial.len());
    let mut summary = Summary::new(&plan);
    let mut shards = vec![Vec::new(); options.shards];
    for (index, test) in plan.parallel.iter().enumerate() {
        shards[index % options.shards].push(test.clone());
    }
    let mut started = Vec::new();
    for (index, shard) in shards.into_iter().enumerate().filter(|(_, shard)| !shard.is_empty()) {
        let name = format!("shard-{index}");
        started.push((start(&options, &name, &shard)?, name, shard));
    }
    for (child, name, shard) in started {
        finish(&options, child, &name, &shard, &mut summary)?;
    }
    if !plan.serial.is_empty() {
        let child = start(&options, "serial", &plan.serial)?;
        finish(&options, child, "serial", &plan.serial, &mut summary)?;
    }
    summary.passed.sort();
    let text = summary.text();
    fs::write(options.results.join("summary.txt"), &text)?;
    fs::write(options.results.join("summary.json"), serde_json::to_string_pretty(&summary)?)?;
    print!("{text}");
    Ok(summary.failed.is_empty())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut suite, mut kubeconfig, mut results, mut shards, mut only) = (None, None, None, 4, None);
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value\n\n{USAGE}"))?;
        match arg.as_str() {
            "--suite" => suite = Some(PathBuf::from(value)),
            "--kubeconfig" => kubeconfig = Some(PathBuf::from(value)),
            "--results" => results = Some(PathBuf::from(value)),
            "--shards" => shards = value.parse().context("--shards is not a number")?,
            "--only" => only = Some(regex::Regex::new(&value).context("--only is not a pattern")?),
            other => bail!("unknown argument {other}\n\n{USAGE}"),
        }
    }
    ensure!(shards > 0, "--shards must be at least 1");
    let needed = |value: Option<PathBuf>, name: &str| value.with_context(|| format!("{name} is missing\n\n{USAGE}"));
    Ok(Options {
        suite: needed(suite, "--suite")?,
        kubeconfig: needed(kubeconfig, "--kubeconfig")?,
        results: needed(results, "--results")?,
        shards,
        only,
    })
}

/// The names of all conformance tests that the suite has.
fn list(options: &Options) -> Result<Vec<String>> {
    let output = Command::new(&options.suite)
        .arg("--list-tests")
        .output()
        .with_context(|| format!("running {}", options.suite.display()))?;
    ensure!(output.status.success(), "the suite cannot list its tests: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().map(str::trim).filter(|line| line.contains(MARK));
    // A line is "file:line: name".
    let mut names: Vec<String> =
        names.map(|line| line.find("[sig-").map_or(line, |start| &line[start..]).to_owned()).collect();
    names.sort();
    names.dedup();
    ensure!(!names.is_empty(), "the suite lists no conformance tests");
    Ok(names)
}

fn report_file(options: &Options, name: &str) -> PathBuf {
    options.results.join(format!("{name}.json"))
}

fn start(options: &Options, name: &str, tests: &[String]) -> Result<Child> {
    let focus: Vec<String> = tests.iter().map(|test| format!("{}$", regex::escape(test))).collect();
    let log = options.results.join(format!("{name}.log"));
    let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let report = report_file(options, name);
    let _ = fs::remove_file(&report);
    Command::new(&options.suite)
        .arg(format!("--kubeconfig={}", options.kubeconfig.display()))
        .arg("--provider=skeleton")
        .arg("--disable-log-dump")
        .arg("--dump-logs-on-failure=false")
        .arg(format!("--ginkgo.focus={}", focus.join("|")))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .args(["--ginkgo.no-color", "--ginkgo.timeout=60m"])
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("starting the suite")
}

fn finish(options: &Options, mut child: Child, name: &str, tests: &[String], summary: &mut Summary) -> Result<()> {
    child.wait().context("waiting for the suite")?;
    let file = report_file(options, name);
    let report = fs::read_to_string(&file)
        .with_context(|| format!("{name} left no report; see {name}.log in {}", options.results.display()))?;
    summary.add(&report, tests)
}
