//! Directories of the pod that the guest mounts: one virtiofs daemon for each, with no more rights than the launcher's own.
//!
//! A daemon serves one connection, the hypervisor's, and ends by itself when that hangs up. One that ends otherwise leaves the
//! guest with a file system that no longer answers: hypervisors do not connect again, so nobody starts another.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ferrovirt_machine::spec::Filesystem;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::domain::DomainEvent;
use crate::process::{Child, Children};

/// Who runs us may name the daemon.
const VARIABLE: &str = "FERROVIRT_VIRTIOFSD";
/// Where it lies beside this program.
const OWN_NAME: &str = "ferrovirt-virtiofsd";
/// Where distributions put it. Not the one that came with QEMU up to 7.2 (`/usr/lib/qemu`): it wants to be root.
const INSTALLED: [&str; 3] = ["/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/bin/virtiofsd"];
/// It needs some milliseconds; the rest is for a machine under load.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
/// What it says when the hypervisor has hung up.
const DONE: &str = "exit code 0";

#[derive(Debug, thiserror::Error)]
pub enum FilesystemError {
    #[error(
        "file system {0} needs virtiofsd, which this launcher's image lacks: put {OWN_NAME} beside ferrovirt-launcher (scripts/build.sh \
         makes it) or install virtiofsd 1.13 or later as /usr/libexec/virtiofsd"
    )]
    NoDaemon(String),
    #[error("cannot start the daemon of file system {tag}")]
    Spawn { tag: String, source: io::Error },
    #[error("the daemon of file system {tag} ended at once: {why}. The log of the launcher pod says more")]
    Ended { tag: String, why: String },
    #[error("the daemon of file system {tag} did not listen within {} s", START_TIMEOUT.as_secs())]
    Timeout { tag: String },
}

/// Starts daemons, and tells when one is lost.
#[derive(Clone)]
pub(crate) struct Filesystems {
    pub children: Children,
    pub events: mpsc::UnboundedSender<DomainEvent>,
}

/// Daemons that wait for their hypervisor. They end with this value, unless it was told to keep them.
pub(crate) struct Served(JoinSet<()>);

/// Killed when dropped.
struct Daemon(Child);

impl Filesystems {
    /// Returns when all of them listen.
    pub(crate) async fn serve(&self, filesystems: &[Filesystem]) -> Result<Served, FilesystemError> {
        let mut served = JoinSet::new();
        let own = filesystems.iter().filter(|filesystem| !filesystem.dir.is_empty());
        for filesystem in own {
            let mut daemon = self.start(filesystem).await?;
            let (tag, events) = (filesystem.tag.clone(), self.events.clone());
            served.spawn(async move {
                let why = daemon.0.wait().await;
                if why != DONE {
                    tracing::error!(tag, why, "the daemon of a file system ended");
                    let _ = events.send(DomainEvent::FilesystemLost { tag, why });
                }
            });
        }
        Ok(Served(served))
    }

    async fn start(&self, filesystem: &Filesystem) -> Result<Daemon, FilesystemError> {
        let tag = || filesystem.tag.clone();
        let own = std::env::current_exe().unwrap_or_default();
        let program =
            find(std::env::var_os(VARIABLE), &own, Path::exists).ok_or_else(|| FilesystemError::NoDaemon(tag()))?;
        let user = rustix::process::getuid().as_raw();
        let mut command = Command::new(program);
        let talks = std::env::var_os("VIRTIOFSD_DEBUG_LOGS").is_some_and(|value| value == "1");
        command.args(arguments(filesystem, user, talks)).current_dir("/").env_clear().stdin(Stdio::null());
        // One that a daemon before us left behind would be taken for this one's.
        let _ = fs::remove_file(&filesystem.socket);
        let child =
            self.children.spawn(&mut command).map_err(|source| FilesystemError::Spawn { tag: tag(), source })?;
        let mut daemon = Daemon(child);
        let deadline = Instant::now() + START_TIMEOUT;
        while !listens(&filesystem.socket) {
            if Instant::now() > deadline {
                return Err(FilesystemError::Timeout { tag: tag() });
            }
            tokio::select! {
                why = daemon.0.wait() => return Err(FilesystemError::Ended { tag: tag(), why }),
                () = tokio::time::sleep(POLL) => {}
            }
        }
        Ok(daemon)
    }
}

