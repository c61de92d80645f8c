//! From schema documents to shared nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use regex::Regex;
use serde_json::{Map, Value, json};

use super::node::{Additional, Checks, ListType, Node, PatchHints, Reference, Type};
use super::{Cause, Definitions, MAX_DEPTH, Schema, meta};

/// What a schema says to people and tools only. Dropped, so that equal types with different comments are one node.
const PROSE: [&str; 6] = ["description", "title", "example", "externalDocs", "$schema", "id"];

/// Defaults that list keys need and the published definitions leave out.
const KEY_DEFAULTS: [(&str, &str, &str); 2] =
    [("io.k8s.api.core.v1.ContainerPort", "protocol", "TCP"), ("io.k8s.api.core.v1.ServicePort", "protocol", "TCP")];

/// Where a schema stands, which decides what it has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Field,
    Items,
    /// Below `allOf`, `anyOf`, `oneOf` or `not`: a condition on a value whose type is given elsewhere.
    Condition,
}

/// The schema being read.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a str,
    place: Place,
    depth: usize,
}

impl At<'_> {
    fn below<'a>(&self, path: &'a str, place: Place) -> At<'a> {
        let place = if self.place == Place::Condition { Place::Condition } else { place };
        At { path, place, depth: self.depth + 1 }
    }
}

/// Shares equal subtrees and compiled patterns between the schemas parsed through it.
#[derive(Debug, Default)]
pub struct Pool {
    nodes: HashMap<String, (usize, Arc<Node>)>,
    last_id: usize,
    patterns: HashMap<String, Option<Regex>>,
    warnings: Vec<String>,
}

impl Pool {
    /// As [`Schema::parse`].
    pub fn parse(&mut self, source: &Value) -> Result<Schema, Vec<Cause>> {
        let mut reader = Reader { pool: self, causes: Vec::new(), references: None };
        let mut source = source.clone();
        add_type_meta(&mut source);
        let (_, root) = reader.node(&source, At { path: "openAPIV3Schema", place: Place::Root, depth: 0 });
        let causes = reader.causes;
        let warnings = std::mem::take(&mut self.warnings);
        if causes.is_empty() { Ok(Schema { root, warnings: warnings.into() }) } else { Err(causes) }
    }

    /// Reads a part of an `openAPIV3Schema`: the schema of a field, not of a resource.
    pub fn parse_part(&mut self, source: &Value) -> Result<Schema, Vec<Cause>> {
        let mut reader = Reader { pool: self, causes: Vec::new(), references: None };
        let (_, root) = reader.node(source, At { path: "", place: Place::Field, depth: 0 });
        let causes = reader.causes;
        let warnings = std::mem::take(&mut self.warnings);
        if causes.is_empty() { Ok(Schema { root, warnings: warnings.into() }) } else { Err(causes) }
    }

    /// As [`Definitions::parse`].
    pub fn parse_definitions(&mut self, source: &Value) -> Result<Definitions, Vec<Cause>> {
        let Some(entries) = source.as_object() else {
            return Err(vec![Cause::type_invalid("definitions", &json!(type_name(source)), "must be an object")]);
        };
        let slots: BTreeMap<String, Arc<OnceLock<Arc<Node>>>> =
            entries.keys().map(|name| (name.clone(), Arc::default())).collect();
        let mut causes = Vec::new();
        for (name, entry) in entries {
            let mut reader = Reader { pool: self, causes: Vec::new(), references: Some(&slots) };
            let (_, mut node) =
                reader.node(&with_key_defaults(name, entry), At { path: name, place: Place::Root, depth: 0 });
            causes.append(&mut reader.causes);
            // Clients write quantities as numbers too, and the published definition does not say so.
            if name.ends_with(".api.resource.Quantity") {
                let checks = Checks { format: Some("quantity".into()), ..Checks::default() };
                node = Arc::new(Node { preserve_unknown: true, checks: Some(Box::new(checks)), ..Node::default() });
            }
            // Whatever somebody put there is owned as a whole.
            if name.ends_with(".pkg.runtime.RawExtension") {
                node = Arc::new(Node { preserve_unknown: true, atomic_map: true, ..Node::default() });
            }
            if let Some(slot) = slots.get(name) {
                let _ = slot.set(node);
            }
        }
        let warnings = std::mem::take(&mut self.warnings);
        if causes.is_empty() { Ok(Definitions { by_name: slots, warnings: warnings.into() }) } else { Err(causes) }
    }

