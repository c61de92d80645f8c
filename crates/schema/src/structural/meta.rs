//! The schema of `metadata`, which every resource has and no custom resource definition spells out.

use serde_json::{Value, json};

/// `ObjectMeta`, as custom resources and embedded resources have it.
pub(super) fn object_meta() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let time = json!({"type": "string", "format": "date-time"});
    let integer = json!({"type": "integer", "format": "int64"});
    json!({
        "type": "object",
        "properties": {
            "name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text, "resourceVersion": text,
            "generation": integer,
            "creationTimestamp": time, "deletionTimestamp": time, "deletionGracePeriodSeconds": integer,
            "labels": texts, "annotations": texts,
            "finalizers": {
                "type": "array", "items": text,
                "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge",
            },
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid",
                "items": {
                    "type": "object", "required": ["apiVersion", "kind", "name", "uid"], "x-kubernetes-map-type": "atomic",
                    "properties": {
                        "apiVersion": text, "kind": text, "name": text, "uid": text,
                        "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
                    },
                },
            },
            "managedFields": {
                "type": "array", "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "properties": {
                        "manager": text, "operation": text, "apiVersion": text, "time": time, "fieldsType": text,
                        "fieldsV1": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}, "subresource": text,
                    },
                },
            },
        },
    })
}
