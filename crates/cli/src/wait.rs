//! Waiting for objects, with progress on a terminal.

use std::{
    fmt,
    io::{IsTerminal, Write},
    time::Duration,
};

use anyhow::{Result, bail};
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use futures::TryStreamExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    discovery::Scope,
    runtime::watcher::{self, watch_object},
};
use tokio::time::Instant;

use crate::{
    client::dynamic,
    next, output,
    why::{self, Obstacle},
};

/// How long nothing may change. What gets on, such as a transfer, is waited for as long as it does.
const DEADLINE: Duration = Duration::from_secs(300);
/// How often is asked whether waiting makes sense.
const LOOK: Duration = Duration::from_millis(1500);
/// How long something that only somebody can mend may be seen before it counts: a node that is just joining mends it, too.
const DOUBT: Duration = Duration::from_secs(5);
/// The same for what is tried again by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nothing came of it in the time that we wait.
#[derive(Debug)]
pub struct TimedOut {
    pub seconds: u64,
    pub last: String,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {} s, last seen: {}", self.seconds, self.last)
    }
}

impl std::error::Error for TimedOut {}

/// Nothing will come of it.
#[derive(Debug)]
pub struct InVain {
    pub message: String,
    pub next: Option<String>,
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InVain {}

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
    let is_another = |object: &DynamicObject| object.metadata.uid.as_deref() != uid;
    let mut progress = Progress::default();
    follow_on(api, name, &mut progress, |object| match object {
        Some(object) if is_another(object) => Verdict::Done,
        Some(_) => Verdict::Wait(format!("{label}: Stopping")),
        None => Verdict::Wait(format!("{label}: Starting")),
    })
    .await?;
    let runs = follow_on(api, name, &mut progress, |object| match object {
        Some(object) => match state(object).as_str() {
            "Running" | "Succeeded" => Verdict::Done,
            "Failed" => {
                let why = next::ferrovirt(&format!("why {name}"));
                Verdict::Failed(format!("{label} does not start; `{why}` says why"))
            }
            phase => Verdict::Wait(format!("{label}: {phase}")),
        },
        None => Verdict::Wait(format!("{label}: Starting")),
    });
    tokio::select! {
        outcome = runs => outcome,
        hopeless = in_vain(api, name, label) => Err(hopeless.into()),
    }
}

/// Waits until a VM runs and is ready, or is held at its first instruction if it says so itself. Ends early, with the reason, when
/// that will not be.
pub async fn until_ready(api: &Api<DynamicObject>, name: &str, label: &str) -> Result<()> {
    let ready = follow(api, name, |object| match object {
        None => Verdict::Failed(format!("{label} was deleted")),
        Some(object) if object.data["status"]["ready"] == true => Verdict::Done,
        Some(object) if starts_paused(object) && state(object) == "Paused" => Verdict::Done,
        Some(object) => Verdict::Wait(format!("{label}: {}", unready(object))),
    });
    tokio::select! {
        outcome = ready => outcome,
        hopeless = in_vain(api, name, label) => Err(hopeless.into()),
    }
}

/// Waits until a guest can be reached. One that is off, and that nobody has started, is not waited for.
pub async fn until_guest_runs(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let instances = dynamic(client, &ApiResource::erase::<VirtualMachineInstance>(&()), &Scope::Namespaced, namespace);
    if let Some(instance) = instances.get_opt(name).await?
        && (state(&instance) == "Running" || !is_of_a_machine(&instance))
    {
        // An instance on its own, or of a replica set, has no VM to look at; what it can give the server says.
        return Ok(());
    }
    let machines = dynamic(client, &ApiResource::erase::<VirtualMachine>(&()), &Scope::Namespaced, namespace);
    let label = format!("vm/{name}");
    // That there is none is told in the server's words.
    machines.get(name).await?;
    let reachable = follow(&machines, name, |machine| match machine {
        Some(machine) => reach(machine, &label),
        None => Verdict::Failed(format!("{label} was deleted")),
    });
    tokio::select! {
        outcome = reachable => outcome,
        hopeless = in_vain(&machines, name, &label) => Err(hopeless.into()),
    }
}

fn is_of_a_machine(instance: &DynamicObject) -> bool {
    instance.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "VirtualMachine")
}

