//! Columns of the Table form.

use ferrovirt_schema::table::{self, Column, ColumnKind};
use serde_json::{Value, json};

use super::printers::Printer;

#[derive(Debug, Clone)]
pub enum Columns {
    Builtin(&'static [Printer]),
    Custom(Vec<Column>),
}

impl Columns {
    /// `columnDefinitions` of a Table.
    pub fn definitions(&self) -> Vec<Value> {
        let column = |name: &str, kind: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority});
        match self {
            Self::Builtin(printers) => printers
                .iter()
                .map(|p| {
                    column(
                        p.name,
                        p.kind,
                        if matches!(p.name, "Name" | "Attacher") { "name" } else { "" },
                        p.name,
                        p.priority,
                    )
                })
                .collect(),
            Self::Custom(columns) => {
                std::iter::once(column("Name", "string", "name", "Name of the object", 0))
                    .chain(columns.iter().map(|c| {
                        // kubectl prints dates as ages only if the server already did: the type goes out as it is declared.
                        column(&c.name, c.kind.as_str(), &c.format, &c.description, i64::from(c.priority))
                    }))
                    .collect()
            }
        }
    }

    pub fn cells(&self, object: &Value) -> Vec<Value> {
        match self {
            Self::Builtin(printers) => printers.iter().map(|p| (p.cell)(object)).collect(),
            Self::Custom(columns) => {
                let name = object["metadata"]["name"].clone();
                let mut cells = vec![name];
                let values = table::cells(columns, object);
                cells.extend(columns.iter().zip(values).map(|(column, value)| match (column.kind, &value) {
                    (ColumnKind::Date, Value::String(time)) => super::printers::age_of(time).into(),
                    _ => value,
                }));
                cells
            }
        }
    }
}