impl Served {
    /// From here on they end with their hypervisor, and with this process at the latest.
    pub(crate) fn keep(mut self) {
        self.0.detach_all();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill();
    }
}

fn find(named: Option<OsString>, own: &Path, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let beside = own.with_file_name(OWN_NAME);
    let installed = INSTALLED.iter().map(PathBuf::from);
    named.map(PathBuf::from).into_iter().chain([beside]).chain(installed).find(|path| exists(path))
}

/// As upstream, which has them in containers of their own. The pod is the sandbox: the daemon sees what the launcher sees.
fn arguments(filesystem: &Filesystem, user: u32, talks: bool) -> Vec<String> {
    let mut arguments = vec![
        format!("--socket-path={}", filesystem.socket),
        format!("--shared-dir={}", filesystem.dir),
        "--sandbox=none".into(),
        "--cache=auto".into(),
        // These want a right that nobody here has, and it would say so at every start.
        "--inode-file-handles=never".into(),
        format!("--log-level={}", if talks { "debug" } else { "error" }),
    ];
    if filesystem.as_root {
        arguments.push(format!("--translate-uid=host:{user}:0:1"));
    }
    arguments
}

/// Whether somebody listens there. Not by connecting: the daemon takes one connection, and that is the hypervisor's.
fn listens(socket: &str) -> bool {
    fs::read_to_string("/proc/self/net/unix").is_ok_and(|table| is_listening(&table, socket))
}

/// `Num RefCount Protocol Flags Type St Inode Path`, where one flag means that it accepts connections.
fn is_listening(table: &str, socket: &str) -> bool {
    const ACCEPTS: u32 = 0x10000;
    table.lines().filter(|line| line.strip_suffix(socket).is_some_and(|rest| rest.ends_with(' '))).any(|line| {
        let flags = line.split_whitespace().nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & ACCEPTS != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_looked_for_beside_us_first() {
        let own = Path::new("/opt/ferrovirt-launcher");
        for (named, there, expected) in [
            (None, &["/opt/ferrovirt-virtiofsd", "/usr/libexec/virtiofsd"][..], Some("/opt/ferrovirt-virtiofsd")),
            (Some("/x"), &["/x", "/opt/ferrovirt-virtiofsd"][..], Some("/x")),
            (Some("/x"), &["/usr/libexec/virtiofsd"][..], Some("/usr/libexec/virtiofsd")),
            (None, &["/usr/lib/qemu/virtiofsd"][..], None),
        ] {
            let found = find(named.map(Into::into), own, |path| there.iter().any(|known| Path::new(known) == path));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{there:?}");
        }
    }

    #[test]
    fn a_socket_that_accepts_is_told_from_one_that_does_not() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     ffff0: 00000002 00000000 00010000 0001 01 123 /run/a.sock\n\
                     ffff1: 00000002 00000000 00000000 0001 01 124 /run/b.sock\n";
        assert!(is_listening(table, "/run/a.sock"));
        assert!(!is_listening(table, "/run/b.sock"));
        assert!(!is_listening(table, "a.sock"));
        assert!(!is_listening(table, "/run/c.sock"));
    }

    #[tokio::test]
    async fn a_daemon_is_awaited_watched_and_ended() {
        // A daemon that listens as it is told and ends badly when it is told to; the test's own process must not reap it.
        let dir = tempfile::tempdir().unwrap();
        let (events, mut heard) = mpsc::unbounded_channel();
        let filesystems = Filesystems { children: Children::reap().unwrap(), events };
        let socket = dir.path().join("s.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(listens(socket.to_str().unwrap()));
        drop(listener);
        assert!(!listens(socket.to_str().unwrap()));

        let mut served = JoinSet::new();
        let child = filesystems.children.spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = child.pid();
        let mut daemon = Daemon(child);
        served.spawn(async move {
            daemon.0.wait().await;
        });
        drop(Served(served));
        // The task that held it is gone, and the process with it.
        let ended = async {
            while Path::new(&format!("/proc/{pid}")).exists() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
        assert!(heard.try_recv().is_err());
    }
}
