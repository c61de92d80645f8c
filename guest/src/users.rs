//! `/etc/passwd`, `/etc/shadow` and `/etc/group`: users, passwords, groups, ssh keys.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cloud::User;

/// The user that `password:` and `default` mean.
pub const DEFAULT_USER: &str = "demo";
const FIRST_UID: u32 = 1000;

/// The account files, held as lines of fields, so that what is not understood stays as it is.
pub struct Accounts {
    root: PathBuf,
    passwd: Vec<Vec<String>>,
    shadow: Vec<Vec<String>>,
    group: Vec<Vec<String>>,
}

impl Accounts {
    pub fn load(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref().to_path_buf();
        let read = |name: &str| -> Vec<Vec<String>> {
            let text = fs::read_to_string(root.join("etc").join(name)).unwrap_or_default();
            text.lines().map(|l| l.split(':').map(String::from).collect()).collect()
        };
        let (passwd, shadow, group) = (read("passwd"), read("shadow"), read("group"));
        Ok(Accounts { root, passwd, shadow, group })
    }

    pub fn save(&self) -> Result<()> {
        for (name, lines, mode) in
            [("passwd", &self.passwd, 0o644), ("shadow", &self.shadow, 0o600), ("group", &self.group, 0o644)]
        {
            let text: String = lines.iter().map(|l| l.join(":") + "\n").collect();
            let path = self.root.join("etc").join(name);
            let new = path.with_extension("new");
            fs::write(&new, text)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
            fs::rename(&new, &path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        Ok(())
    }

    pub fn name_of(&self, uid: u32) -> Option<String> {
        self.passwd.iter().find(|l| l.get(2) == Some(&uid.to_string())).map(|l| l[0].clone())
    }

    pub fn is_member(&self, user: &str, group: &str) -> bool {
        let members = self.group.iter().find(|l| l[0] == group).and_then(|l| l.get(3));
        members.is_some_and(|m| m.split(',').any(|n| n == user))
    }

    /// Makes the user if it is new, and does what the entry asks for.
    pub fn apply(&mut self, user: &User) -> Result<()> {
        if !valid_name(&user.name) {
            bail!("{:?} is not a user name", user.name);
        }
        let (uid, home) = self.ensure(user)?;
        for group in &user.groups {
            self.join(&user.name, group);
        }
        if let Some(password) = &user.password {
            self.set_password(&user.name, password)?;
        }
        if !user.ssh_keys.is_empty() {
            self.add_keys(&home, uid, &user.ssh_keys)?;
        }
        Ok(())
    }

    /// A plain password is hashed; one that starts with `$` is a hash already.
    pub fn set_password(&mut self, name: &str, password: &str) -> Result<()> {
        let hash = if password.starts_with('$') { password.to_string() } else { hash(password)? };
        let line = self.shadow.iter_mut().find(|l| l[0] == name).with_context(|| format!("there is no user {name}"))?;
        line[1] = hash;
        Ok(())
    }

    fn ensure(&mut self, user: &User) -> Result<(u32, PathBuf)> {
        if !self.passwd.iter().any(|l| l[0] == user.name) {
            let taken = |uid: u32| self.passwd.iter().any(|l| l.get(2) == Some(&uid.to_string()));
            let uid = user.uid.or_else(|| (FIRST_UID..60_000).find(|&u| !taken(u))).context("no uid is free")?;
            let home = format!("/home/{}", user.name);
            let shell = user.shell.clone().filter(|s| self.inside(s).exists()).unwrap_or("/bin/sh".into());
            let id = uid.to_string();
            self.passwd.push(
                [&user.name, "x", &id, &id, user.gecos.as_deref().unwrap_or(""), &home, &shell]
                    .map(String::from)
                    .to_vec(),
            );
            self.shadow.push([&user.name, "!", "19000", "0", "99999", "7", "", "", ""].map(String::from).to_vec());
            self.group.push([&user.name, "x", &id, ""].map(String::from).to_vec());
        }
        let line = self.passwd.iter().find(|l| l[0] == user.name && l.len() >= 6).context("the account is broken")?;
        let uid: u32 = line[2].parse()?;
        let home = self.inside(&line[5]);
        if !home.exists() {
            fs::create_dir_all(&home)?;
            fs::set_permissions(&home, fs::Permissions::from_mode(0o750))?;
            chown(&home, Some(uid), Some(uid))?;
        }
        Ok((uid, home))
    }

    fn join(&mut self, user: &str, group: &str) {
        if self.is_member(user, group) {
            return;
        }
        match self.group.iter_mut().find(|l| l[0] == group && l.len() == 4) {
            Some(line) if line[3].is_empty() => line[3] = user.to_string(),
            Some(line) => line[3] = format!("{},{user}", line[3]),
            None => {
                let taken = |gid: u32| self.group.iter().any(|l| l.get(2) == Some(&gid.to_string()));
                let gid = (200..FIRST_UID).find(|&g| !taken(g)).unwrap_or(999);
                self.group.push([group, "x", &gid.to_string(), user].map(String::from).to_vec());
            }
        }
    }

    fn add_keys(&self, home: &Path, uid: u32, keys: &[String]) -> Result<()> {
        let dir = home.join(".ssh");
        fs::create_dir_all(&dir)?;
        let path = dir.join("authorized_keys");
        let mut text = fs::read_to_string(&path).unwrap_or_default();
        for key in keys.iter().map(|k| k.trim()) {
            if !text.lines().any(|l| l == key) {
                text.push_str(key);
                text.push('\n');
            }
        }
        fs::write(&path, text)?;
        for (path, mode) in [(&dir, 0o700), (&path, 0o600)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            chown(path, Some(uid), Some(uid))?;
        }
        Ok(())
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

fn valid_name(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    first && name.len() <= 32 && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

fn hash(password: &str) -> Result<String> {
    // On standard input, so that the password is in nobody's process list.
    let mut child = Command::new("busybox")
        .args(["mkpasswd", "-m", "sha512", "-P", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot hash a password")?;
    if let Some(mut stdin) = child.stdin.take() {
        writeln!(stdin, "{password}")?;
    }
    let out = child.wait_with_output()?;
    let hash = String::from_utf8_lossy(&out.stdout).trim().to_string();
    if !out.status.success() || !hash.starts_with('$') {
        bail!("cannot hash a password");
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_made_and_changed() {
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path().join("etc");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        fs::write(etc.join("shadow"), "root:*:19000:0:99999:7:::\n").unwrap();
        fs::write(etc.join("group"), "root:x:0:\nsudo:x:27:\n").unwrap();
        let uid = rustix::process::getuid().as_raw();
        let user = User {
            name: "ann".into(),
            uid: Some(if uid == 0 { 1000 } else { uid }),
            groups: vec!["sudo".into(), "new".into()],
            password: Some("$6$x$y".into()),
            ssh_keys: vec!["ssh-ed25519 AAAA ann".into()],
            ..User::default()
        };
        for _ in 0..2 {
            let mut accounts = Accounts::load(dir.path()).unwrap();
            accounts.apply(&user).unwrap();
            accounts.save().unwrap();
        }
        let accounts = Accounts::load(dir.path()).unwrap();
        assert_eq!(accounts.passwd.len(), 2);
        assert!(accounts.is_member("ann", "sudo") && accounts.is_member("ann", "new"));
        assert!(!accounts.is_member("root", "sudo"));
        assert_eq!(accounts.shadow[1][1], "$6$x$y");
        let keys = fs::read_to_string(dir.path().join("home/ann/.ssh/authorized_keys")).unwrap();
        assert_eq!(keys, "ssh-ed25519 AAAA ann\n");
        let mut accounts = Accounts::load(dir.path()).unwrap();
        for bad in ["", "a:b", "../x", "A b"] {
            assert!(accounts.apply(&User { name: bad.into(), ..User::default() }).is_err(), "{bad}");
        }
    }
}
