//! The boot step on the root disk: devices, cloud-init data, accounts, network. Everything that must stand before a login prompt.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::cloud::{self, Config, Data, UserData, WriteFile};
use crate::devices::{self, FileSystem};
use crate::final_stage;
use crate::host_key;
use crate::modules::{self, Scope};
use crate::network;
use crate::say;
use crate::users::Accounts;

/// A copy of the data disk's files; the disk itself is free to go.
pub const DATA: &str = "/run/cloud-init/data";
/// Present while the commands of a new instance have not run.
pub const FIRST_BOOT: &str = "/run/cloud-init/first-boot";
/// The instance whose data was applied last.
pub const INSTANCE: &str = "/var/lib/cloud/instance-id";

/// The user's commands usually end before the prompt; one that takes longer goes on beside it.
const PROMPT_WAITS: Duration = Duration::from_secs(3);

/// What the guest runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel of its own.
    Machine,
    /// The node's kernel, which brought devices and terminals along.
    Container,
}

impl Kind {
    pub fn of(word: Option<&str>) -> Self {
        if word == Some("container") { Kind::Container } else { Kind::Machine }
    }
}

/// Where the data of a container is.
const SEED: &str = "/var/lib/cloud/seed/nocloud";

pub fn run(on: Kind) -> Result<()> {
    if on == Kind::Container {
        println!();
        say("user space is up");
    }
    for (kind, target, data) in
        [("tmpfs", "/run", c"mode=0755"), ("tmpfs", "/tmp", c"mode=1777"), ("devpts", "/dev/pts", c"mode=0620,gid=5")]
    {
        if on == Kind::Container && kind == "devpts" {
            continue;
        }
        fs::create_dir_all(target)?;
        mount(kind, target, kind, MountFlags::NOSUID, data).with_context(|| format!("cannot mount {target}"))?;
    }
    if on == Kind::Machine {
        for module in ["button", "evdev"] {
            report(modules::load(module));
        }
        report(modules::load_for_devices(Scope::All));
    }

    let data = match if on == Kind::Container { seed_data() } else { find_data() } {
        Ok(data) => data,
        Err(error) => {
            say(format_args!("cloud-init data is not usable: {error:#}"));
            None
        }
    };
    let hostname = apply(data.as_ref())?;
    let nics = network::nics(on);
    let plan = network::plan(data.as_ref().and_then(|d| d.network.as_ref()), &nics);
    report(network::apply(&plan, &hostname));
    if !nics.is_empty() {
        report(start_ssh(data.as_ref()));
    }

    // A role of its own, so that it can outlive this step.
    let mut last = Command::new("/sbin/guest-init").arg("final").spawn().context("cannot start the final step")?;
    let deadline = Instant::now() + PROMPT_WAITS;
    while last.try_wait()?.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        say(format_args!("{error:#}"));
    }
}

fn find_data() -> Result<Option<Data>> {
    let Some((device, kind, label)) = devices::find(&["cidata", "config-2"]) else {
        say("no cloud-init data disk (cidata or config-2) found; no user has a password");
        return Ok(None);
    };
    match kind {
        FileSystem::Iso9660 => modules::load("isofs")?,
        FileSystem::Vfat => ["vfat", "nls_cp437", "nls_ascii"].into_iter().try_for_each(modules::load)?,
        FileSystem::Ext => {}
    }
    let mnt = Path::new("/run/cloud-init/mnt");
    fs::create_dir_all(mnt)?;
    mount(&device, mnt, kind.name(), MountFlags::RDONLY, None)
        .with_context(|| format!("cannot mount {} ({label})", device.display()))?;
    let copied = copy_tree(mnt, Path::new(DATA));
    unmount(mnt, UnmountFlags::empty())?;
    copied?;
    // Passwords may be in there.
    fs::set_permissions("/run/cloud-init", fs::Permissions::from_mode(0o700))?;
    let data = cloud::read(Path::new(DATA))?;
    say(format_args!("cloud-init data: {} on {}, instance {}", data.source, device.display(), data.instance_id));
    Ok(Some(data))
}

fn seed_data() -> Result<Option<Data>> {
    if !Path::new(SEED).exists() {
        say("no cloud-init data; no user has a password");
        return Ok(None);
    }
    copy_tree(Path::new(SEED), Path::new(DATA))?;
    // Passwords may be in there.
    fs::set_permissions("/run/cloud-init", fs::Permissions::from_mode(0o700))?;
    let data = cloud::read(Path::new(DATA))?;
    say(format_args!("cloud-init data: {} in {SEED}, instance {}", data.source, data.instance_id));
    Ok(Some(data))
}

