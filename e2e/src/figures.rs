//! Figures of a benchmark, for the program that compares two builds (`bench_versus`).

use std::{env, fs::File, io::Write as _};

use anyhow::{Context, Result};

/// The file that figures are added to, a line each: `side TAB name TAB unit TAB value`.
pub const FILE: &str = "FERROVIRT_FIGURES";
/// Which of the two builds is measured.
pub const SIDE: &str = "FERROVIRT_SIDE";

/// Adds a figure of the build that is measured, if anybody asked for figures.
pub fn note(name: &str, unit: &str, value: f64) -> Result<()> {
    note_of(&env::var(SIDE).unwrap_or_default(), name, unit, value)
}

/// The same for a program that measures both builds at once.
pub fn note_of(side: &str, name: &str, unit: &str, value: f64) -> Result<()> {
    let Some(path) = env::var_os(FILE) else { return Ok(()) };
    let mut file = File::options().create(true).append(true).open(&path).context("cannot open the file for figures")?;
    writeln!(file, "{side}\t{name}\t{unit}\t{value}").context("cannot write a figure")
}
