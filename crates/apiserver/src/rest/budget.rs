//! Whether a disruption budget lets a pod be evicted.
//!
//! Counted from the pods that are stored when somebody asks, less those whose eviction was granted and is on its way; what a
//! budget's status says does not matter.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ferrovirt_schema::LabelSelector;
use serde_json::{Value, json};

use super::Call;
use crate::object::{at, name, text};
use crate::status::ApiError;
use crate::storage::{Entry, Store, parse};

const STORAGE: &str = "policy/poddisruptionbudgets";

/// The uids of pods whose evictions were granted and that are not marked yet. Two evictions must not share the last of a budget.
#[derive(Debug, Default)]
pub struct Evicting(Mutex<HashSet<Arc<str>>>);

/// As long as it lives, its pod counts as gone.
pub struct Granted<'a> {
    evicting: &'a Evicting,
    /// None if another eviction of the same pod is on its way.
    uid: Option<Arc<str>>,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        if let Some(uid) = &self.uid {
            self.evicting.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        }
    }
}

/// Refuses an eviction that breaks the budget of a pod.
pub fn grant<'a>(call: &'a Call, pod: &Entry) -> Result<Granted<'a>, ApiError> {
    let evicting = &call.server.evicting;
    let mut granted = evicting.0.lock().unwrap_or_else(PoisonError::into_inner);
    check(call, pod, &granted)?;
    let is_new = granted.insert(pod.meta.uid.clone());
    Ok(Granted { evicting, uid: is_new.then(|| pod.meta.uid.clone()) })
}

fn check(call: &Call, pod: &Entry, granted: &HashSet<Arc<str>>) -> Result<(), ApiError> {
    let Some(namespace) = call.namespace().filter(|_| call.server.store.count(STORAGE) > 0) else {
        return Ok(());
    };
    let object = parse(pod)?;
    // What does not run, or is going anyway, disrupts nobody.
    let is_going = pod.meta.deleting || granted.contains(&pod.meta.uid);
    if is_going || matches!(text(&object, &["status", "phase"]), "Pending" | "Succeeded" | "Failed") {
        return Ok(());
    }
    let selector = |budget: &Value| LabelSelector::from_json(&budget["spec"]["selector"]).ok();
    let mut budgets: Vec<Value> =
        call.server.store.list(STORAGE, Some(namespace)).items.iter().filter_map(|e| parse(e).ok()).collect();
    budgets.retain(|b| selector(b).is_some_and(|s| s.matches(pod.meta.labels())));
    let budget = match budgets.as_slice() {
        [] => return Ok(()),
        [budget] => budget,
        _ => {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let Count { healthy, desired, .. } = count_without(&call.server.store, namespace, budget, granted);
    let lenient = text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
    let allowed = match ready(&object) {
        true => healthy > desired,
        // One that is not ready takes nothing away, as long as the others are enough.
        false => lenient || (healthy >= desired && desired > 0),
    };
    if allowed { Ok(()) } else { Err(refusal(budget, desired, healthy)) }
}

/// The pods of a budget: all that have not ended, those that are healthy, and how many have to be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    pub expected: usize,
    pub healthy: usize,
    pub desired: usize,
}

pub fn count(store: &Store, namespace: &str, budget: &Value) -> Count {
    count_without(store, namespace, budget, &HashSet::new())
}

/// Pods of `gone` are not healthy.
fn count_without(store: &Store, namespace: &str, budget: &Value, gone: &HashSet<Arc<str>>) -> Count {
    let Ok(selector) = LabelSelector::from_json(&budget["spec"]["selector"]) else {
        return Count::default();
    };
    let mut pods = store.list("pods", Some(namespace)).items;
    pods.retain(|p| selector.matches(p.meta.labels()));
    let is_going = |pod: &Entry| pod.meta.deleting || gone.contains(&pod.meta.uid);
    let pods: Vec<(bool, Value)> = pods.iter().filter_map(|p| Some((is_going(p), parse(p).ok()?))).collect();
    let counted = pods.iter().filter(|(_, p)| !matches!(text(p, &["status", "phase"]), "Succeeded" | "Failed"));
    let expected = counted.clone().count();
    let healthy = counted.filter(|(going, p)| !going && ready(p)).count();
    let desired = match (at(budget, &["spec", "minAvailable"]), at(budget, &["spec", "maxUnavailable"])) {
        (Some(min), _) if !min.is_null() => scaled(min, expected),
        (_, Some(max)) if !max.is_null() => expected.saturating_sub(scaled(max, expected)),
        _ => expected.saturating_sub(1),
    };
    Count { expected, healthy, desired }
}

fn ready(pod: &Value) -> bool {
    crate::object::condition(pod, "Ready").is_some_and(|c| c["status"] == "True")
}

/// A number, or a share of `total` rounded up.
fn scaled(value: &Value, total: usize) -> usize {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    match value.as_str() {
        None => value.as_u64().map_or(0, number),
        Some(share) => {
            let percent = share.strip_suffix('%').and_then(|s| s.parse::<u64>().ok()).unwrap_or(100);
            number((total as u64).saturating_mul(percent).div_ceil(100))
        }
    }
}

fn refusal(budget: &Value, desired: usize, healthy: usize) -> ApiError {
    let name = name(budget);
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::new(429, "TooManyRequests", message);
    let cause = format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
    error.body["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
    error
}
