//! The parent's half: one question to one child, on its standard input and output.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An answer is a few facts and a message.
pub const MAX_ANSWER: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("cannot start it")]
    Start(#[source] io::Error),
    #[error("it cannot be put into its control group")]
    Group(#[source] io::Error),
    #[error("cannot talk to it")]
    Talk(#[source] io::Error),
    #[error("it took longer than {} seconds and was stopped", .0.as_secs())]
    Time(Duration),
    #[error("it says more than it should and was stopped")]
    Loud,
    #[error("it was ended by signal {0}: it did what it may not, or used more than it may")]
    Killed(i32),
    #[error("it ended with {0} and without an answer")]
    Ended(i32),
}

/// Our own program with a subcommand that shuts itself in.
#[derive(Debug, Clone)]
pub struct Helper {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Files through which a process joins its control groups; none where there are none.
    pub join: Vec<PathBuf>,
}

impl Helper {
    /// The program that runs now, whatever became of its file.
    pub fn ourselves(subcommand: &str) -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec![subcommand.to_owned()], join: vec![] }
    }

    /// Asks, and waits for the whole answer. However this ends, the child has ended too.
    pub fn ask(&self, question: &[u8], patience: Duration) -> Result<Vec<u8>, ChildError> {
        let deadline = Instant::now() + patience;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg0("ferrovirt").env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Ending(command.spawn().map_err(ChildError::Start)?);
        // It knows nothing yet, so it does nothing before it is where it belongs.
        for file in &self.join {
            join(file, child.0.id()).map_err(ChildError::Group)?;
        }
        let mut input = child.0.stdin.take().ok_or_else(|| ChildError::Talk(io::ErrorKind::BrokenPipe.into()))?;
        let output = child.0.stdout.take().ok_or_else(|| ChildError::Talk(io::ErrorKind::BrokenPipe.into()))?;
        // One that ended before it listened says why by how it ended.
        let told = input.write_all(question);
        drop(input);
        let answer = listen(output, deadline, patience)?;
        let status = child.0.wait().map_err(ChildError::Talk)?;
        match (status.signal(), status.code()) {
            (Some(signal), _) => Err(ChildError::Killed(signal)),
            (None, Some(0)) if !answer.is_empty() => told.map(|()| answer).map_err(ChildError::Talk),
            (None, code) => Err(ChildError::Ended(code.unwrap_or_default())),
        }
    }
}

fn join(file: &Path, pid: u32) -> io::Result<()> {
    std::fs::write(file, pid.to_string())
}

fn listen(mut output: ChildStdout, deadline: Instant, patience: Duration) -> Result<Vec<u8>, ChildError> {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChildError::Time(patience));
        }
        let wait =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(ChildError::Talk(error.into())),
        }
        let read = output.read(&mut buffer).map_err(ChildError::Talk)?;
        if read == 0 {
            return Ok(answer);
        }
        answer.extend_from_slice(&buffer[..read]);
        if answer.len() > MAX_ANSWER {
            return Err(ChildError::Loud);
        }
    }
}

/// A child that does not outlive the question.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
