//! How large the values of a schema can be, which is what the cost of a rule depends on.
//!
//! The numbers are kube-apiserver's: where a schema sets no bound, as many elements are assumed as fit into the largest
//! request.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::Type;
use crate::crd::validation::schema::{kind, on, properties, set};
use crate::crd::validation::typing::escaped;

/// The largest request that kube-apiserver takes.
pub const MAX_REQUEST: u64 = 3 << 20;
const LONGEST_STRING: u64 = MAX_REQUEST - 2;
const LONGEST_TIME: u64 = 32;
const DATE: u64 = 12;

#[derive(Debug)]
pub struct Declaration {
    pub shape: Shape,
    /// Elements, characters or bytes at most; none for what has no length.
    pub most: u64,
    /// Bytes of the shortest JSON of it.
    pub shortest: u64,
}

#[derive(Debug)]
pub enum Shape {
    Simple(Type),
    List(Arc<Declaration>),
    Map(Arc<Declaration>),
    /// Fields by the names that rules have for them.
    Object(BTreeMap<String, Arc<Declaration>>),
}

/// Rules see no bound for the keys of maps, and kube-apiserver takes that for no length at all.
static KEY: LazyLock<Arc<Declaration>> = LazyLock::new(|| simple(Type::String, 0, 2));

fn simple(of: Type, most: u64, shortest: u64) -> Arc<Declaration> {
    Arc::new(Declaration { shape: Shape::Simple(of), most, shortest })
}

impl Declaration {
    /// None for what rules cannot see: data without a schema.
    pub fn of(schema: &Value, resource: bool) -> Option<Arc<Self>> {
        let longest = |key: &str| schema[key].as_i64().map(|most| u64::try_from(most).unwrap_or(0));
        // A character takes up to four bytes.
        let characters = longest("maxLength").map(|most| most.saturating_mul(4));
        if on(schema, "x-kubernetes-int-or-string") {
            return Some(simple(Type::Dyn, characters.unwrap_or(LONGEST_STRING), 1));
        }
        let part = |child: &Value| Self::of(child, on(child, "x-kubernetes-embedded-resource"));
        Some(match kind(schema) {
            "array" => {
                let items = part(set(schema, "items").filter(|items| items.is_object())?)?;
                let most = longest("maxItems").unwrap_or(LONGEST_STRING / (items.shortest + 1));
                Arc::new(Self { shape: Shape::List(items), most, shortest: 2 })
            }
            "object" => match set(schema, "additionalProperties").filter(|values| values.is_object()) {
                Some(values) => {
                    let values = part(values)?;
                    // A key with its quotes, a colon and a comma.
                    let most = longest("maxProperties").unwrap_or(LONGEST_STRING / (values.shortest + 6));
                    Arc::new(Self { shape: Shape::Map(values), most, shortest: 2 })
                }
                None => object(schema, resource),
            },
            "string" => match schema["format"].as_str().unwrap_or_default() {
                "byte" => simple(Type::Bytes, longest("maxLength").unwrap_or(LONGEST_STRING), 2),
                "duration" => simple(Type::Duration, LONGEST_TIME, 3),
                "date" => simple(Type::Time, DATE, DATE),
                "date-time" => simple(Type::Time, LONGEST_TIME, 21),
                _ => {
                    let words = schema["enum"].as_array().filter(|words| !words.is_empty());
                    let longest_word = words.map(|words| {
                        words.iter().filter_map(Value::as_str).map(|word| word.len() as u64).max().unwrap_or(0)
                    });
                    simple(Type::String, characters.or(longest_word).unwrap_or(LONGEST_STRING), 2)
                }
            },
            "boolean" => simple(Type::Bool, 0, 4),
            "number" => simple(Type::Double, 0, 1),
            "integer" => simple(Type::Int, 0, 1),
            _ => return None,
        })
    }

    /// What a step of a path leads to: a field, or one of `@items`, `@values`, `@keys`.
    pub fn child(&self, step: &str) -> Option<&Arc<Self>> {
        match (step, &self.shape) {
            ("@items" | "@values", Shape::List(one) | Shape::Map(one)) => Some(one),
            ("@keys", Shape::Map(_)) => Some(&KEY),
            (name, Shape::Object(fields)) => fields.get(name),
            _ => None,
        }
    }

    /// What a rule below sees of a property.
    pub fn property(&self, name: &str) -> Option<&Arc<Self>> {
        self.child(&escaped(name)?)
    }

    pub fn kind(self: &Arc<Self>) -> Type {
        match &self.shape {
            Shape::Simple(of) => of.clone(),
            Shape::List(one) => Type::List(Arc::new(one.kind())),
            Shape::Map(one) => Type::Map(Arc::new(one.kind())),
            Shape::Object(_) => Type::Object(self.clone()),
        }
    }
}

fn object(schema: &Value, resource: bool) -> Arc<Declaration> {
    // Of a resource, rules see its names, whether its schema has them or not.
    let meta = resource && !has_meta(schema);
    let text = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {"name": text, "generateName": text}});
    let added: &[(&str, &Value)] = &[("apiVersion", &text), ("kind", &text), ("metadata", &metadata)];
    let added = if meta { added } else { &[] };
    let own = properties(schema).map(|(name, child)| (name.as_str(), child));
    let own = own.filter(|(name, _)| added.iter().all(|(other, _)| other != name));
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (mut fields, mut shortest) = (BTreeMap::new(), 2u64);
    for (name, child) in own.chain(added.iter().copied()) {
        let Some(found) = Declaration::of(child, on(child, "x-kubernetes-embedded-resource")) else { continue };
        // What has a default need not be sent. Quotes, a colon and a comma come with a name.
        if required.contains(&name) && set(child, "default").is_none() {
            shortest = shortest.saturating_add(name.len() as u64 + found.shortest + 4);
        }
        if let Some(name) = escaped(name) {
            fields.insert(name, found);
        }
    }
    Arc::new(Declaration { shape: Shape::Object(fields), most: 0, shortest })
}

fn has_meta(schema: &Value) -> bool {
    let of = |value: &Value, names: [&str; 2]| names.iter().all(|name| kind(&value["properties"][*name]) == "string");
    let metadata = &schema["properties"]["metadata"];
    of(schema, ["kind", "apiVersion"]) && kind(metadata) == "object" && of(metadata, ["name", "generateName"])
}
