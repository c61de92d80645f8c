//! The types of rules' expressions, as far as they are certain.
//!
//! Our engine does not check types, kube-apiserver's does. What is found here is wrong there too; what is not certain here
//! passes, so that no definition is refused for what we do not know. The engine then tells when the rule is run.

use std::rc::Rc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr, operators as op};
use serde_json::Value;

use super::schema::{kind, on, set};

/// Names that stand for types, or for a family of functions.
const KNOWN: [&str; 30] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "optional_type",
    "google",
    "cel",
    "math",
    "optional",
    "sets",
    "lists",
    "base64",
    "strings",
    "regex",
    "format",
    "ip",
    "cidr",
    "url",
    "quantity",
    "semver",
    "kubernetes",
    "net",
    "authorizer",
];
/// Calls whose arguments name variables, where our parser takes them for ordinary ones.
const MACROS: [&str; 13] = [
    "bind",
    "block",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "existsOne",
    "exists_one",
    "all",
    "exists",
    "map",
    "filter",
    "sortBy",
    "optMap",
];
const RESERVED: [&str; 18] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
];

#[derive(Debug, Clone)]
pub enum Type<'a> {
    /// Anything, or not known.
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
    List(Rc<Type<'a>>),
    Map(Rc<Type<'a>>),
    /// The fields of a schema. Those of a resource's root include what every object has.
    Object(&'a Value, bool),
}

/// What a rule sees of a value. None if it sees nothing: data without a schema has no type.
pub fn declared(schema: &Value, resource: bool) -> Option<Type<'_>> {
    if on(schema, "x-kubernetes-int-or-string") {
        return Some(Type::Dyn);
    }
    let part = |child: &'_ Value| on(child, "x-kubernetes-embedded-resource");
    Some(match kind(schema) {
        "array" => {
            let items = set(schema, "items").filter(|items| items.is_object())?;
            Type::List(Rc::new(declared(items, part(items))?))
        }
        "object" => match set(schema, "additionalProperties").filter(|a| a.is_object()) {
            Some(values) => Type::Map(Rc::new(declared(values, part(values))?)),
            None => Type::Object(schema, resource),
        },
        "string" => match schema["format"].as_str() {
            Some("byte") => Type::Bytes,
            Some("duration") => Type::Duration,
            Some("date" | "date-time") => Type::Time,
            _ => Type::String,
        },
        "boolean" => Type::Bool,
        "number" => Type::Double,
        "integer" => Type::Int,
        _ => return None,
    })
}

/// The type of an expression about `own`; what cannot be is added to the faults.
pub fn infer<'a>(expression: &IdedExpr, own: &Type<'a>, faults: &mut Vec<Fault>) -> Type<'a> {
    let scope = vec![("self".to_owned(), own.clone()), ("oldSelf".to_owned(), Type::Dyn)];
    Checker { scope, faults }.infer(expression)
}

/// What is wrong, and the text in the expression that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub token: String,
}

impl Type<'_> {
    fn name(&self) -> &'static str {
        match self {
            Type::Dyn => "dyn",
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Time => "timestamp",
            Type::Duration => "duration",
            Type::List(_) => "list",
            Type::Map(_) => "map",
            Type::Object(..) => "object",
        }
    }

    pub fn is(&self, name: &str) -> bool {
        self.name() == name
    }

    /// Whether this certainly is another type.
    pub fn is_not(&self, name: &str) -> bool {
        !matches!(self, Type::Dyn | Type::Null) && !self.is(name)
    }

    /// Whether this may hold other values, each of which is found by its index or key.
    fn many(&self) -> bool {
        matches!(self, Type::Dyn | Type::Null | Type::List(_) | Type::Map(_))
    }

    fn numeric(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }
}