/// Whether a VM's guest can be reached, by what the VM says.
fn reach(machine: &DynamicObject, label: &str) -> Verdict {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let asked = machine.data["status"]["stateChangeRequests"].as_array().is_some_and(|asked| !asked.is_empty());
    match state(machine).as_str() {
        "Running" | "Paused" | "Migrating" => Verdict::Done,
        // Somebody has just asked for a start.
        "Stopped" if asked => Verdict::Wait(format!("{label}: Starting")),
        "Stopped" => Verdict::Failed(format!("{label} is stopped: {}", next::ferrovirt(&format!("start {name}")))),
        "Stopping" | "Terminating" => Verdict::Failed(format!("{label} is going down")),
        status => Verdict::Wait(format!("{label}: {status}")),
    }
}

/// Ends when it is clear that a VM will not start.
async fn in_vain(api: &Api<DynamicObject>, name: &str, label: &str) -> InVain {
    let client: Client = api.clone().into_client();
    let namespace = api.namespace().unwrap_or("default").to_owned();
    let (started, mut patience) = (Instant::now(), Patience::default());
    loop {
        tokio::time::sleep(LOOK).await;
        let obstacle = why::obstacle(&client, &namespace, name).await;
        if let Some(obstacle) = patience.ends(started.elapsed(), obstacle) {
            let Obstacle { message, next, .. } = obstacle;
            return InVain { message: format!("{label} does not start: {message}"), next };
        }
    }
}

/// Since when something is in the way.
#[derive(Debug, Default)]
struct Patience {
    anything: Option<Duration>,
    stuck: Option<Duration>,
}

impl Patience {
    /// Whether it ends with what is in the way at this moment.
    fn ends(&mut self, now: Duration, obstacle: Option<Obstacle>) -> Option<Obstacle> {
        let Some(obstacle) = obstacle else {
            *self = Self::default();
            return None;
        };
        let anything = *self.anything.get_or_insert(now);
        let stuck = match obstacle.stuck {
            true => Some(*self.stuck.get_or_insert(now)),
            false => {
                self.stuck = None;
                None
            }
        };
        let long = stuck.is_some_and(|since| now - since >= DOUBT) || now - anything >= PATIENCE;
        long.then_some(obstacle)
    }
}

fn starts_paused(vm: &DynamicObject) -> bool {
    vm.data["spec"]["template"]["spec"]["startStrategy"] == "Paused"
}

/// Why a VM is not ready: its status, and what it says of its disks while they are made.
fn unready(vm: &DynamicObject) -> String {
    let status = state(vm);
    if !["Provisioning", "DataVolumeError"].contains(&status.as_str()) {
        return status;
    }
    let conditions = vm.data["status"]["conditions"].as_array().into_iter().flatten();
    let mut told = conditions.filter(|condition| condition["type"] == "Ready" && condition["status"] == "False");
    let message = told.find_map(|condition| condition["message"].as_str()).filter(|message| !message.is_empty());
    message.map_or_else(|| status.clone(), |message| format!("{status}: {message}"))
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
    Failed(String),
}

async fn follow(api: &Api<DynamicObject>, name: &str, judge: impl Fn(Option<&DynamicObject>) -> Verdict) -> Result<()> {
    follow_on(api, name, &mut Progress::default(), judge).await
}

/// The same, with what was shown before.
async fn follow_on(
    api: &Api<DynamicObject>,
    name: &str,
    progress: &mut Progress,
    judge: impl Fn(Option<&DynamicObject>) -> Verdict,
) -> Result<()> {
    let mut versions = std::pin::pin!(watch_object(api.clone(), name));
    let mut deadline = Instant::now() + DEADLINE;
    loop {
        let object = match tokio::time::timeout_at(deadline, versions.try_next()).await {
            Err(_) => return Err(TimedOut { seconds: DEADLINE.as_secs(), last: progress.last.clone() }.into()),
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => bail!("the connection ended"),
            Ok(Err(watcher::Error::WatchStartFailed(error) | watcher::Error::InitialListFailed(error))) => {
                return Err(error.into());
            }
            Ok(Err(_)) => continue,
        };
        match judge(object.as_ref()) {
            Verdict::Done => return Ok(()),
            Verdict::Failed(message) => bail!(message),
            Verdict::Wait(message) => {
                if progress.show(&message) {
                    deadline = Instant::now() + DEADLINE;
                }
            }
        }
    }
}

