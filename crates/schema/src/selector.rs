//! Label and field selectors: the query languages of list and watch.
//!
//! Parsing errors carry the wording clients know from Kubernetes, since they are shown to users as they are.

mod field;
mod label;
mod lexer;

pub use field::{FieldOp, FieldSelector, FieldTerm};
pub use label::{LabelOp, LabelSelector, Requirement};

/// Why a selector was refused. The text is complete and ready for a 400 answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    #[error("{0}")]
    Syntax(String),
    #[error("{0}")]
    Json(String),
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    FieldTerm { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(char),
}
