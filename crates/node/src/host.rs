//! What this machine can do.

use std::fs;

/// Facts that do not change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Kubernetes' name of the architecture.
    pub arch: &'static str,
    pub kvm: Kvm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kvm {
    Usable,
    /// With the reason, for people.
    Unusable(String),
}

impl Host {
    /// Kubernetes' name of the architecture that this program was built for, and so runs on.
    pub const ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

    pub fn detect() -> Self {
        let device = fs::metadata("/dev/kvm").is_ok();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self { arch: Self::ARCH, kvm: kvm(Self::ARCH, device, &cpuinfo) }
    }

    pub fn kvm_usable(&self) -> bool {
        self.kvm == Kvm::Usable
    }
}

/// On x86 the device alone proves nothing: without `vmx` or `svm` guests hang on it.
fn kvm(arch: &str, device: bool, cpuinfo: &str) -> Kvm {
    if !device {
        return Kvm::Unusable("this machine has no /dev/kvm".into());
    }
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let virtualizes = flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"));
    if arch == "amd64" && !virtualizes {
        return Kvm::Unusable("/dev/kvm is there, but the CPU shows neither vmx nor svm".into());
    }
    Kvm::Usable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_the_device_and_on_x86_the_cpu_flag() {
        let plain = "processor : 0\nflags\t: fpu sse\n";
        let intel = "processor : 0\nflags\t: fpu vmx sse\n";
        assert!(matches!(kvm("amd64", false, intel), Kvm::Unusable(_)));
        assert!(matches!(kvm("amd64", true, plain), Kvm::Unusable(_)));
        assert_eq!(kvm("amd64", true, intel), Kvm::Usable);
        assert_eq!(kvm("arm64", true, plain), Kvm::Usable);
    }
}
