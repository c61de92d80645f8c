//! `ferrovirt-launcher selftest`: the hypervisor's smallest domain from nothing to running and gone, with the time of each step.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferrovirt_libvirt::{EventKind, Events, Lifecycle, Start};

use crate::process::Children;
use crate::runtime::{Daemon, Dirs, LibvirtRuntime};

const WAIT: Duration = Duration::from_secs(30);

pub async fn selftest(
    runtime: &'static dyn LibvirtRuntime,
    libvirt_dir: &Path,
    capabilities: Option<&Path>,
) -> anyhow::Result<()> {
    let mut clock = Clock(Instant::now());
    let children = Children::reap().context("cannot become the reaper of child processes")?;
    let dirs = Dirs::new(libvirt_dir);
    runtime.setup(&dirs, capabilities)?;
    clock.step("write configuration");
    let (_daemon, connection) = Daemon::start(&children, runtime, &dirs).await?;
    clock.step("start and connect");
    let mut events = connection.subscribe().await?;
    clock.step("subscribe");
    let domain = connection.define(&runtime.selftest_domain(&dirs)?).await?;
    clock.step("define");
    domain.create(Start::Running).await?;
    clock.step("start");
    wait_for(&mut events, |lifecycle| lifecycle == Lifecycle::Started).await?;
    clock.step("started event");
    domain.suspend().await?;
    domain.resume().await?;
    clock.step("pause and resume");
    domain.destroy().await?;
    clock.step("destroy");
    wait_for(&mut events, |lifecycle| matches!(lifecycle, Lifecycle::Stopped(_))).await?;
    clock.step("stopped event");
    domain.undefine().await?;
    clock.step("undefine");
    Ok(())
}

async fn wait_for(events: &mut Events, wanted: impl Fn(Lifecycle) -> bool) -> anyhow::Result<()> {
    let search = async {
        while let Some(event) = events.next().await {
            if let EventKind::Lifecycle(lifecycle) = event.kind
                && wanted(lifecycle)
            {
                return Ok(());
            }
        }
        bail!("libvirt closed the connection")
    };
    tokio::time::timeout(WAIT, search).await.context("the event did not come")?
}

struct Clock(Instant);

impl Clock {
    fn step(&mut self, name: &str) {
        let now = Instant::now();
        println!("{:>8.1} ms  {name}", (now - self.0).as_secs_f64() * 1000.0);
        self.0 = now;
    }
}
