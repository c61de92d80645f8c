//! Objects as Go's types hold and write them.
//!
//! kube-apiserver decodes every built-in object into a struct and writes that. So an empty list that was sent is gone, `1000m`
//! has become `1`, and `strategy: {}` is there although nobody wrote it; the owners of fields are found in what is left.

use serde_json::{Map, Value, json};

use super::special::Special;
use super::{Field, Kind, Label, MAX_DEPTH, ProtoTable};
use crate::quantity::Quantity;
use crate::rfc3339;

/// What is done to the fields of an object.
#[derive(Clone, Copy)]
struct Visit {
    field: fn(&ProtoTable, &Field, &mut Map<String, Value>),
    /// Only to those that are always written: most messages have none, and are passed by.
    always: bool,
}

impl ProtoTable {
    /// Takes out what a struct does not hold (nulls, and zeros that mean "not set"), and writes amounts and times as Go does.
    pub fn tidy(&self, message: &str, object: &mut Value) {
        if let Some(index) = self.by_name.get(message) {
            self.walk(*index, object, Visit { field: Self::tidy_field, always: false }, 0);
        }
    }

    /// Adds the structs that are there even if nobody sent them, as defaults and rules find them.
    pub fn add_structs(&self, message: &str, object: &mut Value) {
        if let Some(index) = self.by_name.get(message) {
            self.walk(*index, object, Visit { field: Self::add_struct, always: true }, 0);
        }
    }

    /// Makes null of empty lists and maps that are always written: in storage the two are the same.
    pub fn settle(&self, message: &str, object: &mut Value) {
        if let Some(index) = self.by_name.get(message) {
            self.walk(*index, object, Visit { field: Self::settle_field, always: true }, 0);
        }
    }

    /// Adds what Go writes whether it was set or not: structs that are no pointers, and what is not left out when empty.
    pub fn complete(&self, message: &str, object: &mut Value) {
        if let Some(index) = self.by_name.get(message) {
            self.walk(*index, object, Visit { field: Self::complete_field, always: true }, 0);
        }
    }

    /// Visits the fields of a message and of all messages in it, outer ones first.
    fn walk(&self, index: usize, value: &mut Value, visit: Visit, depth: usize) {
        let Some(message) = self.messages.get(index).filter(|_| depth < MAX_DEPTH) else { return };
        if message.special.is_some() || visit.always && !message.always {
            return;
        }
        if message.is_list {
            if let (Some(Kind::Message(inner)), Some(items)) =
                (message.fields.first().map(|field| field.kind), value.as_array_mut())
            {
                items.iter_mut().for_each(|item| self.walk(inner, item, visit, depth + 1));
            }
            return;
        }
        if !visit.always && message.by_json.is_some() {
            // What is not there is of no interest, and most fields are not.
            let Some(object) = value.as_object_mut() else { return };
            let there: Vec<&Field> = object.keys().filter_map(|key| message.named(key)).collect();
            for field in there {
                (visit.field)(self, field, object);
                self.below(field, object, visit, depth);
            }
            return;
        }
        for field in &message.fields {
            if let (true, Kind::Message(inner)) = (field.inline, field.kind) {
                self.walk(inner, value, visit, depth + 1);
                continue;
            }
            let Some(object) = value.as_object_mut() else { return };
            if field.always || !visit.always {
                (visit.field)(self, field, object);
            }
            self.below(field, object, visit, depth);
        }
    }

    /// Visits the messages in one field of an object.
    fn below(&self, field: &Field, object: &mut Map<String, Value>, visit: Visit, depth: usize) {
        let Kind::Message(inner) = field.kind else { return };
        match (field.label, object.get_mut(&field.json)) {
            (Label::Optional, Some(below)) => self.walk(inner, below, visit, depth + 1),
            (Label::Repeated, Some(Value::Array(items))) => {
                items.iter_mut().for_each(|item| self.walk(inner, item, visit, depth + 1));
            }
            (Label::Map, Some(Value::Object(entries))) => {
                entries.values_mut().for_each(|entry| self.walk(inner, entry, visit, depth + 1));
            }
            _ => {}
        }
    }

    fn special_of(&self, field: &Field) -> Option<Special> {
        match field.kind {
            Kind::Message(index) => self.messages.get(index)?.special,
            _ => None,
        }
    }

    fn is_list(&self, field: &Field) -> bool {
        matches!(field.kind, Kind::Message(index) if self.messages.get(index).is_some_and(|message| message.is_list))
    }

