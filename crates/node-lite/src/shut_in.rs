//! Whether PID 1 of a pod is shut in yet. A pod is on record, and may be called running, while pod-init still builds its root:
//! until then the namespaces of PID 1 are the host's, or show the host's files, and its user is one of the host.
//!
//! pod-init filters its own system calls last of all, and nobody can take a filter away again. So the kernel's count says it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::init::{InitError, fail};

/// How long pod-init may take. Its CPU may be limited to very little.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Waits until a pod's PID 1 has a filter that its shim has not, from which it inherits. Nobody may enter before. `rest` waits for
/// [`LOOK`], or fails where there is nothing left to wait for.
pub(crate) fn wait(pid: i32, shim: &str, rest: impl Fn() -> Result<(), InitError>) -> Result<(), InitError> {
    let before = filters(shim)?;
    let deadline = Instant::now() + PATIENCE;
    while filters(&pid.to_string())? <= before {
        if Instant::now() > deadline {
            return Err(InitError::NotShutIn);
        }
        rest()?;
    }
    Ok(())
}

fn filters(process: &str) -> Result<u32, InitError> {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let status = fs::read_to_string(&path).map_err(fail("read", &path))?;
    Ok(count(&status).unwrap_or(0))
}

/// Kernels before 5.9 say only whether there is any.
fn count(status: &str) -> Option<u32> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    field("Seccomp_filters:").or_else(|| field("Seccomp:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        assert_eq!(count("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n"), Some(3));
        assert_eq!(count("Seccomp:\t0\nSeccomp_filters:\t0\n"), Some(0));
        assert_eq!(count("Seccomp:\t2\n"), Some(2));
        assert_eq!(count("Name:\tx\n"), None);
    }

    #[test]
    fn who_has_no_more_filters_than_its_shim_is_not_entered() {
        let own = std::process::id().cast_signed();
        let gone = || Err(InitError::Ended);
        assert!(matches!(wait(own, "self", gone), Err(InitError::Ended)));
    }
}
