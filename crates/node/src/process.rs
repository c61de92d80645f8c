//! A process of a pod, believed for what the kernel says of it, never for the path or the number that led to it.
//!
//! ```text
//!   connection --SO_PEERPIDFD--> pidfd --> /proc/<pid>, held --> is the pidfd's process alive? --> cgroup, user, root, network
//! ```
//!
//! A number may belong to another process by the time it is used. The directory in `/proc` is opened first and the pidfd is
//! looked at afterwards: while that process lives its number is its own, so the directory is its own, and the kernel never
//! lets an open one lead to a successor. Everything else is opened through that directory, once.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, ResolveFlags, fstat, open, openat, openat2},
    process::{Signal, pidfd_send_signal},
};
use tokio::io::unix::AsyncFd;

use crate::cgroup;

/// Files of `/proc` that are read are much shorter.
const MOST: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot tell which process answers")]
    Unknown(#[source] io::Error),
    #[error("the process that listened there has ended")]
    Ended,
    #[error("who answers is in the cgroup {found:?}, which is not that of pod {pod}")]
    Elsewhere { pod: String, found: String },
    #[error("who answers runs as user {found}, and the pod's user is {expected}")]
    User { found: String, expected: u32 },
    #[error("who answers is not the first process of its container")]
    NotFirst,
    #[error("who answers is in the network of the node, not in one of its pod")]
    NodeNetwork,
}

/// Whoever listened at the other end of a connection, and is in the pod's cgroup.
#[derive(Debug)]
pub(crate) struct Peer {
    pidfd: OwnedFd,
    /// Its directory in `/proc`.
    facts: OwnedFd,
}

/// The first process of a launcher's container. All that the agent does with a launcher goes through what this holds.
#[derive(Debug)]
pub struct Process {
    pidfd: AsyncFd<OwnedFd>,
    facts: OwnedFd,
    root: OwnedFd,
    network: Network,
}

/// A pod's network namespace, held: it stays the same one, whatever becomes of the process that showed it.
#[derive(Debug, Clone)]
pub(crate) struct Network(Arc<OwnedFd>);

impl Peer {
    /// Finds out who listened at the other end of `stream`, and takes nobody who is not in the cgroup of the pod.
    pub(crate) fn of(stream: impl AsFd, pod: &str) -> Result<Self, ProcessError> {
        let pidfd = peer(stream.as_fd())?;
        let number = number(&pidfd)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let facts = open(format!("/proc/{number}"), flags, Mode::empty());
        let peer = Self { pidfd, facts: facts.map_err(|_| ProcessError::Ended)? };
        // Only now is it certain that the directory is that of this process.
        if has_ended(&peer.pidfd) {
            return Err(ProcessError::Ended);
        }
        let found = peer.read("cgroup")?;
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match cgroup::is_of_pod(&found, &own, pod) {
            true => Ok(peer),
            false => Err(ProcessError::Elsewhere { pod: pod.to_owned(), found: cgroup::show(&found) }),
        }
    }

    /// Takes it for the launcher of the pod, whose container runs as `user`.
    pub(crate) fn into_process(self, user: u32) -> Result<Process, ProcessError> {
        let status = self.read("status")?;
        let real = field(&status, "Uid:").and_then(|ids| ids.split_whitespace().next());
        let inside = real.and_then(|real| inside(real.parse().ok()?, &self.read("uid_map").ok()?));
        if inside != Some(user) {
            let found = inside.map_or_else(|| "nobody".to_owned(), |user| user.to_string());
            return Err(ProcessError::User { found, expected: user });
        }
        // Its end is the end of all others in there, which is what makes it a proof.
        if field(&status, "NSpid:").and_then(|ids| ids.split_whitespace().next_back()) != Some("1") {
            return Err(ProcessError::NotFirst);
        }
        let failed = |error: rustix::io::Errno| ProcessError::Unknown(error.into());
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&self.facts, "root", directory, Mode::empty()).map_err(failed)?;
        let network = openat(&self.facts, "ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        if is_of_node(&network).map_err(ProcessError::Unknown)? {
            return Err(ProcessError::NodeNetwork);
        }
        let process = Process {
            pidfd: watched(self.pidfd).map_err(ProcessError::Unknown)?,
            facts: self.facts,
            root,
            network: Network(Arc::new(network)),
        };
        if process.has_ended() { Err(ProcessError::Ended) } else { Ok(process) }
    }

    fn read(&self, name: &str) -> Result<String, ProcessError> {
        read(&self.facts, name).map_err(ProcessError::Unknown)
    }
}

