//! `cargo xtask functests`: runs the specs of KubeVirt's functional tests that apply to an embedded host, and compares with the
//! checked-in list.
//!
//! ```text
//! tests.test --dry-run ──> plan (expected.txt) ──> batches ──┬─> host 0 ─┬─> failed that should not ──> once more ──> comparison
//!                                                            └─> host 1 ─┘
//! ```

mod expected;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

use crate::ginkgo::{self, Spec};
use expected::{Comparison, Expected, Outcome, State, Verdict};

const USAGE: &str = "see `cargo xtask help`";
const LIST: &str = "scripts/functests/expected.txt";
/// Ginkgo looks for a spec's name behind the suite's.
const SUITE: &str = "KubeVirt Tests Suite";
/// Small enough that a suite which hangs takes few specs along; each batch costs the suite's own start and end.
const BATCH: usize = 12;

struct Options {
    suite: PathBuf,
    /// One for each host.
    kubeconfigs: Vec<PathBuf>,
    results: PathBuf,
    only: Option<regex::Regex>,
    label: Option<String>,
    /// Run what nobody has tried, too, to see what its line has to say.
    untried: bool,
    /// Given to the suite as they are.
    rest: Vec<String>,
}

pub fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<bool> {
    let options = parse(args)?;
    fs::create_dir_all(&options.results).with_context(|| format!("creating {}", options.results.display()))?;
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let suite = list_specs(&options)?;
    let plan = Expected::parse(&list)?.plan(&suite);
    let asked = |name: &str| {
        let labelled = |label: &String| plan.specs.get(name).is_some_and(|(spec, _)| spec.labels.contains(label));
        options.only.as_ref().is_none_or(|only| only.is_match(name)) && options.label.as_ref().is_none_or(labelled)
    };
    let runs = |verdict: &Verdict| verdict.runs() || (options.untried && matches!(verdict, Verdict::Untried(_)));
    let specs: Vec<&Spec> = plan
        .specs
        .values()
        .filter(|(spec, verdict)| runs(verdict) && asked(&spec.name))
        .map(|(spec, _)| spec)
        .collect();
    println!("{} of {} specs to run on {} hosts", specs.len(), suite.len(), options.kubeconfigs.len());
    let mut outcomes = run_batches(&options, &options.kubeconfigs, "batch", batches(&specs, BATCH))?;

    // On a busy machine a guest can be slower than a spec waits. What fails twice, the second time alone, fails.
    let again: Vec<&Spec> = specs
        .into_iter()
        .filter(|spec| plan.specs[&spec.name].1 == Verdict::Passed)
        .filter(|spec| outcomes.get(&spec.name).is_none_or(|o| o.state == State::Failed))
        .collect();
    if !again.is_empty() {
        println!("{} specs that should have passed once more", again.len());
        let mut second = run_batches(&options, &options.kubeconfigs[..1], "again", batches(&again, 1))?;
        second.values_mut().for_each(|outcome| outcome.second_try = true);
        outcomes.extend(second);
    }

    let comparison = Comparison::new(&plan, asked, &outcomes);
    let text = comparison.text();
    fs::write(options.results.join("summary.txt"), &text)?;
    fs::write(options.results.join("summary.json"), serde_json::to_string_pretty(&comparison)?)?;
    fs::write(options.results.join("outcomes.json"), serde_json::to_string_pretty(&outcomes)?)?;
    print!("{text}");
    Ok(comparison.wrong.is_empty())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut suite, mut kubeconfigs, mut results, mut only, mut label) = (None, Vec::new(), None, None, None);
    let mut untried = false;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--" => break,
            "--untried" => {
                untried = true;
                continue;
            }
            _ => {}
        }
        let value = args.next().with_context(|| format!("{arg} needs a value\n\n{USAGE}"))?;
        match arg.as_str() {
            "--suite" => suite = Some(PathBuf::from(value)),
            "--kubeconfig" => kubeconfigs.push(PathBuf::from(value)),
            "--results" => results = Some(PathBuf::from(value)),
            "--only" => only = Some(regex::Regex::new(&value).context("--only is not a pattern")?),
            "--label" => label = Some(value),
            other => bail!("unknown argument {other}\n\n{USAGE}"),
        }
    }
    ensure!(!kubeconfigs.is_empty(), "--kubeconfig is missing\n\n{USAGE}");
    let needed = |value: Option<PathBuf>, name: &str| value.with_context(|| format!("{name} is missing\n\n{USAGE}"));
    Ok(Options {
        suite: needed(suite, "--suite")?,
        kubeconfigs,
        results: needed(results, "--results")?,
        only,
        label,
        untried,
        rest: args.collect(),
    })
}

