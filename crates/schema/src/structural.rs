//! Schemas of resources, and what they do to a document: drop what they do not know, fill defaults, find faults.
//!
//! A [`Schema`] is the compact form of an `openAPIV3Schema`: no descriptions, equal subtrees stored once. KubeVirt's
//! types repeat each other, so all schemas of a server should be parsed through one [`Pool`].
//!
//! Two dialects are read. [`Schema::parse`] reads custom resource definitions, where an object without properties
//! keeps nothing. [`Definitions::parse`] reads the published definitions of built-in types, which refer to each other,
//! and where such an object is free-form. CEL rules (`x-kubernetes-validations`) are kept but not run: see
//! [`Schema::rules`].

mod defaults;
mod format;
mod meta;
mod node;
mod parse;
mod prune;
mod validate;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

pub use crate::cause::{Cause, CauseKind};
pub use defaults::default;
pub use parse::Pool;
pub use prune::{prune, unknown_fields};
pub use validate::{validate, validate_update};

pub(crate) use node::{Additional, ListType, Node, Type};

/// Documents nest no deeper than this. Deeper parts are refused by validation and left alone by everything else.
pub const MAX_DEPTH: usize = 256;

/// A parsed schema. Cloning copies a pointer.
#[derive(Debug, Clone)]
pub struct Schema {
    pub(crate) root: Arc<Node>,
    warnings: Arc<[String]>,
}

/// The schemas of built-in types by definition name, such as `io.k8s.api.core.v1.Pod`.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    by_name: BTreeMap<String, Arc<OnceLock<Arc<Node>>>>,
    warnings: Arc<[String]>,
}

/// A CEL rule list and the path of the schema node that carries it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub path: String,
    pub rules: Value,
}

impl Schema {
    /// Reads the `openAPIV3Schema` of a custom resource definition.
    pub fn parse(source: &Value) -> Result<Self, Vec<Cause>> {
        Pool::default().parse(source)
    }

    /// The schema that knows nothing and allows everything.
    pub fn any() -> Self {
        Self { root: Arc::new(Node { preserve_unknown: true, ..Node::default() }), warnings: Arc::default() }
    }

    /// What was read but cannot be honoured, such as a pattern that the regex engine does not support.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every `x-kubernetes-validations` list below this schema, for a CEL engine to compile.
    pub fn rules(&self) -> Vec<Rules> {
        let mut out = Vec::new();
        node::collect_rules(&self.root, "", 0, &mut out);
        out
    }
}

impl Definitions {
    /// Reads an object of definitions by name; `$ref` is resolved by the last part of the reference.
    pub fn parse(source: &Value) -> Result<Self, Vec<Cause>> {
        Pool::default().parse_definitions(source)
    }

    pub fn get(&self, name: &str) -> Option<Schema> {
        let root = self.by_name.get(name)?.get()?.clone();
        Some(Schema { root, warnings: self.warnings.clone() })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}
