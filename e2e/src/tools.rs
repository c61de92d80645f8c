//! The clients that a suite drives: upstream's own virtctl, and ours under the same name.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    Host,
    command::{self, Outcome},
    host::programs,
};

/// A program that takes virtctl's arguments.
pub struct Virtctl {
    pub label: &'static str,
    program: PathBuf,
}

impl Virtctl {
    /// Built by `make clients` from upstream's module, and here if it was not.
    pub fn stock() -> Result<Self> {
        let cache = match env::var_os("FERROVIRT_CACHE") {
            Some(cache) => PathBuf::from(cache),
            None => Path::new(&env::var_os("HOME").context("HOME is not set")?).join(".cache/ferrovirt"),
        };
        let program = cache.join("clients/bin/virtctl");
        if !program.exists() {
            let status = Command::new(command::script("clients.sh")?).stdout(Stdio::null()).status()?;
            if !status.success() {
                bail!("scripts/clients.sh could not build virtctl");
            }
        }
        Ok(Self { label: "upstream's virtctl", program })
    }

    /// The `ferrovirt` program, called by that name.
    pub fn ours(host: &Host) -> Result<Self> {
        let program = host.work_dir().join("virtctl");
        if !program.exists() {
            symlink(programs()?.join("ferrovirt"), &program)?;
        }
        Ok(Self { label: "ferrovirt as virtctl", program })
    }

    pub fn both(host: &Host) -> Result<[Self; 2]> {
        Ok([Self::stock()?, Self::ours(host)?])
    }

    pub fn command(&self, host: &Host, arguments: &[&str]) -> Command {
        let mut command = host.command(&self.program.to_string_lossy());
        // Ours must find the host as a stranger would: by the kubeconfig.
        command.env_remove("FERROVIRT_DATA_DIR").args(arguments);
        command
    }

    pub fn run(&self, host: &Host, arguments: &[&str], input: &str) -> Result<Outcome> {
        command::run(&mut self.command(host, arguments), input)
    }

    /// What it said, if it succeeded.
    pub fn say(&self, host: &Host, arguments: &[&str]) -> Result<String> {
        let outcome = self.run(host, arguments, "")?;
        outcome.success().with_context(|| self.label)
    }
}

/// A program that runs until it is dropped, and the lines that it writes.
pub struct Background {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Background {
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// The next line that has something of this in it.
    pub fn line_with(&self, part: &str) -> Result<String> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let line = line.with_context(|| format!("no line with {part:?} came"))?;
            if line.contains(part) {
                return Ok(line);
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first bytes that a server sends to whoever connects. Tries again while nobody listens.
pub fn greeting(address: SocketAddr, length: usize) -> Result<String> {
    crate::wait::until(&format!("a greeting at {address}"), crate::wait::SOON, || {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        Ok(match read() {
            Ok(bytes) => crate::wait::Seen::Yes(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => crate::wait::Seen::Not(error.to_string()),
        })
    })
}
