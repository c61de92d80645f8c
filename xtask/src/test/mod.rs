//! `cargo xtask test`: every test program of the workspace, several at a time.
//!
//! Cargo runs test programs one after the other, and most of the time of ours is waiting for guests. They share nothing, so
//! here they run in lanes, those that took longest last time first. What a program prints is kept in a file and shown if it
//! failed; how long every case took is written down for the next run and for people.

mod plan;
mod report;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use plan::Program;
use report::{Outcome, Report};

/// Where the logs and the report go, below Cargo's target directory.
const LOGS: &str = "test-logs";
const REPORT: &str = "test-times.json";

struct Options {
    lanes: usize,
    filters: Vec<String>,
}

pub fn run(root: &Path, arguments: impl Iterator<Item = String>) -> Result<bool> {
    let options = options(arguments)?;
    let begun = Instant::now();
    let mut programs = compile(root)?;
    programs.retain(|program| options.filters.is_empty() || options.filters.iter().any(|f| program.name.contains(f)));
    ensure!(!programs.is_empty(), "no test program has one of {:?} in its name", options.filters);
    let compiled = begun.elapsed();

    let target = target_directory(root)?;
    let logs = target.join(LOGS);
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let report = target.join(REPORT);
    let before = fs::read_to_string(&report).ok().and_then(|text| Report::read(&text)).unwrap_or_default();
    let queue = plan::in_order(programs, &before.seconds());
    println!("{} test programs in {} lanes; logs: {}", queue.len(), options.lanes, logs.display());

    let outcomes = run_all(queue, options.lanes, &logs);
    let all = Report { outcomes };
    print!("{}", all.text());
    println!("compiled in {:.0} s, ran in {:.0} s", compiled.as_secs_f32(), (begun.elapsed() - compiled).as_secs_f32());
    if options.filters.is_empty() {
        fs::write(&report, all.json()).with_context(|| report.display().to_string())?;
    }
    Ok(all.passed())
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let processors = thread::available_parallelism().map_or(2, usize::from);
    // One more than there are processors: there is nearly always one that only waits.
    let mut options = Options { lanes: processors + 1, filters: vec![] };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--lanes" => {
                let lanes = arguments.next().and_then(|lanes| lanes.parse().ok()).filter(|lanes| *lanes > 0);
                options.lanes = lanes.context("--lanes needs a number from 1 on")?;
            }
            flag if flag.starts_with('-') => bail!("unknown argument {flag}"),
            filter => options.filters.push(filter.to_owned()),
        }
    }
    Ok(options)
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

fn target_directory(root: &Path) -> Result<PathBuf> {
    let output = cargo(root).args(["metadata", "--no-deps", "--format-version=1"]).stderr(Stdio::inherit()).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok(metadata["target_directory"].as_str().context("cargo names no target directory")?.into())
}

/// Compiles all test programs, and says which there are. Documentation tests are one more, which Cargo itself runs.
fn compile(root: &Path) -> Result<Vec<Program>> {
    let arguments = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let output = cargo(root).args(arguments).stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let mut programs = plan::programs(&String::from_utf8_lossy(&output.stdout));
    let mut documentation = vec![env::var("CARGO").unwrap_or_else(|_| "cargo".into())];
    documentation.extend(["test", "--workspace", "--doc"].map(str::to_owned));
    programs.push(Program { name: "documentation".into(), directory: root.into(), command: documentation });
    Ok(programs)
}

fn run_all(queue: Vec<Program>, lanes: usize, logs: &Path) -> Vec<Outcome> {
    let queue = Mutex::new(queue.into_iter());
    let outcomes = Mutex::new(vec![]);
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let outcome = run_one(&program, logs);
                    print!("{}", outcome.text());
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

fn run_one(program: &Program, logs: &Path) -> Outcome {
    let begun = Instant::now();
    let path = logs.join(format!("{}.log", program.name.replace('/', ".")));
    let ended = (|| -> Result<bool> {
        let log = fs::File::create(&path)?;
        let mut command = Command::new(&program.command[0]);
        command.args(&program.command[1..]).current_dir(&program.directory).stdin(Stdio::null());
        // As `cargo test` says it; where a program was compiled is no place to look for its files.
        command.env("CARGO_MANIFEST_DIR", &program.directory);
        let status = command.stdout(log.try_clone()?).stderr(log).status()?;
        Ok(status.success())
    })();
    let seconds = begun.elapsed().as_secs_f64();
    let mut said = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
    let succeeded = ended.unwrap_or_else(|error| {
        said += &format!("cannot run {}: {error:#}\n", program.command[0]);
        false
    });
    Outcome::new(program.name.clone(), seconds, succeeded, said)
}

/// Seconds of programs by name.
type Seconds = BTreeMap<String, f64>;
