//! The last look before a machine is made: a guest of another architecture than the node's would not be the machine that was asked
//! for. Pods ask for nodes of their architecture, but who writes a pod's node name asks nobody.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::convert::FieldError;

/// An instance that names no architecture takes the node's.
pub(crate) fn check(vmi: &VirtualMachineInstance, here: &str) -> Result<(), Vec<FieldError>> {
    let asked = &vmi.spec.architecture;
    if asked.is_empty() || asked.eq_ignore_ascii_case(here) {
        return Ok(());
    }
    let message =
        format!("the instance's architecture is {asked}, and this node's is {here}; run it on a node of its own");
    Err(vec![FieldError { field: "spec.architecture".into(), message }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_of_another_architecture_is_refused() {
        for (asked, here, fits) in
            [("", "amd64", true), ("amd64", "amd64", true), ("AMD64", "amd64", true), ("arm64", "amd64", false)]
        {
            let mut vmi = VirtualMachineInstance::default();
            vmi.spec.architecture = asked.into();
            assert_eq!(check(&vmi, here).is_ok(), fits, "{asked} {here}");
        }
    }
}
