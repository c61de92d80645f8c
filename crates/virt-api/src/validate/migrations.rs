//! Migrations: which may be asked for, and what of one may change.

use ferrovirt_api::{
    names,
    v1::{VirtualMachineInstance, VirtualMachineInstanceCondition, VirtualMachineInstanceMigration},
};

use super::{Cause, Cluster, FORBIDDEN, Findings};

/// What creating one is answered with until instances can move.
pub const NOT_DONE: &str =
    "live migration is not implemented yet: the instance stays where it is, and this migration fails at once";

/// Why a migration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// For reasons of the object itself.
    Causes(Vec<Cause>),
    /// For the state of the cluster.
    State(String),
}

fn ended(phase: &str) -> bool {
    ["Succeeded", "Failed"].contains(&phase)
}

/// The rules that need to know nothing else.
pub fn created(migration: &VirtualMachineInstanceMigration, by_controller: bool) -> Result<(), Refusal> {
    let mut found = Findings::default();
    if migration.spec.vmi_name.is_empty() {
        found.required("spec.vmiName".into(), "vmiName is missing");
    } else if migration.spec.priority.is_some() && !by_controller {
        found.add(
            FORBIDDEN,
            "spec.migrationPriority".into(),
            "Migration priority queue, only virt-controller is allowed to set priority field",
        );
    }
    if found.0.is_empty() { Ok(()) } else { Err(Refusal::Causes(found.0)) }
}

/// The rules about the instance and about other migrations of it.
pub fn possible(
    migration: &VirtualMachineInstanceMigration,
    vmi: Option<&VirtualMachineInstance>,
    others: &[VirtualMachineInstanceMigration],
    cluster: &Cluster<'_>,
) -> Result<(), Refusal> {
    let spec = &migration.spec;
    let refuse = |message: String| Err(Refusal::State(message));
    let Some(vmi) = vmi else {
        let namespace = migration.metadata.namespace.as_deref().unwrap_or_default();
        return refuse(format!("the VMI \"{namespace}/{}\" does not exist", spec.vmi_name));
    };
    if ended(&vmi.status.phase) {
        return refuse("Cannot migrate VMI in finalized state.".into());
    }
    let decentralized = spec.send_to.is_some() || spec.receive.is_some();
    // Every instance has the reason that nothing moves here yet; that is what the migration itself will say.
    let stuck = |one: &&VirtualMachineInstanceCondition| {
        one.type_ == "LiveMigratable" && one.status == "False" && one.reason != "MigrationNotSupported"
    };
    for condition in vmi.status.conditions.iter().filter(stuck) {
        let only_disks = condition.reason == names::reason::DISKS_NOT_LIVE_MIGRATABLE;
        if !(only_disks && decentralized) {
            let (reason, message) = (&condition.reason, &condition.message);
            return refuse(format!("Cannot migrate VMI, Reason: {reason}, Message: {message}"));
        }
    }
    if let Some(other) = others.iter().find(|other| !ended(&other.status.phase)) {
        let uid = other.metadata.uid.as_deref().unwrap_or_default();
        return refuse(format!(
            "in-flight migration detected. Active migration job ({uid}) is currently already in progress for VMI {}.",
            other.spec.vmi_name
        ));
    }
    let mut found = Findings::default();
    if decentralized && !cluster.gate("DecentralizedLiveMigration") {
        let message = "DecentralizedLiveMigration feature gate is not enabled in kubevirt resource";
        found.unsupported(String::new(), message);
    } else if let (Some(send), Some(receive)) = (&spec.send_to, &spec.receive)
        && send.migration_id != receive.migration_id
    {
        let (send, receive) = (&send.migration_id, &receive.migration_id);
        let message = format!("sendTo migrationID {send} does not match receive migrationID {receive}");
        found.invalid(String::new(), message);
    }
    if found.0.is_empty() { Ok(()) } else { Err(Refusal::Causes(found.0)) }
}