impl Process {
    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        // An error here means that the runtime is shutting down, and then nobody waits for the answer.
        drop(self.pidfd.readable().await);
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(self.pidfd.get_ref())
    }

    /// Kills it, and as it is the first one in there, all the others with it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL)?)
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// What `/proc` says of it under this name.
    pub(crate) fn read(&self, name: &str) -> io::Result<String> {
        read(&self.facts, name)
    }

    /// Opens something in its file tree. All of that tree is the launcher's word: the kernel follows links inside of it only.
    pub(crate) fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty(), inside)?)
    }

    /// The same where no link is expected, and none is followed.
    pub(crate) fn open_plain(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), inside)
    }
}

impl Network {
    /// Leads to it for calls that take paths. Good while this lives, so whatever runs elsewhere takes a clone along.
    pub(crate) fn path(&self) -> PathBuf {
        ferrovirt_beneath::proc_path(&self.0.as_ref())
    }

    /// Runs `work` with the path of the namespace where it may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&std::path::Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let own = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&own.path())).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Runs `work` inside of it. Sockets that are made there stay there.
    pub(crate) async fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.blocking(move |path| ferrovirt_net::netns::enter(path, work)).await
    }

    #[cfg(test)]
    pub(crate) fn of_test(namespace: OwnedFd) -> Self {
        Self(Arc::new(namespace))
    }
}

/// A pidfd of the process that listened at the other end.
fn peer(stream: BorrowedFd<'_>) -> Result<OwnedFd, ProcessError> {
    match getsockopt(&stream, sockopt::PeerPidfd) {
        Ok(pidfd) => Ok(pidfd),
        // Kernels before 6.5. What is asked of the process below is asked of the very one that this pidfd holds, so a number
        // that was taken over in between leads to another process of the same pod at most.
        Err(Errno::ENOPROTOOPT) => by_number(stream),
        Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => Err(ProcessError::Ended),
        Err(error) => Err(ProcessError::Unknown(error.into())),
    }
}

fn by_number(stream: BorrowedFd<'_>) -> Result<OwnedFd, ProcessError> {
    let credentials =
        getsockopt(&stream, sockopt::PeerCredentials).map_err(|error| ProcessError::Unknown(error.into()))?;
    let number = rustix::process::Pid::from_raw(credentials.pid()).ok_or(ProcessError::Ended)?;
    rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).map_err(|_| ProcessError::Ended)
}

/// The number that the process has in our PID namespace, as long as it lives.
fn number(pidfd: &OwnedFd) -> Result<i32, ProcessError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(ProcessError::Unknown)?;
    let number = field(&text, "Pid:").and_then(|number| number.trim().parse::<i32>().ok());
    number.filter(|number| *number > 0).ok_or(ProcessError::Ended)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(pidfd, PollFlags::IN)];
    // What cannot be asked is not believed.
    !matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

// Deprecated for types that may give out another descriptor later; an `OwnedFd` never does.
#[allow(deprecated)]
fn watched(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd, tokio::io::Interest::READABLE)
}

fn read(facts: &OwnedFd, name: &str) -> io::Result<String> {
    let file = openat(facts, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::from(file), MOST as u64), &mut text)?;
    Ok(text)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// What a user of ours is called in the user namespace whose `uid_map` this is.
fn inside(user: u32, uid_map: &str) -> Option<u32> {
    uid_map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
        let offset = user.checked_sub(outside).filter(|offset| *offset < count)?;
        inside.checked_add(offset)
    })
}

/// True for the network namespace of this process or of the node's first one: what is done there is done to the node.
fn is_of_node(network: &OwnedFd) -> io::Result<bool> {
    let found = fstat(network)?;
    let same =
        |path: &str| rustix::fs::stat(path).is_ok_and(|own| (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino));
    Ok(same("/proc/self/ns/net") || same("/proc/1/ns/net"))
}

#[cfg(test)]
pub(crate) mod tests;