/// Applies what concerns accounts, files and names; returns the host name.
fn apply(data: Option<&Data>) -> Result<String> {
    let config = match data.map(|d| &d.user_data) {
        Some(UserData::Config(config)) => Some(config.as_ref()),
        Some(UserData::Unknown(line)) => {
            say(format_args!("user-data of a kind this guest does not know is ignored: {line}"));
            None
        }
        _ => None,
    };
    let hostname = set_hostname(data, config)?;
    let Some(data) = data else {
        return Ok(hostname);
    };
    fs::create_dir_all("/var/lib/cloud")?;
    let first = fs::read_to_string(INSTANCE).unwrap_or_default().trim() != data.instance_id;
    if first {
        fs::write(FIRST_BOOT, &data.instance_id)?;
    }
    if let Some(config) = config {
        report(final_stage::run_lines("bootcmd", &config.boot_commands));
        if first {
            apply_once(config);
        }
    }
    Ok(hostname)
}

fn apply_once(config: &Config) {
    for key in &config.ignored {
        say(format_args!("cloud-config: {key} is ignored by this small guest"));
    }
    let accounts = || -> Result<()> {
        let mut accounts = Accounts::load("/")?;
        for user in &config.users {
            report(accounts.apply(user).with_context(|| format!("user {}", user.name)));
        }
        accounts.save()
    };
    report(accounts());
    if let Some(key) = &config.host_key {
        let install = || host_key::install(&base64(&host_key::body(key)?)?, Path::new(host_key::FILE));
        report(install());
    }
    for file in &config.files {
        report(write_file(file).with_context(|| format!("write_files {}", file.path)));
    }
}

fn set_hostname(data: Option<&Data>, config: Option<&Config>) -> Result<String> {
    let wanted = config.and_then(|c| c.hostname.clone()).or_else(|| data.and_then(|d| d.hostname.clone()));
    let stored = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = wanted.unwrap_or_else(|| stored.trim().to_string());
    let name = name.split('.').next().filter(|n| !n.is_empty()).unwrap_or("localhost").to_string();
    rustix::system::sethostname(name.as_bytes()).context("cannot set the host name")?;
    if stored.trim() != name {
        fs::write("/etc/hostname", format!("{name}\n"))?;
        fs::write("/etc/hosts", format!("127.0.0.1\tlocalhost\n127.0.1.1\t{name}\n::1\tlocalhost\n"))?;
    }
    Ok(name)
}

fn write_file(file: &WriteFile) -> Result<()> {
    let content = match file.encoding.as_str() {
        "" | "text/plain" => file.content.clone().into_bytes(),
        "b64" | "base64" => base64(&file.content)?,
        other => bail!("the encoding {other} is not known here"),
    };
    let path = PathBuf::from(&file.path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut options = fs::File::options();
    options.create(true).write(true).append(file.append).truncate(!file.append);
    options.open(&path)?.write_all(&content)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(file.permissions.unwrap_or(0o644)))?;
    if let Some(owner) = &file.owner {
        Command::new("chown").arg(owner).arg(&path).status()?;
    }
    Ok(())
}

fn base64(text: &str) -> Result<Vec<u8>> {
    let mut child =
        Command::new("busybox").args(["base64", "-d"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let text = text.to_string();
        std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    }
    let out = child.wait_with_output()?;
    if out.status.success() { Ok(out.stdout) } else { bail!("not base64") }
}

fn start_ssh(data: Option<&Data>) -> Result<()> {
    let (passwords, given) = match data.map(|d| &d.user_data) {
        Some(UserData::Config(config)) => (config.ssh_passwords.unwrap_or(true), config.host_key.is_some()),
        _ => (true, false),
    };
    let given = given && Path::new(host_key::FILE).exists();
    fs::create_dir_all("/etc/dropbear")?;
    let mut command = Command::new("/usr/sbin/dropbear");
    // -R makes the host keys at the first connection: no boot waits for them. One that was given is the only one. -w: no login as root.
    command.arg("-w").args((!given).then_some("-R")).args((!passwords).then_some("-s"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start dropbear")?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
