//! How a VM names its instance type and its preference.

use ferrovirt_api::v1::{InstancetypeMatcher, PreferenceMatcher, VirtualMachine};

use super::{Cause, Findings, NOT_FOUND};

/// What both kinds of reference have.
struct Reference<'a> {
    key: &'static str,
    type_name: &'static str,
    name: &'a str,
    kind: &'a str,
    revision: &'a str,
    volume: &'a str,
    policy: Option<&'a str>,
}

fn instancetype(matcher: &InstancetypeMatcher) -> Reference<'_> {
    Reference {
        key: "instancetype",
        type_name: "InstancetypeMatcher",
        name: &matcher.name,
        kind: &matcher.kind,
        revision: &matcher.revision_name,
        volume: &matcher.infer_from_volume,
        policy: matcher.infer_from_volume_failure_policy.as_deref(),
    }
}

fn preference(matcher: &PreferenceMatcher) -> Reference<'_> {
    Reference {
        key: "preference",
        type_name: "PreferenceMatcher",
        name: &matcher.name,
        kind: &matcher.kind,
        revision: &matcher.revision_name,
        volume: &matcher.infer_from_volume,
        policy: matcher.infer_from_volume_failure_policy.as_deref(),
    }
}

fn of(vm: &VirtualMachine) -> impl Iterator<Item = Reference<'_>> {
    let instancetype = vm.spec.instancetype.as_ref().map(instancetype);
    instancetype.into_iter().chain(vm.spec.preference.as_ref().map(preference))
}

/// The first kind of mistake in what a VM refers to, as upstream finds them.
pub fn matchers(vm: &VirtualMachine, old: Option<&VirtualMachine>) -> Vec<Cause> {
    let mut found = Findings::default();
    for new in of(vm) {
        let before = old.and_then(|old| of(old).find(|before| before.key == new.key));
        // The revision is that of the object that was named; another name has another one.
        let moved = |before: &Reference<'_>| before.name != new.name && before.revision == new.revision;
        if !new.revision.is_empty() && before.as_ref().is_some_and(moved) {
            found.invalid(
                format!("spec.{}.revisionName", new.key),
                "the Matcher Name has been updated without updating the RevisionName",
            );
            return found.0;
        }
    }
    for new in of(vm) {
        let field = format!("spec.{}", new.key);
        if new.name.is_empty() && new.volume.is_empty() {
            let message = format!("Either Name or InferFromVolume should be provided within the {}", new.type_name);
            found.add(NOT_FOUND, field.clone(), message);
        }
        if !new.volume.is_empty() {
            for (set, key, word) in [(!new.name.is_empty(), "name", "Name"), (!new.kind.is_empty(), "kind", "Kind")] {
                if set {
                    let message = format!("{word} already set, should be cleared before setting inferFromVolume");
                    found.unsupported(format!("{field}.{key}"), message);
                }
            }
        }
        if let Some(policy) = new.policy.filter(|policy| !["Reject", "Ignore"].contains(policy)) {
            let message = format!("Invalid value '{policy}' for InferFromVolumeFailurePolicy");
            found.invalid(format!("{field}.inferFromVolumeFailurePolicy"), message);
        }
        if !found.0.is_empty() {
            break;
        }
    }
    found.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(new: Value, old: Option<Value>) -> Vec<String> {
        let vm = |matcher: Value| -> VirtualMachine { serde_json::from_value(json!({ "spec": matcher })).unwrap() };
        let found = matchers(&vm(new), old.map(vm).as_ref());
        found.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_reference_names_one_thing() {
        for key in ["instancetype", "preference"] {
            let one = |matcher: Value| fields(json!({ key: matcher }), None);
            assert!(one(json!({ "name": "a", "inferFromVolumeFailurePolicy": "Ignore" })).is_empty());
            assert!(one(json!({ "inferFromVolume": "a", "inferFromVolumeFailurePolicy": "Reject" })).is_empty());
            assert_eq!(one(json!({})), [format!("spec.{key}")]);
            assert_eq!(one(json!({ "name": "a", "inferFromVolume": "b" })), [format!("spec.{key}.name")]);
            assert_eq!(one(json!({ "kind": "a", "inferFromVolume": "b" })), [format!("spec.{key}.kind")]);
            let policy = json!({ "inferFromVolume": "b", "inferFromVolumeFailurePolicy": "Cry" });
            assert_eq!(one(policy), [format!("spec.{key}.inferFromVolumeFailurePolicy")]);
        }
    }

    #[test]
    fn another_name_needs_another_revision() {
        for key in ["instancetype", "preference"] {
            let change = |old: Value, new: Value| fields(json!({ key: new }), Some(json!({ key: old })));
            let old = || json!({ "name": "a", "revisionName": "r" });
            assert!(change(old(), old()).is_empty());
            assert!(change(old(), json!({ "name": "b" })).is_empty());
            assert!(change(old(), json!({ "name": "b", "revisionName": "s" })).is_empty());
            assert!(change(old(), json!({ "name": "a", "revisionName": "s" })).is_empty());
            assert!(change(json!({ "name": "a" }), json!({ "name": "b" })).is_empty());
            let kept = change(old(), json!({ "name": "b", "revisionName": "r" }));
            assert_eq!(kept, [format!("spec.{key}.revisionName")]);
            assert!(fields(json!({ key: old() }), Some(json!({}))).is_empty());
            assert!(fields(json!({}), Some(json!({ key: old() }))).is_empty());
        }
    }
}
