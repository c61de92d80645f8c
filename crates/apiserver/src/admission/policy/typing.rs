//! Types of expressions, as far as schemas tell them. What is not known is [`Type::Dyn`] and fits everywhere, so that every
//! complaint is one that the expression deserves.

use std::collections::HashMap;
use std::fmt;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

/// What an expression evaluates to.
#[derive(Debug, Clone, PartialEq)]
pub enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Double,
    String,
    List(Box<Type>),
    Map(Box<Type>),
    /// Fields by name; with `open`, others may be there, too.
    Object {
        schema: Value,
        open: bool,
    },
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(value) => write!(f, "map(string, {value})"),
            Self::Object { .. } => f.write_str("object"),
        }
    }
}

impl Type {
    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Double)
    }

    /// Whether values of both can be equal.
    fn comparable(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) => true,
            (Self::Object { .. } | Self::Map(_), Self::Object { .. } | Self::Map(_)) => true,
            (Self::List(a), Self::List(b)) => a.comparable(b),
            (a, b) => (a.is_number() && b.is_number()) || a == b,
        }
    }
}

/// Turns schemas into types. Definitions are what `$ref` leads to.
pub struct Schemas<'a> {
    pub definitions: &'a Value,
}

impl Schemas<'_> {
    pub fn named(&self, definition: &str) -> Type {
        self.definitions.get(definition).map_or(Type::Dyn, |schema| self.of(schema))
    }

    /// The type of a custom object, whose schema leaves out what every object has.
    pub fn custom(&self, schema: &Value) -> Type {
        let mut schema = schema.clone();
        let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
            return Type::Dyn;
        };
        let reference = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        properties.insert("metadata".into(), serde_json::json!({ "$ref": reference }));
        for key in ["apiVersion", "kind"] {
            properties.insert(key.into(), serde_json::json!({"type": "string"}));
        }
        self.of(&schema)
    }

    fn of(&self, schema: &Value) -> Type {
        if let Some(name) = schema["$ref"].as_str() {
            return self.named(name.trim_start_matches("#/definitions/"));
        }
        let odd = ["x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"];
        if odd.iter().any(|key| schema[*key] == true) {
            return Type::Dyn;
        }
        match (schema["type"].as_str().unwrap_or_default(), schema["format"].as_str().unwrap_or_default()) {
            ("boolean", _) => Type::Bool,
            ("integer", _) => Type::Int,
            ("number", _) => Type::Double,
            // Times, durations, bytes and numbers that may be texts have types of their own.
            ("string", "") => Type::String,
            ("array", _) => Type::List(Box::new(self.of(&schema["items"]))),
            ("object", _) if schema["properties"].is_object() => {
                Type::Object { schema: schema.clone(), open: schema["x-kubernetes-preserve-unknown-fields"] == true }
            }
            ("object", _) if schema["additionalProperties"].is_object() => {
                Type::Map(Box::new(self.of(&schema["additionalProperties"])))
            }
            _ => Type::Dyn,
        }
    }
}

/// Finds the type of one expression after the other, and what is wrong with them.
pub struct Checker<'a> {
    pub schemas: Schemas<'a>,
    /// Types of variables.
    pub names: HashMap<String, Type>,
    /// What `variables` has so far.
    pub variables: HashMap<String, Type>,
    faults: Vec<String>,
}

impl<'a> Checker<'a> {
    pub fn new(schemas: Schemas<'a>) -> Self {
        Self { schemas, names: HashMap::new(), variables: HashMap::new(), faults: Vec::new() }
    }

    /// The type of an expression, or everything that is wrong with it.
    pub fn check(&mut self, tree: &IdedExpr) -> Result<Type, Vec<String>> {
        let found = self.infer(tree);
        let faults = std::mem::take(&mut self.faults);
        if faults.is_empty() { Ok(found) } else { Err(faults) }
    }

