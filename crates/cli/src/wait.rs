//! Waiting for objects, with progress on a terminal.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use anyhow::{Result, bail};
use futures::TryStreamExt;
use kube::{
    Api,
    api::DynamicObject,
    runtime::watcher::{self, watch_object},
};

const DEADLINE: Duration = Duration::from_secs(300);
/// How long something may look like a failure before it is one.
const DOUBT: Duration = Duration::from_secs(5);

/// Nothing came of it in the time that we wait.
#[derive(Debug)]
pub struct TimedOut {
    pub seconds: u64,
    pub last: String,
}

impl std::fmt::Display for TimedOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waited {} s, last seen: {}", self.seconds, self.last)
    }
}

impl std::error::Error for TimedOut {}

/// Waits until an object is gone, or another of that name took its place.
pub async fn until_gone(api: &Api<DynamicObject>, name: &str, uid: Option<&str>, label: &str) -> Result<()> {
    follow(api, name, |object| match object {
        None => Verdict::Done,
        Some(object) if uid.is_some() && object.metadata.uid.as_deref() != uid => Verdict::Done,
        Some(object) => Verdict::Wait(format!("{label}: {}", state(object))),
    })
    .await
}

/// Waits until an instance other than the one with this uid runs, or has ended already. Whether it is ready is another question,
/// which its probes may take long to answer.
pub async fn until_another_runs(api: &Api<DynamicObject>, name: &str, uid: Option<&str>, label: &str) -> Result<()> {
    follow(api, name, |object| match object {
        Some(object) if object.metadata.uid.as_deref() != uid => {
            match object.data["status"]["phase"].as_str().unwrap_or_default() {
                "Running" | "Succeeded" => Verdict::Done,
                "Failed" => Verdict::Failed(format!("{label} does not start; `ferrovirt why {name}` says why")),
                phase => Verdict::Wait(format!("{label}: {phase}")),
            }
        }
        Some(_) => Verdict::Wait(format!("{label}: Stopping")),
        None => Verdict::Wait(format!("{label}: Starting")),
    })
    .await
}

/// Waits until a VM runs and is ready, or is held at its first instruction if it says so itself.
pub async fn until_ready(api: &Api<DynamicObject>, name: &str, label: &str) -> Result<()> {
    follow(api, name, |object| match object {
        None => Verdict::Failed(format!("{label} was deleted")),
        Some(object) if object.data["status"]["ready"] == true => Verdict::Done,
        Some(object) if starts_paused(object) && state(object) == "Paused" => Verdict::Done,
        Some(object) => {
            let status = state(object);
            if let Some(why) = obstacle(object) {
                return Verdict::Doubtful(format!("{label} does not start: {why}"));
            }
            match status.as_str() {
                "ErrorUnschedulable" | "ErrImagePull" | "ImagePullBackOff" | "CrashLoopBackOff"
                | "ErrorPvcNotFound" => Verdict::Doubtful(format!("{label} does not start: {status}")),
                "DataVolumeError" => Verdict::Doubtful(format!("{label} does not start: {}", unready(object))),
                "Provisioning" => Verdict::Wait(format!("{label}: {}", unready(object))),
                _ => Verdict::Wait(format!("{label}: {status}")),
            }
        }
    })
    .await
}

fn starts_paused(vm: &DynamicObject) -> bool {
    vm.data["spec"]["template"]["spec"]["startStrategy"] == "Paused"
}

/// What a condition says against a start: the VM asks for something that it cannot have, or the cluster refused its pod.
fn obstacle(vm: &DynamicObject) -> Option<&str> {
    let conditions = vm.data["status"]["conditions"].as_array()?;
    let told = conditions.iter().find(|condition| {
        let is = |type_: &str, status: &str| condition["type"] == type_ && condition["status"] == status;
        is("Failure", "True") || (is("Synchronized", "False") && condition["reason"] == "FailedCreate")
    });
    told?["message"].as_str()
}

/// Why a VM is not ready, in its own words.
fn unready(vm: &DynamicObject) -> String {
    let conditions = vm.data["status"]["conditions"].as_array().into_iter().flatten();
    let mut told = conditions.filter(|condition| condition["type"] == "Ready" && condition["status"] == "False");
    let message = told.find_map(|condition| condition["message"].as_str()).filter(|message| !message.is_empty());
    message.map_or_else(|| state(vm), |message| format!("{}: {message}", state(vm)))
}

