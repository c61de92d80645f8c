//! Running programs with a deadline: a test that hangs is a test that fails.

use std::{
    fmt,
    io::{Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Longer than any command here may take, the wait for a booting guest included.
const DEADLINE: Duration = Duration::from_secs(240);

/// A script of the repository that the suite runs in. Clones share what they compile, so where it was compiled says nothing.
pub fn script(name: &str) -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let repository = here.ancestors().find(|directory| directory.join("Cargo.lock").exists());
    Ok(repository.context("runs outside of the repository")?.join("scripts").join(name))
}

/// How a program ended and what it said.
#[derive(Debug, Clone)]
pub struct Outcome {
    command: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// What it wrote to standard output, if it succeeded.
    pub fn success(self) -> Result<String> {
        match self.succeeded() {
            true => Ok(self.stdout),
            false => bail!("{self}"),
        }
    }

    /// What it wrote to standard error, if it failed.
    pub fn failure(self) -> Result<String> {
        match self.succeeded() {
            true => bail!("should have been refused: {self}"),
            false => Ok(self.stderr),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, code, stdout, stderr } = self;
        let code = code.map_or_else(|| "a signal".into(), |code| format!("code {code}"));
        write!(f, "`{command}` ended with {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// Runs a program to its end, with `input` on its standard input.
pub fn run(command: &mut Command, input: &str) -> Result<Outcome> {
    let shown = show(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run `{shown}`"))?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input is not at fault.
        let _ = stdin.write_all(input.as_bytes());
    }
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            bail!(
                "`{shown}` was still running after {} s\n--- stdout\n{}\n--- stderr\n{}",
                DEADLINE.as_secs(),
                join(stdout),
                join(stderr)
            );
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ok(Outcome { command: shown, code: status.code(), stdout: join(stdout), stderr: join(stderr) })
}

/// Runs a program that must succeed, and returns its standard output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    run(Command::new(program).args(arguments), "")?.success()
}

type Collected = thread::JoinHandle<Vec<u8>>;

fn collect(stream: Option<impl Read + Send + 'static>) -> Collected {
    thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn join(collected: Collected) -> String {
    String::from_utf8_lossy(&collected.join().unwrap_or_default()).into_owned()
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