struct Checker<'a, 'f> {
    scope: Vec<(String, Type<'a>)>,
    faults: &'f mut Vec<Fault>,
}

impl<'a> Checker<'a, '_> {
    fn fault(&mut self, what: String, token: &str) {
        let fault = Fault { what, token: token.to_owned() };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    fn infer(&mut self, expression: &IdedExpr) -> Type<'a> {
        match &expression.expr {
            Expr::Unspecified | Expr::Struct(_) => Type::Dyn,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::String,
                LiteralValue::UInt(_) => Type::Uint,
            },
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                list.elements.iter().for_each(|element| {
                    self.infer(element);
                });
                Type::List(Rc::new(Type::Dyn))
            }
            // Keys and values are found when the rule is run.
            Expr::Map(_) => Type::Map(Rc::new(Type::Dyn)),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn variable(&mut self, name: &str) -> Type<'a> {
        if let Some((_, found)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return found.clone();
        }
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.starts_with("__");
        if plain && !KNOWN.contains(&name) {
            self.fault(format!("undeclared reference to '{name}' (in container '')"), name);
        }
        Type::Dyn
    }

    fn select(&mut self, select: &SelectExpr) -> Type<'a> {
        let token = format!(".{}", select.field);
        let found = match self.infer(&select.operand) {
            Type::Object(schema, resource) => match field(schema, resource, &select.field) {
                Some(found) => found,
                None => {
                    self.fault(format!("undefined field '{}'", select.field), &token);
                    Type::Dyn
                }
            },
            Type::Map(values) => (*values).clone(),
            Type::Dyn | Type::Null => Type::Dyn,
            other => {
                self.fault(format!("type '{}' does not support field selection", other.name()), &token);
                Type::Dyn
            }
        };
        if select.test { Type::Bool } else { found }
    }

    fn call(&mut self, call: &CallExpr) -> Type<'a> {
        let name = call.func_name.as_str();
        let target = call.target.as_ref().map(|target| self.infer(target));
        if MACROS.contains(&name) || name == "optFlatMap" {
            return Type::Dyn;
        }
        let arguments: Vec<Type<'a>> = call.args.iter().map(|argument| self.infer(argument)).collect();
        match (name, arguments.as_slice()) {
            (op::LOGICAL_AND | op::LOGICAL_OR | op::LOGICAL_NOT, all) => {
                if all.iter().any(|one| one.is_not("bool")) {
                    self.overload(name, all);
                }
                Type::Bool
            }
            (op::EQUALS | op::NOT_EQUALS, [a, b]) => {
                self.comparable(name, a, b);
                Type::Bool
            }
            (op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS, [a, b]) => {
                self.comparable(name, a, b);
                Type::Bool
            }
            (op::NOT_STRICTLY_FALSE, _) => Type::Bool,
            (op::IN, [_, holder]) => {
                if !holder.many() {
                    self.overload(name, &arguments);
                }
                Type::Bool
            }
            (op::CONDITIONAL, [condition, a, b]) => {
                if condition.is_not("bool") {
                    self.overload(name, &arguments);
                }
                if a.is(b.name()) { a.clone() } else { Type::Dyn }
            }
            (op::INDEX, [Type::List(one) | Type::Map(one), _]) => (**one).clone(),
            (op::INDEX, [holder, _]) => {
                if !holder.many() {
                    self.overload(name, &arguments);
                }
                Type::Dyn
            }
            (op::NEGATE, [one]) => {
                if !matches!(one, Type::Int | Type::Double | Type::Duration | Type::Dyn | Type::Null) {
                    self.overload(name, &arguments);
                }
                one.clone()
            }
            (op::ADD | op::SUBSTRACT | op::MULTIPLY | op::DIVIDE | op::MODULO, [a, b]) => self.arithmetic(name, a, b),
            ("size", all) => {
                let sized = target.as_ref().or(all.first());
                if sized.is_some_and(|one| one.is_not("string") && one.is_not("bytes") && !one.many()) {
                    self.overload(name, &arguments);
                }
                Type::Int
            }
            ("startsWith" | "endsWith" | "matches", [_]) if target.is_some() => {
                if target.is_some_and(|one| one.is_not("string")) {
                    self.overload(name, &arguments);
                }
                Type::Bool
            }
            ("int", [_]) if target.is_none() => Type::Int,
            ("double", [_]) if target.is_none() => Type::Double,
            ("string", [_]) if target.is_none() => Type::String,
            _ => Type::Dyn,
        }
    }

    fn arithmetic(&mut self, name: &str, a: &Type<'a>, b: &Type<'a>) -> Type<'a> {
        let unsure = |one: &Type<'_>| matches!(one, Type::Dyn | Type::Null | Type::Time | Type::Duration);
        if unsure(a) || unsure(b) {
            return Type::Dyn;
        }
        let joined = name == op::ADD && matches!(a, Type::String | Type::Bytes | Type::List(_));
        let counted = a.numeric() && !(name == op::MODULO && a.is("double"));
        if !a.is(b.name()) || !(joined || counted) {
            self.overload(name, &[a.clone(), b.clone()]);
            return Type::Dyn;
        }
        if matches!(a, Type::List(_)) { Type::List(Rc::new(Type::Dyn)) } else { a.clone() }
    }

    /// Numbers compare with each other, and other simple values with their like.
    fn comparable(&mut self, name: &str, a: &Type<'a>, b: &Type<'a>) {
        let simple = |one: &Type<'_>| one.numeric() || matches!(one, Type::Bool | Type::String | Type::Bytes);
        let alike = a.is(b.name()) || (a.numeric() && b.numeric());
        if simple(a) && simple(b) && !alike {
            self.overload(name, &[a.clone(), b.clone()]);
        }
    }

    fn overload(&mut self, name: &str, arguments: &[Type<'a>]) {
        let types: Vec<&str> = arguments.iter().map(Type::name).collect();
        let what = format!("found no matching overload for '{name}' applied to '({})'", types.join(", "));
        self.fault(what, name.trim_matches('_'));
    }

    fn comprehension(&mut self, made: &ComprehensionExpr) -> Type<'a> {
        let range = self.infer(&made.iter_range);
        if !range.many() {
            let what = format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                range.name()
            );
            self.fault(what, "self");
        }
        let (first, second) = match range {
            Type::List(one) => (Type::Int, (*one).clone()),
            Type::Map(one) => (Type::String, (*one).clone()),
            _ => (Type::Dyn, Type::Dyn),
        };
        let is_list = first.is("int");
        let start = self.infer(&made.accu_init);
        let before = self.scope.len();
        self.scope.push((made.accu_var.clone(), start));
        match &made.iter_var2 {
            Some(name) => {
                self.scope.push((made.iter_var.clone(), first));
                self.scope.push((name.clone(), second));
            }
            // One variable is the item of a list, and the key of a map.
            None => self.scope.push((made.iter_var.clone(), if is_list { second } else { first })),
        }
        self.infer(&made.loop_cond);
        self.infer(&made.loop_step);
        let result = self.infer(&made.result);
        self.scope.truncate(before);
        result
    }
}

