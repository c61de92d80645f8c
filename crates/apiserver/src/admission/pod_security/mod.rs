//! Pod Security: what pods of a namespace may ask for, by the labels of the namespace, as upstream's built-in admission has it.
//!
//! Two things differ. A namespace without a label enforces `baseline`, not nothing: a host that runs VMs has no reason to give
//! every namespace its node. And the makers of the system's own pods are exempt, as `exemptions.usernames` would say.

mod checks;
mod pod;
mod policy;

use serde_json::Value;

pub use self::pod::{Pod, Violation, listed};
pub use self::policy::Level;
use self::policy::{Limit, Policy};
use super::{maker, namespace_labels};
use crate::object::{at, name};
use crate::registry::Special;
use crate::rest::{Call, pod_template};
use crate::status::ApiError;
use crate::storage::parse;

/// So many pods are looked at when a namespace becomes stricter.
const MAX_PODS: usize = 3000;
const AUDIT: &str = "pod-security.kubernetes.io/";

/// Judges a pod, what makes pods, or a namespace. Runs after validation: what it reads has the right types.
pub fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    match call.resource.special {
        Special::Pod => pod(call, object, old),
        Special::Namespace if call.subresource().is_empty() => namespace(call, object, old),
        Special::None if call.subresource().is_empty() && !call.resource.custom => {
            template(call, object);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Everything in a pod that `baseline` forbids, but for host paths, which have a right of their own.
pub fn beyond_baseline(pod: &Pod<'_>) -> Vec<Violation> {
    let mut found = checks::violations(Level::Baseline, policy::LATEST, pod);
    found.retain(|violation| violation.reason != "hostPath volumes");
    found
}

pub fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    checks::host_paths(pod)
}

fn pod(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let containers =
        |pod: &Value| ["initContainers", "containers", "ephemeralContainers"].map(|l| pod["spec"][l].clone());
    if old.is_some_and(|old| containers(old) == containers(object)) {
        return Ok(());
    }
    if maker::is_ours(call, &call.user.name) {
        call.annotate(&format!("{AUDIT}exempt"), "user");
        return Ok(());
    }
    let (policy, _) = Policy::of(&namespace_labels(call, None).unwrap_or_default());
    let pod = Pod { metadata: &object["metadata"], spec: &object["spec"] };
    call.annotate(&format!("{AUDIT}enforce-policy"), &policy.enforce.to_string());
    let why = violated(policy.enforce, &pod);
    audit(call, policy.audit, &pod);
    if let Some(why) = why {
        let why = format!("violates PodSecurity \"{}\": {why}", policy.enforce);
        return Err(ApiError::forbidden(call.resource.subject(name(object)), &why));
    }
    warn(call, policy.warn, &pod);
    Ok(())
}

/// What makes pods is told what they would meet; only they are refused.
fn template(call: &Call, object: &Value) {
    let Some(template) = pod_template(&call.resource, object) else { return };
    if maker::is_ours(call, &call.user.name) {
        return;
    }
    let (policy, _) = Policy::of(&namespace_labels(call, None).unwrap_or_default());
    let pod = Pod { metadata: &template["metadata"], spec: &template["spec"] };
    audit(call, policy.audit, &pod);
    warn(call, policy.warn, &pod);
}

fn audit(call: &Call, limit: Limit, pod: &Pod<'_>) {
    if let Some(why) = violated(limit, pod) {
        call.annotate(&format!("{AUDIT}audit-violations"), &format!("would violate PodSecurity \"{limit}\": {why}"));
    }
}

fn warn(call: &Call, limit: Limit, pod: &Pod<'_>) {
    if let Some(why) = violated(limit, pod) {
        call.warn(format!("would violate PodSecurity \"{limit}\": {why}"));
    }
}

fn violated(limit: Limit, pod: &Pod<'_>) -> Option<String> {
    let found = checks::violations(limit.level, limit.version.minor(), pod);
    let told: Vec<String> = found.iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// Labels that say nothing are refused, and who makes a namespace stricter is told which pods there are that would not be
/// let in any more.
fn namespace(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let read = |namespace: &Value| {
        let labels = at(namespace, &["metadata", "labels"]).cloned().unwrap_or_default();
        Policy::of(&serde_json::from_value(labels).unwrap_or_default())
    };
    let (policy, faults) = read(object);
    let before = old.map(read);
    if !faults.is_empty() && before.as_ref().is_none_or(|(_, known)| *known != faults) {
        return Err(ApiError::invalid(call.resource.kind_subject(name(object)), &faults));
    }
    let Some((before, _)) = before else { return Ok(()) };
    let (new, old) = (policy.enforce, before.enforce);
    let looser = new.level == Level::Privileged || (new.version == old.version && new.level <= old.level);
    if new != old && !looser {
        existing(call, name(object), new);
    }
    Ok(())
}

fn existing(call: &Call, namespace: &str, limit: Limit) {
    let pods = call.server.store.list("pods", Some(namespace)).items;
    // By reason: the first pod, and how many there are.
    let mut found: std::collections::BTreeMap<String, (String, usize)> = std::collections::BTreeMap::new();
    for pod in pods.iter().take(MAX_PODS).filter_map(|entry| parse(entry).ok()) {
        let view = Pod { metadata: &pod["metadata"], spec: &pod["spec"] };
        let reasons: Vec<&str> =
            checks::violations(limit.level, limit.version.minor(), &view).iter().map(|v| v.reason).collect();
        if !reasons.is_empty() {
            found.entry(reasons.join(", ")).or_insert_with(|| (name(&pod).to_owned(), 0)).1 += 1;
        }
    }
    if pods.len() > MAX_PODS {
        let all = pods.len();
        call.warn(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS} of {all} existing pods"
        ));
    }
    if found.is_empty() {
        return;
    }
    call.warn(format!(
        "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{limit}\""
    ));
    let mut told: Vec<String> = found
        .into_iter()
        .map(|(reasons, (first, count))| match count {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            _ => format!("{first} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    told.sort();
    told.into_iter().for_each(|line| call.warn(line));
}
