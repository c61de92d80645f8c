//! Quantities that were written as numbers.
//!
//! Kubernetes takes `cpu: 2.2` in its own kinds, where quantities read numbers, too. A schema of a custom resource takes whole
//! numbers and text; upstream's mutating webhook reads the object and writes it back, and what the schema sees then is text.

use ferrovirt_api::Quantity;
use serde_json::Value;

/// Maps of quantities, and quantities, in a VM's or an instance's spec.
const MAPS: [&str; 2] = ["requests", "limits"];
const AMOUNTS: [&str; 4] = ["guest", "maxGuest", "reservedOverhead", "capacity"];

/// Writes them as text, in their canonical form.
pub(super) fn to_text(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(to_text),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(amounts) if MAPS.contains(&key.as_str()) => amounts.values_mut().for_each(one),
                    Value::Number(_) if AMOUNTS.contains(&key.as_str()) => one(value),
                    other => to_text(other),
                }
            }
        }
        _ => {}
    }
}

fn one(value: &mut Value) {
    if let Value::Number(number) = value
        && let Ok(quantity) = Quantity::parse(&number.to_string())
    {
        *value = quantity.to_string().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_become_the_text_that_they_mean() {
        let mut spec = json!({ "template": { "spec": { "domain": {
            "cpu": { "cores": 2 }, "memory": { "guest": 67108864 },
            "resources": { "requests": { "cpu": 2.2, "memory": 2222222.2 }, "limits": { "cpu": 3, "memory": "1Gi" } },
        }, "volumes": [{ "emptyDisk": { "capacity": 1000 } }], "terminationGracePeriodSeconds": 5 } } });
        to_text(&mut spec);
        assert_eq!(
            spec,
            json!({ "template": { "spec": { "domain": {
                "cpu": { "cores": 2 }, "memory": { "guest": "67108864" },
                "resources": { "requests": { "cpu": "2200m", "memory": "2222222200m" }, "limits": { "cpu": "3", "memory": "1Gi" } },
            }, "volumes": [{ "emptyDisk": { "capacity": "1k" } }], "terminationGracePeriodSeconds": 5 } } })
        );
    }
}
