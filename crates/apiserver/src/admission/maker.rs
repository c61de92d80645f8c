//! Who made a pod. Nodes run the system's own pods with more than they give to anybody else's, so they have to know which
//! those are: by who asked for them, which nobody else can claim, and not by a name or a label.
//!
//! Every new pod is stamped with the user that made it, after webhooks had their say, and keeps the stamp for as long as it is
//! there. What such a pod is (its spec, and the metadata that parts of the system go by) is changed by its maker alone, or by
//! who has root on nodes anyway: that is the right to create `pods/privileged`, as in [`super::rights`].

use serde_json::{Value, json};

use super::rights;
use crate::object::{at, metadata, text};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;

/// Annotation on every pod: the user that created it.
pub const CREATED_BY: &str = "ferrovirt.io/created-by";

/// What of a pod's metadata says what it is.
const IDENTITY: [&str; 4] = ["annotations", "labels", "finalizers", "ownerReferences"];

/// Says on a new pod who makes it, whatever it says itself.
pub fn stamp(call: &Call, pod: &mut Value) {
    if call.resource.special == Special::Pod {
        set(pod, Some(&call.user.name));
    }
}

/// The successor of a pod was made by who made the pod.
pub fn keep(call: &Call, old: &Value, new: &mut Value) {
    if call.resource.special == Special::Pod {
        set(new, of(old));
    }
}

/// The stamp of a stored pod. One from before there were stamps has none.
fn of(pod: &Value) -> Option<&str> {
    at(pod, &["metadata", "annotations", CREATED_BY]).and_then(Value::as_str)
}

fn set(pod: &mut Value, maker: Option<&str>) {
    let meta = metadata(pod);
    let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
    if !annotations.is_object() {
        *annotations = json!({});
    }
    let Some(map) = annotations.as_object_mut() else { return };
    match maker {
        Some(maker) => map.insert(CREATED_BY.into(), maker.into()),
        None => map.remove(CREATED_BY),
    };
    if map.is_empty() {
        meta.remove("annotations");
    }
}

/// True for who makes the system's own pods.
pub fn is_ours(call: &Call, user: &str) -> bool {
    call.server.pod_makers.iter().any(|maker| maker == user)
}

/// Refuses to change what a pod of the system's own is, unless to its maker.
pub fn check_change(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    if call.resource.special != Special::Pod {
        return Ok(());
    }
    let Some(maker) = of(old).filter(|maker| *maker != call.user.name && is_ours(call, maker)) else {
        return Ok(());
    };
    let changed = if old.get("spec") != new.get("spec") {
        "spec"
    } else {
        let differs = |key: &&str| at(old, &["metadata", key]) != at(new, &["metadata", key]);
        match IDENTITY.iter().find(|key| differs(key)) {
            Some(key) => key,
            None => return Ok(()),
        }
    };
    let name = text(old, &["metadata", "name"]);
    if rights::has(call, "privileged", name) {
        return Ok(());
    }
    let why = format!(
        "it was made by {maker} for the system, and its {changed} is not for others to change; that takes the right to \
         create pods/privileged. Change the object that it was made for instead"
    );
    Err(ApiError::forbidden(call.resource.subject(name), &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_replaces_whatever_is_there() {
        for before in [json!({}), json!({"annotations": null}), json!({"annotations": {CREATED_BY: "root", "a": "b"}})]
        {
            let mut pod = json!({"metadata": before});
            set(&mut pod, Some("jane"));
            assert_eq!(of(&pod), Some("jane"), "{pod}");
            set(&mut pod, None);
            assert_eq!(of(&pod), None, "{pod}");
        }
        let mut bare = json!({"metadata": {"annotations": {CREATED_BY: "root"}}});
        set(&mut bare, None);
        assert_eq!(bare, json!({"metadata": {}}));
    }
}
