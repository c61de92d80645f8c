//! What this program keeps for one user between two logins: a key of its own, and which host key each VM has.
//!
//! ```text
//! ~/.local/share/ferrovirt/ssh/
//!     id_ed25519, id_ed25519.pub     made at first use; the private half never leaves this machine
//!     known/<uid>                    known_hosts of one VM, or of one instance whose key nobody promised
//!     names/<hash>                   which VM a name was at the last login
//! ```

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_disks::digest::Digest;
use serde::{Deserialize, Serialize};

use super::{key::Key, machine::Machine};

const KEY: &str = "id_ed25519";

pub struct Home {
    directory: PathBuf,
}

/// How ssh is to know the guest.
#[derive(Debug, PartialEq, Eq)]
pub struct Trust {
    pub known_hosts: PathBuf,
    /// Whether the key is known already. Otherwise the first one that is shown is taken and kept.
    pub promised: bool,
    /// For the user to read.
    pub note: Option<String>,
}

/// What a name was at the last login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    /// Of the VM.
    uid: String,
    /// Whose host key was kept.
    pin: String,
    /// The user said that the guest's own key counts, not the promised one.
    #[serde(default)]
    accepted: bool,
}

impl Home {
    /// The user's own. Made if it is not there.
    pub fn open() -> Result<Self> {
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let uid = rustix::process::geteuid().as_raw();
        // As root with somebody's home, as some sudo leaves it: he could lead us anywhere, and root has one as well.
        let own = |home: &PathBuf| home.is_absolute() && fs::metadata(home).is_ok_and(|found| found.uid() == uid);
        let home = || std::env::var_os("HOME").map(PathBuf::from).filter(own);
        let home = data.or_else(|| Some(home().or_else(|| home_of(uid).filter(own))?.join(".local/share")));
        let data = home.context("there is no place for an ssh key: HOME is not a directory of yours")?;
        Self::at(&data.join("ferrovirt/ssh"))
    }

    fn at(directory: &Path) -> Result<Self> {
        let text = directory.to_str().unwrap_or_default();
        // ssh gives these a meaning of their own.
        ensure!(
            !text.is_empty() && !text.contains(['"', '\\', '$', '\n']),
            "ssh cannot use a file below {}: its name has a quote, a backslash, a dollar sign or a line break",
            directory.display()
        );
        for path in [directory, &directory.join("known"), &directory.join("names")] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.with_context(|| format!("cannot make {}", path.display()))?;
            let metadata = fs::symlink_metadata(path)?;
            let private = metadata.is_dir()
                && metadata.uid() == rustix::process::geteuid().as_raw()
                && metadata.mode() & 0o077 == 0;
            ensure!(private, "{} is not yours alone: make it a directory of yours and `chmod 700` it", path.display());
        }
        Ok(Self { directory: directory.to_owned() })
    }

    pub fn identity(&self) -> PathBuf {
        self.directory.join(KEY)
    }

    /// The user's key, and the words for `authorized_keys`. Made at first use.
    pub fn public_key(&self) -> Result<String> {
        let path = self.identity();
        if !path.exists() {
            let text = Key::generate()?.private("ferrovirt")?;
            self.write_new(&path, &text)?;
        }
        let read = || format!("cannot use the key {}", path.display());
        let text = fs::read_to_string(&path).with_context(read)?;
        let public = Key::parse(&text).with_context(read)?.public();
        let beside = path.with_extension("pub");
        if !beside.exists() {
            self.write_new(&beside, &format!("{public} ferrovirt\n"))?;
        }
        Ok(public)
    }

    /// Writes a whole file, unless somebody was faster.
    fn write_new(&self, path: &Path, text: &str) -> Result<()> {
        let temporary = self.write_temporary(path, text)?;
        let linked = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary)?;
        match linked {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot write {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn replace(&self, path: &Path, text: &str) -> Result<()> {
        let temporary = self.write_temporary(path, text)?;
        fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_temporary(&self, path: &Path, text: &str) -> Result<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.directory.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        let wrong = || format!("cannot write {}", temporary.display());
        let mut file =
            fs::File::options().write(true).create_new(true).mode(0o600).open(&temporary).with_context(wrong)?;
        file.write_all(text.as_bytes()).with_context(wrong)?;
        Ok(temporary)
    }

    /// How the guest of a machine is known. Remembers the machine, so that another one of its name is noticed.
    pub fn trust(&self, server: &str, machine: &Machine, accept: bool) -> Result<Trust> {
        let file = self.name_file(server, &machine.namespace, &machine.name);
        let before = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Seen>(&text).ok());
        let same = before.as_ref().filter(|seen| seen.uid == machine.uid);
        let accepted = accept || same.is_some_and(|seen| seen.accepted);
        let promised = machine.host_key.as_deref().filter(|_| !accepted);
        let pin = if promised.is_some() { &machine.uid } else { &machine.instance };
        for uid in [&machine.uid, pin] {
            ensure!(is_uid(uid), "{} has the uid {uid:?}, which cannot be one", machine.title());
        }
        let known_hosts = self.directory.join("known").join(pin);
        if let Some(key) = promised {
            let line = format!("{} {key}\n", machine.host());
            match fs::read_to_string(&known_hosts) {
                Ok(known) if known == line => {}
                Ok(_) => bail!(
                    "{} is to have another ssh host key than at your last login. Who may change it changed its annotation {}; \
                     if that is well, --accept-host-key takes the key that the guest shows",
                    machine.title(),
                    super::HOST_KEY
                ),
                Err(_) => self.replace(&known_hosts, &line)?,
            }
        }
        let seen = Seen { uid: machine.uid.clone(), pin: pin.clone(), accepted };
        if let Some(old) = before.as_ref().filter(|old| old.pin != *pin && is_uid(&old.pin)) {
            let _ = fs::remove_file(self.directory.join("known").join(&old.pin));
        }
        if before.as_ref() != Some(&seen) {
            self.replace(&file, &serde_json::to_string(&seen)?)?;
        }
        let note = before.filter(|old| old.uid != machine.uid).map(|_| {
            format!(
                "note: {} is not the one of your last login; it was deleted and made anew since then",
                machine.title()
            )
        });
        Ok(Trust { known_hosts, promised: promised.is_some(), note })
    }

    fn name_file(&self, server: &str, namespace: &str, name: &str) -> PathBuf {
        let digest = Digest::of(format!("{server}\n{namespace}\n{name}").as_bytes());
        self.directory.join("names").join(digest.hex())
    }
}

