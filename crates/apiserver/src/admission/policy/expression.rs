//! CEL expressions of admission: parsed once, evaluated with the variables that Kubernetes gives them.
//!
//! Objects that an expression constructs (`Object{spec: Object.spec{…}}`) become maps: the engine has no types of its own
//! for them, and what they are used for is a JSON document.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr};
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::{Number, Value};

use super::budget;
use crate::crd::engine;

/// Names that need no declaration: types and the namespaces of function libraries.
const KNOWN: &[&str] = &[
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "optional",
    "math",
    "sets",
    "ip",
    "cidr",
    "quantity",
    "url",
    "semver",
    "format",
    "jsonpatch",
    "base64",
    "lists",
    "strings",
    "cel",
];

/// A parsed expression. Cloning copies a pointer.
#[derive(Debug, Clone)]
pub struct Expression {
    pub source: Arc<str>,
    tree: Arc<IdedExpr>,
    /// The same with loops that ask before each round; None without loops.
    bounded: Option<Arc<IdedExpr>>,
}

impl Expression {
    /// Parses, and refuses names that are not among `variables`.
    pub fn parse(source: &str, variables: &[&str]) -> Result<Self, String> {
        engine::check_complexity(source)?;
        let mut tree = engine::roomily(|| Parser::new().parse(source).map_err(|e| e.to_string()))
            .ok_or("the expression could not be parsed")??;
        rewrite(&mut tree);
        let mut unknown = None;
        free_names(&tree, &mut Vec::new(), &mut |name| {
            if !variables.contains(&name) && !KNOWN.contains(&name) && unknown.is_none() {
                unknown = Some(name.to_owned());
            }
        });
        match unknown {
            Some(name) => Err(format!("undeclared reference to '{name}' (in container '')")),
            None => {
                let mut counted = tree.clone();
                let bounded = budget::count_rounds(&mut counted).then(|| Arc::new(counted));
                Ok(Self { source: source.into(), tree: Arc::new(tree), bounded })
            }
        }
    }

    pub fn tree(&self) -> &IdedExpr {
        &self.tree
    }

    pub fn evaluate(&self, context: &Context<'_>) -> Result<Cel, String> {
        let evaluate = |tree: &IdedExpr| engine::safely(|| context.resolve(tree).map_err(|e| e.to_string()));
        let result = match &self.bounded {
            // Nearly all are done in no time; one that is not is begun again where it may take its time.
            Some(tree) => match budget::within(budget::SMALL, || evaluate(tree)) {
                (result, false) => result,
                (_, true) => engine::aside(|| budget::within(budget::PER_CALL, || evaluate(tree)).0).flatten(),
            },
            None => evaluate(&self.tree),
        };
        result.unwrap_or_else(|| Err("the expression could not be evaluated".to_owned()))
    }

    /// The expression's value, which has to be a yes or a no.
    pub fn holds(&self, context: &Context<'_>) -> Result<bool, String> {
        match self.evaluate(context)? {
            Cel::Bool(value) => Ok(value),
            other => Err(format!("must evaluate to bool, not {}", other.type_of())),
        }
    }

    /// The expression's value, if it is a string that says something.
    pub fn text(&self, context: &Context<'_>) -> Option<String> {
        match self.evaluate(context) {
            Ok(Cel::String(text)) if !text.trim().is_empty() => Some(text.trim().to_owned()),
            _ => None,
        }
    }
}

/// A context with all functions and no variables.
pub fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    budget::add(&mut context);
    context
}

/// JSON numbers without a fraction are integers, as in Kubernetes.
pub fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(int) => Cel::Int(int),
            None => Cel::Float(number.as_f64().unwrap_or(0.0)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(map) => map_of(map.iter().map(|(key, value)| (key.clone(), to_cel(value)))),
    }
}

pub fn map_of(entries: impl Iterator<Item = (String, Cel)>) -> Cel {
    let map: HashMap<Key, Cel> = entries.map(|(key, value)| (Key::String(Arc::new(key)), value)).collect();
    Cel::Map(Map { map: Arc::new(map) })
}