/// A field by the name that rules have for it.
fn field<'a>(schema: &'a Value, resource: bool, name: &str) -> Option<Type<'a>> {
    let properties = schema["properties"].as_object();
    let own = || {
        let (_, child) = properties?.iter().find(|(key, _)| escaped(key).as_deref() == Some(name))?;
        declared(child, on(child, "x-kubernetes-embedded-resource"))
    };
    match name {
        "apiVersion" | "kind" if resource => Some(Type::String),
        // Of an object's metadata rules see the names, whatever the schema says, and nothing more.
        "metadata" if resource => Some(metadata()),
        _ => own(),
    }
}

fn metadata() -> Type<'static> {
    static SCHEMA: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| {
        let text = || serde_json::json!({"type": "string"});
        serde_json::json!({"type": "object", "properties": {"name": text(), "generateName": text()}})
    });
    Type::Object(&SCHEMA, false)
}

/// The name of a property in rules. None if it cannot be written there.
pub fn escaped(name: &str) -> Option<String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(known) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let doubled = name.replace("__", "__underscores__");
    Some(doubled.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_cel::cel::Program;
    use serde_json::json;

    #[test]
    fn certain_faults_are_found_and_no_others() {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}, "f": {"type": "number"},
            "a-b": {"type": "string"}, "namespace": {"type": "string"}, "x__y": {"type": "integer"},
            "port": {"x-kubernetes-int-or-string": true}, "any": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "when": {"type": "string", "format": "date-time"},
        }});
        // (rule, type, faults)
        let cases: [(&str, &str, &[&str]); 44] = [
            ("self.n > 1 && self.s == 'x' || !self.b", "bool", &[]),
            ("self.n + 1", "int", &[]),
            ("self.f > 1", "bool", &[]),
            ("self.s + 'x'", "string", &[]),
            ("self.a__dash__b == self.__namespace__", "bool", &[]),
            ("self.x__underscores__y > 0", "bool", &[]),
            ("self.port == 1 || self.port == 'http'", "bool", &[]),
            ("self.list.all(i, i.id.startsWith('x'))", "bool", &[]),
            ("self.list.exists_one(i, i.id == 'x')", "bool", &[]),
            ("self.list.filter(i, i.id == 'x').size() == 1", "bool", &[]),
            ("self.list.map(i, i.id)", "list", &[]),
            ("self.map.all(k, k == 'x' && self.map[k] > 1)", "bool", &[]),
            ("self.list[0].id == 'x'", "bool", &[]),
            ("has(self.s) ? self.n == 1 : true", "bool", &[]),
            ("self.metadata.name == self.kind", "bool", &[]),
            ("oldSelf.anything == self.n", "bool", &[]),
            ("type(self.port) == int", "bool", &[]),
            ("self.when > timestamp('2024-01-01T00:00:00Z')", "bool", &[]),
            ("math.greatest(1, self.n) > 1", "bool", &[]),
            ("quantity(self.s).isLessThan(quantity('1Gi'))", "dyn", &[]),
            ("isURL(self.s) && url(self.s).getScheme() == 'https'", "bool", &[]),
            ("self.list.transformList(i, v, v.id).size() == 1", "bool", &[]),
            ("cel.bind(x, self.n, x > 1)", "dyn", &[]),
            ("self.s.matches('a') && self.s.contains('b')", "bool", &[]),
            ("1 + 1", "int", &[]),
            ("self.list + [1] == [] && 'a' in self.map", "bool", &[]),
            ("self.when - duration('1h') < self.when", "bool", &[]),
            ("self.n % 2 == 0 && self.port + 1 == 2 && -self.f < 0.0", "bool", &[]),
            ("self.s.size() + self.list.size() + size(self.map) > 2", "bool", &[]),
            ("self.size() > 0", "bool", &["found no matching overload for 'size' applied to '()'"]),
            (
                "self.all(i, i == 1)",
                "bool",
                &["expression of type 'object' cannot be range of a comprehension (must be list, map, or dynamic)"],
            ),
            ("self.n + self.s == 'x'", "bool", &["found no matching overload for '_+_' applied to '(int, string)'"]),
            ("self.n.matches('x')", "bool", &["found no matching overload for 'matches' applied to '(string)'"]),
            ("self[0] == 1", "bool", &["found no matching overload for '_[_]' applied to '(object, int)'"]),
            ("-self.s == 'x'", "bool", &["found no matching overload for '-_' applied to '(string)'"]),
            ("self.none", "dyn", &["undefined field 'none'"]),
            ("has(self.none)", "bool", &["undefined field 'none'"]),
            ("self.any.x == 1", "bool", &["undefined field 'any'"]),
            ("self.metadata.labels.size() == 0", "bool", &["undefined field 'labels'"]),
            ("self.list.all(i, i.none == 'x')", "bool", &["undefined field 'none'"]),
            ("self.n.x == 1", "bool", &["type 'int' does not support field selection"]),
            ("spec.n == 1", "bool", &["undeclared reference to 'spec' (in container '')"]),
            ("self.n == 'x'", "bool", &["found no matching overload for '_==_' applied to '(int, string)'"]),
            ("self.n && self.b", "bool", &["found no matching overload for '_&&_' applied to '(int, bool)'"]),
        ];
        for (rule, expected, faults) in cases {
            let program = Program::compile(rule).unwrap();
            let mut found = Vec::new();
            let own = declared(&schema, true).unwrap();
            let name = infer(program.expression(), &own, &mut found).name();
            let found: Vec<&str> = found.iter().map(|fault| fault.what.as_str()).collect();
            assert_eq!((name, found.as_slice()), (expected, faults), "{rule}");
        }
    }
}
