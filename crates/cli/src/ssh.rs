//! `ferrovirt ssh` and `scp`: the system's own programs, over a port forward of ours.

use std::{os::unix::process::CommandExt, path::PathBuf, process::Command};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::{
    client::ClientArgs,
    persona, shell,
    target::{self, Named},
};

#[derive(Args, Clone)]
struct SshOptions {
    #[command(flatten)]
    client: ClientArgs,
    /// Private key
    #[arg(short, long)]
    identity_file: Option<PathBuf>,
    /// File with the keys of known machines [default: what is known of the VM; ~/.ssh/kubevirt_known_hosts as virtctl]
    #[arg(long)]
    known_hosts: Option<PathBuf>,
    /// Port of the guest's ssh server
    #[arg(short, long, default_value_t = 22)]
    port: u16,
    /// User in the guest
    #[arg(short = 'l', long)]
    username: Option<String>,
    /// Further options of ssh, such as "-o StrictHostKeyChecking=no"; may be given several times
    #[arg(short = 't', long, allow_hyphen_values = true)]
    local_ssh_opts: Vec<String>,
    /// Accepted for upstream's sake: the local ssh is always used
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide = true)]
    local_ssh: Option<bool>,
}

#[derive(Args)]
pub struct SshArgs {
    /// The machine: [USER@]NAME or [USER@]vm/NAME[/NAMESPACE]
    target: String,
    #[command(flatten)]
    options: SshOptions,
    /// Run this command instead of a shell
    #[arg(short, long)]
    command: Option<String>,
    /// The same, after `--`
    #[arg(last = true)]
    words: Vec<String>,
}

#[derive(Args)]
pub struct ScpArgs {
    /// A file here, or [USER@]vm/NAME[/NAMESPACE]:FILE
    source: String,
    /// A file here, or [USER@]vm/NAME[/NAMESPACE]:FILE
    destination: String,
    #[command(flatten)]
    options: SshOptions,
    /// Copy directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and modes
    #[arg(long)]
    preserve: bool,
}

pub async fn ssh(arguments: SshArgs) -> Result<()> {
    let (user, named) = split_user(&arguments.target)?;
    let namespace = arguments.options.namespace(&named).await?;
    let (named_user, known) = arguments.options.known(&named).await?;
    let user = arguments.options.username.clone().or(user).or(named_user);
    let mut command = Command::new("ssh");
    command.args(arguments.options.words(&named, &namespace)?).args(known);
    if arguments.options.port != 22 {
        command.arg("-p").arg(arguments.options.port.to_string());
    }
    if let Some(user) = &user {
        command.arg("-l").arg(user);
    }
    command.arg(host(&named, &namespace));
    command.args(arguments.command).args(arguments.words);
    Err(replace(command))
}

pub async fn scp(arguments: ScpArgs) -> Result<()> {
    let (remote, local, upload) = match (split_file(&arguments.source)?, split_file(&arguments.destination)?) {
        (Some(remote), None) => (remote, &arguments.destination, false),
        (None, Some(remote)) => (remote, &arguments.source, true),
        (None, None) => bail!("neither file is in a machine: write one as [USER@]vm/NAME:FILE"),
        (Some(_), Some(_)) => bail!("both files are in machines: copy in two steps"),
    };
    let (user, named, file) = remote;
    let namespace = arguments.options.namespace(&named).await?;
    let (named_user, known) = arguments.options.known(&named).await?;
    let user = arguments.options.username.clone().or(user).or(named_user);
    let mut command = Command::new("scp");
    command.args(arguments.options.words(&named, &namespace)?).args(known);
    if arguments.options.port != 22 {
        command.arg("-P").arg(arguments.options.port.to_string());
    }
    if arguments.recursive {
        command.arg("-r");
    }
    if arguments.preserve {
        command.arg("-p");
    }
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let remote = format!("{user}{}:{file}", host(&named, &namespace));
    match upload {
        true => command.arg(local).arg(remote),
        false => command.arg(remote).arg(local),
    };
    Err(replace(command))
}

/// Becomes that program; returns only if it could not.
fn replace(mut command: Command) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let error = command.exec();
    anyhow!(error).context(format!("cannot start {program}: is the package openssh-client installed?"))
}

impl SshOptions {
    async fn namespace(&self, named: &Named) -> Result<String> {
        if let Some(namespace) = named.namespace.clone().or_else(|| self.client.namespace.clone()) {
            return Ok(namespace);
        }
        Ok(self.client.config().await?.default_namespace)
    }

