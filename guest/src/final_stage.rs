//! The last step of a boot: the user's commands, once per instance, and the line that says the guest is ready.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::boot::{DATA, FIRST_BOOT, INSTANCE};
use crate::cloud::{self, UserData};
use crate::say;

const LOG: &str = "/var/log/cloud-init-output.log";
/// Commands expect a network, but a network without DHCP must not keep them forever.
const NETWORK_WAITS: Duration = Duration::from_secs(10);

pub fn run() -> Result<()> {
    if let Err(error) = user_commands() {
        say(format_args!("{error:#}"));
    }
    say("ready");
    Ok(())
}

fn user_commands() -> Result<()> {
    let Ok(instance) = fs::read_to_string(FIRST_BOOT) else {
        return Ok(());
    };
    let data = cloud::read(Path::new(DATA))?;
    let outcome = match data.user_data {
        UserData::Config(config) if !config.run_commands.is_empty() => {
            wait_for_network();
            run_lines("runcmd", &config.run_commands)
        }
        UserData::Script(text) => {
            wait_for_network();
            run_script("user-data script", &text)
        }
        _ => Ok(()),
    };
    fs::write(INSTANCE, instance)?;
    fs::remove_file(FIRST_BOOT)?;
    outcome
}

/// Runs lines as one shell script, as cloud-init does: a failing line does not stop the others.
pub fn run_lines(what: &str, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    run_script(what, &format!("#!/bin/sh\n{}\n", lines.join("\n")))
}

/// The output goes to a file, and from there to the console: a service that a command leaves behind keeps the file, not a pipe that
/// somebody would have to read for ever.
fn run_script(what: &str, text: &str) -> Result<()> {
    let script = Path::new("/run/cloud-init").join(what.replace(' ', "-"));
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
    let log = File::options().create(true).append(true).open(LOG)?;
    let mut reader = File::open(LOG)?;
    std::io::Seek::seek(&mut reader, std::io::SeekFrom::End(0))?;
    let mut child = Command::new(&script)
        .env("HOME", "/root")
        .env("PATH", crate::initrd::PATH)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run the {what}"))?;
    let mut console = std::io::stdout();
    let status = loop {
        let status = child.try_wait()?;
        let mut new = Vec::new();
        reader.read_to_end(&mut new)?;
        console.write_all(&new)?;
        console.flush()?;
        match status {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        say(format_args!("{what}: {status}; see {LOG}"));
    }
    Ok(())
}

/// Until each interface that asked for DHCP has an answer.
fn wait_for_network() {
    let deadline = Instant::now() + NETWORK_WAITS;
    let pending = || {
        fs::read_dir("/run/dhcp").is_ok_and(|entries| {
            entries
                .flatten()
                .map(|e| e.path())
                .any(|p| p.extension().is_some_and(|e| e == "wanted") && !p.with_extension("done").exists())
        })
    };
    while pending() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}
