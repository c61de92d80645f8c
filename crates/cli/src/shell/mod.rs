//! `ferrovirt shell`, `exec` and `cp`: into a guest with the machine's own ssh, a key of our own, and host keys that are known.
//!
//! The user's key is made here and stays here; `run` puts its public half into the VMs that it makes. Their host key is made by `run`, too, and
//! goes into the guest by cloud-init, in a Secret; its public half is an annotation of the VM. So nobody is asked whether a fingerprint is right,
//! and a guest that was restarted is the same. docs/guests.md tells users.

mod home;
mod key;
mod machine;
mod options;
mod proxy;

use std::{
    io::{ErrorKind, IsTerminal},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use ferrovirt_api::v1::VirtualMachineInstance;
use kube::{Client, core::ApiResource, discovery::Scope};
use serde_json::Value;

pub use home::Home;
pub use key::Key;
pub use machine::{Machine, is_user};
pub use proxy::{ProxyArgs, run as proxy};

use crate::{
    client::{ClientArgs, dynamic, explain},
    console::{self, ConsoleArgs},
    socket, ssh,
    target::{Kind, Named},
    wait,
};

/// Annotation of a VM: who logs in.
pub const USER: &str = "ferrovirt.io/ssh-user";
/// Annotation of a VM: the ssh host key that it was given, as `ssh-ed25519 AAAA…`.
pub const HOST_KEY: &str = "ferrovirt.io/ssh-host-key";

/// How long a guest that has just been started may take to start its ssh server.
const BOOT: u64 = 180;
/// After this a guest has booted, and what does not answer will not.
const BOOTED: i64 = 300;
/// For those that have booted.
const MOMENT: u64 = 5;
/// What ssh says of itself, not of the guest's command.
const FAILED: i32 = 255;
/// What a VM says of itself when waiting for it is of no use.
const HOPELESS: [&str; 6] = [
    "ErrorUnschedulable",
    "ErrImagePull",
    "ImagePullBackOff",
    "CrashLoopBackOff",
    "ErrorPvcNotFound",
    "DataVolumeError",
];
/// A login that fails takes less, one that was used takes more.
const AT_ONCE: Duration = Duration::from_secs(30);

#[derive(Args, Clone)]
struct LoginArgs {
    /// User in the guest [default: the one that the VM names]
    #[arg(short = 'l', long, value_name = "USER")]
    username: Option<String>,
    /// Private key [default: ferrovirt's own, then those in ~/.ssh]
    #[arg(short, long)]
    identity_file: Option<PathBuf>,
    /// Port of the guest's ssh server
    #[arg(short, long, default_value_t = 22)]
    port: u16,
    /// Seconds to wait for the guest's ssh server [default: 180 while the guest may be booting, then 5]
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Take the host key that the guest shows instead of the one that it was given
    #[arg(long)]
    accept_host_key: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args)]
pub struct ShellArgs {
    /// The machine: [USER@]NAME or [USER@]vm/NAME[/NAMESPACE]
    target: String,
    #[command(flatten)]
    login: LoginArgs,
}

#[derive(Args)]
pub struct ExecArgs {
    /// The machine: [USER@]NAME or [USER@]vm/NAME[/NAMESPACE]
    target: String,
    #[command(flatten)]
    login: LoginArgs,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments, as they are: for pipes and variables in the guest use sh -c
    #[arg(last = true, required = true, value_name = "COMMAND")]
    words: Vec<String>,
}

#[derive(Args)]
pub struct CpArgs {
    /// Files here, or [USER@]NAME:FILE in a guest; the last one is where they go
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    files: Vec<String>,
    #[command(flatten)]
    login: LoginArgs,
    /// Copy directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and modes
    #[arg(long)]
    preserve: bool,
}

