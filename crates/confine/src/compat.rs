//! The 32-bit calls of a 64-bit kernel. Nothing of ours is a 32-bit program; a guest that is a system of its own may have
//! some. For those the list says what is refused, because the numbers of what is allowed are in no library.

#[cfg(target_arch = "x86_64")]
mod numbers {
    /// `AUDIT_ARCH_X86_64`, and what it can also run.
    pub const NATIVE: u32 = 0xc000_003e;
    pub const COMPAT: u32 = 0x4000_0003;
    pub const REFUSED: &[u32] = &[
        51,  // acct
        86,  // uselib
        87,  // swapon
        101, // ioperm
        103, // syslog
        110, // iopl
        113, // vm86old
        115, // swapoff
        127, // create_module
        128, // init_module
        129, // delete_module
        130, // get_kernel_syms
        131, // quotactl
        166, // vm86
        167, // query_module
        169, // nfsservctl
        253, // lookup_dcookie
        283, // kexec_load
        286, // add_key
        287, // request_key
        288, // keyctl
        336, // perf_event_open
        342, // open_by_handle_at
        350, // finit_module
        374, // userfaultfd
        425, // io_uring_setup
        426, // io_uring_enter
        427, // io_uring_register
        443, // quotactl_fd
    ];
    pub const BPF: u32 = 357;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    /// `AUDIT_ARCH_AARCH64`, and what it can also run.
    pub const NATIVE: u32 = 0xc000_00b7;
    pub const COMPAT: u32 = 0x4000_0028;
    pub const REFUSED: &[u32] = &[
        51,  // acct
        86,  // uselib
        87,  // swapon
        103, // syslog
        115, // swapoff
        128, // init_module
        129, // delete_module
        131, // quotactl
        169, // nfsservctl
        249, // lookup_dcookie
        309, // add_key
        310, // request_key
        311, // keyctl
        347, // kexec_load
        364, // perf_event_open
        371, // open_by_handle_at
        379, // finit_module
        388, // userfaultfd
        401, // kexec_file_load
        425, // io_uring_setup
        426, // io_uring_enter
        427, // io_uring_register
        443, // quotactl_fd
    ];
    pub const BPF: u32 = 386;
}

pub(crate) use numbers::{BPF, COMPAT, NATIVE, REFUSED};
