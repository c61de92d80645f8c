//! Which objects a list, a watch or a deletecollection is about.

use ferrovirt_schema::selector::{FieldSelector, LabelSelector};
use serde_json::Value;

use super::Call;
use crate::status::ApiError;
use crate::storage::Entry;

pub struct Selection {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// Some field term needs the object itself.
    needs_object: bool,
    /// Field names of the request's version that are stored under another name.
    renames: &'static [(&'static str, &'static str)],
}

impl Selection {
    pub fn of(call: &Call) -> Result<Self, ApiError> {
        let bad = |e: &dyn std::fmt::Display| ApiError::bad_request(e.to_string());
        let labels = LabelSelector::parse(call.query.get("labelSelector")).map_err(|e| bad(&e))?;
        let mut text = call.query.get("fieldSelector").to_owned();
        // `watch` of one named object, the old way of `/watch/…/name`.
        if call.verb == "watch" && call.target.name.is_some() {
            text = format!("metadata.name={}", call.name());
        }
        let fields = FieldSelector::parse(&text).map_err(|e| bad(&e))?;
        let mut needs_object = false;
        for term in fields.terms() {
            match term.path.as_str() {
                "metadata.name" => {}
                "metadata.namespace" if call.resource.namespaced => {}
                path if call.version().selectable.iter().any(|s| s == path) => needs_object = true,
                path => {
                    let plain = !call.resource.custom && call.version().selectable.is_empty();
                    return Err(ApiError::bad_request(match plain {
                        true => format!(
                            "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                        ),
                        false => format!("field label not supported: {path}"),
                    }));
                }
            }
        }
        Ok(Self { labels, fields, needs_object, renames: call.version().renames })
    }

    /// Whether it matters in which version an object is.
    pub fn needs_object(&self) -> bool {
        self.needs_object
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    pub fn matches(&self, entry: &Entry) -> bool {
        if !self.labels.is_everything() && !self.labels.matches(entry.meta.labels()) {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        let object: Value =
            if self.needs_object { serde_json::from_slice(&entry.bytes).unwrap_or_default() } else { Value::Null };
        self.fields.matches(|path| match path {
            "metadata.name" => Some(entry.key.name.to_string()),
            "metadata.namespace" => Some(entry.key.namespace.to_string()),
            path => Some(self.field(&object, path)),
        })
    }

    /// The value of a selectable field as text; missing ones are "".
    fn field(&self, object: &Value, path: &str) -> String {
        // The selector of events by source means its component, or whoever reports in its place.
        let path = match path {
            "source" | "deprecatedSource" => match crate::object::text(object, &["source", "component"]) {
                "" => "reportingComponent",
                _ => "source.component",
            },
            path => path,
        };
        let value = path.split('.').try_fold(object, |value, key| {
            let stored = self.renames.iter().find(|(_, here)| *here == key).map_or(key, |(stored, _)| stored);
            value.get(stored)
        });
        match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ if matches!(path, "spec.unschedulable" | "spec.hostNetwork") => "false".to_owned(),
            _ => String::new(),
        }
    }
}
