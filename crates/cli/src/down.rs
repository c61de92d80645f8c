//! `ferrovirt down`: stops all VMs in order, then the host.

use anyhow::{Result, bail};

use clap::Args;

use crate::{
    HostArgs,
    up::{control, paths::Paths, start_in_background},
};

#[derive(Args)]
pub struct DownArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Give no guest more than so many seconds to shut down, whatever its own grace period is
    #[arg(long, value_name = "SECONDS", conflicts_with = "force")]
    grace: Option<u64>,
    /// End all guests at once, as if their power were cut; what they have not written is lost
    #[arg(long)]
    force: bool,
}

pub async fn run(arguments: DownArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("ferrovirt down needs root");
    }
    let paths = Paths::new(&arguments.host.data_dir)?;
    let haste = control::Haste { grace: arguments.grace, force: arguments.force };
    if control::status(&paths.control_socket()).await.is_none() {
        if !left_running(&paths) {
            println!("nothing runs in {}", paths.data_dir.display());
            return Ok(());
        }
        // VMs have outlived their host. A new one takes them over, and stops them in order.
        eprintln!("VMs have outlived their host; taking them over");
        let data_dir = paths.data_dir.clone().into_os_string();
        let arguments = ["up".into(), "--listen".into(), "127.0.0.1:0".into(), "--data-dir".into(), data_dir];
        let started = paths.clone();
        tokio::task::spawn_blocking(move || start_in_background(&started, &arguments)).await??;
    }
    let mut done = false;
    control::down(&paths.control_socket(), haste, |line| match line {
        control::DONE => done = true,
        line => eprintln!("{line}"),
    })
    .await?;
    if !done {
        bail!("the host ended before it was done; see {}", paths.log().display());
    }
    println!("ferrovirt is down; its data stays in {}", paths.data_dir.display());
    Ok(())
}

/// True if pods of this data directory may still have processes or traces on this machine.
fn left_running(paths: &Paths) -> bool {
    let pods = std::fs::read_dir(paths.data_dir.join("pods")).is_ok_and(|mut pods| pods.next().is_some());
    pods || paths.run_dir.exists()
}
