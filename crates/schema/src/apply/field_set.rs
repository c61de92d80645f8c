//! Sets of field paths, in the `FieldsV1` form that `managedFields` stores.
//!
//! A path is made of elements: `f:name` a member of an object, `k:{"name":"a"}` an element of a keyed list, `v:"x"` an
//! element of a set, `i:0` an element by position. The set is a tree of them; `own` says that the path that ends here
//! is in the set, apart from those that go on below.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::structural::MAX_DEPTH;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSet {
    pub(super) own: bool,
    pub(super) children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    pub(super) fn leaf() -> Self {
        Self { own: true, children: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        !self.own && self.children.is_empty()
    }

    /// Reads `fieldsV1`. What is no field set in there is skipped: it cannot be owned.
    pub fn from_json(value: &Value) -> Self {
        let mut set = Self::read(value, 0);
        set.own = false;
        set
    }

    fn read(value: &Value, depth: usize) -> Self {
        let Value::Object(entries) = value else {
            return Self::leaf();
        };
        if entries.is_empty() || depth > MAX_DEPTH {
            return Self::leaf();
        }
        let mut set = Self::default();
        for (name, below) in entries {
            if name == "." {
                set.own = true;
            } else if let Some(element) = canonical(name) {
                set.insert(element, Self::read(below, depth + 1));
            }
        }
        set
    }

    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        for (element, below) in &self.children {
            let mut inner = below.to_json();
            if let (Value::Object(fields), true) = (&mut inner, below.own && !below.children.is_empty()) {
                fields.insert(".".to_owned(), Value::Object(Map::new()));
            }
            out.insert(element.clone(), inner);
        }
        Value::Object(out)
    }

    pub(super) fn insert(&mut self, element: String, below: FieldSet) {
        if !below.is_empty() {
            self.children.entry(element).or_default().add(&below);
        }
    }

    pub(super) fn add(&mut self, other: &FieldSet) {
        self.own |= other.own;
        for (element, below) in &other.children {
            self.children.entry(element.clone()).or_default().add(below);
        }
    }

    /// The paths that are in both.
    pub(super) fn common(&self, other: &FieldSet) -> FieldSet {
        self.keep(other, |mine, theirs| mine && theirs, false)
    }

    /// The paths that are here and not in `other`.
    pub(super) fn without(&self, other: &FieldSet) -> FieldSet {
        self.keep(other, |mine, theirs| mine && !theirs, true)
    }

    fn keep(&self, other: &FieldSet, decide: fn(bool, bool) -> bool, alone: bool) -> FieldSet {
        let mut out = FieldSet { own: decide(self.own, other.own), children: BTreeMap::new() };
        for (element, mine) in &self.children {
            let kept = match other.children.get(element) {
                Some(theirs) => mine.keep(theirs, decide, alone),
                None if alone => mine.clone(),
                None => continue,
            };
            if !kept.is_empty() {
                out.children.insert(element.clone(), kept);
            }
        }
        out
    }

    /// Every path in the form of error messages: `.spec.containers[name="a"].image`.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect(&mut String::new(), &mut out);
        out
    }

    fn collect(&self, path: &mut String, out: &mut Vec<String>) {
        if self.own {
            out.push(path.clone());
        }
        let before = path.len();
        for (element, below) in &self.children {
            push_element(path, element);
            below.collect(path, out);
            path.truncate(before);
        }
    }
}

fn push_element(path: &mut String, element: &str) {
    let Some((kind, rest)) = element.split_once(':') else {
        return;
    };
    let _ = match kind {
        "f" => write!(path, ".{rest}"),
        "v" => write!(path, "[={rest}]"),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            write!(path, "[{}]", keys.join(","))
        }
        _ => write!(path, "[{rest}]"),
    };
}

/// The one spelling of an element, so that sets written by others compare equal. None for what is no element.
fn canonical(element: &str) -> Option<String> {
    let (kind, rest) = element.split_once(':')?;
    match kind {
        "f" => Some(element.to_owned()),
        "k" => match serde_json::from_str::<BTreeMap<String, Value>>(rest) {
            Ok(keys) => Some(key_element(keys)),
            Err(_) => None,
        },
        "v" => serde_json::from_str::<Value>(rest).ok().map(|value| value_element(&value)),
        "i" => rest.parse::<i64>().ok().map(|index| format!("i:{index}")),
        _ => None,
    }
}

pub(super) fn field_element(name: &str) -> String {
    format!("f:{name}")
}

pub(super) fn value_element(value: &Value) -> String {
    format!("v:{value}")
}

pub(super) fn key_element(keys: BTreeMap<String, Value>) -> String {
    let mut out = "k:{".to_owned();
    for (index, (name, value)) in keys.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{}:{value}", Value::String(name));
    }
    out.push('}');
    out
}