    /// How many distinct nodes are held.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Lets go of nodes that no schema uses any more, after a definition was replaced or deleted.
    pub fn shrink(&mut self) {
        loop {
            let before = self.nodes.len();
            self.nodes.retain(|_, (_, node)| Arc::strong_count(node) > 1);
            if self.nodes.len() == before {
                return;
            }
        }
    }

    fn regex(&mut self, pattern: &str) -> Option<Regex> {
        if let Some(known) = self.patterns.get(pattern) {
            return known.clone();
        }
        let compiled = Regex::new(pattern).ok();
        if compiled.is_none() {
            self.warnings.push(format!("pattern {pattern:?} is not supported and will not be checked"));
        }
        self.patterns.insert(pattern.to_owned(), compiled.clone());
        compiled
    }
}

/// `apiVersion`, `kind` and `metadata` are part of every resource, whatever its schema says.
fn add_type_meta(source: &mut Value) {
    let Some(fields) = source.as_object_mut() else {
        return;
    };
    let Some(properties) = fields.entry("properties").or_insert_with(|| json!({})).as_object_mut() else {
        return;
    };
    let mut metadata = meta::object_meta();
    // Rules on the object's name are the one thing a definition may add to metadata.
    for name in ["name", "generateName"] {
        let pointer = format!("/properties/{name}");
        let own = properties.get("metadata").and_then(|m| m.pointer(&pointer)).cloned();
        if let (Some(own), Some(slot)) = (own, metadata.pointer_mut(&pointer)) {
            *slot = own;
        }
    }
    properties.insert("metadata".to_owned(), metadata);
    for name in ["apiVersion", "kind"] {
        properties.entry(name).or_insert_with(|| json!({"type": "string"}));
    }
}

fn with_key_defaults(name: &str, entry: &Value) -> Value {
    let mut entry = entry.clone();
    for (_, property, default) in KEY_DEFAULTS.iter().filter(|(definition, ..)| *definition == name) {
        if let Some(Value::Object(property)) = entry.pointer_mut(&format!("/properties/{property}")) {
            property.entry("default").or_insert_with(|| json!(default));
        }
    }
    entry
}

struct Reader<'a> {
    pool: &'a mut Pool,
    causes: Vec<Cause>,
    /// Present when reading definitions, which follow laxer rules (see the module above).
    references: Option<&'a BTreeMap<String, Arc<OnceLock<Arc<Node>>>>>,
}

