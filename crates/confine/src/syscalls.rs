//! Lists of system calls. What is not on a process's list ends it.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// The calls that a process may make.
#[derive(Debug, Clone)]
pub struct Syscalls {
    rules: BTreeMap<i64, Vec<SeccompRule>>,
}

/// Reading and writing files below where one is, memory, and the end. No sockets, processes, programs, mounts, keys, or tracing.
pub fn files_only() -> io::Result<Syscalls> {
    let mut calls = vec![
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_lseek,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_fstatfs,
        libc::SYS_getdents64,
        libc::SYS_mkdirat,
        libc::SYS_unlinkat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_readlinkat,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_fcntl,
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_restart_syscall,
    ];
    // The C library uses the old calls where the machine has them.
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_unlink,
        libc::SYS_link,
        libc::SYS_symlink,
        libc::SYS_readlink,
        libc::SYS_chmod,
    ]);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.into_iter().map(|call| (call, vec![])).collect();
    // Memory, but nothing to run in it.
    let executable = libc::PROT_EXEC as u64;
    let is_data = || {
        let condition =
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(executable), 0).map_err(other)?;
        SeccompRule::new(vec![condition]).map_err(other)
    };
    rules.insert(libc::SYS_mmap, vec![is_data()?]);
    rules.insert(libc::SYS_mprotect, vec![is_data()?]);
    // An abort raises a signal in the process itself.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(std::process::id()));
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own.map_err(other)?]).map_err(other)?]);
    Ok(Syscalls { rules })
}

impl Syscalls {
    pub(crate) fn apply(self) -> io::Result<()> {
        let arch = std::env::consts::ARCH.try_into().map_err(other)?;
        let filter = SeccompFilter::new(self.rules, SeccompAction::KillProcess, SeccompAction::Allow, arch);
        let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(other)?;
        apply_filter(&program).map_err(other)
    }
}

fn other<E: std::error::Error + Send + Sync + 'static>(error: E) -> io::Error {
    io::Error::other(error)
}
