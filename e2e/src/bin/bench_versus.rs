//! `make bench-versus BASE=commit`: an older build against this one, by turns, with the same benchmarks.
//!
//! ```text
//! bench_versus --base DIRECTORY [--rounds 5] [--only bench,bench_api,bench_disk,bench_net]
//! ```
//!
//! A difference counts when this build's median is worse than the worst run of the older one: less than that is what two
//! runs of one build differ by.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_e2e::figures;

const BASE: &str = "base";
const THIS: &str = "this";

struct Arguments {
    base: PathBuf,
    rounds: usize,
    only: Option<Vec<String>>,
}

/// A benchmark in a short form, and whether it measures both builds in one run.
struct Program {
    name: &'static str,
    arguments: &'static [&'static str],
    both: bool,
}

const PROGRAMS: [Program; 4] = [
    Program { name: "bench", arguments: &["--runs", "1", "--vms", "4"], both: false },
    Program { name: "bench_disk", arguments: &["--quick"], both: false },
    Program { name: "bench_net", arguments: &["--quick"], both: false },
    Program { name: "bench_api", arguments: &["--rounds", "2"], both: true },
];

fn main() -> Result<()> {
    let arguments = arguments()?;
    let this = env::var_os("FERROVIRT_BIN_DIR").map(PathBuf::from).context("FERROVIRT_BIN_DIR is not set")?;
    for directory in [&arguments.base, &this] {
        ensure!(directory.join("ferrovirt").exists(), "there is no ferrovirt in {}", directory.display());
    }
    let file = tempfile::NamedTempFile::new()?;
    for round in 1..=arguments.rounds {
        for program in PROGRAMS.iter().filter(|program| arguments.wants(program.name)) {
            eprintln!("== round {round}/{}: {}", arguments.rounds, program.name);
            if program.both {
                run(program, &this, file.path(), THIS, &["--versus", &arguments.base.to_string_lossy()])?;
                continue;
            }
            let mut sides = [(&arguments.base, BASE), (&this, THIS)];
            // Who comes second finds warm caches; so the order changes.
            if round % 2 == 0 {
                sides.reverse();
            }
            for (directory, side) in sides {
                run(program, directory, file.path(), side, &[])?;
            }
        }
        // What is known so far, should the rest be cut off.
        println!("after {round} of {} rounds", arguments.rounds);
        print!("{}", table(&fs::read_to_string(file.path())?));
    }
    Ok(())
}

fn run(program: &Program, directory: &Path, figures: &Path, side: &str, more: &[&str]) -> Result<()> {
    let path = env::current_exe()?.with_file_name(program.name);
    let mut command = Command::new(&path);
    command.args(program.arguments).args(more).env("FERROVIRT_BIN_DIR", directory);
    command.env(figures::FILE, figures).env(figures::SIDE, side);
    let status = command.status().with_context(|| format!("cannot run {}", path.display()))?;
    // 2: the figures are there and a goal is missed.
    ensure!(status.success() || status.code() == Some(2), "{} with {side}: {status}", program.name);
    Ok(())
}

/// The runs of one figure.
#[derive(Default)]
struct Runs {
    unit: String,
    base: Vec<f64>,
    this: Vec<f64>,
}

fn table(lines: &str) -> String {
    let mut order: Vec<String> = vec![];
    let mut all: BTreeMap<String, Runs> = BTreeMap::new();
    for line in lines.lines() {
        let [side, name, unit, value] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        let Ok(value) = value.parse() else { continue };
        if !all.contains_key(name) {
            order.push(name.to_owned());
        }
        let runs = all.entry(name.to_owned()).or_default();
        runs.unit = unit.to_owned();
        if side == BASE { &mut runs.base } else { &mut runs.this }.push(value);
    }
    let mut out = format!("{:<44}{:>28}{:>28}{:>7}\n", "", "base (least–most)", "this (least–most)", "ratio");
    for name in order {
        let Some(runs) = all.get(&name) else { continue };
        let text = |values: &[f64]| {
            let (least, most) = ends(values);
            format!("{:.3} ({least:.3}–{most:.3}) {}", median(values), runs.unit)
        };
        let ratio = median(&runs.this) / median(&runs.base);
        let verdict = runs.verdict();
        out += &format!("{name:<44}{:>28}{:>28}{ratio:>7.2}  {verdict}\n", text(&runs.base), text(&runs.this));
    }
    out
}

impl Runs {
    fn verdict(&self) -> &'static str {
        let (least, most) = ends(&self.base);
        let now = median(&self.this);
        // Rates are the only figures of which more is better.
        let (worse, better) = match self.unit.ends_with("/s") {
            true => (now < least, now > most),
            false => (now > most, now < least),
        };
        match (worse, better) {
            (true, _) => "WORSE",
            (_, true) => "better",
            _ => "same",
        }
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(*value), most.max(*value)))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }
}

fn arguments() -> Result<Arguments> {
    let (mut base, mut rounds, mut only) = (None, 5, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--base" => base = Some(PathBuf::from(value)),
            "--rounds" => rounds = value.parse().context("--rounds needs a number")?,
            "--only" => only = Some(value.split(',').map(str::to_owned).collect()),
            _ => bail!("unknown argument {word}; there are --base DIRECTORY, --rounds N and --only NAMES"),
        }
    }
    Ok(Arguments { base: base.context("--base DIRECTORY says where the older programs are")?, rounds, only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_beyond_the_worst_run_of_the_base() {
        let runs = |unit: &str, base: &[f64], this: &[f64]| Runs {
            unit: unit.into(),
            base: base.to_vec(),
            this: this.to_vec(),
        };
        assert_eq!(runs("s", &[1.0, 1.2, 1.1], &[1.2, 1.1, 1.3]).verdict(), "same");
        assert_eq!(runs("s", &[1.0, 1.2, 1.1], &[1.3, 1.4, 1.0]).verdict(), "WORSE");
        assert_eq!(runs("s", &[1.0, 1.2, 1.1], &[0.8, 0.9, 1.4]).verdict(), "better");
        assert_eq!(runs("MB/s", &[100.0, 120.0], &[90.0, 95.0, 99.0]).verdict(), "WORSE");
        assert_eq!(runs("MB/s", &[100.0, 120.0], &[130.0, 125.0, 99.0]).verdict(), "better");
    }

    #[test]
    fn figures_are_read_by_side_and_in_their_order() {
        let table = table("base\tboot\ts\t2\nthis\tboot\ts\t1\nbase\tapi\t/s\t10\nthis\tapi\t/s\t5\nnonsense\n");
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].starts_with("boot") && lines[1].ends_with("0.50  better"), "{table}");
        assert!(lines[2].starts_with("api") && lines[2].ends_with("0.50  WORSE"), "{table}");
    }
}
