//! The `managedFields` list of an object.

use serde_json::{Map, Value, json};

use super::Manager;
use super::field_set::FieldSet;

/// Update entries beyond this many are merged into one, oldest first.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// Who owns which fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: String,
    pub fields: FieldSet,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

impl Entry {
    /// Whether the entry is of this manager. An applier is the same in every version of the API.
    pub(super) fn is_of(&self, manager: &Manager, operation: Operation) -> bool {
        self.manager == manager.name
            && self.operation == operation
            && self.subresource == manager.subresource.as_deref().unwrap_or_default()
            && (operation == Operation::Apply || self.api_version == manager.api_version)
    }

    /// As conflicts name it.
    pub(super) fn shown(&self) -> String {
        let subresource = if self.subresource.is_empty() {
            String::new()
        } else {
            format!(" with subresource {:?}", self.subresource)
        };
        match self.operation {
            Operation::Apply => format!("{:?}{subresource}", self.manager),
            Operation::Update => {
                format!("{:?}{subresource} using {}", self.manager, self.api_version)
            }
        }
    }

    fn to_json(&self) -> Value {
        let mut out = json!({
            "manager": self.manager,
            "operation": self.operation.as_str(),
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        for (name, text) in [("time", &self.time), ("subresource", &self.subresource)] {
            if !text.is_empty() {
                out[name] = json!(text);
            }
        }
        out
    }
}

/// Reads the entries of an object; those that make no sense are dropped, and with them what they owned.
pub(super) fn read(object: &Value) -> Vec<Entry> {
    let list = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(read_one).collect()
}

fn read_one(entry: &Value) -> Option<Entry> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let operation = match text("operation").as_str() {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return None,
    };
    Some(Entry {
        manager: text("manager"),
        operation,
        api_version: text("apiVersion"),
        subresource: text("subresource"),
        time: text("time"),
        fields: FieldSet::from_json(entry.get("fieldsV1")?),
    })
}

/// `[{}]`, the agreed way of a client to say: forget who owns what.
pub(super) fn is_reset(object: &Value) -> bool {
    object
        .pointer("/metadata/managedFields")
        .and_then(Value::as_array)
        .is_some_and(|list| matches!(list.as_slice(), [Value::Object(one)] if one.is_empty()))
}

/// Writes the entries in the order Kubernetes keeps. Entries that own nothing go.
pub(super) fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| order(a).cmp(&order(b)));
    merge_ancient(&mut entries);
    let Value::Object(fields) = object else {
        return;
    };
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else {
        return;
    };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        let list: Vec<Value> = entries.iter().map(Entry::to_json).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(list));
    }
}

fn order(entry: &Entry) -> (Operation, &str, &str, &str, &str) {
    (entry.operation, &entry.time, &entry.manager, &entry.api_version, &entry.subresource)
}

fn merge_ancient(entries: &mut Vec<Entry>) {
    let updaters = entries.iter().filter(|e| e.operation == Operation::Update).count();
    let mut surplus = updaters.saturating_sub(MAX_UPDATERS);
    if surplus == 0 {
        return;
    }
    // One more than the surplus: the bucket itself takes a place.
    surplus += 1;
    let mut buckets: Vec<Entry> = Vec::new();
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries.drain(..) {
        if entry.operation == Operation::Apply || surplus == 0 {
            kept.push(entry);
            continue;
        }
        surplus -= 1;
        match buckets.iter_mut().find(|b| b.api_version == entry.api_version) {
            Some(bucket) => {
                bucket.fields.add(&entry.fields);
                bucket.time = entry.time;
            }
            None => buckets.push(Entry { manager: ANCIENT.to_owned(), subresource: String::new(), ..entry }),
        }
    }
    kept.extend(buckets);
    kept.sort_by(|a, b| order(a).cmp(&order(b)));
    *entries = kept;
}
