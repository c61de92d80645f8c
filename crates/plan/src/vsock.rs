//! Addresses for guests that talk with their host over vsock.

use std::collections::BTreeSet;

use ferrovirt_api::v1::VirtualMachineInstanceSpec;

use crate::identity::stable_fraction;

/// 0 to 2 are the hypervisor, loopback and the host; the last one means any.
const FIRST: u32 = 3;
const LAST: u32 = u32::MAX - 1;

pub fn is_asked(spec: &VirtualMachineInstanceSpec) -> bool {
    spec.domain.devices.autoattach_vsock == Some(true)
}

/// An address that nobody has. It follows from the uid, so that hosts that share a kernel without knowing of each other hardly ever
/// choose the same.
pub fn choose(uid: &str, taken: &BTreeSet<u32>) -> Option<u32> {
    let start = u32::try_from(stable_fraction(uid, i64::from(LAST - FIRST))).unwrap_or(0) + FIRST;
    (start..=LAST).chain(FIRST..start).find(|cid| !taken.contains(cid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_stable_and_never_taken() {
        let first = choose("a", &BTreeSet::new()).unwrap();
        assert!(first >= FIRST);
        assert_eq!(choose("a", &BTreeSet::new()), Some(first));
        assert_ne!(choose("b", &BTreeSet::new()), Some(first));
        assert_eq!(choose("a", &BTreeSet::from([first])), Some(first + 1));
        assert_eq!(choose("a", &BTreeSet::from([first, first + 1])), Some(first + 2));
    }
}
