//! `ferrovirt start|stop|restart`.

use anyhow::{Result, bail};
use clap::Args;
use ferrovirt_api::v1::{RestartOptions, StartOptions, StopOptions, VirtualMachine, VirtualMachineInstance};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    discovery::Scope,
};

use crate::{
    client::{ClientArgs, dynamic},
    each, persona, socket,
    target::{self, Kind, Named},
    wait,
};

#[derive(Args)]
struct Common {
    /// The VMs, optionally with the word `vm` before them
    #[arg(required = true, num_args = 1.., value_name = "NAME")]
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
    let all = target::several(&arguments.words)?;
    if all.iter().any(|named| named.kind != Kind::Machine) {
        bail!("an instance cannot be started or stopped by itself; name its VM");
    }
    let client = arguments.client.connect().await?;
    let request = Request { verb, arguments: &arguments, client: &client, paused };
    // All are asked before the first is waited for.
    let mut asked = vec![];
    let refused = each::of(all, async |named| {
        asked.push(request.ask(named, options.clone()).await?);
        Ok(())
    });
    let refused = refused.await;
    each::both(refused, each::of(asked, async |asked| request.finish(asked).await).await)
}

struct Request<'a> {
    verb: &'a str,
    arguments: &'a Common,
    client: &'a Client,
    paused: bool,
}

/// A VM that was asked, and the instance that it had then.
struct Asked {
    name: String,
    namespace: String,
    before: Option<String>,
}

impl Request<'_> {
    fn waits(&self) -> bool {
        self.arguments.wait.unwrap_or(!persona::is_virtctl()) && !self.arguments.dry_run
    }

    fn instances(&self, namespace: &str) -> Api<DynamicObject> {
        dynamic(self.client, &ApiResource::erase::<VirtualMachineInstance>(&()), &Scope::Namespaced, namespace)
    }

    async fn ask(&self, named: Named, options: Vec<u8>) -> Result<Asked> {
        let namespace = named.namespace.unwrap_or_else(|| self.arguments.client.namespace(self.client).to_owned());
        let name = named.name;
        let before = match self.verb {
            "restart" if self.waits() => {
                self.instances(&namespace).get_opt(&name).await?.and_then(|vmi| vmi.metadata.uid)
            }
            _ => None,
        };
        let path = socket::path(&namespace, Kind::Machine.resource(), &name, self.verb);
        self.client.request_text(http::Request::put(path).body(options)?).await?;
        Ok(Asked { name, namespace, before })
    }

    async fn finish(&self, asked: Asked) -> Result<()> {
        let Asked { name, namespace, before } = &asked;
        if self.waits() {
            let resource = ApiResource::erase::<VirtualMachine>(&());
            let vms = dynamic(self.client, &resource, &Scope::Namespaced, namespace);
            let label = format!("vm/{name}");
            match self.verb {
                "stop" => wait::until_status(&vms, name, &label, "Stopped").await?,
                "start" if self.paused => wait::until_status(&vms, name, &label, "Paused").await?,
                // What the VM says of itself may still be about the instance that goes.
                "restart" => {
                    wait::until_another_runs(&self.instances(namespace), name, before.as_deref(), &label).await?;
                }
                _ => wait::until_ready(&vms, name, &label).await?,
            }
        }
        self.say(name);
        Ok(())
    }

    fn say(&self, name: &str) {
        let (verb, waits, dry_run) = (self.verb, self.waits(), self.arguments.dry_run);
        if persona::is_virtctl() {
            if dry_run {
                println!("Dry Run execution");
            }
            println!("VM {name} was scheduled to {verb}");
            return;
        }
        println!(
            "vm/{name} {}",
            match (verb, waits) {
                _ if dry_run => "would be accepted (dry run)",
                ("start", true) if self.paused => "is paused before its first instruction",
                ("start", true) => "is running",
                ("stop", true) => "is stopped",
                ("restart", true) => "was restarted",
                ("start", false) => "was scheduled to start",
                ("stop", false) => "was scheduled to stop",
                _ => "was scheduled to restart",
            }
        );
    }
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
