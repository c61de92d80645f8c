//! The two system calls that no library wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

use crate::bpf::{Instruction, Program};

const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;

/// Holds this thread, and whatever it starts from now on, to a filter. There is no way back. Takes `no_new_privs` or
/// CAP_SYS_ADMIN in the thread's user namespace.
pub fn install(program: &Program) -> io::Result<()> {
    let length = u16::try_from(program.0.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    #[repr(C)]
    struct Filter {
        length: libc::c_ushort,
        instructions: *const Instruction,
    }
    let filter = Filter { length, instructions: program.0.as_ptr() };
    // SAFETY: `filter` has the layout of the kernel's `struct sock_fprog`, points to as many instructions as it says, each
    // with the layout of `struct sock_filter`, and both live through the call, which copies them.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a detached mount, with what is mounted below it, show the files of a tree with the ids that a user namespace maps the stored ones to.
pub fn map_ids(tree: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::from(namespace.as_raw_fd().unsigned_abs()),
    };
    // SAFETY: both descriptors are open, the path is an empty C string, and the structure is as large as we say.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Extra, container, guest};
    use crate::status::of_process;

    /// In a thread of its own: a filter is one thread's, and ends with it.
    fn held(program: Program, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            install(&program).unwrap();
            work();
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_container_cannot_call_what_containers_may_not() {
        held(container(Extra::default()), || {
            let own = of_process(&format!("/proc/self/task/{}", nix::unistd::gettid())).unwrap();
            assert!(own.is_filtered && own.no_new_privileges, "{own:?}");
            // As root, to whom the kernel alone would not say no.
            use nix::sched::{CloneFlags, unshare};
            for flags in [CloneFlags::CLONE_NEWUSER, CloneFlags::CLONE_NEWNS, CloneFlags::CLONE_NEWNET] {
                assert_eq!(unshare(flags), Err(nix::errno::Errno::EPERM), "{flags:?}");
            }
            unshare(CloneFlags::CLONE_FS).unwrap();
            let target = std::env::temp_dir();
            let mounted =
                nix::mount::mount(Some("x"), &target, Some("tmpfs"), nix::mount::MsFlags::MS_RDONLY, None::<&str>);
            assert_eq!(mounted, Err(nix::errno::Errno::EPERM));
            // Programs and threads still start.
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
            std::thread::spawn(|| ()).join().unwrap();
        });
    }

    #[test]
    fn a_guest_keeps_its_namespaces_and_loses_the_nodes_log() {
        held(guest(false), || {
            use nix::sched::{CloneFlags, unshare};
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let read = std::process::Command::new("dmesg").arg("-S").output();
            assert!(read.is_ok_and(|read| !read.status.success()), "the node's log was read");
        });
    }
}
