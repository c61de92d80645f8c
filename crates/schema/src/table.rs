//! Printer columns: what `kubectl get` shows of an object.

mod jsonpath;

use serde_json::{Value, json};

pub use jsonpath::{JsonPath, PathError};

/// One column: how it is announced, and where its cells come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub kind: ColumnKind,
    pub format: String,
    pub description: String,
    /// 0 is always shown, more only in wide output.
    pub priority: i32,
    pub path: JsonPath,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    String,
    Integer,
    Number,
    Boolean,
    /// The cell is the RFC 3339 text; only the caller has a clock to make an age of it.
    Date,
}

impl ColumnKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ColumnKind::String => "string",
            ColumnKind::Integer => "integer",
            ColumnKind::Number => "number",
            ColumnKind::Boolean => "boolean",
            ColumnKind::Date => "date",
        }
    }
}

impl Column {
    pub fn new(name: &str, kind: ColumnKind, path: &str) -> Result<Self, PathError> {
        Ok(Self {
            name: name.to_owned(),
            kind,
            format: String::new(),
            description: String::new(),
            priority: 0,
            path: JsonPath::parse(path)?,
        })
    }

    /// Reads one entry of `additionalPrinterColumns`.
    pub fn from_crd(entry: &Value) -> Result<Self, PathError> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = match text("type") {
            "integer" => ColumnKind::Integer,
            "number" => ColumnKind::Number,
            "boolean" => ColumnKind::Boolean,
            "date" => ColumnKind::Date,
            _ => ColumnKind::String,
        };
        let priority = entry.get("priority").and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        Ok(Self {
            format: text("format").to_owned(),
            description: text("description").to_owned(),
            priority,
            ..Self::new(text("name"), kind, text("jsonPath"))?
        })
    }

    /// The entry of `columnDefinitions` in a `Table`.
    pub fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind.as_str(),
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }

    fn cell(&self, document: &Value) -> Value {
        let Some(value) = self.path.first(document) else {
            return Value::Null;
        };
        match (self.kind, value) {
            (ColumnKind::String, Value::String(_)) => value.clone(),
            (ColumnKind::String, Value::Null) => Value::Null,
            (ColumnKind::String, other) => Value::String(other.to_string()),
            (ColumnKind::Integer, Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => json!(n),
                (None, Some(f)) => json!(f.trunc() as i64),
                (None, None) => Value::Null,
            },
            (ColumnKind::Number, Value::Number(_))
            | (ColumnKind::Boolean, Value::Bool(_))
            | (ColumnKind::Date, Value::String(_)) => value.clone(),
            _ => Value::Null,
        }
    }
}

/// The columns of a custom resource: its name, then what its definition asks for, or its age where it asks for nothing.
pub fn crd_columns(entries: &[Value]) -> Result<Vec<Column>, PathError> {
    let mut out =
        vec![Column { format: "name".to_owned(), ..Column::new("Name", ColumnKind::String, ".metadata.name")? }];
    if entries.is_empty() {
        out.push(Column::new("Age", ColumnKind::Date, ".metadata.creationTimestamp")?);
    }
    for entry in entries {
        out.push(Column::from_crd(entry)?);
    }
    Ok(out)
}

/// One cell per column; null where the object has nothing of the column's type to show.
pub fn cells(columns: &[Column], document: &Value) -> Vec<Value> {
    columns.iter().map(|column| column.cell(document)).collect()
}
