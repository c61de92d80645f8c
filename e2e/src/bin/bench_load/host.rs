//! One `ferrovirt up`, from its start to its end.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::http::Access;

/// The group of the user who makes the load.
pub const GROUP: &str = "benchers";
const USER: &str = "bench";

pub struct Host {
    program: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    child: Child,
}

impl Host {
    pub fn start(programs: &Path, data_dir: &Path) -> Result<Self> {
        fs::create_dir_all(data_dir)?;
        let (program, log) = (programs.join("ferrovirt"), data_dir.with_extension("log"));
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(&program);
        command.args(["up", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(data_dir);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { program, data_dir: data_dir.to_owned(), log, child })
    }

    fn ferrovirt(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(arguments).arg("--data-dir").arg(&self.data_dir).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ferrovirt {}: {said}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// It stands still while the other one is measured, or goes on.
    pub fn stand_still(&self, still: bool) -> Result<()> {
        self.signal(if still { Signal::STOP } else { Signal::CONT })
    }

    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            self.signal(Signal::TERM)?;
            self.child.wait()?;
        }
        Ok(())
    }

    pub fn admin(&self) -> Result<Access> {
        Access::from_kubeconfig(&fs::read_to_string(self.data_dir.join("kubeconfig"))?)
    }

    pub fn user(&self) -> Result<Access> {
        Access::from_kubeconfig(&self.ferrovirt(&["kubeconfig", "--user", USER, "--group", GROUP])?)
    }

    /// Resident, in KiB.
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// What it has had of the processors, with all its threads.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may hold anything: state, then eleven more, then the time in user mode and in the kernel.
        let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat is odd")?;
        let fields = rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = fields.sum::<Result<u64, _>>()?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// The last it said.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.stand_still(false);
        let _ = self.stop();
        // Bridges, namespaces and what else it made on this machine.
        if let Err(error) = self.ferrovirt(&["down"]) {
            eprintln!("bench-load: {error:#}");
        }
    }
}
