//! What a Kubernetes API server knows about JSON documents, and nothing else: no I/O, no clock, no kinds by name.
//!
//! ```text
//!  request bytes --proto--> Value --patch / apply--> Value --structural: prune, default, validate--> Value
//!                                                                        |
//!            list options --selector--> which objects      --table--> what `kubectl get` prints
//! ```
//!
//! | module | room for |
//! |---|---|
//! | [`selector`] | label and field selectors |
//! | [`patch`] | JSON patch, merge patch, strategic merge patch |
//! | [`structural`] | schemas of custom resources and built-in types; pruning, defaults, validation |
//! | [`table`] | printer columns |
//! | [`proto`] | Kubernetes protobuf to JSON and back, driven by a table |
//! | [`quantity`] | amounts of resources |
//! | [`names`] | which strings may be names, labels and keys |
//! | [`apply`] | server-side apply and `managedFields` |
//!
//! The surface, for those who code against it:
//!
//! ```text
//! LabelSelector::parse(&str) -> Result<LabelSelector, SelectorError>       // "" selects everything
//! LabelSelector::from_json(&Value) -> Result<LabelSelector, SelectorError> // matchLabels / matchExpressions; null selects nothing
//! LabelSelector::{everything(), nothing(), is_everything(&self), matches(&self, &BTreeMap<String, String>) -> bool}
//! FieldSelector::parse(&str) -> Result<FieldSelector, SelectorError>
//! FieldSelector::{terms() -> &[FieldTerm { path, op, value }], matches(|&str| -> Option<String>) -> bool}
//!
//! patch::json_patch(&mut Value, patch: &Value) -> Result<(), PatchError>
//! patch::merge_patch(&mut Value, patch: &Value) -> Result<(), PatchError>
//! patch::strategic_merge(&Schema, &mut Value, patch: &Value) -> Result<(), PatchError>
//!
//! Schema::parse(&Value) -> Result<Schema, Vec<Cause>>; Schema::{any(), warnings() -> &[String]}   // Clone is cheap
//! Definitions::parse(&Value /* {name: schema with $ref} */) -> Result<Definitions, Vec<Cause>>; get(&str) -> Option<Schema>
//! structural::Pool::{parse(&mut self, &Value), parse_definitions(&mut self, &Value), shrink(&mut self)}  // shares equal subtrees between schemas
//! structural::prune(&Schema, &mut Value) -> Vec<String>       // unknown field paths, sorted
//! structural::unknown_fields(&Schema, &Value) -> Vec<String>  // the same without changing the document
//! structural::default(&Schema, &mut Value)
//! structural::validate(&Schema, &Value) -> Vec<Cause>
//! structural::validate_update(&Schema, &Value, old: &Value) -> Vec<Cause>
//! Cause { kind: CauseKind, field: String, message: String }; CauseKind::as_str(); cause::summary(&[Cause]) -> String
//!
//! table::Column { name, kind, format, description, priority, path }; Column::from_crd(&Value) -> Result<Column, PathError>
//! table::JsonPath::parse(&str) -> Result<JsonPath, PathError>; table::cells(&[Column], &Value) -> Vec<Value>
//! table::crd_columns(&[Value]) -> Result<Vec<Column>, PathError>; Column::definition(&self) -> Value
//!
//! ProtoTable::parse(&[u8]) -> Result<ProtoTable, ProtoError>
//! ProtoTable::decode(&self, message: &str, &[u8]) -> Result<Value, ProtoError>
//! ProtoTable::encode(&self, message: &str, &Value) -> Result<Vec<u8>, ProtoError>
//! ProtoTable::{message_for(api_version, kind) -> Option<&str>, decode_object(&[u8]) -> Result<Value, _>, encode_object(&Value) -> Result<Vec<u8>, _>}
//! proto::decode_envelope(&[u8]) -> Result<Envelope { api_version, kind, raw, content_encoding, content_type }, ProtoError>
//! proto::encode_envelope(&Envelope) -> Vec<u8>
//!
//! apply::apply(&Schema, live: Option<&Value>, applied: &Value, &Manager, force: bool) -> Result<Value, ApplyError>
//! apply::track_update(&Schema, old: Option<&Value>, new: &mut Value, &Manager)
//! ApplyError::causes(&self) -> Vec<Cause>
//! Manager { name, api_version, subresource: Option<String>, time }
//! ```

#![forbid(unsafe_code)]

pub mod apply;
pub mod cause;
pub mod duration;
pub mod names;
pub mod patch;
pub mod proto;
pub mod quantity;
pub mod rfc3339;
pub mod selector;
pub mod structural;
pub mod table;

pub use cause::{Cause, CauseKind};
pub use proto::ProtoTable;
pub use quantity::Quantity;
pub use selector::{FieldSelector, LabelSelector};
pub use structural::{Definitions, Schema};