    fn tidy_field(&self, field: &Field, object: &mut Map<String, Value>) {
        let Some(value) = object.get_mut(&field.json) else { return };
        if let Some(special) = self.special_of(field) {
            match (field.label, &mut *value) {
                (Label::Repeated, Value::Array(items)) => items.iter_mut().for_each(|item| written(special, item)),
                (Label::Map, Value::Object(entries)) => entries.values_mut().for_each(|item| written(special, item)),
                (_, value) => written(special, value),
            }
        }
        if let (Label::Map, Kind::String, Value::Object(entries)) = (field.label, field.kind, &mut *value) {
            // A map of strings has no nulls.
            entries.values_mut().filter(|entry| entry.is_null()).for_each(|entry| *entry = json!(""));
        }
        let list = field.label == Label::Repeated || self.is_list(field);
        let zero = match value {
            Value::Null => true,
            Value::Array(items) => field.omit_zero && list && items.is_empty(),
            Value::Object(entries) => field.omit_zero && field.label == Label::Map && entries.is_empty(),
            // A struct that writes itself as a text or number is not empty.
            _ if matches!(field.kind, Kind::Message(_)) => false,
            Value::String(text) => field.omit_zero && text.is_empty(),
            Value::Bool(on) => field.omit_zero && !*on,
            Value::Number(number) => field.omit_zero && number.as_f64() == Some(0.0),
        };
        if zero {
            object.remove(&field.json);
        }
    }

    fn add_struct(&self, field: &Field, object: &mut Map<String, Value>) {
        let structure = matches!((field.label, field.kind), (Label::Optional, Kind::Message(_)))
            && self.special_of(field).is_none()
            && !self.is_list(field);
        if structure && object.get(&field.json).is_none_or(Value::is_null) {
            object.insert(field.json.clone(), json!({}));
        }
    }

    fn settle_field(&self, field: &Field, object: &mut Map<String, Value>) {
        let empty = match object.get(&field.json) {
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(entries)) => field.label == Label::Map && entries.is_empty(),
            _ => false,
        };
        if empty {
            object.insert(field.json.clone(), Value::Null);
        }
    }

    fn complete_field(&self, field: &Field, object: &mut Map<String, Value>) {
        if object.get(&field.json).is_some_and(|value| !value.is_null()) {
            return;
        }
        let zero = match (field.label, field.kind) {
            (Label::Repeated | Label::Map, _) => Value::Null,
            (_, Kind::String) => json!(""),
            (_, Kind::Bool) => json!(false),
            (_, Kind::Int32 | Kind::Int64 | Kind::Double) => json!(0),
            (_, Kind::Bytes) => Value::Null,
            (_, Kind::Missing) => return,
            (_, Kind::Message(_)) if self.is_list(field) && field.omit_zero => return,
            (_, Kind::Message(_)) if self.is_list(field) => Value::Null,
            (_, Kind::Message(_)) => match self.special_of(field) {
                None => json!({}),
                Some(Special::Quantity) => json!("0"),
                Some(Special::IntOrString) => json!(0),
                Some(Special::Duration) => json!("0s"),
                Some(Special::SchemaOrBool) => json!(false),
                Some(_) => Value::Null,
            },
        };
        object.insert(field.json.clone(), zero);
    }
}