/// What the machine's list of users says.
fn home_of(uid: u32) -> Option<PathBuf> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()))?;
    line.split(':').nth(5).map(PathBuf::from)
}

/// It becomes the name of a file.
fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::target::Kind;

    fn machine(uid: &str, instance: &str, host_key: Option<&str>) -> Machine {
        Machine {
            kind: Kind::Machine,
            name: "web".into(),
            namespace: "shop".into(),
            uid: uid.into(),
            instance: instance.into(),
            user: None,
            host_key: host_key.map(Into::into),
            running_for: None,
        }
    }

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(&directory.path().join("ssh")).unwrap();
        let public = home.public_key().unwrap();
        assert_eq!(Home::at(&directory.path().join("ssh")).unwrap().public_key().unwrap(), public);
        assert_eq!(fs::metadata(home.identity()).unwrap().mode() & 0o777, 0o600);
        let beside = fs::read_to_string(home.identity().with_extension("pub")).unwrap();
        assert_eq!(beside, format!("{public} ferrovirt\n"));
        // Nothing but these is left.
        assert_eq!(fs::read_dir(directory.path().join("ssh")).unwrap().count(), 4);
    }

    #[test]
    fn a_directory_that_is_open_to_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ssh");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Home::at(&path).is_err());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(Home::at(&link).is_err());
        assert!(Home::at(Path::new("/tmp/$HOME")).is_err());
    }

    #[test]
    fn a_promised_key_is_known_before_the_first_login_and_after_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(&directory.path().join("ssh")).unwrap();
        let promised = Some("ssh-ed25519 AAAA");
        for instance in ["i-1", "i-2"] {
            let trust = home.trust("s", &machine("vm-1", instance, promised), false).unwrap();
            assert_eq!((trust.promised, trust.note.as_deref()), (true, None));
            assert_eq!(fs::read_to_string(&trust.known_hosts).unwrap(), "web.shop ssh-ed25519 AAAA\n");
        }
        // Made anew: not silently, and what was known of the old one is gone.
        let trust = home.trust("s", &machine("vm-2", "i-3", Some("ssh-ed25519 BBBB")), false).unwrap();
        assert!(trust.promised && trust.note.unwrap().contains("made anew"));
        assert_eq!(fs::read_dir(directory.path().join("ssh/known")).unwrap().count(), 1);
        // On another cluster it is another.
        assert_eq!(home.trust("other", &machine("vm-3", "i-4", None), false).unwrap().note, None);
    }

    #[test]
    fn a_changed_promise_is_not_believed() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(&directory.path().join("ssh")).unwrap();
        home.trust("s", &machine("vm-1", "i-1", Some("ssh-ed25519 AAAA")), false).unwrap();
        let error = home.trust("s", &machine("vm-1", "i-1", Some("ssh-ed25519 EVIL")), false).unwrap_err();
        assert!(error.to_string().contains("--accept-host-key"), "{error}");
        // Once accepted, it stays so, for this VM.
        for accept in [true, false] {
            let trust = home.trust("s", &machine("vm-1", "i-1", Some("ssh-ed25519 EVIL")), accept).unwrap();
            assert!(!trust.promised && trust.known_hosts.ends_with("i-1"));
        }
        assert!(home.trust("s", &machine("vm-2", "i-9", Some("ssh-ed25519 CCCC")), false).unwrap().promised);
    }

    #[test]
    fn without_a_promise_each_instance_is_met_anew() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(&directory.path().join("ssh")).unwrap();
        let first = home.trust("s", &machine("vm-1", "i-1", None), false).unwrap();
        fs::write(&first.known_hosts, "what ssh keeps").unwrap();
        let again = home.trust("s", &machine("vm-1", "i-1", None), false).unwrap();
        assert!(!again.promised && again.known_hosts.exists());
        let restarted = home.trust("s", &machine("vm-1", "i-2", None), false).unwrap();
        assert!(!restarted.known_hosts.exists() && !first.known_hosts.exists());
        assert_eq!(restarted.note, None);
        assert!(home.trust("s", &machine("../../x", "i-2", None), false).is_err());
    }
}
