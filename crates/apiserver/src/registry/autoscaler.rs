//! `autoscaling/v1` HorizontalPodAutoscalers, which know one metric, over stored `autoscaling/v2` ones, which know many.

use serde_json::{Map, Value, json};

use super::resource::Direction;
use crate::object::text;

/// What v1 cannot say travels in this annotation.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

pub fn reshape(object: &mut Value, direction: Direction) {
    match direction {
        Direction::FromStorage => to_v1(object),
        Direction::ToStorage => to_v2(object),
    }
}

/// The target of the metric that v1 has a field for.
fn is_cpu(metric: &Value) -> bool {
    text(metric, &["type"]) == "Resource"
        && text(metric, &["resource", "name"]) == "cpu"
        && text(metric, &["resource", "target", "type"]) == "Utilization"
}

fn to_v1(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let metrics = match spec.remove("metrics") {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    let behavior = spec.remove("behavior");
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu);
    if let Some(metric) = cpu.first() {
        spec.insert(
            "targetCPUUtilizationPercentage".into(),
            metric["resource"]["target"]["averageUtilization"].clone(),
        );
    }
    if !others.is_empty() {
        annotate(object, METRICS, &Value::Array(others));
    }
    if let Some(behavior) = behavior {
        annotate(object, BEHAVIOR, &behavior);
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("currentMetrics");
        status.remove("conditions");
        status.entry("currentReplicas").or_insert(json!(0));
        status.entry("desiredReplicas").or_insert(json!(0));
    }
}

fn annotate(object: &mut Value, key: &str, value: &Value) {
    let meta = crate::object::metadata(object);
    let annotations = meta.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if let Some(map) = annotations.as_object_mut() {
        map.insert(key.to_owned(), value.to_string().into());
    }
}

fn to_v2(object: &mut Value) {
    let mut taken = |key: &str| -> Option<Value> {
        let annotations = object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()?;
        let text = annotations.remove(key)?;
        serde_json::from_str(text.as_str()?).ok()
    };
    let (others, behavior) = (taken(METRICS), taken(BEHAVIOR));
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let mut metrics = match others {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage").filter(Value::is_number) {
        metrics.insert(
            0,
            json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}),
        );
    }
    if !metrics.is_empty() {
        spec.insert("metrics".into(), metrics.into());
    }
    if let Some(behavior) = behavior {
        spec.insert("behavior".into(), behavior);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_v1_cannot_say_survives_it() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}});
        let other = json!({"type": "Pods", "pods": {"metric": {"name": "hits"}}});
        let cases = [
            json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3}}),
            json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": [cpu]}}),
            json!({"metadata": {"name": "a", "annotations": {"x": "y"}}, "spec": {"metrics": [cpu, other], "behavior": {"scaleDown": {}}}}),
        ];
        for stored in cases {
            let mut object = stored.clone();
            reshape(&mut object, Direction::FromStorage);
            assert!(object["spec"].get("metrics").is_none(), "{object}");
            reshape(&mut object, Direction::ToStorage);
            assert_eq!(object, stored);
        }
    }
}
