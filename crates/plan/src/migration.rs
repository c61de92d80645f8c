//! VirtualMachineInstanceMigration: until instances can move, a migration ends at once and says why.

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationCondition as Condition,
        VirtualMachineInstanceMigrationPhaseTransitionTimestamp as Transition, VirtualMachineInstanceMigrationState,
        VirtualMachineInstanceMigrationStatus,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const FAILED: &str = "Failed";
const REASON: &str = "NotImplemented";
pub const MESSAGE: &str = "live migration is not implemented yet: the instance stays where it is";

/// What is to be done about a migration, one thing at a time.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Boxed: it is by far the largest.
    Write(Box<VirtualMachineInstanceMigrationStatus>),
    /// The finalizers that are left once it has ended.
    Release(Vec<String>),
}

pub fn plan(migration: &VirtualMachineInstanceMigration, now: &Time) -> Option<Action> {
    let status = &migration.status;
    if ![FAILED, "Succeeded"].contains(&status.phase.as_str()) {
        let mut status = status.clone();
        status.phase = FAILED.into();
        status
            .phase_transition_timestamps
            .push(Transition { phase: FAILED.into(), phase_transition_timestamp: Some(now.clone()) });
        status.conditions.push(Condition {
            type_: "Failure".into(),
            status: "True".into(),
            last_transition_time: Some(now.clone()),
            reason: REASON.into(),
            message: MESSAGE.into(),
            ..Condition::default()
        });
        status.migration_state = Some(VirtualMachineInstanceMigrationState {
            completed: true,
            failed: true,
            failure_reason: MESSAGE.into(),
            ..Default::default()
        });
        return Some(Action::Write(Box::new(status)));
    }
    let held = migration.metadata.finalizers.clone().unwrap_or_default();
    let left: Vec<String> =
        held.iter().filter(|one| *one != names::VIRTUAL_MACHINE_INSTANCE_MIGRATION_FINALIZER).cloned().collect();
    (left != held).then_some(Action::Release(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn a_migration_fails_says_why_and_lets_go() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let mut migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "metadata": { "name": "m", "finalizers": ["kubevirt.io/migrationJobFinalize", "mine"] }, "spec": { "vmiName": "a" },
        }))
        .unwrap();
        let Some(Action::Write(status)) = plan(&migration, &now) else { panic!("it is told") };
        assert_eq!((status.phase.as_str(), status.conditions[0].message.as_str()), ("Failed", MESSAGE));
        assert!(status.migration_state.as_ref().is_some_and(|state| state.failed && state.failure_reason == MESSAGE));
        migration.status = *status;
        assert_eq!(plan(&migration, &now), Some(Action::Release(vec!["mine".into()])));
        migration.metadata.finalizers = Some(vec!["mine".into()]);
        assert_eq!(plan(&migration, &now), None);
    }
}