/// All specs of the suite.
fn list_specs(options: &Options) -> Result<Vec<Spec>> {
    let report = run_suite(options, &options.kubeconfigs[0], "list", &["--ginkgo.dry-run".to_owned()])?;
    let mut specs: Vec<Spec> = report.into_iter().filter(Spec::is_spec).collect();
    for spec in &mut specs {
        // The path begins with the module's.
        if let Some((_, file)) = spec.file.split_once("/tests/") {
            spec.file = file.to_owned();
        }
    }
    ensure!(!specs.is_empty(), "the suite lists no specs; see list.log in {}", options.results.display());
    Ok(specs)
}

/// Specs of one file stay together, in the order of their names.
fn batches(specs: &[&Spec], size: usize) -> VecDeque<Vec<String>> {
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for spec in specs {
        files.entry(&spec.file).or_default().push(spec.name.clone());
    }
    files.into_values().flat_map(|names| names.chunks(size).map(<[String]>::to_vec).collect::<Vec<_>>()).collect()
}

/// Each host takes the next batch when it is done with one.
fn run_batches(
    options: &Options,
    kubeconfigs: &[PathBuf],
    word: &str,
    queue: VecDeque<Vec<String>>,
) -> Result<BTreeMap<String, Outcome>> {
    let total = queue.len();
    let queue = Mutex::new(queue.into_iter().enumerate().collect::<VecDeque<_>>());
    let outcomes = Mutex::new(BTreeMap::new());
    let next = || queue.lock().ok()?.pop_front();
    let work = |kubeconfig: &Path| -> Result<()> {
        while let Some((index, names)) = next() {
            let name = format!("{word}-{index:03}");
            let done = run_batch(options, kubeconfig, &name, &names)?;
            let passed = done.values().filter(|o| o.state == State::Passed).count();
            println!("{name} of {total}: {passed} of {} passed", names.len());
            outcomes.lock().map_err(|_| anyhow::anyhow!("another host's thread panicked"))?.extend(done);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let hosts: Vec<_> = kubeconfigs.iter().map(|kubeconfig| scope.spawn(move || work(kubeconfig))).collect();
        hosts.into_iter().try_for_each(|host| match host.join() {
            Ok(result) => result,
            Err(_) => bail!("a host's thread panicked"),
        })
    })?;
    outcomes.into_inner().context("a host's thread panicked")
}

/// Specs that the suite did not come to have no outcome.
fn run_batch(options: &Options, kubeconfig: &Path, name: &str, specs: &[String]) -> Result<BTreeMap<String, Outcome>> {
    let focus: Vec<String> = specs.iter().map(|spec| format!("^{SUITE} {}$", regex::escape(spec))).collect();
    let arguments =
        [format!("--ginkgo.focus={}", focus.join("|")), format!("--ginkgo.timeout={}m", 10 + 12 * specs.len())];
    let mut outcomes = BTreeMap::<String, Outcome>::new();
    for spec in run_suite(options, kubeconfig, name, &arguments)? {
        if !spec.is_spec() || !specs.contains(&spec.name) {
            continue;
        }
        let state = match spec.state.as_str() {
            "passed" => State::Passed,
            // Without words of its own the spec was not reached.
            "skipped" | "pending" if spec.message.is_empty() => continue,
            "skipped" | "pending" => State::Skipped,
            _ => State::Failed,
        };
        let outcome = Outcome { state, message: spec.message, seconds: spec.seconds, second_try: false };
        // Of two specs with one name, the worse counts.
        match outcomes.get(&spec.name) {
            Some(before) if before.state != State::Passed => {}
            _ => {
                outcomes.insert(spec.name, outcome);
            }
        }
    }
    Ok(outcomes)
}

fn run_suite(options: &Options, kubeconfig: &Path, name: &str, arguments: &[String]) -> Result<Vec<Spec>> {
    let log = options.results.join(format!("{name}.log"));
    let report = options.results.join(format!("{name}.json"));
    let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let _ = fs::remove_file(&report);
    // It fails when a spec fails; the report says which.
    Command::new(&options.suite)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .arg("--ginkgo.no-color")
        .args(arguments)
        .args(&options.rest)
        .current_dir(&options.results)
        // What it collects about failed specs takes longer than the specs, and has nothing that the host's log lacks.
        .env("REPORTER_MAX_FAILS", "0")
        .env("ARTIFACTS", options.results.join(format!("{name}.artifacts")))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("running {}", options.suite.display()))?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("{name} left no report; see {name}.log in {}", options.results.display()))?;
    ginkgo::read(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_files_together() {
        let spec = |name: &str, file: &str| Spec { name: name.into(), file: file.into(), ..Spec::default() };
        let specs = [spec("a", "x"), spec("b", "y"), spec("c", "x"), spec("d", "x")];
        let wanted = [vec!["a", "c"], vec!["d"], vec!["b"]];
        assert_eq!(batches(&specs.iter().collect::<Vec<_>>(), 2), wanted);
    }
}
