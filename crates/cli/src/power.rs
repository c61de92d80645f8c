//! `ferrovirt start|stop|restart`.

use anyhow::{Result, bail};
use clap::Args;
use ferrovirt_api::v1::{RestartOptions, StartOptions, StopOptions, VirtualMachine, VirtualMachineInstance};
use kube::{core::ApiResource, discovery::Scope};

use crate::{
    client::{ClientArgs, dynamic},
    persona, socket,
    target::{self, Kind},
    wait,
};

#[derive(Args)]
struct Common {
    /// The VM, optionally with the word `vm` before it
    #[arg(required = true, num_args = 1..=2, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Wait until it is done [default: true; false as virtctl]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait: Option<bool>,
    /// Only say what would happen
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    dry_run: bool,
}

#[derive(Args)]
pub struct StartArgs {
    #[command(flatten)]
    common: Common,
    /// Stop the guest before its first instruction
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    paused: bool,
}

#[derive(Args)]
pub struct StopArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    hurry: Hurry,
}

#[derive(Args)]
pub struct RestartArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    hurry: Hurry,
}

#[derive(Args)]
struct Hurry {
    /// Seconds that the guest gets to end by itself [default: the VM's own]
    #[arg(long, allow_negative_numbers = true)]
    grace_period: Option<i64>,
    /// Do not ask the guest at all; what it has not written to disk is lost
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    force: bool,
}

impl Hurry {
    /// The grace period to ask for. Upstream's `-1` means none.
    fn seconds(&self) -> Result<Option<i64>> {
        match (self.force, self.grace_period.filter(|seconds| *seconds != -1)) {
            (true, None | Some(0)) => Ok(Some(0)),
            (true, Some(seconds)) => bail!("--force ends the guest at once; leave --grace-period={seconds} away"),
            (false, Some(seconds)) if seconds < 0 => bail!("--grace-period={seconds}: seconds are not negative"),
            (false, Some(0)) => {
                bail!("--grace-period=0 ends the guest without asking it; say --force as well if you mean that")
            }
            (false, seconds) => Ok(seconds),
        }
    }
}

pub async fn start(arguments: StartArgs) -> Result<()> {
    let options = StartOptions { paused: arguments.paused, dry_run: dry_run(arguments.common.dry_run) };
    run("start", arguments.common, serde_json::to_vec(&options)?, arguments.paused).await
}

pub async fn stop(arguments: StopArgs) -> Result<()> {
    let options = StopOptions { grace_period: arguments.hurry.seconds()?, dry_run: dry_run(arguments.common.dry_run) };
    run("stop", arguments.common, serde_json::to_vec(&options)?, false).await
}

pub async fn restart(arguments: RestartArgs) -> Result<()> {
    let options =
        RestartOptions { grace_period_seconds: arguments.hurry.seconds()?, dry_run: dry_run(arguments.common.dry_run) };
    run("restart", arguments.common, serde_json::to_vec(&options)?, false).await
}

pub fn dry_run(on: bool) -> Vec<String> {
    if on { vec!["All".into()] } else { vec![] }
}

async fn run(verb: &str, arguments: Common, options: Vec<u8>, paused: bool) -> Result<()> {
    let named = target::words(&arguments.words)?;
    if named.kind != Kind::Machine {
        bail!("an instance cannot be started or stopped by itself; name its VM");
    }
    let name = named.name.as_str();
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let waits = arguments.wait.unwrap_or(!persona::is_virtctl()) && !arguments.dry_run;
    let resource = ApiResource::erase::<VirtualMachineInstance>(&());
    let vmis = dynamic(&client, &resource, &Scope::Namespaced, &namespace);
    let before = match verb {
        "restart" if waits => vmis.get_opt(name).await?.and_then(|vmi| vmi.metadata.uid),
        _ => None,
    };
    let path = socket::path(&namespace, Kind::Machine.resource(), name, verb);
    client.request_text(http::Request::put(path).body(options)?).await?;
    if waits {
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let vms = dynamic(&client, &resource, &Scope::Namespaced, &namespace);
        let label = format!("vm/{name}");
        match verb {
            "stop" => wait::until_status(&vms, name, &label, "Stopped").await?,
            "start" if paused => wait::until_status(&vms, name, &label, "Paused").await?,
            // What the VM says of itself may still be about the instance that goes.
            "restart" => wait::until_another_runs(&vmis, name, before.as_deref(), &label).await?,
            _ => wait::until_ready(&vms, name, &label).await?,
        }
    }
    if persona::is_virtctl() {
        if arguments.dry_run {
            println!("Dry Run execution");
        }
        println!("VM {name} was scheduled to {verb}");
        return Ok(());
    }
    println!(
        "vm/{name} {}",
        match (verb, waits) {
            _ if arguments.dry_run => "would be accepted (dry run)",
            ("start", true) if paused => "is paused before its first instruction",
            ("start", true) => "is running",
            ("stop", true) => "is stopped",
            ("restart", true) => "was restarted",
            ("start", false) => "was scheduled to start",
            ("stop", false) => "was scheduled to stop",
            _ => "was scheduled to restart",
        }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hurry_is_meant_or_refused() {
        let check = |grace_period, force| Hurry { grace_period, force }.seconds().map_err(|error| error.to_string());
        assert_eq!(check(None, false), Ok(None));
        assert_eq!(check(Some(-1), false), Ok(None));
        assert_eq!(check(Some(5), false), Ok(Some(5)));
        assert_eq!(check(None, true), Ok(Some(0)));
        assert_eq!(check(Some(0), true), Ok(Some(0)));
        assert!(check(Some(0), false).unwrap_err().contains("--force"));
        assert!(check(Some(5), true).is_err());
        assert!(check(Some(-2), false).is_err());
    }
}