pub async fn shell(arguments: ShellArgs) -> Result<()> {
    let terminal = std::io::stdin().is_terminal();
    let (user, named) = parse(&arguments.target)?;
    let session = Session::prepare(&arguments.login, user, named).await?;
    if session.user.is_none() && terminal {
        eprintln!("{}", session.nobody());
        return session.console().await;
    }
    let mut ssh = session.ssh()?;
    ssh.arg(session.machine.host());
    match session.run(ssh).await? {
        Ended::Unreachable(why) if terminal => {
            eprintln!("{why}; this is its console instead");
            session.console().await
        }
        ended => ended.leave(),
    }
}

pub async fn exec(arguments: ExecArgs) -> Result<()> {
    let (user, named) = parse(&arguments.target)?;
    let session = Session::prepare(&arguments.login, user, named).await?;
    let mut ssh = session.ssh()?;
    // Bytes are bytes: nothing in them means anything to ssh.
    ssh.args(["-o", "EscapeChar=none"]).arg(if arguments.tty { "-tt" } else { "-T" });
    ssh.arg(session.machine.host()).arg("--").arg(options::line(&arguments.words));
    session.run(ssh).await?.leave()
}

pub async fn cp(arguments: CpArgs) -> Result<()> {
    let copy = Copy::parse(&arguments.files)?;
    let session = Session::prepare(&arguments.login, copy.user.clone(), copy.named.clone()).await?;
    let mut scp = Command::new("scp");
    scp.args(session.words()?);
    for (wanted, flag) in [(arguments.recursive, "-r"), (arguments.preserve, "-p")] {
        if wanted {
            scp.arg(flag);
        }
    }
    let remote = format!("{}@{}:", session.user()?, session.machine.host());
    scp.arg("--").args(copy.words(&remote));
    session.run(scp).await?.leave()
}

/// `[USER@]NAME` and the longer forms. A name alone is a VM's.
fn parse(text: &str) -> Result<(Option<String>, Named)> {
    let (user, mut named) = ssh::split_user(text)?;
    if !text.contains('/') {
        named.kind = Kind::Machine;
    }
    for name in [Some(&named.name), named.namespace.as_ref()].into_iter().flatten() {
        ensure!(machine::is_name(name), "{name:?} cannot be the name of an object");
    }
    Ok((user, named))
}

/// Which files go where.
#[derive(Debug, PartialEq, Eq)]
struct Copy {
    user: Option<String>,
    named: Named,
    /// Whether they go into the guest.
    upload: bool,
    here: Vec<String>,
    there: Vec<String>,
}

impl Copy {
    fn parse(files: &[String]) -> Result<Self> {
        let Some((last, sources)) = files.split_last() else { bail!("which files?") };
        let parsed = |text: &String| -> Result<Option<(Option<String>, Named, String)>> {
            let Some((machine, _)) = text.split_once(':').filter(|_| !text.starts_with(['.', '/'])) else {
                return Ok(None);
            };
            let (user, named) = parse(machine)?;
            let file = text.get(machine.len() + 1..).unwrap_or_default();
            Ok(Some((user, named, file.to_owned())))
        };
        // A name with a colon or a leading dash is still a file.
        let local = |text: &String| if text.starts_with(['.', '/']) { text.clone() } else { format!("./{text}") };
        let sources_there = sources.iter().map(parsed).collect::<Result<Vec<_>>>()?;
        match (parsed(last)?, sources_there.first()) {
            (Some(_), _) if sources_there.iter().any(Option::is_some) => {
                bail!("the files are in guests on both sides: copy in two steps")
            }
            (Some((user, named, file)), _) => {
                Ok(Self { user, named, upload: true, here: sources.iter().map(local).collect(), there: vec![file] })
            }
            (None, Some(Some((user, named, _)))) => {
                let mut there = vec![];
                for source in &sources_there {
                    match source {
                        Some((as_user, of, file)) if (as_user, of) == (user, named) => there.push(file.clone()),
                        _ => bail!("all files to copy must be in the same guest"),
                    }
                }
                Ok(Self { user: user.clone(), named: named.clone(), upload: false, here: vec![local(last)], there })
            }
            (None, _) => bail!("no file is in a guest: write one as NAME:FILE"),
        }
    }