/// Waits until a VM shows this status.
pub async fn until_status(api: &Api<DynamicObject>, name: &str, label: &str, wanted: &str) -> Result<()> {
    follow(api, name, |object| match object {
        None => Verdict::Failed(format!("{label} was deleted")),
        Some(object) if state(object) == wanted => Verdict::Done,
        Some(object) => Verdict::Wait(format!("{label}: {}", state(object))),
    })
    .await
}

enum Verdict {
    Done,
    Wait(String),
    /// It looks like a failure, but may be over in a moment: a node that is just joining, a pod that is just made.
    Doubtful(String),
    Failed(String),
}

async fn follow(api: &Api<DynamicObject>, name: &str, judge: impl Fn(Option<&DynamicObject>) -> Verdict) -> Result<()> {
    let mut progress = Progress::default();
    let watching = async {
        let mut versions = std::pin::pin!(watch_object(api.clone(), name));
        let mut doubt: Option<(tokio::time::Instant, String)> = None;
        loop {
            let next = match &doubt {
                Some((until, message)) => match tokio::time::timeout_at(*until, versions.try_next()).await {
                    Ok(next) => next,
                    Err(_) => bail!("{message}"),
                },
                None => versions.try_next().await,
            };
            let object = match next {
                Ok(Some(object)) => object,
                Ok(None) => bail!("the connection ended"),
                Err(watcher::Error::WatchStartFailed(error) | watcher::Error::InitialListFailed(error)) => {
                    return Err(error.into());
                }
                Err(_) => continue,
            };
            match judge(object.as_ref()) {
                Verdict::Done => return Ok(()),
                Verdict::Failed(message) => bail!(message),
                Verdict::Wait(message) => {
                    doubt = None;
                    progress.show(&message);
                }
                Verdict::Doubtful(message) => {
                    progress.show(&message);
                    let until = doubt.map_or_else(|| tokio::time::Instant::now() + DOUBT, |(until, _)| until);
                    doubt = Some((until, message));
                }
            }
        }
    };
    let outcome = tokio::time::timeout(DEADLINE, watching).await;
    progress.clear();
    match outcome {
        Ok(outcome) => outcome,
        Err(_) => Err(TimedOut { seconds: DEADLINE.as_secs(), last: progress.last }.into()),
    }
}

fn state(object: &DynamicObject) -> String {
    let status = object.data["status"]["printableStatus"].as_str().or(object.data["status"]["phase"].as_str());
    let deleting = object.metadata.deletion_timestamp.is_some().then_some("Terminating");
    status.or(deleting).unwrap_or("waiting").to_owned()
}

/// One line that is rewritten on a terminal, and one line per change elsewhere.
#[derive(Default)]
struct Progress {
    last: String,
}

impl Progress {
    fn show(&mut self, message: &str) {
        if self.last == message {
            return;
        }
        self.last = message.to_owned();
        let mut out = std::io::stderr();
        let _ = match out.is_terminal() {
            true => write!(out, "\r\x1b[K{message} … "),
            false => writeln!(out, "{message}"),
        };
        let _ = out.flush();
    }

    fn clear(&self) {
        let mut out = std::io::stderr();
        if out.is_terminal() && !self.last.is_empty() {
            let _ = write!(out, "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn obstacles_are_what_conditions_say() {
        let vm = |conditions: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } })).unwrap()
        };
        for (conditions, expected) in [
            (json!([{ "type": "Ready", "status": "False", "message": "not yet" }]), None),
            (
                json!([{ "type": "Failure", "status": "True", "message": "spec.instancetype" }]),
                Some("spec.instancetype"),
            ),
            (
                json!([{ "type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": "no class" }]),
                Some("no class"),
            ),
            (
                json!([{ "type": "Synchronized", "status": "False", "reason": "FailedPvcNotFound", "message": "x" }]),
                None,
            ),
        ] {
            assert_eq!(obstacle(&vm(conditions)), expected);
        }
    }
}
