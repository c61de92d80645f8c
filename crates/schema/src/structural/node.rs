//! The in-memory form of a schema.

use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;
use serde_json::Value;

use super::{MAX_DEPTH, Rules};

/// One schema node. Rare attributes are boxed: there are thousands of nodes and most only have a type.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub kind: Option<Type>,
    pub nullable: bool,
    pub preserve_unknown: bool,
    pub embedded: bool,
    pub int_or_string: bool,
    pub list: ListType,
    /// `x-kubernetes-map-type: atomic`: server-side apply owns the object as a whole.
    pub atomic_map: bool,
    /// Sorted by name.
    pub properties: Box<[(Box<str>, Arc<Node>)]>,
    pub additional: Additional,
    pub items: Option<Arc<Node>>,
    pub required: Box<[Box<str>]>,
    pub default: Option<Box<Value>>,
    pub checks: Option<Box<Checks>>,
    pub patch: Option<Box<PatchHints>>,
    pub rules: Option<Box<Value>>,
    /// Set for `$ref` nodes of definitions; everything but `patch` is then the target's.
    pub reference: Option<Reference>,
}

/// A place that is filled once all definitions are read. Types that contain themselves make rings of these, which
/// live as long as the process: definitions are read once.
pub(crate) struct Reference(pub Arc<OnceLock<Arc<Node>>>);

/// Does not follow the reference, which may lead back here.
impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reference")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Absent,
    /// `additionalProperties: true`: any value.
    Any,
    Node(Arc<Node>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Unset,
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// `x-kubernetes-patch-strategy` and `-merge-key`.
#[derive(Debug, Default)]
pub(crate) struct PatchHints {
    pub merge: bool,
    pub replace: bool,
    pub merge_key: Option<Box<str>>,
}

/// Value validations.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub allowed: Box<[Value]>,
    pub pattern: Option<(Box<str>, Regex)>,
    pub format: Option<Box<str>>,
    pub minimum: Option<(f64, bool)>,
    pub maximum: Option<(f64, bool)>,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub unique_items: bool,
    pub all_of: Box<[Arc<Node>]>,
    pub any_of: Box<[Arc<Node>]>,
    pub one_of: Box<[Arc<Node>]>,
    pub not: Option<Arc<Node>>,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

impl Node {
    /// The node itself, or what it refers to.
    pub(crate) fn resolve(&self) -> &Node {
        let mut node = self;
        // A definition that is only a reference to another is legal; a ring of them is not, and ends here.
        for _ in 0..16 {
            match node.reference.as_ref().and_then(|r| r.0.get()) {
                Some(target) => node = target,
                None => break,
            }
        }
        node
    }

    /// The schema of a member of an object: a property, or else the schema of additional properties.
    pub(crate) fn member(&self, name: &str) -> Option<&Node> {
        match self.property(name) {
            Some(node) => Some(node),
            None => match &self.additional {
                Additional::Node(node) => Some(node),
                Additional::Absent | Additional::Any => None,
            },
        }
    }

    pub(crate) fn property(&self, name: &str) -> Option<&Node> {
        let at = self.properties.binary_search_by(|(n, _)| (**n).cmp(name)).ok()?;
        self.properties.get(at).map(|(_, node)| &**node)
    }
}

pub(super) fn collect_rules(node: &Node, path: &str, depth: usize, out: &mut Vec<Rules>) {
    // References may be rings; rules live in custom resource schemas, which have none.
    if depth > MAX_DEPTH || node.reference.is_some() {
        return;
    }
    if let Some(rules) = &node.rules {
        out.push(Rules { path: path.to_owned(), rules: (**rules).clone() });
    }
    for (name, child) in &node.properties {
        let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        collect_rules(child, &path, depth + 1, out);
    }
    if let Additional::Node(child) = &node.additional {
        collect_rules(child, &format!("{path}.*"), depth + 1, out);
    }
    if let Some(child) = &node.items {
        collect_rules(child, &format!("{path}[*]"), depth + 1, out);
    }
}