    /// For scp; `remote` is the user and the guest, with a colon.
    fn words(&self, remote: &str) -> Vec<String> {
        let there = self.there.iter().map(|file| format!("{remote}{file}"));
        match self.upload {
            true => self.here.iter().cloned().chain(there).collect(),
            false => there.chain(self.here.iter().cloned()).collect(),
        }
    }
}

struct Session<'a> {
    login: &'a LoginArgs,
    client: Client,
    machine: Machine,
    user: Option<String>,
    trust: home::Trust,
    identities: Vec<PathBuf>,
}

enum Ended {
    With(ExitStatus),
    /// There is no server to log in to.
    Unreachable(String),
}

impl<'a> Session<'a> {
    async fn prepare(login: &'a LoginArgs, user: Option<String>, named: Named) -> Result<Self> {
        let config = login.client.config().await?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config)?;
        let namespace = named.namespace.clone().unwrap_or_else(|| login.client.namespace(&client).to_owned());
        let machine = find(&client, &namespace, &named).await?;
        let user = login.username.clone().or(user).or_else(|| machine.user.clone());
        if let Some(user) = &user {
            ensure!(is_user(user), "{user:?} cannot be a user's name");
        }
        let home = Home::open()?;
        home.public_key()?;
        let trust = home.trust(&server, &machine, login.accept_host_key)?;
        if let Some(note) = &trust.note {
            eprintln!("{note}");
        }
        let identities = match &login.identity_file {
            Some(file) => {
                ensure!(file.exists(), "there is no key {}", file.display());
                vec![std::path::absolute(file)?]
            }
            None => std::iter::once(home.identity()).chain(own_keys()).collect(),
        };
        Ok(Self { login, client, machine, user, trust, identities })
    }

    fn user(&self) -> Result<&str> {
        self.user.as_deref().ok_or_else(|| anyhow!("{}", self.nobody()))
    }

    fn nobody(&self) -> String {
        let (title, name) = (self.machine.title(), &self.machine.name);
        format!("{title} does not say who logs in: give -l USER, or use `ferrovirt console {name}`")
    }

    /// The options of ssh and scp.
    fn words(&self) -> Result<Vec<String>> {
        let wait = self.login.wait.unwrap_or(match self.machine.running_for {
            Some(seconds) if seconds > BOOTED => MOMENT,
            _ => BOOT,
        });
        let mut proxy = ssh::own_words(&self.login.client, &["ssh-proxy"])?;
        proxy.push(format!("--wait={wait}"));
        proxy.push(ssh::quote(&format!(
            "{}/{}/{}",
            self.machine.kind.short(),
            self.machine.name,
            self.machine.namespace
        )));
        proxy.push(self.login.port.to_string());
        let batch = !std::io::stdin().is_terminal() && !std::io::stderr().is_terminal();
        let (machine, identities, trust) = (&self.machine, &self.identities, &self.trust);
        options::Login { machine, identities, trust, proxy: &proxy.join(" "), batch }.words()
    }

    fn ssh(&self) -> Result<Command> {
        let mut command = Command::new("ssh");
        command.args(self.words()?).arg("-l").arg(self.user()?);
        Ok(command)
    }

    /// Runs ssh or scp to its end. If it could not log in, says what may help.
    async fn run(&self, mut command: Command) -> Result<Ended> {
        let program = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let status = tokio::task::spawn_blocking(move || command.status()).await?;
        let status = status.map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow!("there is no {program} on this machine: install the package openssh-client"),
            _ => anyhow!(error).context(format!("cannot start {program}")),
        })?;
        if status.code() != Some(FAILED) || started.elapsed() > AT_ONCE.max(self.patience()) {
            return Ok(Ended::With(status));
        }
        let below = format!("portforward/{}/tcp", self.login.port);
        let path = socket::path(&self.machine.namespace, Kind::Instance.resource(), &self.machine.name, &below);
        if let Err(error) = proxy::answers(&self.client, &path).await {
            return Ok(Ended::Unreachable(format!("{}: {}", self.machine.title(), explain(&error))));
        }
        eprintln!("{}", self.advice());
        Ok(Ended::With(status))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.login.wait.unwrap_or(BOOT) + MOMENT)
    }

    fn advice(&self) -> String {
        let (name, namespace) = (&self.machine.name, &self.machine.namespace);
        let user = self.user.as_deref().unwrap_or("USER");
        let mut text = format!(
            "If ssh could not log in because the guest of {} does not know your key:\n  \
             ferrovirt credentials add-ssh-key {name} -n {namespace} --user {user}    lets it in, if the guest has an agent\n  \
             ferrovirt console {name} -n {namespace}    logs in with a password",
            self.machine.title()
        );
        if self.trust.promised {
            text.push_str(
                "\nIf the guest showed another host key: its image may not take the one that it was given; --accept-host-key takes its own",
            );
        }
        text
    }

    async fn console(&self) -> Result<()> {
        let name = format!("vmi/{}/{}", self.machine.name, self.machine.namespace);
        console::run(ConsoleArgs {
            name,
            client: self.login.client.clone(),
            scrollback: None,
            timeout: None,
            log: false,
            follow: false,
        })
        .await
    }
}

