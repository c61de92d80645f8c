//! Which process is meant. A pid alone is reused; boot id, pid and start time together are not.
//!
//! PID 1 of a pod ends only after the kernel has killed and reaped everything else in its PID namespace. So a pidfd
//! of PID 1 that reports the end proves that the whole process tree is gone.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    pub boot_id: String,
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_time: u64,
}

/// A living process that cannot be confused with a later one of the same pid.
#[derive(Debug)]
pub struct ProcessHandle {
    pidfd: OwnedFd,
}

#[derive(Debug)]
pub enum Lookup {
    Alive(ProcessHandle),
    Gone,
    /// Recorded before the machine was restarted.
    OtherBoot,
}

impl ProcessId {
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { boot_id: boot_id()?, pid, start_time: start_time(pid)? })
    }

    pub fn lookup(&self) -> io::Result<Lookup> {
        if boot_id()? != self.boot_id {
            return Ok(Lookup::OtherBoot);
        }
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(Lookup::Gone);
        };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(Lookup::Gone),
            Err(error) => return Err(error.into()),
        };
        // Read after the pidfd was opened: from here on the pid cannot pass to another process unnoticed.
        match start_time(self.pid) {
            Ok(found) if found == self.start_time => Ok(Lookup::Alive(ProcessHandle { pidfd })),
            _ => Ok(Lookup::Gone),
        }
    }
}

impl ProcessHandle {
    /// Waits until the process has ended. For PID 1 of a pod: until its whole tree has.
    pub async fn ended(&self) -> io::Result<()> {
        // A copy: one descriptor can be registered only once, and several tasks may wait.
        // Deprecated for types that may close their descriptor early; an OwnedFd cannot, and the successor is unsafe.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(self.pidfd.try_clone()?, Interest::READABLE)?;
        let _ready = fd.readable().await?;
        Ok(())
    }

    pub fn has_ended(&self) -> io::Result<bool> {
        let mut fds = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(rustix::event::poll(&mut fds, Some(&now))? > 0)
    }

    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Blocks until the end or until `timeout` has passed; true when it ended.
    pub fn wait_blocking(&self, timeout: std::time::Duration) -> io::Result<bool> {
        let mut fds = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        loop {
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc stat format"))
}

/// The second field is the command in parentheses and may itself contain spaces and parentheses.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_field_22_whatever_the_command_is_called() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        for name in ["(sh)", "(a b)", "(evil) 1 2 3 (x)", "())"] {
            assert_eq!(parse_start_time(&format!("42 {name} {tail}")), Some(777), "{name}");
        }
        assert_eq!(parse_start_time("42 (sh) S 1"), None);
        assert_eq!(parse_start_time(""), None);
    }

    #[test]
    fn identity_tells_processes_apart() {
        let me = ProcessId::of(std::process::id().cast_signed()).unwrap();
        assert!(matches!(me.lookup().unwrap(), Lookup::Alive(_)));
        let later = ProcessId { start_time: me.start_time + 1, ..me.clone() };
        assert!(matches!(later.lookup().unwrap(), Lookup::Gone));
        let before = ProcessId { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..me };
        assert!(matches!(before.lookup().unwrap(), Lookup::OtherBoot));
    }
}