impl Reader<'_> {
    fn node(&mut self, source: &Value, at: At<'_>) -> (usize, Arc<Node>) {
        let At { path, depth, .. } = at;
        if depth > MAX_DEPTH {
            self.causes.push(Cause::forbidden(path, "schema is nested too deeply"));
            return (0, Arc::default());
        }
        let Some(fields) = source.as_object() else {
            self.causes.push(Cause::type_invalid(path, &json!(type_name(source)), "must be an object"));
            return (0, Arc::default());
        };
        let embedded_source;
        let fields = if flag(fields, "x-kubernetes-embedded-resource") {
            let mut copy = source.clone();
            add_type_meta(&mut copy);
            embedded_source = copy;
            embedded_source.as_object().unwrap_or(fields)
        } else {
            fields
        };

        let mut node = Node::default();
        let mut key = Map::new();
        for (name, value) in fields {
            if !PROSE.contains(&name.as_str()) {
                self.attribute(&mut node, &mut key, name, value, at);
            }
        }
        self.finish(&mut node, &mut key, fields, at);
        let key = Value::Object(key).to_string();
        if let Some((id, known)) = self.pool.nodes.get(&key) {
            return (*id, known.clone());
        }
        self.pool.last_id += 1;
        let id = self.pool.last_id;
        let node = Arc::new(node);
        self.pool.nodes.insert(key, (id, node.clone()));
        (id, node)
    }

    /// Reads what can be read on its own, and writes to `key` what makes the node differ from others.
    fn attribute(&mut self, node: &mut Node, key: &mut Map<String, Value>, name: &str, value: &Value, at: At<'_>) {
        let path = at.path;
        match name {
            "properties" => {
                let Some(entries) = self.object(value, path, name) else {
                    return;
                };
                let mut children = Vec::with_capacity(entries.len());
                let mut ids = Map::new();
                for (property, schema) in entries {
                    let (id, child) =
                        self.node(schema, at.below(&format!("{path}.properties[{property}]"), Place::Field));
                    ids.insert(property.clone(), json!(id));
                    children.push((property.as_str().into(), child));
                }
                children.sort_by(|a: &(Box<str>, _), b| a.0.cmp(&b.0));
                node.properties = children.into();
                key.insert(name.to_owned(), Value::Object(ids));
            }
            "additionalProperties" => match value {
                Value::Bool(allowed) => {
                    node.additional = if *allowed { Additional::Any } else { Additional::Absent };
                    key.insert(name.to_owned(), value.clone());
                }
                schema => {
                    let (id, child) =
                        self.node(schema, at.below(&format!("{path}.additionalProperties"), Place::Field));
                    node.additional = Additional::Node(child);
                    key.insert(name.to_owned(), json!(id));
                }
            },
            "items" => {
                let (id, child) = self.node(value, at.below(&format!("{path}.items"), Place::Items));
                node.items = Some(child);
                key.insert(name.to_owned(), json!(id));
            }
            "$ref" => {
                let target = value.as_str().and_then(|r| r.rsplit('/').next()).unwrap_or_default();
                match self.references.and_then(|slots| slots.get(target)) {
                    Some(slot) => {
                        node.reference = Some(Reference(slot.clone()));
                        // Names are unique within one set of definitions only, slots are unique for good.
                        key.insert(name.to_owned(), json!(Arc::as_ptr(slot) as usize));
                    }
                    None if self.references.is_some() => {
                        // A slice of definitions may leave a type out; such a field is free-form.
                        node.preserve_unknown = true;
                        key.insert("x-missing".to_owned(), json!(target));
                    }
                    None => self.causes.push(Cause::forbidden(format!("{path}.$ref"), "$ref is not supported")),
                }
            }
            "allOf" | "anyOf" | "oneOf" => {
                let Some(list) = value.as_array() else {
                    self.causes.push(Cause::type_invalid(
                        format!("{path}.{name}"),
                        &json!(type_name(value)),
                        "must be an array",
                    ));
                    return;
                };
                // The published OpenAPI v3 wraps each reference in a list of one, to attach a description.
                if let ("allOf", [one], true) = (name, list.as_slice(), self.references.is_some())
                    && let Some(reference) = one.get("$ref")
                {
                    return self.attribute(node, key, "$ref", reference, at);
                }
                let mut ids = Vec::new();
                let mut nodes = Vec::new();
                for (index, one) in list.iter().enumerate() {
                    let (id, child) = self.node(one, at.below(&format!("{path}.{name}[{index}]"), Place::Condition));
                    ids.push(id);
                    nodes.push(child);
                }
                let checks = checks(node);
                let place = match name {
                    "allOf" => &mut checks.all_of,
                    "anyOf" => &mut checks.any_of,
                    _ => &mut checks.one_of,
                };
                *place = nodes.into();
                key.insert(name.to_owned(), json!(ids));
            }
            "not" => {
                let (id, child) = self.node(value, at.below(&format!("{path}.not"), Place::Condition));
                checks(node).not = Some(child);
                key.insert(name.to_owned(), json!(id));
            }
            _ => {
                key.insert(name.to_owned(), value.clone());
                self.scalar(node, name, value, path);
            }
        }
    }

    fn scalar(&mut self, node: &mut Node, name: &str, value: &Value, path: &str) {
        let on = value.as_bool() == Some(true);
        match name {
            "type" => node.kind = self.type_of(value, path),
            "nullable" => node.nullable = on,
            "x-kubernetes-preserve-unknown-fields" => node.preserve_unknown |= on,
            "x-kubernetes-embedded-resource" => node.embedded = on,
            "x-kubernetes-int-or-string" => node.int_or_string |= on,
            "x-kubernetes-map-type" => node.atomic_map = value == "atomic",
            "x-kubernetes-validations" => node.rules = Some(Box::new(value.clone())),
            "default" => node.default = Some(Box::new(value.clone())),
            "required" => node.required = strings(value),
            "format" if value == "int-or-string" => node.int_or_string = true,
            "format" => checks(node).format = value.as_str().map(Into::into),
            "enum" => checks(node).allowed = value.as_array().cloned().unwrap_or_default().into(),
            "pattern" => {
                if let Some(pattern) = value.as_str()
                    && let Some(regex) = self.pool.regex(pattern)
                {
                    checks(node).pattern = Some((pattern.into(), regex));
                }
            }
            "multipleOf" => checks(node).multiple_of = value.as_f64().filter(|n| *n > 0.0),
            "minLength" => checks(node).min_length = value.as_u64(),
            "maxLength" => checks(node).max_length = value.as_u64(),
            "minItems" => checks(node).min_items = value.as_u64(),
            "maxItems" => checks(node).max_items = value.as_u64(),
            "minProperties" => checks(node).min_properties = value.as_u64(),
            "maxProperties" => checks(node).max_properties = value.as_u64(),
            "uniqueItems" if on => checks(node).unique_items = true,
            _ => {}
        }
    }

    /// What needs more than one attribute to be read.
    fn finish(&mut self, node: &mut Node, key: &mut Map<String, Value>, fields: &Map<String, Value>, at: At<'_>) {
        let At { path, depth, .. } = at;
        for (limit, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            if let Some(bound) = fields.get(limit).and_then(Value::as_f64) {
                let bound = Some((bound, flag(fields, exclusive)));
                match limit {
                    "minimum" => checks(node).minimum = bound,
                    _ => checks(node).maximum = bound,
                }
            }
        }
        node.list = match fields.get("x-kubernetes-list-type").and_then(Value::as_str) {
            None => ListType::Unset,
            Some("atomic") => ListType::Atomic,
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(fields.get("x-kubernetes-list-map-keys").map(strings).unwrap_or_default()),
            Some(other) => {
                let supported = ["atomic", "map", "set"].map(Value::from);
                self.causes.push(Cause::not_supported(
                    format!("{path}.x-kubernetes-list-type"),
                    &json!(other),
                    &supported,
                ));
                ListType::Unset
            }
        };
        if let Some(strategy) = fields.get("x-kubernetes-patch-strategy").and_then(Value::as_str) {
            let has = |word: &str| strategy.split(',').any(|s| s.trim() == word);
            node.patch = Some(Box::new(PatchHints {
                merge: has("merge"),
                replace: has("replace"),
                merge_key: fields.get("x-kubernetes-patch-merge-key").and_then(Value::as_str).map(Into::into),
            }));
        }
        if node.int_or_string {
            node.kind = None;
        }
        if self.references.is_none() {
            self.check_structural(node, at);
        } else {
            // Only what the server's own types mean by a default; the rest are the zero values of Go structs.
            node.default = node.default.take().filter(|d| !is_zero(d));
            let free =
                node.properties.is_empty() && matches!(node.additional, Additional::Absent) && node.items.is_none();
            let untyped = node.kind.is_none() && !node.int_or_string && node.reference.is_none();
            if depth <= MAX_DEPTH && free && (untyped || node.kind == Some(Type::Object)) {
                node.preserve_unknown = true;
            }
            key.insert("x-dialect".to_owned(), json!("definitions"));
        }
    }

    /// A custom resource has to say the type of each of its fields, or nothing could be pruned or merged by it.
    fn check_structural(&mut self, node: &Node, at: At<'_>) {
        let field = || format!("{}.type", at.path);
        let untyped = node.kind.is_none() && !node.int_or_string && !node.preserve_unknown;
        let detail = match at.place {
            Place::Root if untyped => "must not be empty at the root",
            Place::Root if node.kind.is_some_and(|kind| kind != Type::Object) => {
                let found = json!(node.kind.map_or("", Type::name));
                return self.causes.push(Cause::invalid(field(), &found, "must be object at the root"));
            }
            Place::Field if untyped => "must not be empty for specified object fields",
            Place::Items if untyped => "must not be empty for specified array items",
            _ => return,
        };
        self.causes.push(Cause::required(field(), detail));
    }

    fn type_of(&mut self, value: &Value, path: &str) -> Option<Type> {
        let kind = match value.as_str() {
            Some("object") => Type::Object,
            Some("array") => Type::Array,
            Some("string") => Type::String,
            Some("integer") => Type::Integer,
            Some("number") => Type::Number,
            Some("boolean") => Type::Boolean,
            Some("") => return None,
            _ => {
                let supported = ["array", "boolean", "integer", "number", "object", "string"].map(Value::from);
                self.causes.push(Cause::not_supported(format!("{path}.type"), value, &supported));
                return None;
            }
        };
        Some(kind)
    }

    fn object<'v>(&mut self, value: &'v Value, path: &str, name: &str) -> Option<&'v Map<String, Value>> {
        let fields = value.as_object();
        if fields.is_none() {
            self.causes.push(Cause::type_invalid(
                format!("{path}.{name}"),
                &json!(type_name(value)),
                "must be an object",
            ));
        }
        fields
    }
}

fn checks(node: &mut Node) -> &mut Checks {
    node.checks.get_or_insert_with(Box::default)
}

fn flag(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool) == Some(true)
}

fn strings(value: &Value) -> Box<[Box<str>]> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(Into::into)).collect()
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The JSON Schema name of a value's type.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() && n.as_f64().is_some_and(|f| f.fract() != 0.0) => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