/// There is no server to log in to: the exit code is that of ssh.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoServer(String);

impl Ended {
    /// Ends this program as ssh ended, which is as the guest's command ended.
    fn leave(self) -> Result<()> {
        let status = match self {
            Self::With(status) if status.success() => return Ok(()),
            Self::With(status) => status,
            Self::Unreachable(why) => return Err(NoServer(why).into()),
        };
        std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }
}

/// The VM and its instance, once that runs.
async fn find(client: &Client, namespace: &str, named: &Named) -> Result<Machine> {
    // Also for an instance: what was promised is written on its VM.
    let vm = match (get(client, namespace, Kind::Machine, &named.name).await, named.kind) {
        (Err(error), Kind::Machine) => return Err(error),
        (vm, _) => vm.ok().flatten(),
    };
    let mut instance = get(client, namespace, Kind::Instance, &named.name).await?;
    let title = match (&vm, &instance) {
        (None, None) => {
            let message = format!("virtualmachines.kubevirt.io {:?} not found", named.name);
            return Err(refusal(&message, "NotFound", 404));
        }
        (Some(_), _) => format!("virtualmachine/{}", named.name),
        (None, Some(_)) => format!("virtualmachineinstance/{}", named.name),
    };
    let runs = |instance: &Option<Value>| instance.as_ref().is_some_and(|i| i["status"]["phase"] == "Running");
    if !runs(&instance) {
        let status = vm.as_ref().and_then(|vm| vm["status"]["printableStatus"].as_str()).unwrap_or_default();
        if status == "Stopped" && instance.is_none() {
            return Err(not_running(&title));
        }
        if HOPELESS.contains(&status) {
            bail!("{title} does not start: {status}; `ferrovirt why {} -n {namespace}` says why", named.name);
        }
        let resource = ApiResource::erase::<VirtualMachineInstance>(&());
        let instances = dynamic(client, &resource, &Scope::Namespaced, namespace);
        wait::until_another_runs(&instances, &named.name, None, &title).await?;
        instance = get(client, namespace, Kind::Instance, &named.name).await?;
    }
    let instance = instance.filter(|instance| instance["status"]["phase"] == "Running");
    let instance = instance.ok_or_else(|| not_running(&title))?;
    let conditions = instance["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.iter().any(|condition| condition["type"] == "Paused" && condition["status"] == "True") {
        return Err(refusal(&format!("{title} is paused"), "Conflict", 409));
    }
    // Another VM of that name may be there, which has nothing to do with it.
    let owners = instance["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let vm = vm.filter(|vm| owners.iter().any(|owner| owner["uid"] == vm["metadata"]["uid"]));
    Ok(Machine::of(vm.as_ref(), &instance, jiff::Timestamp::now()))
}

/// For `ferrovirt ssh` and `scp`: who logs in, and the options by which ssh knows the guest's host key. What else it does is the user's.
pub async fn known(arguments: &ClientArgs, named: &Named) -> Result<(Option<String>, Vec<String>)> {
    for name in [Some(&named.name), named.namespace.as_ref()].into_iter().flatten() {
        ensure!(machine::is_name(name), "{name:?} cannot be the name of an object");
    }
    let config = arguments.config().await?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config)?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.namespace(&client).to_owned());
    let machine = find(&client, &namespace, named).await?;
    let home = Home::open()?;
    home.public_key()?;
    let trust = home.trust(&server, &machine, false)?;
    if let Some(note) = &trust.note {
        eprintln!("{note}");
    }
    let mut options = options::host_key(&machine, &trust)?;
    // As soon as one is named, ssh does not look for the user's own by itself.
    for path in own_keys().iter().chain([&home.identity()]) {
        options.push(options::identity(path)?);
    }
    let words = options.into_iter().flat_map(|option| ["-o".to_owned(), option]);
    Ok((machine.user.clone(), words.collect()))
}

