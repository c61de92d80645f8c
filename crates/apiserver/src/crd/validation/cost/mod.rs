//! What rules could cost at most, judged by their schema alone: a definition whose rules may be too expensive is refused when
//! it is written, not when somebody's object meets them.
//!
//! ```text
//!  schema ─> Declaration (how many, how long) ─┐
//!  rule ─> expression ─────────────────────────┴─> estimate ─> cost of one run × how often the value can be there
//! ```
//!
//! Units, sizes and oddities are those of kube-apiserver (cel-go's estimator and Kubernetes' own functions): a definition
//! that is taken there is to be taken here.

mod declaration;
mod estimate;
mod functions;
mod macros;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ferrovirt_schema::Cause;
use serde_json::Value;

use super::schema::{kind, set};

pub use declaration::Declaration;
pub use estimate::most;

/// What one expression may cost, and all of a schema together.
const EXPRESSION_LIMIT: u64 = 10_000_000;
const TOTAL_LIMIT: u64 = 100_000_000;
/// Of those that together cost too much, this many are named.
const NAMED: usize = 4;

/// What an expression evaluates to, as far as costs depend on it.
#[derive(Debug, Clone)]
pub enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Time,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>),
    Object(Arc<Declaration>),
    Optional(Arc<Type>),
    /// A type of Kubernetes' own functions, by its name.
    Own(&'static str),
}

impl Type {
    /// Whether every value of it has the same length.
    pub fn scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Uint | Self::Double | Self::Time | Self::Duration => true,
            Self::Optional(of) => of.scalar(),
            _ => false,
        }
    }
}

/// What all rules of a schema cost together.
#[derive(Debug, Default)]
pub struct Total {
    sum: u64,
    most_expensive: Vec<(String, u64)>,
}

impl Total {
    pub fn add(&mut self, field: String, cost: u64) {
        self.sum = self.sum.saturating_add(cost);
        if cost < TOTAL_LIMIT / 100 {
            return;
        }
        self.most_expensive.push((field, cost));
        self.most_expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        self.most_expensive.truncate(NAMED);
    }

    pub fn causes(&self, path: &str) -> Vec<Cause> {
        if self.sum <= TOTAL_LIMIT {
            return Vec::new();
        }
        let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let mut causes: Vec<Cause> =
            self.most_expensive.iter().map(|(field, _)| Cause::forbidden(field.clone(), why)).collect();
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        causes.push(Cause::forbidden(path, &exceeded(what, self.sum, TOTAL_LIMIT)));
        causes
    }
}

/// The fault of one expression that could cost too much. `what` is how it is called.
pub fn fault(what: &str, cost: u64) -> Option<String> {
    (cost > EXPRESSION_LIMIT).then(|| exceeded(what, cost, EXPRESSION_LIMIT))
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    let times = cost as f64 / limit as f64;
    let factor = if times > 100.0 {
        "more than 100x".to_owned()
    } else if times < 1.5 {
        format!("{times:.6}x")
    } else {
        format!("{times:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// How often a value can be there for each value of the schema around it. None if nothing bounds it.
pub fn multiplicity(schema: &Value) -> Option<u64> {
    let bound = |key: &str| schema[key].as_i64().map(|most| u64::try_from(most).unwrap_or(0));
    match kind(schema) {
        "object" if set(schema, "additionalProperties").is_some() => bound("maxProperties"),
        "array" => bound("maxItems"),
        _ => Some(1),
    }
}

/// How often a value can be there at most: as its schema bounds it, or as often as it fits into a request.
pub fn cardinality(bounded: Option<u64>, of: &Declaration) -> u64 {
    bounded.unwrap_or(declaration::MAX_REQUEST / (of.shortest + 1))
}
