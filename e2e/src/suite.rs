//! A test file: cases that share one host and run one after the other.
//!
//! Guests take seconds to boot and all of the machine while they do. Cargo's own harness would run cases side by side,
//! and has no place for what they share; hence `harness = false` and this small one.

use std::{
    any::Any,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use anyhow::Result;

use crate::{
    cluster::Cluster,
    host::{Host, Options},
};

/// A name and what to do on the suite's host.
pub type Case = (&'static str, fn(&Host) -> Result<()>);

/// Runs the cases that the command line asks for, all by default.
pub fn suite(options: Options, cases: &[Case]) -> ExitCode {
    let wanted = Wanted::from_arguments();
    let cases: Vec<&Case> = cases.iter().filter(|(name, _)| wanted.includes(name)).collect();
    if wanted.list {
        cases.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let mut failed = vec![];
    let cases = match attempt(|| applicable(&options, cases)) {
        Ok(cases) => cases,
        Err(problem) => {
            println!("test target ... FAILED\n{problem}");
            return ExitCode::FAILURE;
        }
    };
    println!("\nrunning {} tests", cases.len());
    if !cases.is_empty() {
        let done = attempt(|| {
            let host = Host::start_with(options)?;
            for (name, case) in &cases {
                let started = Instant::now();
                match attempt(|| case(&host)) {
                    Ok(()) => println!("test {name} ... ok ({:.1} s)", started.elapsed().as_secs_f32()),
                    Err(problem) => {
                        println!("test {name} ... FAILED ({:.1} s)\n{problem}", started.elapsed().as_secs_f32());
                        failed.push((*name).to_owned());
                    }
                }
            }
            if !failed.is_empty() {
                host.show_logs();
            }
            host.down()
        });
        if let Err(problem) = done {
            println!("test host ... FAILED\n{problem}");
            failed.push("host".into());
        }
    }
    match failed.is_empty() {
        true => {
            println!("\ntest result: ok. {} passed\n", cases.len());
            ExitCode::SUCCESS
        }
        false => {
            println!("\ntest result: FAILED: {}\n", failed.join(", "));
            ExitCode::FAILURE
        }
    }
}

/// The cases that the target can show something about. Says which ones are left out, and why.
fn applicable<'a>(options: &Options, cases: Vec<&'a Case>) -> Result<Vec<&'a Case>> {
    if !Cluster::wanted()? {
        if options.cluster_only {
            println!("{} tests are about a cluster: make e2e-kubernetes", cases.len());
            return Ok(vec![]);
        }
        return Ok(cases);
    }
    let reason = |name: &str| options.embedded_only.iter().find(|(case, _)| *case == name).map(|(_, reason)| *reason);
    let (left_out, run): (Vec<&Case>, Vec<&Case>) = cases.into_iter().partition(|(name, _)| reason(name).is_some());
    for (name, _) in left_out {
        println!("test {name} ... not on a cluster: {}", reason(name).unwrap_or_default());
    }
    Ok(run)
}

/// Runs something; an error and a panic are the same to a test.
fn attempt<T>(what: impl FnOnce() -> Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(what)) {
        Ok(done) => done.map_err(|error| format!("{error:#}")),
        Err(panic) => Err(message(&*panic)),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// The part of libtest's command line that has a meaning here. The rest is accepted, so that `cargo test -- …` works.
#[derive(Default)]
struct Wanted {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Wanted {
    fn from_arguments() -> Self {
        let mut wanted = Self::default();
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => wanted.list = true,
                "--exact" => wanted.exact = true,
                "--skip" => wanted.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                filter => wanted.filters.push(filter.to_owned()),
            }
        }
        wanted
    }

    fn includes(&self, name: &str) -> bool {
        let matches = |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(matches)) && !self.skip.iter().any(matches)
    }
}
