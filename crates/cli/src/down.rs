//! `ferrovirt down`: stops all VMs in order, then the host.

use anyhow::{Result, bail};

use crate::{
    HostArgs,
    up::{control, paths::Paths},
};

pub async fn run(arguments: HostArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("ferrovirt down needs root");
    }
    let paths = Paths::new(&arguments.data_dir)?;
    let mut done = false;
    let ran = control::down(&paths.control_socket(), |line| match line {
        "done" => done = true,
        line => eprintln!("{line}"),
    })
    .await?;
    if ran && !done {
        bail!("the host ended before it was done; see {}", paths.log().display());
    }
    if !ran {
        // Nobody is there to ask, but VMs may have outlived their host.
        let stopped = ferrovirt_node_lite::stop_all(&paths.data_dir, &paths.run_dir, &paths.instance);
        if stopped == 0 {
            println!("nothing runs in {}", paths.data_dir.display());
            return Ok(());
        }
        println!("stopped {stopped} VMs that had outlived their host");
        return Ok(());
    }
    println!("ferrovirt is down; its data stays in {}", paths.data_dir.display());
    Ok(())
}
