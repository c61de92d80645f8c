//! `sudo COMMAND…` for members of the group `sudo`, without a password, as cloud images have it. The file is set-uid root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::initrd::PATH;
use crate::users::Accounts;

pub fn run(args: &[String]) -> Result<()> {
    let uid = rustix::process::getuid().as_raw();
    let accounts = Accounts::load("/")?;
    let name = accounts.name_of(uid).context("you do not exist here")?;
    if uid != 0 && !accounts.is_member(&name, "sudo") {
        bail!("{name} is not in the group sudo");
    }
    // Options are for the real one; people type `sudo -i` by habit.
    let command: Vec<&String> = args.iter().skip_while(|a| a.starts_with('-')).collect();
    let mut command = match command.split_first() {
        Some((program, rest)) => {
            let mut c = Command::new(program);
            c.args(rest);
            c
        }
        None => {
            let mut c = Command::new("/bin/sh");
            c.arg("-l");
            c
        }
    };
    let term = std::env::var_os("TERM");
    command.env_clear().env("PATH", PATH).env("HOME", "/root").env("USER", "root").env("SUDO_USER", &name);
    if let Some(term) = term {
        command.env("TERM", term);
    }
    Err(command.uid(0).gid(0).exec()).context("cannot run it")
}