/// A value of a type that writes itself. What cannot be read is left to those who refuse it.
fn written(special: Special, value: &mut Value) {
    let text = value.as_str();
    let better = match (special, text) {
        (Special::Quantity, _) if value.is_string() || value.is_number() => {
            Quantity::from_json(value).ok().map(|amount| amount.to_string())
        }
        (Special::Time, Some(text)) => rfc3339::parse(text).map(|(seconds, _)| rfc3339::format(seconds)),
        (Special::MicroTime, Some(text)) => {
            rfc3339::parse(text).map(|(seconds, nanos)| rfc3339::format_micros(seconds, nanos))
        }
        _ => None,
    };
    if let Some(better) = better.filter(|better| text != Some(better.as_str())) {
        *value = better.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few messages in the shape of the generated table.
    fn table() -> ProtoTable {
        let text = json!({"messages": {
            "k8s.io.apimachinery.pkg.api.resource.Quantity": {"fields": [{"name": "string", "number": 1, "type": "string"}]},
            "k8s.io.apimachinery.pkg.apis.meta.v1.Time": {"fields": [{"name": "seconds", "number": 1, "type": "int64"}]},
            "Thing": {"fields": [
                {"name": "spec", "number": 1, "type": "message:Spec", "omitempty": true, "always": true},
                {"name": "status", "number": 2, "type": "message:Status", "omitempty": true, "always": true},
            ]},
            "Spec": {"fields": [
                {"name": "replicas", "number": 1, "type": "int32"},
                {"name": "paused", "number": 2, "type": "bool", "omitempty": true},
                {"name": "rules", "number": 3, "label": "repeated", "type": "message:Rule", "always": true},
                {"name": "labels", "number": 4, "label": "map", "type": "string", "value": "string", "omitempty": true},
                {"name": "limits", "number": 5, "label": "map", "type": "string", "value": "message:k8s.io.apimachinery.pkg.api.resource.Quantity", "omitempty": true},
                {"name": "source", "number": 6, "type": "message:Source", "inline": true},
                {"name": "strategy", "number": 7, "type": "message:Strategy", "omitempty": true, "always": true},
            ]},
            "Source": {"fields": [{"name": "empty", "number": 1, "type": "message:Strategy"}, {"name": "path", "number": 2, "type": "string", "omitempty": true}]},
            "Rule": {"fields": [{"name": "verb", "number": 1, "type": "string", "always": true}, {"name": "since", "number": 2, "type": "message:k8s.io.apimachinery.pkg.apis.meta.v1.Time", "omitempty": true, "always": true}]},
            "Strategy": {"fields": [{"name": "type", "number": 1, "type": "string", "omitempty": true}]},
            "Status": {"fields": [{"name": "ready", "number": 1, "type": "int32", "always": true}]},
        }});
        ProtoTable::parse(text.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_a_struct_does_not_hold_goes_and_what_it_always_has_comes() {
        // (sent, held, written)
        let cases = [
            (json!({}), json!({}), json!({"spec": {"rules": null, "strategy": {}}, "status": {"ready": 0}})),
            // A pointer to zero is meant; an empty struct behind a pointer, too.
            (
                json!({"spec": {"replicas": 0, "paused": false, "empty": {}, "path": "", "labels": {}, "rules": []}}),
                json!({"spec": {"replicas": 0, "empty": {}, "rules": []}}),
                json!({"spec": {"replicas": 0, "empty": {}, "rules": [], "strategy": {}}, "status": {"ready": 0}}),
            ),
            (
                json!({"spec": {"limits": {"cpu": "1000m", "memory": "1024Mi", "half": 0.5, "many": 1000, "odd": "x"}, "strategy": {"type": ""}}}),
                json!({"spec": {"limits": {"cpu": "1", "memory": "1Gi", "half": "500m", "many": "1k", "odd": "x"}, "strategy": {}}}),
                json!({"spec": {"limits": {"cpu": "1", "memory": "1Gi", "half": "500m", "many": "1k", "odd": "x"}, "strategy": {}, "rules": null}, "status": {"ready": 0}}),
            ),
            (
                json!({"spec": {"rules": [{"since": "2026-01-01T01:00:00+01:00"}, {"verb": "get", "since": null}]}, "status": {"ready": 2}}),
                json!({"spec": {"rules": [{"since": "2026-01-01T00:00:00Z"}, {"verb": "get"}]}, "status": {"ready": 2}}),
                json!({"spec": {"rules": [{"verb": "", "since": "2026-01-01T00:00:00Z"}, {"verb": "get", "since": null}], "strategy": {}}, "status": {"ready": 2}}),
            ),
            (
                json!({"spec": {"labels": {"a": null, "b": "c"}}}),
                json!({"spec": {"labels": {"a": "", "b": "c"}}}),
                json!({"spec": {"labels": {"a": "", "b": "c"}, "rules": null, "strategy": {}}, "status": {"ready": 0}}),
            ),
            (
                json!({"spec": {"labels": []}}),
                json!({"spec": {"labels": []}}),
                json!({"spec": {"labels": [], "rules": null, "strategy": {}}, "status": {"ready": 0}}),
            ),
            // What is not of the right type is for others to refuse.
            (json!({"spec": "x"}), json!({"spec": "x"}), json!({"spec": "x", "status": {"ready": 0}})),
        ];
        let table = table();
        for (sent, held, written) in cases {
            let mut object = sent.clone();
            table.tidy("Thing", &mut object);
            assert_eq!(object, held, "{sent}");
            table.complete("Thing", &mut object);
            assert_eq!(object, written, "{sent}");
            // An empty list that is always written is null in storage.
            table.settle("Thing", &mut object);
            assert!(object["spec"]["rules"] != json!([]), "{object}");
            // Once is enough.
            let again = object.clone();
            table.complete("Thing", &mut object);
            assert_eq!(object, again);
        }
    }
}
