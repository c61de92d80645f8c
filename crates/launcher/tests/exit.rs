//! When the process ends after its machine: the clock is the test's, nobody waits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use ferrovirt_launcher::domain::{DomainEvent, Started};
use ferrovirt_launcher::owner::{Handle, Message, Owner, Settings};
use ferrovirt_machine::protocol::{MachinePhase, Request, StopReason};
use ferrovirt_machine::spec::MachineSpec;
use support::FakeDomain;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LINGER: Duration = Duration::from_secs(2);
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// An owner with a running machine and one client.
async fn running() -> (Handle, mpsc::UnboundedSender<DomainEvent>, JoinHandle<u8>, FakeDomain) {
    let (fake, starts) = FakeDomain::new();
    let (events, receiver) = mpsc::unbounded_channel();
    let settings = Settings {
        hypervisor: "qemu-kvm",
        translate: Arc::new(|_| String::new()),
        linger: LINGER,
        exit_timeout: EXIT_TIMEOUT,
    };
    let (owner, handle) = Owner::new(settings, fake.clone(), receiver);
    let task = tokio::spawn(owner.run());
    handle.send(Message::Connected);
    let spec = MachineSpec { hypervisor: "qemu-kvm".into(), grace_seconds: 30, ..MachineSpec::default() };
    handle.request(Request::Sync { spec: Box::new(spec) }).await.unwrap();
    starts.send(Ok(Started::default())).unwrap();
    reached(&handle, MachinePhase::Running).await;
    (handle, events, task, fake)
}

async fn reached(handle: &Handle, phase: MachinePhase) {
    handle.state().wait_for(|state| state.phase == phase).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connected_client_has_time_to_release() {
    let (handle, events, task, _) = running().await;
    events.send(DomainEvent::Stopped(StopReason::GuestShutdown)).unwrap();
    reached(&handle, MachinePhase::Stopped).await;
    let stopped = Instant::now();
    assert_eq!(task.await.unwrap(), 0);
    assert_eq!(stopped.elapsed().as_secs(), EXIT_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn nobody_connected_means_a_short_wait() {
    let (handle, events, task, _) = running().await;
    handle.send(Message::Disconnected);
    events.send(DomainEvent::Stopped(StopReason::Crashed)).unwrap();
    reached(&handle, MachinePhase::Stopped).await;
    let stopped = Instant::now();
    assert_eq!(task.await.unwrap(), 1);
    assert_eq!(stopped.elapsed().as_secs(), LINGER.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_after_the_stop_starts_the_wait() {
    let (handle, events, task, _) = running().await;
    events.send(DomainEvent::Stopped(StopReason::GuestShutdown)).unwrap();
    reached(&handle, MachinePhase::Stopped).await;
    let stopped = Instant::now();
    tokio::time::advance(Duration::from_secs(10)).await;
    handle.send(Message::Disconnected);
    assert_eq!(task.await.unwrap(), 0);
    assert_eq!(stopped.elapsed().as_secs(), 10 + LINGER.as_secs());
}

#[tokio::test(start_paused = true)]
async fn termination_asks_until_the_grace_period_is_over() {
    let (handle, events, task, fake) = running().await;
    let asked = Instant::now();
    handle.send(Message::Terminate);
    reached(&handle, MachinePhase::ShuttingDown).await;
    // The message appears when the owner gives up on the guest.
    handle.state().wait_for(|state| state.message.is_some()).await.unwrap();
    assert_eq!(asked.elapsed().as_secs(), 30);
    tokio::task::yield_now().await;
    let acted = format!("{:?}", fake.actions.lock().unwrap());
    assert_eq!(acted, "[Shutdown, Shutdown, Shutdown, Shutdown, Shutdown, Shutdown, Destroy]");
    events.send(DomainEvent::Stopped(StopReason::Destroyed)).unwrap();
    handle.request(Request::Release {}).await.ok();
    assert_eq!(task.await.unwrap(), 0);
}

#[test]
fn a_crash_that_a_test_asks_for_is_one() {
    let launcher = std::process::Command::new(env!("CARGO_BIN_EXE_ferrovirt-launcher"));
    let ended = { launcher }.args(["run", "--simulate-crash"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "Simulated virt-launcher crash\n");
}
