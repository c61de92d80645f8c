//! Which hypervisors the nodes of a cluster can run: those that the `KubeVirt` object lists, after a try on each node.
//!
//! virt-controller makes the pods that try, one for each node and hypervisor ([`probes`]); a node's agent reads how they ended
//! ([`offered`]). So an agent need not be allowed to make pods.

pub mod offered;
pub mod probes;

use ferrovirt_api::v1::KubeVirt;
use ferrovirt_machine::hypervisor::{Hypervisor, is_admitted};

/// What the label `kubevirt.io` of a pod says that tries a hypervisor.
const PROBE_APP: &str = "virt-probe";
/// The label of such a pod that names the hypervisor.
const TRIED_LABEL: &str = "kubevirt.io/hypervisor";

/// True if the configuration admits a hypervisor.
fn is_listed(kubevirt: &KubeVirt, driver: &dyn Hypervisor) -> bool {
    let listed = kubevirt.spec.configuration.hypervisors.iter().map(|entry| entry.name.as_str());
    is_admitted(listed, driver.name())
}