fn state(object: &DynamicObject) -> String {
    let status = &object.data["status"];
    let told = ["printableStatus", "phase"].iter().filter_map(|field| status[*field].as_str());
    let deleting = object.metadata.deletion_timestamp.is_some().then_some("Terminating");
    // Of what is new nobody has said anything yet.
    told.chain(deleting).find(|word| !word.is_empty()).unwrap_or("Starting").to_owned()
}

/// One line that is rewritten on a terminal, and one line per change elsewhere.
#[derive(Default)]
struct Progress {
    last: String,
}

impl Progress {
    /// True if this is news.
    fn show(&mut self, message: &str) -> bool {
        if self.last == message {
            return false;
        }
        self.last = message.to_owned();
        let message = output::harmless(message);
        let mut out = std::io::stderr();
        let _ = match out.is_terminal() {
            true => write!(out, "\r\x1b[K{message} … "),
            false => writeln!(out, "{message}"),
        };
        let _ = out.flush();
        true
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut out = std::io::stderr();
        if out.is_terminal() && !self.last.is_empty() {
            let _ = write!(out, "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_comes_early_for_what_is_stuck_and_later_for_what_is_tried_again() {
        /// Seconds, and what is in the way then.
        type Steps = &'static [(u64, Option<bool>)];
        const NOTHING: Option<bool> = None;
        const STUCK: Option<bool> = Some(true);
        const TRIED: Option<bool> = Some(false);
        // With the second at which it ends.
        let rows: [(Steps, Option<u64>); 6] = [
            (&[(1, NOTHING), (100, NOTHING)], None),
            (&[(1, STUCK), (3, STUCK), (6, STUCK)], Some(6)),
            (&[(1, STUCK), (3, NOTHING), (6, STUCK), (8, STUCK)], None),
            (&[(1, TRIED), (6, TRIED), (20, TRIED), (21, TRIED)], Some(21)),
            (&[(1, TRIED), (10, STUCK), (15, STUCK)], Some(15)),
            (&[(1, STUCK), (4, TRIED), (6, STUCK), (10, STUCK)], None),
        ];
        for (number, (steps, expected)) in rows.into_iter().enumerate() {
            let mut patience = Patience::default();
            let ended = steps.iter().find(|(second, seen)| {
                let seen = seen.map(|stuck| Obstacle { message: String::new(), next: None, stuck });
                patience.ends(Duration::from_secs(*second), seen).is_some()
            });
            assert_eq!(ended.map(|(second, _)| *second), expected, "row {number}");
        }
    }

    #[test]
    fn a_guest_that_is_off_is_not_waited_for() {
        let shown = |status: serde_json::Value| {
            let vm: DynamicObject =
                serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap();
            match reach(&vm, "vm/a") {
                Verdict::Done => "reached".to_owned(),
                Verdict::Wait(message) => format!("waits for {message}"),
                Verdict::Failed(message) => message,
            }
        };
        for (status, expected) in [
            (json!({}), "waits for vm/a: Starting"),
            (json!({ "printableStatus": "Provisioning" }), "waits for vm/a: Provisioning"),
            (json!({ "printableStatus": "Running" }), "reached"),
            (json!({ "printableStatus": "Paused" }), "reached"),
            (json!({ "printableStatus": "Stopped" }), "vm/a is stopped: ferrovirt start a"),
            (
                json!({ "printableStatus": "Stopped", "stateChangeRequests": [{ "action": "Start" }] }),
                "waits for vm/a: Starting",
            ),
            (json!({ "printableStatus": "Stopping" }), "vm/a is going down"),
        ] {
            assert_eq!(shown(status), expected);
        }
    }

    #[test]
    fn the_state_of_a_vm_is_never_empty() {
        let vm = |status: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap()
        };
        let told = json!([{ "type": "Ready", "status": "False", "message": "3 of 9 MiB" }]);
        for (status, expected) in [
            (json!({}), "Starting"),
            (json!({ "phase": "" }), "Starting"),
            (json!({ "printableStatus": "", "phase": "Pending" }), "Pending"),
            (json!({ "printableStatus": "Starting" }), "Starting"),
            (json!({ "printableStatus": "Provisioning" }), "Provisioning"),
            (json!({ "printableStatus": "Provisioning", "conditions": told }), "Provisioning: 3 of 9 MiB"),
            (json!({ "printableStatus": "Starting", "conditions": told }), "Starting"),
        ] {
            assert_eq!(unready(&vm(status)), expected);
        }
    }
}
