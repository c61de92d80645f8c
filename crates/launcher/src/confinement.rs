//! What the launcher, libvirt's daemon, the hypervisor and a container's processes may ask of the kernel.
//!
//! A pod's runtime filters system calls before the launcher begins; of a privileged pod it does not, and some runtimes do so
//! for nobody. Whoever was not held is held here, so that it does not depend on where the pod runs.

use std::io;

use ferrovirt_confine::{Confinement, Extra};

use crate::runtime::LibvirtRuntime;

/// Holds this process and everything it starts. Call it before any thread.
pub fn settle(runtime: &dyn LibvirtRuntime) -> io::Result<()> {
    if runtime.root() {
        let Confinement { is_filtered, .. } = ferrovirt_confine::of_process("/proc/self")?;
        // A guest has set-uid programs of its own, so new privileges stay possible: they end at its user namespace.
        return match is_filtered {
            true => Ok(()),
            false => ferrovirt_confine::install(&ferrovirt_confine::guest(ferrovirt_confine::devices_need_bpf())),
        };
    }
    hold()
}

/// The same for a process that needs nothing but files.
pub fn hold() -> io::Result<()> {
    let Confinement { is_filtered, no_new_privileges } = ferrovirt_confine::of_process("/proc/self")?;
    if !no_new_privileges {
        nix::sys::prctl::set_no_new_privs()?;
    }
    match is_filtered {
        true => Ok(()),
        // Whether the pod asked to place its memory is not known here; it does no harm.
        false => ferrovirt_confine::install(&ferrovirt_confine::container(Extra { memory_placement: true })),
    }
}
