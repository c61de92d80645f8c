//! The two lists of calls: of a pod's container, and of a guest that is a system on the node's own kernel.
//!
//! The first is what runtimes call their default, without what none of our programs needs: 32-bit calls, `ptrace` and its
//! relatives, local descriptor tables. It allows `unshare` of what is no namespace, which virtiofsd's threads do. The second
//! adds what an init does inside its own namespaces, and keeps from it what concerns the node: modules, kexec, keys, events,
//! bpf, the node's log, swap, and files by handle.

use std::collections::BTreeMap;

use nix::libc;

use crate::bpf::{self, Answer, ENOSYS, Program, Rule, Table};
use crate::calls;
use crate::compat;

const EPERM: u16 = 1;

/// Every CLONE_NEW… flag that `clone` and `unshare` know; CLONE_NEWTIME is another thing in `clone`'s.
const NAMESPACES: u32 = 0x7e02_0000;
const NEW_TIME: u32 = 0x80;

/// Families of addresses: not AF_ALG and AF_VSOCK, nor those that nobody has used for decades, and nothing newer.
const FAMILIES: &[(u32, u32)] = &[(0, 11), (13, 18), (21, 22), (24, 24), (26, 33), (35, 36), (39, 39), (41, 45)];

/// Linux, 32-bit Linux, both with the name of an old version, and the question which it is.
const PERSONALITIES: &[(u32, u32)] =
    &[(0, 0), (8, 8), (0x2_0000, 0x2_0000), (0x2_0008, 0x2_0008), (u32::MAX, u32::MAX)];

/// What may differ between pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extra {
    /// Where the memory of a process lies; runtimes allow it to pods that ask for the capability SYS_NICE.
    pub memory_placement: bool,
}

/// For every process of a pod that is not privileged.
pub fn container(extra: Extra) -> Program {
    let mut rules = allowed(&[calls::COMMON, calls::OWN]);
    if extra.memory_placement {
        rules.extend(allowed(&[calls::MEMORY_PLACEMENT]));
    }
    insert(&mut rules, libc::SYS_clone, Rule::Without { argument: 0, bits: NAMESPACES, or: EPERM });
    insert(&mut rules, libc::SYS_unshare, Rule::Without { argument: 0, bits: NAMESPACES | NEW_TIME, or: EPERM });
    // Its flags are in memory, where a filter cannot look; libraries take `clone` where there is no other.
    insert(&mut rules, libc::SYS_clone3, Rule::Always(Answer::Errno(ENOSYS)));
    insert(&mut rules, libc::SYS_socket, Rule::Among { argument: 0, ranges: FAMILIES, or: EPERM });
    insert(&mut rules, libc::SYS_personality, Rule::Among { argument: 0, ranges: PERSONALITIES, or: EPERM });
    let refused = Rule::Always(Answer::Errno(ENOSYS));
    let foreign =
        Table { architecture: compat::COMPAT, rules: BTreeMap::new(), otherwise: refused, newest: calls::NEWEST };
    bpf::compile(&[native(rules), foreign])
}

/// For a system container and its driver, whose child it is. `bpf` is for drivers on version 2 of cgroups, where there is no
/// other way to say which devices a container may use; the kernel lets nobody in a user namespace load such a program.
pub fn guest(bpf: bool) -> Program {
    let mut rules = allowed(&[calls::COMMON, calls::OWN, calls::MEMORY_PLACEMENT, calls::SYSTEM, calls::SYSTEM_OWN]);
    insert(&mut rules, libc::SYS_socket, Rule::Among { argument: 0, ranges: FAMILIES, or: EPERM });
    if bpf {
        insert(&mut rules, libc::SYS_bpf, Rule::Always(Answer::Allow));
    }
    let mut refused: BTreeMap<u32, Rule> =
        compat::REFUSED.iter().map(|number| (*number, Rule::Always(Answer::Errno(EPERM)))).collect();
    if !bpf {
        refused.insert(compat::BPF, Rule::Always(Answer::Errno(EPERM)));
    }
    let otherwise = Rule::Always(Answer::Allow);
    let foreign = Table { architecture: compat::COMPAT, rules: refused, otherwise, newest: calls::NEWEST };
    bpf::compile(&[native(rules), foreign])
}

fn native(rules: BTreeMap<u32, Rule>) -> Table {
    let otherwise = Rule::Always(Answer::Errno(EPERM));
    Table { architecture: compat::NATIVE, rules, otherwise, newest: calls::NEWEST }
}

fn allowed(lists: &[&[i64]]) -> BTreeMap<u32, Rule> {
    let numbers = lists.iter().flat_map(|list| list.iter());
    numbers.filter_map(|number| Some((u32::try_from(*number).ok()?, Rule::Always(Answer::Allow)))).collect()
}

