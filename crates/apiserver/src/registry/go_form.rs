//! How Go holds the objects of a built-in kind, found once for each of its versions.

use std::sync::{Arc, OnceLock};

use ferrovirt_schema::proto::ProtoTable;
use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub struct GoForm(Arc<OnceLock<Option<Known>>>);

#[derive(Debug)]
pub struct Known {
    pub table: &'static ProtoTable,
    /// The name of the type.
    pub message: String,
    /// What an object is of which nothing is set, as it is written.
    pub empty: Value,
}

impl GoForm {
    /// `None` for a kind that is no type of Go's.
    pub fn get_or_find(&self, find: impl FnOnce() -> Option<(&'static ProtoTable, String)>) -> Option<&Known> {
        let found = self.0.get_or_init(|| {
            let (table, message) = find()?;
            let mut empty = json!({"metadata": {}});
            table.tidy(&message, &mut empty);
            table.add_structs(&message, &mut empty);
            table.complete(&message, &mut empty);
            Some(Known { table, message, empty })
        });
        found.as_ref()
    }
}