    /// Who logs in if nobody is named, and how ssh knows the guest. What the user said comes before it, and counts.
    async fn known(&self, named: &Named) -> Result<(Option<String>, Vec<String>)> {
        if persona::is_virtctl() || self.known_hosts.is_some() {
            return Ok((None, vec![]));
        }
        shell::known(&self.client, named).await
    }

    /// The options that ssh and scp have in common.
    fn words(&self, named: &Named, namespace: &str) -> Result<Vec<String>> {
        let mut proxy = own_words(&self.client, &["port-forward", "--stdio=true"])?;
        proxy.push(quote(&format!("{}/{}/{namespace}", named.kind.short(), named.name)));
        proxy.push("%p".into());
        let mut words = vec!["-o".into(), format!("ProxyCommand={}", proxy.join(" "))];
        let known = match (&self.known_hosts, std::env::var_os("HOME")) {
            (Some(file), _) => Some(file.clone()),
            (None, Some(home)) if persona::is_virtctl() => Some(PathBuf::from(home).join(".ssh/kubevirt_known_hosts")),
            (None, _) => None,
        };
        if let Some(file) = known {
            words.extend(["-o".into(), format!("UserKnownHostsFile={}", file.display())]);
        }
        if let Some(file) = &self.identity_file {
            words.extend(["-i".into(), file.display().to_string()]);
        }
        for options in &self.local_ssh_opts {
            words.extend(options.split_whitespace().map(Into::into));
        }
        Ok(words)
    }
}

/// This program once more, with the same cluster, for the shell that runs a proxy command.
pub fn own_words(client: &ClientArgs, command: &[&str]) -> Result<Vec<String>> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut words = vec![quote(&own.to_string_lossy())];
    words.extend(command.iter().map(|word| quote(word)));
    if let Some(file) = &client.kubeconfig {
        words.push(quote(&format!("--kubeconfig={}", file.display())));
    }
    if let Some(context) = &client.context {
        words.push(quote(&format!("--context={context}")));
    }
    if let Some(directory) = &client.data_dir {
        words.push(quote(&format!("--data-dir={}", directory.display())));
    }
    Ok(words)
}

/// The name under which ssh remembers the machine's key.
fn host(named: &Named, namespace: &str) -> String {
    format!("{}.{}.{namespace}", named.kind.short(), named.name)
}

/// For the shell that runs a proxy command. A percent sign would be ssh's.
pub fn quote(text: &str) -> String {
    let escaped = text.replace('%', "%%");
    match escaped.chars().all(|c| c.is_ascii_alphanumeric() || "-_=/.%:@+".contains(c)) {
        true => escaped,
        false => format!("'{}'", escaped.replace('\'', r"'\''")),
    }
}

pub fn split_user(text: &str) -> Result<(Option<String>, Named)> {
    match text.rsplit_once('@') {
        Some((user, rest)) => Ok((Some(user.into()), target::path(rest)?)),
        None => Ok((None, target::path(text)?)),
    }
}

/// `[USER@]MACHINE:FILE`; none for a file of this machine.
fn split_file(text: &str) -> Result<Option<(Option<String>, Named, String)>> {
    let Some((machine, file)) = text.split_once(':') else { return Ok(None) };
    if machine.starts_with(['.', '/']) {
        return Ok(None);
    }
    let (user, named) = split_user(machine)?;
    Ok(Some((user, named, file.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    #[test]
    fn users_machines_and_files_are_told_apart() {
        let (user, named) = split_user("me@vm/a/n").unwrap();
        assert_eq!((user.as_deref(), named.kind, named.name.as_str()), (Some("me"), Kind::Machine, "a"));
        let (user, named, file) = split_file("me@vmi/a:dir/x:y").unwrap().unwrap();
        assert_eq!((user.as_deref(), named.name.as_str(), file.as_str()), (Some("me"), "a", "dir/x:y"));
        assert!(split_file("file").unwrap().is_none());
        assert!(split_file("./a:b").unwrap().is_none());
        assert!(split_file("pod/a:b").is_err());
    }

    #[test]
    fn a_proxy_command_survives_the_shell() {
        assert_eq!(quote("/usr/bin/ferrovirt"), "/usr/bin/ferrovirt");
        assert_eq!(quote("--kubeconfig=/a b/c"), "'--kubeconfig=/a b/c'");
        assert_eq!(quote("it's 100%"), r"'it'\''s 100%%'");
    }
}