/// A value that an expression made, as JSON. None if JSON has no such value.
pub fn to_json(value: &Cel) -> Option<Value> {
    Some(match value {
        Cel::Null => Value::Null,
        Cel::Bool(flag) => Value::Bool(*flag),
        Cel::Int(int) => Value::from(*int),
        Cel::UInt(int) => Value::from(*int),
        Cel::Float(float) => Number::from_f64(*float).map(Value::Number)?,
        Cel::String(text) => Value::String(text.as_ref().clone()),
        Cel::List(items) => Value::Array(items.iter().map(to_json).collect::<Option<_>>()?),
        Cel::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| {
                let key = match key {
                    Key::String(text) => text.as_ref().clone(),
                    Key::Int(int) => int.to_string(),
                    Key::Uint(int) => int.to_string(),
                    Key::Bool(flag) => flag.to_string(),
                };
                Some((key, to_json(value)?))
            });
            Value::Object(entries.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// The parts of an expression, to be changed.
pub(super) fn children_mut(expr: &mut Expr) -> Vec<&mut IdedExpr> {
    fn entries(entries: &mut [IdedEntryExpr]) -> impl Iterator<Item = &mut IdedExpr> {
        entries.iter_mut().flat_map(|entry| match &mut entry.expr {
            EntryExpr::StructField(field) => vec![&mut field.value],
            EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
        })
    }
    match expr {
        Expr::Call(call) => call.target.iter_mut().map(|t| &mut **t).chain(&mut call.args).collect(),
        Expr::Comprehension(c) => {
            vec![&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => entries(&mut map.entries).collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Struct(of) => entries(&mut of.entries).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

/// Turns constructed objects into maps.
fn rewrite(tree: &mut IdedExpr) {
    children_mut(&mut tree.expr).into_iter().for_each(rewrite);
    let id = tree.id;
    if let Expr::Struct(of) = &mut tree.expr {
        let entries = std::mem::take(&mut of.entries).into_iter().map(|entry| match entry.expr {
            EntryExpr::StructField(field) => IdedEntryExpr {
                id: entry.id,
                expr: EntryExpr::MapEntry(MapEntryExpr {
                    key: IdedExpr { id, expr: Expr::Literal(LiteralValue::String(field.field.as_str().into())) },
                    value: field.value,
                    optional: field.optional,
                }),
            },
            EntryExpr::MapEntry(_) => entry,
        });
        tree.expr = Expr::Map(MapExpr { entries: entries.collect() });
    }
}

/// Names that the expression does not bind itself.
fn free_names(tree: &IdedExpr, bound: &mut Vec<String>, report: &mut impl FnMut(&str)) {
    match &tree.expr {
        Expr::Ident(name) => {
            if !bound.contains(name) {
                report(name);
            }
        }
        Expr::Comprehension(c) => {
            free_names(&c.iter_range, bound, report);
            free_names(&c.accu_init, bound, report);
            let depth = bound.len();
            bound.extend([c.iter_var.clone(), c.accu_var.clone()]);
            bound.extend(c.iter_var2.clone());
            for part in [&c.loop_cond, &c.loop_step, &c.result] {
                free_names(part, bound, report);
            }
            bound.truncate(depth);
        }
        Expr::Call(call) => {
            let parts = call.target.iter().map(|t| &**t).chain(&call.args);
            parts.for_each(|part| free_names(part, bound, report));
        }
        Expr::List(list) => list.elements.iter().for_each(|part| free_names(part, bound, report)),
        Expr::Select(select) => free_names(&select.operand, bound, report),
        Expr::Map(MapExpr { entries }) => {
            for entry in entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    free_names(&entry.key, bound, report);
                    free_names(&entry.value, bound, report);
                }
            }
        }
        Expr::Struct(_) | Expr::Unspecified | Expr::Literal(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn evaluate(source: &str) -> Result<Value, String> {
        let expression = Expression::parse(source, &["object", "variables"])?;
        let mut context = context();
        let object = json!({"spec": {"replicas": 3, "names": ["a", "b"]}, "metadata": {"labels": {"a.b/c": "d"}}});
        context.add_variable_from_value("object", to_cel(&object));
        expression.evaluate(&context).map(|v| to_json(&v).unwrap_or(Value::Null))
    }

    #[test]
    fn expressions_evaluate_as_kubernetes_has_them() {
        let cases = [
            ("object.spec.replicas > 1", json!(true)),
            ("object.spec.replicas % 2 == 1", json!(true)),
            ("object.spec.names.all(n, n.size() == 1)", json!(true)),
            ("has(object.spec.absent)", json!(false)),
            ("object.metadata.labels['a.b/c'] == 'd'", json!(true)),
            ("Object{spec: Object.spec{replicas: 7}}", json!({"spec": {"replicas": 7}})),
            (
                "Object{metadata: Object.metadata{annotations: {\"k\": \"v\"}}}",
                json!({"metadata": {"annotations": {"k": "v"}}}),
            ),
            (
                "[JSONPatch{op: \"add\", path: \"/a\", value: object.spec.names}]",
                json!([{"op": "add", "path": "/a", "value": ["a", "b"]}]),
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(evaluate(source), Ok(expected), "{source}");
        }
    }

    /// A policy that would run for hours ends with an error, whatever is around its loops.
    #[test]
    fn an_expression_runs_out_of_its_budget() {
        let loops = "lists.range(2000).all(x, lists.range(2000).all(y, lists.range(2000).all(z, x + y + z >= 0)))";
        for source in [loops, &format!("!({loops})"), "lists.range(100000).map(x, lists.range(100000)).size() > 0"] {
            let error = evaluate(source).unwrap_err();
            assert!(error.contains("cost limit exceeded"), "{source}: {error}");
        }
        // The next one has a budget of its own, and an error that others cover costs no more than the budget.
        assert_eq!(evaluate("lists.range(100).all(x, lists.range(100).all(y, x + y >= 0))"), Ok(json!(true)));
        assert_eq!(evaluate(&format!("{loops} || true")), Ok(json!(true)));
    }

    #[test]
    fn what_does_not_compile_is_refused() {
        for source in ["object.", "objekt.spec", "object.spec.names.all(n, m == 1)", "1 +"] {
            assert!(Expression::parse(source, &["object"]).is_err(), "{source}");
        }
        assert!(Expression::parse(&"(".repeat(100_000), &[]).is_err());
    }
}