    fn infer(&mut self, tree: &IdedExpr) -> Type {
        match &tree.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::String,
                LiteralValue::Bytes(_) | LiteralValue::UInt(_) => Type::Dyn,
            },
            Expr::Ident(name) => self.names.get(name).cloned().unwrap_or(Type::Dyn),
            Expr::Select(select) => {
                let found = self.select(&select.operand, &select.field);
                if select.test { Type::Bool } else { found }
            }
            Expr::List(list) => {
                let items: Vec<Type> = list.elements.iter().map(|item| self.infer(item)).collect();
                let same = items.windows(2).all(|pair| pair[0] == pair[1]);
                Type::List(Box::new(items.into_iter().next().filter(|_| same).unwrap_or(Type::Dyn)))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.infer(&entry.value);
                    }
                }
                Type::Dyn
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(_) | Expr::Unspecified => Type::Dyn,
        }
    }

    fn select(&mut self, operand: &IdedExpr, field: &str) -> Type {
        if matches!(&operand.expr, Expr::Ident(name) if name == "variables") {
            return self.variables.get(field).cloned().unwrap_or_else(|| self.undefined(field));
        }
        match self.infer(operand) {
            Type::Object { schema, open } => match schema["properties"].get(field) {
                Some(schema) => self.schemas.of(schema),
                // Names that CEL cannot write are escaped with underscores.
                None if open || field.contains("__") => Type::Dyn,
                None => self.undefined(field),
            },
            Type::Map(value) => *value,
            Type::Dyn | Type::Null => Type::Dyn,
            other => {
                self.faults.push(format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        }
    }

    fn undefined(&mut self, field: &str) -> Type {
        self.faults.push(format!("undefined field '{field}'"));
        Type::Dyn
    }

    fn call(&mut self, call: &CallExpr) -> Type {
        let parts = call.target.iter().map(|t| &**t).chain(&call.args);
        let types: Vec<Type> = parts.map(|part| self.infer(part)).collect();
        let (name, known) = (call.func_name.as_str(), |t: &Type| *t != Type::Dyn);
        match (name, types.as_slice()) {
            ("_&&_" | "_||_", [a, b]) => {
                if [a, b].iter().any(|t| known(t) && **t != Type::Bool) {
                    return self.no_overload(name, &types);
                }
                Type::Bool
            }
            ("!_", [a]) if known(a) && *a != Type::Bool => self.no_overload(name, &types),
            ("!_", _) | ("@in", _) => Type::Bool,
            ("_==_" | "_!=_", [a, b]) => {
                if !a.comparable(b) {
                    return self.no_overload(name, &types);
                }
                Type::Bool
            }
            ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
                let ordered = matches!(a, Type::Int | Type::Double | Type::String | Type::Bool);
                let fits = !known(a) || !known(b) || (ordered && (a == b || (a.is_number() && b.is_number())));
                if !fits {
                    return self.no_overload(name, &types);
                }
                Type::Bool
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => {
                if !known(a) || !known(b) {
                    return Type::Dyn;
                }
                let fits = match name {
                    "_+_" => {
                        matches!((a, b), (Type::List(_), Type::List(_)))
                            || (a == b && (a.is_number() || *a == Type::String))
                    }
                    "_%_" => *a == Type::Int && *b == Type::Int,
                    _ => a == b && a.is_number(),
                };
                if fits { a.clone() } else { self.no_overload(name, &types) }
            }
            ("_?_:_", [_, a, b]) => {
                if a == b {
                    a.clone()
                } else {
                    Type::Dyn
                }
            }
            ("_[_]", [Type::List(item), _]) => (**item).clone(),
            ("_[_]", [Type::Map(value), _]) => (**value).clone(),
            ("size", _) => Type::Int,
            ("startsWith" | "endsWith" | "contains" | "matches", [Type::String | Type::Dyn, ..]) => Type::Bool,
            ("string", [_]) => Type::String,
            ("int", [_]) => Type::Int,
            ("double", [_]) => Type::Double,
            _ => Type::Dyn,
        }
    }

    fn no_overload(&mut self, name: &str, types: &[Type]) -> Type {
        let shown: Vec<String> = types.iter().map(Type::to_string).collect();
        self.faults.push(format!("found no matching overload for '{name}' applied to '({})'", shown.join(", ")));
        Type::Dyn
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Type {
        let item = match self.infer(&c.iter_range) {
            Type::List(item) if c.iter_var2.is_none() => *item,
            Type::Map(_) if c.iter_var2.is_none() => Type::String,
            _ => Type::Dyn,
        };
        let gathered = match self.infer(&c.accu_init) {
            Type::Bool => Type::Bool,
            _ => Type::Dyn,
        };
        let mut bound = vec![(c.iter_var.clone(), item), (c.accu_var.clone(), gathered)];
        bound.extend(c.iter_var2.clone().map(|name| (name, Type::Dyn)));
        let before: Vec<(String, Option<Type>)> =
            bound.into_iter().map(|(name, of)| (name.clone(), self.names.insert(name, of))).collect();
        self.infer(&c.loop_cond);
        self.infer(&c.loop_step);
        let result = self.infer(&c.result);
        for (name, of) in before.into_iter().rev() {
            match of {
                Some(of) => self.names.insert(name, of),
                None => self.names.remove(&name),
            };
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::policy::Expression;

    #[test]
    fn expressions_are_held_to_the_schema() {
        let definitions = json!({"D": {"type": "object", "properties": {
            "spec": {"$ref": "#/definitions/S"}, "metadata": {"type": "object", "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}, "creationTimestamp": {"type": "string", "format": "date-time"}}},
        }}, "S": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "name": {"type": "string"}, "share": {"x-kubernetes-int-or-string": true},
            "parts": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}});
        let check = |source: &str| {
            let mut checker = Checker::new(Schemas { definitions: &definitions });
            let object = checker.schemas.named("D");
            checker.names.insert("object".into(), object);
            checker.variables.insert("known".into(), Type::Int);
            let expression = Expression::parse(source, &["object", "variables", "params"]).unwrap();
            checker.check(expression.tree()).map(|found| found.to_string()).unwrap_or_else(|faults| faults.join("; "))
        };
        let cases = [
            ("object.spec.replicas > 1", "bool"),
            ("object.spec.replicas > '1'", "found no matching overload for '_>_' applied to '(int, string)'"),
            ("'got ' + object.spec.replicas", "found no matching overload for '_+_' applied to '(string, int)'"),
            ("'got ' + string(object.spec.replicas)", "string"),
            ("object.spec.replica > 1", "undefined field 'replica'"),
            ("has(object.spec.nothing)", "undefined field 'nothing'"),
            ("object.spec.name == 5", "found no matching overload for '_==_' applied to '(string, int)'"),
            ("object.spec.share == 5 || object.spec.share == '5%'", "bool"),
            ("object.spec.replicas > 1.5", "bool"),
            ("object.spec.parts.all(p, p.n > 0)", "bool"),
            ("object.spec.parts.all(p, p.m > 0)", "undefined field 'm'"),
            (
                "object.spec.parts.exists(p, p.n == 'x')",
                "found no matching overload for '_==_' applied to '(int, string)'",
            ),
            ("object.spec.parts.map(p, p.n).size() == 2", "bool"),
            ("object.spec.open.any.thing == 1", "bool"),
            ("object.metadata.labels['a'] == 'b' && object.metadata.labels.a == 'b'", "bool"),
            ("object.metadata.labels['a'] == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
            ("object.metadata.creationTimestamp > timestamp('2026-01-01T00:00:00Z')", "bool"),
            ("object.spec.replicas && true", "found no matching overload for '_&&_' applied to '(int, bool)'"),
            ("variables.known > 1", "bool"),
            ("variables.unknown > 1", "undefined field 'unknown'"),
            ("params.anything.at.all == 5", "bool"),
            ("object.spec.name != null", "bool"),
        ];
        for (source, expected) in cases {
            assert_eq!(check(source), expected, "{source}");
        }
    }
}