fn insert(rules: &mut BTreeMap<u32, Rule>, number: i64, rule: Rule) {
    if let Ok(number) = u32::try_from(number) {
        rules.insert(number, rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::{ALLOWED, refused, run};

    fn answer(program: &Program, number: i64, arguments: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        run(program, compat::NATIVE, u32::try_from(number).unwrap(), all).0
    }

    #[test]
    fn a_container_reaches_no_namespace_no_module_and_no_other_abi() {
        let program = container(Extra::default());
        let never = [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_fsopen,
            libc::SYS_mount_setattr,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_kexec_load,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_userfaultfd,
            libc::SYS_io_uring_setup,
            libc::SYS_open_by_handle_at,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_syslog,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_getfd,
            libc::SYS_mbind,
            libc::SYS_settimeofday,
            libc::SYS_quotactl,
            libc::SYS_acct,
            libc::SYS_chroot,
        ];
        for number in never {
            assert_eq!(answer(&program, number, &[]), refused(EPERM), "{number}");
        }
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_futex, libc::SYS_ioctl, libc::SYS_openat2] {
            assert_eq!(answer(&program, number, &[]), ALLOWED, "{number}");
        }
        let cases: &[(i64, u64, u32)] = &[
            (libc::SYS_clone, 0x003d_0f00, ALLOWED),
            (libc::SYS_clone, 0x1000_0000, refused(EPERM)),
            (libc::SYS_clone, 0x0002_0000, refused(EPERM)),
            (libc::SYS_unshare, 0x0200, ALLOWED),
            (libc::SYS_unshare, 0x1000_0000, refused(EPERM)),
            (libc::SYS_unshare, 0x80, refused(EPERM)),
            (libc::SYS_clone3, 0, refused(ENOSYS)),
            (libc::SYS_socket, 1, ALLOWED),
            (libc::SYS_socket, 16, ALLOWED),
            (libc::SYS_socket, 38, refused(EPERM)),
            (libc::SYS_socket, 40, refused(EPERM)),
            // The kernel reads an int: what stands above it must not help.
            (libc::SYS_socket, (1 << 32) | 40, refused(EPERM)),
            (libc::SYS_personality, 0xffff_ffff, ALLOWED),
            (libc::SYS_personality, 0x0040_0000, refused(EPERM)),
        ];
        for (number, argument, expected) in cases {
            assert_eq!(answer(&program, *number, &[*argument]), *expected, "{number} {argument:#x}");
        }
        // x32 is the same architecture with a bit in the number.
        assert_eq!(run(&program, compat::NATIVE, 0x4000_0000, [0; 6]).0, refused(ENOSYS));
        assert_eq!(run(&program, compat::NATIVE, calls::NEWEST + 1, [0; 6]).0, refused(ENOSYS));
        for number in [0, 3, 128, 102] {
            assert_eq!(run(&program, compat::COMPAT, number, [0; 6]).0, refused(ENOSYS), "{number}");
        }
        assert!(program.0.len() < 4096, "the kernel takes no more than 4096 instructions");
        let placed = container(Extra { memory_placement: true });
        assert_eq!(answer(&placed, libc::SYS_mbind, &[]), ALLOWED);
    }

    #[test]
    fn a_guest_may_mount_and_reboot_but_not_touch_the_nodes_kernel() {
        let program = guest(false);
        for number in [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_clone3,
            libc::SYS_reboot,
            libc::SYS_sethostname,
            libc::SYS_chroot,
            libc::SYS_mount_setattr,
            libc::SYS_ptrace,
            libc::SYS_name_to_handle_at,
        ] {
            assert_eq!(answer(&program, number, &[0x1000_0000]), ALLOWED, "{number}");
        }
        for number in [
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_userfaultfd,
            libc::SYS_open_by_handle_at,
            libc::SYS_io_uring_setup,
            libc::SYS_syslog,
            libc::SYS_swapon,
            libc::SYS_acct,
            libc::SYS_quotactl,
        ] {
            assert_eq!(answer(&program, number, &[]), refused(EPERM), "{number}");
        }
        assert_eq!(answer(&guest(true), libc::SYS_bpf, &[]), ALLOWED);
        for number in compat::REFUSED.iter().chain(&[compat::BPF]) {
            assert_eq!(run(&program, compat::COMPAT, *number, [0; 6]).0, refused(EPERM), "{number}");
        }
        assert_eq!(run(&program, compat::COMPAT, 4, [0; 6]).0, ALLOWED);
    }
}
