//! How long instances take from phase to phase.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use ferrovirt_api::v1::{VirtualMachineInstance, values::virtual_machine_instance_phase as phase};
use ferrovirt_metrics::{Family, Histograms};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// Upstream's.
const BUCKETS: &[f64] =
    &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0];

pub(crate) struct Phases {
    /// The phase in which an instance was last seen.
    last: Mutex<HashMap<String, String>>,
    between: Histograms,
    from_creation: Histograms,
    from_deletion: Histograms,
}

impl Default for Phases {
    fn default() -> Self {
        Self {
            last: Mutex::default(),
            between: Histograms::new(
                "kubevirt_vmi_phase_transition_time_seconds",
                "Time between two phases of an instance.",
                &["phase", "last_phase"],
                BUCKETS,
            ),
            from_creation: Histograms::new(
                "kubevirt_vmi_phase_transition_time_from_creation_seconds",
                "Time from an instance's creation to a phase.",
                &["phase"],
                BUCKETS,
            ),
            from_deletion: Histograms::new(
                "kubevirt_vmi_phase_transition_time_from_deletion_seconds",
                "Time from an instance's deletion to its last phase.",
                &["phase"],
                BUCKETS,
            ),
        }
    }
}

impl Phases {
    /// Takes note of an instance. A controller that just started learns phases without counting them.
    pub(crate) fn observe(&self, vmi: &VirtualMachineInstance) {
        let (Some(uid), now) = (vmi.uid(), vmi.status.phase.as_str()) else { return };
        let before = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if vmi.metadata.deletion_timestamp.is_some() && is_final(now) {
                last.remove(&uid)
            } else {
                last.insert(uid, now.to_owned())
            }
        };
        let Some(before) = before.filter(|before| before != now) else { return };
        let Some(entered) = entered(vmi, now) else { return };
        if let Some(left) = self::entered(vmi, &before) {
            self.between.observe(&[now, &before], seconds(left, entered));
        }
        if let Some(created) = &vmi.metadata.creation_timestamp {
            self.from_creation.observe(&[now], seconds(created.0, entered));
        }
        if let Some(deleted) = vmi.metadata.deletion_timestamp.as_ref().filter(|_| is_final(now)) {
            self.from_deletion.observe(&[now], seconds(deleted.0, entered));
        }
    }

    pub(super) fn families(&self) -> [Family; 3] {
        [self.between.family(), self.from_creation.family(), self.from_deletion.family()]
    }
}

fn is_final(phase: &str) -> bool {
    matches!(phase, phase::SUCCEEDED | phase::FAILED)
}

fn entered(vmi: &VirtualMachineInstance, phase: &str) -> Option<Timestamp> {
    let transitions = &vmi.status.phase_transition_timestamps;
    transitions.iter().find(|t| t.phase == phase)?.phase_transition_timestamp.as_ref().map(|time| time.0)
}

/// Fast transitions may seem to go back in time, for timestamps have whole seconds.
fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}
