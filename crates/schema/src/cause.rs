//! One reason why a document was refused, in the shape of `Status.details.causes`.

use std::fmt::{self, Write as _};

use serde_json::Value;

/// A cause as clients see it: `message` has no field in front, since `field` stands beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub kind: CauseKind,
    pub field: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CauseKind {
    FieldValueInvalid,
    FieldValueRequired,
    FieldValueNotSupported,
    FieldValueTypeInvalid,
    FieldValueTooLong,
    FieldValueTooMany,
    FieldValueDuplicate,
    FieldValueNotFound,
    FieldValueForbidden,
    FieldManagerConflict,
}

impl CauseKind {
    /// The `reason` of the cause on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            CauseKind::FieldValueInvalid => "FieldValueInvalid",
            CauseKind::FieldValueRequired => "FieldValueRequired",
            CauseKind::FieldValueNotSupported => "FieldValueNotSupported",
            CauseKind::FieldValueTypeInvalid => "FieldValueTypeInvalid",
            CauseKind::FieldValueTooLong => "FieldValueTooLong",
            CauseKind::FieldValueTooMany => "FieldValueTooMany",
            CauseKind::FieldValueDuplicate => "FieldValueDuplicate",
            CauseKind::FieldValueNotFound => "FieldValueNotFound",
            CauseKind::FieldValueForbidden => "FieldValueForbidden",
            CauseKind::FieldManagerConflict => "FieldManagerConflict",
        }
    }
}

impl Cause {
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::worded(CauseKind::FieldValueRequired, field, "Required value", detail)
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl AsRef<str>) -> Self {
        let head = format!("Invalid value: {}", Shown(value));
        Self::worded(CauseKind::FieldValueInvalid, field, &head, detail.as_ref())
    }

    pub fn type_invalid(field: impl Into<String>, value: &Value, detail: impl AsRef<str>) -> Self {
        let head = format!("Invalid value: {}", Shown(value));
        Self::worded(CauseKind::FieldValueTypeInvalid, field, &head, detail.as_ref())
    }

    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[Value]) -> Self {
        let mut detail = String::new();
        for (index, one) in supported.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            // Upstream quotes every allowed value, numbers too.
            let text = one.as_str().map_or_else(|| one.to_string(), str::to_owned);
            let _ = write!(detail, "{comma}{text:?}");
        }
        let head = format!("Unsupported value: {}", Shown(value));
        let detail = if supported.is_empty() { detail } else { format!("supported values: {detail}") };
        Self::worded(CauseKind::FieldValueNotSupported, field, &head, &detail)
    }

    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {bytes}");
        Self::worded(CauseKind::FieldValueTooLong, field, "Too long", &detail)
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {items}");
        Self::worded(CauseKind::FieldValueTooMany, field, &format!("Too many: {actual}"), &detail)
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let head = format!("Duplicate value: {}", Shown(value));
        Self::worded(CauseKind::FieldValueDuplicate, field, &head, "")
    }

    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        let head = format!("Not found: {}", Shown(value));
        Self::worded(CauseKind::FieldValueNotFound, field, &head, "")
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::worded(CauseKind::FieldValueForbidden, field, "Forbidden", detail)
    }

    fn worded(kind: CauseKind, field: impl Into<String>, head: &str, detail: &str) -> Self {
        let message = if detail.is_empty() { head.to_owned() } else { format!("{head}: {detail}") };
        Self { kind, field: field.into(), message }
    }
}

/// `field: message`, with the placeholder that clients know for a cause about the whole document.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "<nil>" } else { &self.field };
        write!(f, "{field}: {}", self.message)
    }
}

/// The text after `... is invalid: `: one cause as it is, several in brackets, none twice.
pub fn summary(causes: &[Cause]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes {
        let text = cause.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => write!(f, "{text:?}"),
            other => write!(f, "{other}"),
        }
    }
}
