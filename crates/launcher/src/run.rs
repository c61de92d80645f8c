//! `ferrovirt-launcher run`: everything put together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ferrovirt_machine::hypervisor;
use ferrovirt_machine::protocol::MachinePhase;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::domain::libvirt::{LibvirtBackend, Supervisor};
use crate::logs::LogTail;
use crate::owner::{Handle, Message, Owner, Settings};
use crate::process::Children;
use crate::runtime::{Dirs, LibvirtRuntime};
use crate::server::Server;

pub struct Options {
    pub runtime: &'static dyn LibvirtRuntime,
    pub socket_dir: PathBuf,
    pub libvirt_dir: PathBuf,
    pub capabilities: Option<PathBuf>,
    /// What libvirt's daemon logs beside warnings.
    pub log_filters: Option<String>,
    pub linger: Duration,
    pub exit_timeout: Duration,
}

/// Runs one machine to its end; returns the exit code.
pub async fn run(options: Options) -> anyhow::Result<u8> {
    let children = Children::reap().context("cannot become the reaper of child processes")?;
    let dirs = Dirs::new(options.libvirt_dir).with_log_filters(options.log_filters);
    let (events, domain_events) = mpsc::unbounded_channel();
    let supervisor =
        Supervisor { children, runtime: options.runtime, dirs: dirs.clone(), capabilities: options.capabilities };
    let backend = LibvirtBackend::run(supervisor, events);
    let hypervisor = hypervisor::find(options.runtime.name()).map_err(anyhow::Error::msg)?;
    let settings = Settings {
        hypervisor: options.runtime.name(),
        translate: Arc::new(move |spec| hypervisor.domain_xml(spec)),
        linger: options.linger,
        exit_timeout: options.exit_timeout,
    };
    let log_of = backend.clone();
    let (owner, handle) = Owner::new(settings, backend, domain_events);
    let server = Server::bind(&options.socket_dir)?;
    tokio::spawn(server.serve(handle.clone()));
    forward_signals(handle.clone())?;
    tokio::spawn(crate::last_words::write(handle.state()));
    let logs = tokio::spawn(forward_log(handle, log_of, options.runtime, dirs));
    let code = owner.run().await;
    // The owner is gone, so the forwarder sees the end of the states, copies the rest and ends.
    let _ = tokio::time::timeout(Duration::from_secs(1), logs).await;
    Ok(code)
}

fn forward_signals(handle: Handle) -> anyhow::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("cannot listen for signals")?;
        let handle = handle.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                handle.send(Message::Terminate);
            }
        });
    }
    Ok(())
}

/// Follows the hypervisor's log from the start of the machine until the launcher ends.
async fn forward_log(handle: Handle, backend: LibvirtBackend, runtime: &'static dyn LibvirtRuntime, dirs: Dirs) {
    let mut states = handle.state();
    // Not our own sender, or the states would never end.
    drop(handle);
    let mut tail = None;
    loop {
        if tail.is_none()
            && states.borrow_and_update().phase != MachinePhase::Waiting
            && let Some(name) = backend.domain_name()
        {
            tail = Some(LogTail::start(runtime.domain_log(&dirs, &name)));
        }
        if states.changed().await.is_err() {
            break;
        }
    }
    if let Some(tail) = tail {
        tail.finish().await;
    }
}
