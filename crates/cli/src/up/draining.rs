//! `ferrovirt down`: which guests it still waits for, how long at most, and what happens to those that take longer.

use std::time::Duration;

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_node::Agent;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::{sync::mpsc, time::Instant};

use super::control::Haste;

/// How often it is looked who is left.
const LOOK: Duration = Duration::from_secs(1);
/// How often the same is said again.
const REPEAT: Duration = Duration::from_secs(15);
/// What a guest without a grace period of its own has.
const DEFAULT_GRACE: u64 = 30;
/// How many guests are named.
const NAMED: usize = 5;

/// A guest that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Guest {
    name: String,
    /// How long it has at most, from the beginning.
    grace: u64,
}

/// Stops all guests and says what it waits for. Those that are not gone in time are ended by `kill`.
pub async fn drain(
    agent: &Agent,
    client: Client,
    haste: Haste,
    progress: &mpsc::Sender<String>,
    kill: impl Fn() -> usize,
) {
    let say = |text: String| async move { drop(progress.send(text).await) };
    let begun = Instant::now();
    let mut limit = haste.seconds();
    let mut drained = std::pin::pin!(agent.drain());
    // From its first step on the agent knows that the host goes down, and writes that into the instances that end.
    if futures::poll!(drained.as_mut()).is_ready() {
        return;
    }
    if limit == Some(0) {
        say(format!("ending {} without asking their guests", pods(kill()))).await;
    }
    let (mut told, mut told_at) = (String::new(), begun);
    loop {
        tokio::select! {
            () = &mut drained => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let elapsed = begun.elapsed().as_secs();
        if limit.is_some_and(|limit| elapsed >= limit) {
            limit = None;
            if !haste.force {
                say(format!("{elapsed} s have passed: ending {}", pods(kill()))).await;
            }
        }
        let guests = left(&client, haste).await;
        let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let names = names.join(" ");
        if !guests.is_empty() && (names != told || told_at.elapsed() >= REPEAT) {
            say(line(&guests, elapsed)).await;
            (told, told_at) = (names, Instant::now());
        }
    }
}

fn pods(count: usize) -> String {
    if count == 1 { "1 VM".to_owned() } else { format!("{count} VMs") }
}

async fn left(client: &Client, haste: Haste) -> Vec<Guest> {
    match Api::<VirtualMachineInstance>::all(client.clone()).list(&ListParams::default()).await {
        Ok(found) => guests(&found.items, haste),
        // It is only for showing.
        Err(_) => vec![],
    }
}

fn guests(vmis: &[VirtualMachineInstance], haste: Haste) -> Vec<Guest> {
    let here = vmis.iter().filter(|vmi| matches!(vmi.status.phase.as_str(), "Scheduled" | "Running" | "Unknown"));
    let mut guests: Vec<Guest> = here
        .map(|vmi| {
            let own = vmi.spec.termination_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let grace = own.unwrap_or(DEFAULT_GRACE);
            let name = format!("{}/{}", vmi.namespace().unwrap_or_default(), vmi.name_any());
            Guest { name, grace: haste.seconds().map_or(grace, |most| grace.min(most)) }
        })
        .collect();
    // Who takes longest is waited for.
    guests.sort_by(|a, b| b.grace.cmp(&a.grace).then_with(|| a.name.cmp(&b.name)));
    guests
}

fn line(guests: &[Guest], elapsed: u64) -> String {
    let shown = guests.iter().take(NAMED).map(|guest| match guest.grace.saturating_sub(elapsed) {
        0 => format!("{} (it is being ended)", guest.name),
        left => format!("{} (up to {left} s)", guest.name),
    });
    let shown: Vec<String> = shown.collect();
    let more = match guests.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("waiting for {}{more} to shut down", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vmi(name: &str, phase: &str, grace: Option<i64>) -> VirtualMachineInstance {
        let object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "domain": {}, "terminationGracePeriodSeconds": grace },
            "status": { "phase": phase },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_guests_that_are_left_are_named_with_the_time_they_have() {
        let all = [
            vmi("quick", "Running", Some(0)),
            vmi("slow", "Running", Some(600)),
            vmi("plain", "Running", None),
            vmi("gone", "Failed", Some(600)),
            vmi("off", "Succeeded", Some(600)),
            vmi("waits", "Pending", Some(600)),
            vmi("for-ever", "Running", Some(i64::MAX)),
        ];
        let told = |haste, elapsed| line(&guests(&all, haste), elapsed);
        assert_eq!(
            told(Haste::default(), 10),
            format!(
                "waiting for default/for-ever (up to {} s), default/slow (up to 590 s), default/plain (up to 20 s), \
                     default/quick (it is being ended) to shut down",
                i64::MAX - 10
            ),
        );
        let hasty = Haste { grace: Some(45), force: false };
        assert_eq!(
            told(hasty, 5),
            "waiting for default/for-ever (up to 40 s), default/slow (up to 40 s), default/plain (up to 25 s), \
             default/quick (it is being ended) to shut down",
        );
        let many: Vec<_> = (0..8).map(|number| vmi(&format!("vm-{number}"), "Running", Some(60))).collect();
        let line = line(&guests(&many, Haste::default()), 0);
        assert!(line.ends_with("default/vm-4 (up to 60 s) and 3 more to shut down"), "{line}");
    }
}
