//! The guest from inside: what its agent (qemu-guest-agent) is asked, and what its answers mean.
//!
//! [`Agent`] is the seam to libvirt: one JSON command, one JSON answer. `report` reads the guest, `watch` keeps the
//! machine's state current with it.

pub mod credentials;
pub mod report;
pub mod watch;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrovirt_machine::protocol::{Answer, ExecResult, GuestCall};
use ferrovirt_machine::spec::Credential;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::domain::DomainError;
use crate::lifecycle::later;

/// For one command. A guest under emulation on a busy host needs its time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Freezing flushes every file system first.
const FREEZE_PATIENCE: Duration = Duration::from_secs(60);
/// Of each stream of a command. One byte can become six in JSON.
const MOST_OUTPUT: usize = 512 << 10;
const EXEC_POLL_FIRST: Duration = Duration::from_millis(50);
const EXEC_POLL_MOST: Duration = Duration::from_secs(1);

/// Sends one command to the guest agent and returns what it returned.
pub trait Agent: Clone + Send + Sync + 'static {
    fn command(&self, command: Value, patience: Duration) -> impl Future<Output = Result<Value, DomainError>> + Send;
}

/// What must be remembered between calls.
#[derive(Clone, Default)]
pub struct Memory {
    thaw: Arc<Mutex<Option<AbortHandle>>>,
    /// Wakes the watch: something about the guest was changed.
    pub(crate) changed: Arc<Notify>,
    /// What the machine's spec asks for.
    credentials: Arc<Mutex<Vec<Credential>>>,
}

impl Memory {
    pub(crate) fn set_credentials(&self, credentials: Vec<Credential>) {
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
    }

    fn credentials(&self) -> Vec<Credential> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers a call that needs the agent.
pub async fn answer<A: Agent>(agent: &A, memory: &Memory, call: GuestCall) -> Result<Answer, DomainError> {
    match call {
        GuestCall::Ping {} => {
            agent.command(json!({"execute": "guest-ping"}), PATIENCE).await?;
        }
        GuestCall::Report {} => return Ok(Answer::Report { report: Box::new(report::read(agent).await?) }),
        GuestCall::Exec { command, args, timeout_seconds } => {
            let result = exec(agent, &command, &args, Duration::from_secs(timeout_seconds)).await?;
            return Ok(Answer::Exec { result });
        }
        GuestCall::Freeze { unfreeze_timeout_seconds } => {
            freeze(agent, memory, Duration::from_secs(unfreeze_timeout_seconds)).await?;
        }
        GuestCall::Unfreeze {} => unfreeze(agent, memory).await?,
        GuestCall::SetPassword { user, password } => {
            let arguments = json!({"username": user, "password": STANDARD.encode(password.0), "crypted": false});
            agent.command(json!({"execute": "guest-set-user-password", "arguments": arguments}), PATIENCE).await?;
        }
        GuestCall::SetSshKeys { user, keys } => {
            let arguments = json!({"username": user, "keys": keys, "reset": true});
            agent
                .command(json!({"execute": "guest-ssh-add-authorized-keys", "arguments": arguments}), PATIENCE)
                .await?;
        }
        // These are the hypervisor's, not the guest's.
        GuestCall::Screenshot {} | GuestCall::Stats {} => return Err(DomainError::NoDomain),
    }
    Ok(Answer::Done {})
}

async fn exec<A: Agent>(
    agent: &A,
    command: &str,
    args: &[String],
    timeout: Duration,
) -> Result<ExecResult, DomainError> {
    let deadline = later(Instant::now(), timeout.max(Duration::from_secs(1)));
    let arguments = json!({"path": command, "arg": args, "capture-output": true});
    let started = agent.command(json!({"execute": "guest-exec", "arguments": arguments}), PATIENCE).await?;
    let pid = started.get("pid").and_then(Value::as_i64).ok_or_else(|| strange("guest-exec", &started))?;
    let mut pause = EXEC_POLL_FIRST;
    loop {
        let status = json!({"execute": "guest-exec-status", "arguments": {"pid": pid}});
        let status = agent.command(status, PATIENCE).await?;
        if status.get("exited").and_then(Value::as_bool) == Some(true) {
            let signal = status.get("signal").and_then(Value::as_i64).map(|signal| signal.saturating_add(128));
            let exit_code = status.get("exitcode").and_then(Value::as_i64).or(signal).unwrap_or(0);
            return Ok(ExecResult {
                exit_code,
                stdout: output(&status, "out-data"),
                stderr: output(&status, "err-data"),
            });
        }
        if Instant::now() + pause > deadline {
            return Err(DomainError::ExecTimeout { command: command.to_owned(), seconds: timeout.as_secs() });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(EXEC_POLL_MOST);
    }
}

/// What a command wrote. Who asked gets the beginning of it: the answer has to fit into a frame.
fn output(status: &Value, key: &str) -> String {
    let bytes = status.get(key).and_then(Value::as_str).and_then(|text| STANDARD.decode(text).ok());
    let mut bytes = bytes.unwrap_or_default();
    bytes.truncate(MOST_OUTPUT);
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn freeze<A: Agent>(agent: &A, memory: &Memory, timeout: Duration) -> Result<(), DomainError> {
    if !is_frozen(agent).await? {
        agent.command(json!({"execute": "guest-fsfreeze-freeze"}), FREEZE_PATIENCE).await?;
    }
    memory.changed.notify_one();
    let thaw = (!timeout.is_zero()).then(|| {
        let (agent, memory) = (agent.clone(), memory.clone());
        tokio::spawn(async move {
            tokio::time::sleep(timeout).await;
            tracing::warn!(seconds = timeout.as_secs(), "nobody thawed the guest's file systems: doing it");
            if let Err(error) = thaw(&agent).await {
                tracing::error!(error = ferrovirt_machine::chain(&error), "the guest's file systems stay frozen");
            }
            memory.changed.notify_one();
        })
        .abort_handle()
    });
    replace(memory, thaw);
    Ok(())
}

async fn unfreeze<A: Agent>(agent: &A, memory: &Memory) -> Result<(), DomainError> {
    thaw(agent).await?;
    replace(memory, None);
    memory.changed.notify_one();
    Ok(())
}

async fn thaw<A: Agent>(agent: &A) -> Result<(), DomainError> {
    agent.command(json!({"execute": "guest-fsfreeze-thaw"}), FREEZE_PATIENCE).await.map(drop)
}

pub(crate) async fn is_frozen<A: Agent>(agent: &A) -> Result<bool, DomainError> {
    let status = agent.command(json!({"execute": "guest-fsfreeze-status"}), PATIENCE).await?;
    Ok(status.as_str() == Some("frozen"))
}

/// The newest freeze decides when the thaw comes.
fn replace(memory: &Memory, thaw: Option<AbortHandle>) {
    let mut kept = memory.thaw.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = std::mem::replace(&mut *kept, thaw) {
        before.abort();
    }
}

fn strange(command: &str, answer: &Value) -> DomainError {
    let answer: String = answer.to_string().chars().take(200).collect();
    DomainError::Agent(format!("{command} was answered with {answer}"))
}

#[cfg(test)]
mod tests;
