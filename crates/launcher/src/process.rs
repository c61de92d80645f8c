//! Children: starting them and reaping every zombie, as PID 1 must.
//!
//! libvirt detaches the hypervisor, so it ends up as a child of PID 1, which is this process. One task therefore waits
//! for *any* child; who started one gets its exit status through a channel. Nothing else in this process may wait.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

type Waiting = HashMap<i32, oneshot::Sender<WaitStatus>>;

/// The one way to start processes here.
#[derive(Clone)]
pub struct Children {
    waiting: Arc<Mutex<Waiting>>,
}

pub struct Child {
    pid: Pid,
    exit: oneshot::Receiver<WaitStatus>,
}

impl Children {
    /// Starts reaping. Call once per process, inside the runtime.
    pub fn reap() -> io::Result<Self> {
        // Outside a PID namespace of our own (tests, a developer's shell) detached hypervisors must come to us as well.
        if std::process::id() != 1 {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        let waiting = Arc::new(Mutex::new(Waiting::new()));
        let mut ended = signal(SignalKind::child())?;
        let reaper = waiting.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                reap_all(&reaper);
            }
        });
        Ok(Self { waiting })
    }

    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // The lock is held until the child is known, so that the reaper cannot meet it before.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (sender, exit) = oneshot::channel();
        waiting.insert(pid.as_raw_nonzero().get(), sender);
        Ok(Child { pid, exit })
    }
}

impl Child {
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for the end; text such as `exit code 1` or `signal 9`. Cancel-safe.
    pub async fn wait(&mut self) -> String {
        match (&mut self.exit).await {
            Ok(status) => describe(status),
            Err(_) => "ended".into(),
        }
    }

    pub fn kill(&self) {
        // Only fails when the process is gone, which is what is wanted.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}

fn reap_all(waiting: &Mutex<Waiting>) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    // Signals merge: one SIGCHLD may stand for many children.
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let pid = pid.as_raw_nonzero().get();
        if let Some(sender) = waiting.remove(&pid) {
            let _ = sender.send(status);
        } else {
            tracing::debug!(pid, status = describe(status), "reaped");
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".into(),
    }
}
