//! A session on a guest's serial console, through `ferrovirt console`.

use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::wait::{self, Seen};

/// `^]`
const LEAVE: &[u8] = b"\x1d";

pub struct Console {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Everything the guest wrote so far.
    seen: String,
    /// How much of it `expect` has passed.
    read: usize,
}

impl Console {
    /// Starts a command whose standard streams are a guest's console.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Self::of(command.spawn().context("cannot start the console")?)
    }

    /// Takes over a process whose standard streams are pipes to a guest's console. It is killed when this is dropped.
    pub fn of(mut child: Child) -> Result<Self> {
        let input = child.stdin.take().context("the console has no input")?;
        let mut stream = child.stdout.take().context("the console has no output")?;
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = vec![0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if sender.send(buffer.get(..length).unwrap_or_default().to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, output, seen: String::new(), read: 0 })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.input.write_all(bytes).and_then(|()| self.input.flush()).context("the console takes no more input")
    }

    /// A line and Enter, which is a carriage return on a terminal: the guest has to make a line's end of it.
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.send(format!("{text}\r").as_bytes())
    }

    /// Waits until the guest writes this, after what was expected before, and returns what came in between.
    pub fn expect(&mut self, text: &str, deadline: Duration) -> Result<String> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(between) = self.find(text) {
                return Ok(between);
            }
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("waited {} s for {text:?} on the console, which wrote:\n{}", deadline.as_secs(), self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the console ended while waiting for {text:?}; it wrote:\n{}", self.seen)
                }
            }
        }
    }

    /// Logs in as the demo guest's user. A prompt that was written before we looked is asked for anew, and a shell that
    /// someone left open is ended: whoever leaves a console stays logged in, as on any serial line.
    pub fn login(&mut self, name: &str) -> Result<()> {
        let prompt = format!("{name} login: ");
        let shell = format!("demo@{name}:");
        wait::until("a login prompt", wait::BOOT, || {
            self.line("")?;
            Ok(match self.expect(&prompt, Duration::from_secs(2)) {
                Ok(_) => Seen::Yes(()),
                Err(error) if self.ended()? => return Err(error),
                Err(error) => {
                    if self.find(&shell).is_some() {
                        self.line("exit")?;
                    }
                    Seen::Not(error.to_string())
                }
            })
        })?;
        self.settle(&prompt);
        self.line("demo")?;
        self.expect("Password: ", wait::SOON)?;
        self.line("ferrovirt")?;
        self.expect("$ ", wait::SOON)?;
        Ok(())
    }

    /// Runs a command in the guest's shell and returns what it wrote.
    pub fn shell(&mut self, command: &str) -> Result<String> {
        // The marks are written in a way that the echo of the line does not look like them.
        self.line(&format!("echo BEG''IN; {command}; echo EN''D"))?;
        self.expect("BEGIN\r\n", wait::SOON)?;
        Ok(self.expect("END\r\n", wait::SOON)?.replace('\r', "").trim().to_owned())
    }

    /// Leaves as a user does, and returns once the program has ended.
    pub fn leave(mut self) -> Result<()> {
        self.send(LEAVE)?;
        wait::until("the console to end after ^]", wait::SOON, || match self.child.try_wait()? {
            Some(status) if status.success() => Ok(Seen::Yes(())),
            Some(status) => bail!("the console ended with {status}"),
            None => Ok(Seen::Not("it runs".into())),
        })
    }

    /// Everything the guest wrote while we listened.
    pub fn seen(&self) -> &str {
        &self.seen
    }

    fn find(&mut self, text: &str) -> Option<String> {
        let rest = self.seen.get(self.read..)?;
        let position = rest.find(text)?;
        let between = rest.get(..position)?.to_owned();
        self.read += position + text.len();
        Some(between)
    }

    /// Each empty line sent to `login` gives one more prompt; the last one is ours.
    fn settle(&mut self, prompt: &str) {
        while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(500)) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        while self.find(prompt).is_some() {}
    }

    fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The guest's serial port itself, for when there is no host to ask for its console.
pub fn serial_socket(data_dir: &Path, pod: &Value, vmi: &Value) -> Result<UnixStream> {
    let uid = |object: &Value| Some(object["metadata"]["uid"].as_str()?.to_owned());
    let (pod, vmi) = (uid(pod).context("the pod has no uid")?, uid(vmi).context("the VMI has no uid")?);
    let directory = data_dir.join("pods").join(pod).join("volumes/kubernetes.io~empty-dir/private").join(vmi);
    let opened = File::open(&directory).with_context(|| format!("cannot open {}", directory.display()))?;
    // The whole path is too long for a socket address.
    let short = format!("/proc/self/fd/{}/virt-serial0", opened.as_raw_fd());
    UnixStream::connect(short).with_context(|| format!("cannot connect to virt-serial0 in {}", directory.display()))
}