/// What may not change of a migration. Upstream's causes name no field, and its clients compare the whole message.
pub fn changed(old: &VirtualMachineInstanceMigration, new: &VirtualMachineInstanceMigration) -> Vec<Cause> {
    let mut found = Findings::default();
    let label = |migration: &VirtualMachineInstanceMigration| {
        migration.metadata.labels.as_ref().and_then(|all| all.get(names::MIGRATION_SELECTOR_LABEL)).cloned()
    };
    if old.spec != new.spec {
        found.unsupported(String::new(), "update of Migration object's spec is restricted");
    } else if !ended(&new.status.phase) && label(old).is_some() && label(old) != label(new) {
        let message = match new.metadata.labels {
            None => "selector label can't be removed from an in-flight migration",
            Some(_) => "selector label can't be modified on an in-flight migration",
        };
        found.unsupported(String::new(), message);
    }
    found.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrovirt_api::v1::KubeVirtConfiguration;
    use serde_json::{Value, json};

    fn migration(spec: Value, phase: &str) -> VirtualMachineInstanceMigration {
        let metadata = json!({ "name": "m", "namespace": "n", "uid": "u", "labels": { "kubevirt.io/vmi-name": "a" } });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } })).unwrap()
    }

    #[test]
    fn a_migration_needs_an_instance_that_can_move() {
        let wanted = migration(json!({ "vmiName": "a" }), "");
        let vmi = |status: Value| -> VirtualMachineInstance {
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap()
        };
        let stuck = |reason: &str| json!({ "conditions": [{ "type": "LiveMigratable", "status": "False", "reason": reason, "message": "m" }] });
        let closed = KubeVirtConfiguration::default();
        let open: KubeVirtConfiguration = serde_json::from_value(
            json!({ "developerConfiguration": { "featureGates": ["DecentralizedLiveMigration"] } }),
        )
        .unwrap();
        let judge = |wanted: &VirtualMachineInstanceMigration, status: Option<Value>, others: &[_], open_gate: bool| {
            let cluster = Cluster(if open_gate { &open } else { &closed });
            match possible(wanted, status.map(vmi).as_ref(), others, &cluster) {
                Ok(()) => String::new(),
                Err(Refusal::State(message)) => message,
                Err(Refusal::Causes(causes)) => causes[0].message.clone(),
            }
        };
        assert_eq!(judge(&wanted, Some(json!({ "phase": "Running" })), &[], false), "");
        assert!(judge(&wanted, None, &[], false).contains("\"n/a\" does not exist"));
        assert!(judge(&wanted, Some(json!({ "phase": "Succeeded" })), &[], false).contains("finalized state"));
        assert!(judge(&wanted, Some(stuck("X")), &[], false).contains("Reason: X, Message: m"));
        assert_eq!(judge(&wanted, Some(stuck("MigrationNotSupported")), &[], false), "");
        assert!(
            judge(&wanted, Some(json!({})), std::slice::from_ref(&wanted), false)
                .contains("in-flight migration detected")
        );
        let done = migration(json!({ "vmiName": "a" }), "Failed");
        assert_eq!(judge(&wanted, Some(json!({})), &[done], false), "");
        let sent = |to: &str, from: &str| {
            migration(
                json!({ "vmiName": "a", "sendTo": { "migrationID": to }, "receive": { "migrationID": from } }),
                "",
            )
        };
        assert!(judge(&sent("1", "1"), Some(json!({})), &[], false).contains("feature gate is not enabled"));
        assert_eq!(judge(&sent("1", "1"), Some(stuck("DisksNotLiveMigratable")), &[], true), "");
        assert!(judge(&sent("1", "2"), Some(json!({})), &[], true).contains("does not match receive"));
    }

    #[test]
    fn what_is_asked_for_and_by_whom() {
        let refused = |spec: Value, controller: bool| match created(&migration(spec, ""), controller) {
            Err(Refusal::Causes(causes)) => causes[0].field.clone(),
            _ => String::new(),
        };
        assert_eq!(refused(json!({}), false), "spec.vmiName");
        assert_eq!(refused(json!({ "vmiName": "a", "priority": "high" }), false), "spec.migrationPriority");
        assert_eq!(refused(json!({ "vmiName": "a", "priority": "high" }), true), "");
    }

    #[test]
    fn a_migration_keeps_its_spec_and_while_it_runs_its_label() {
        let old = migration(json!({ "vmiName": "a" }), "Running");
        assert!(changed(&old, &old).is_empty());
        let moved = changed(&old, &migration(json!({ "vmiName": "b" }), "Running"));
        assert_eq!((moved.len(), moved[0].field.as_str()), (1, ""));
        assert!(moved[0].message.contains("spec is restricted"));
        let mut relabelled = old.clone();
        relabelled.metadata.labels = Some([("kubevirt.io/vmi-name".to_owned(), "b".to_owned())].into());
        assert!(changed(&old, &relabelled)[0].message.contains("can't be modified"));
        relabelled.metadata.labels = None;
        assert!(changed(&old, &relabelled)[0].message.contains("can't be removed"));
        relabelled.status.phase = "Failed".into();
        assert!(changed(&old, &relabelled).is_empty());
    }
}