async fn get(client: &Client, namespace: &str, kind: Kind, name: &str) -> Result<Option<Value>> {
    let path = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/{}/{name}", kind.resource());
    match client.request::<Value>(http::Request::get(path).body(vec![])?).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn not_running(title: &str) -> anyhow::Error {
    refusal(&format!("{title} is not running"), "Conflict", 409)
}

/// Said as the API would, so that it ends with the same code and the same next step.
fn refusal(message: &str, reason: &str, code: u16) -> anyhow::Error {
    kube::Error::Api(Box::new(kube::core::Status::failure(message, reason).with_code(code))).into()
}

/// Keys that the user has anyway, and that guests of others may know.
fn own_keys() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let keys = ["id_ed25519", "id_ecdsa", "id_rsa"].map(|name| home.join(".ssh").join(name));
    keys.into_iter().filter(|path| path.is_absolute() && path.exists()).collect()
}

/// The words for `authorized_keys` of guests, and where its private half is.
pub fn public_key() -> Result<String> {
    let home = Home::open().context("cannot keep an ssh key")?;
    Ok(format!("{} ferrovirt", home.public_key()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_a_vms_and_nothing_else_gets_through() {
        let (user, named) = parse("me@web").unwrap();
        assert_eq!((user.as_deref(), named.kind, named.name.as_str()), (Some("me"), Kind::Machine, "web"));
        assert_eq!(parse("vmi/web/shop").unwrap().1.kind, Kind::Instance);
        for bad in ["", "-oProxyCommand=x", "a b", "$(id)", "vm/a/;b", "vm/a'b"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_guest_without_a_server_ends_a_command_as_ssh_does() {
        let error = Ended::Unreachable("vm/web: refused".to_owned()).leave().unwrap_err();
        assert_eq!((crate::exit::code(&error), error.to_string().as_str()), (255, "vm/web: refused"));
    }

    #[test]
    fn files_go_one_way() {
        let parse = |files: &[&str]| Copy::parse(&files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
        let up = parse(&["-x", "/abs", "./a:b", "me@web:dir/x:y"]).unwrap();
        assert_eq!(up.words("me@web.shop:"), ["./-x", "/abs", "./a:b", "me@web.shop:dir/x:y"]);
        assert_eq!(up.user.as_deref(), Some("me"));
        let down = parse(&["web:a", "web:b", "dir"]).unwrap();
        assert_eq!(down.words("me@web.shop:"), ["me@web.shop:a", "me@web.shop:b", "./dir"]);
        for bad in [&["a", "b"][..], &["web:a", "web:b"], &["web:a", "db:b", "c"], &["web:a", "b", "c"], &["a"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
