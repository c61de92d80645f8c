//! CEL rules of custom resources (`x-kubernetes-validations`).
//!
//! Only the parts of a schema that lead to a rule are compiled: rules are rare, schemas are large, and the engine looks at
//! every node it has.

use std::sync::Arc;

use ferrovirt_schema::Cause;
use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, Validator};
use serde_json::{Map, Value, json};

use super::cost::{self, BUDGET};
use super::engine::{CHEAP, MAX_COMPLEXITY, SHALLOW, aside, complexity, roomily, safely};

const KEY: &str = "x-kubernetes-validations";
/// Members whose schemas are those of parts of the value.
const CHILDREN: &[&str] = &["items", "additionalProperties"];
const BRANCHES: &[&str] = &["allOf", "anyOf", "oneOf"];

/// Upstream's words.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// An object for which its kind's rules would cost too much.
struct TooExpensive;

thread_local! {
    /// Registers a few hundred functions when it is made, and cannot be shared between threads.
    static VALIDATOR: Validator = Validator::new();
}

/// The compiled rules of one version. Cloning copies a pointer.
#[derive(Debug, Clone)]
pub struct Rules {
    schema: Arc<CompiledSchema>,
    root: Arc<RootContext>,
    /// Evaluation may need more stack than a worker thread has.
    deep: bool,
}

impl Rules {
    /// Compiles the rules of an `openAPIV3Schema`; None if it has none.
    pub fn compile(schema: &Value, root: RootContext) -> Result<Option<Self>, Vec<Cause>> {
        let Some(reduced) = reduce(schema) else {
            return Ok(None);
        };
        let mut causes = Vec::new();
        let deep = most_complex(&reduced, "", &mut causes) > SHALLOW;
        if !causes.is_empty() {
            return Err(causes);
        }
        let compiled = roomily(|| kube_cel::compile_schema(&reduced)).ok_or_else(|| {
            vec![Cause::forbidden(KEY, "the rules could not be compiled; the log of the server says more")]
        })?;
        faults(&compiled, &reduced, "", &mut causes);
        if causes.is_empty() {
            Ok(Some(Self { schema: Arc::new(compiled), root: Arc::new(root), deep }))
        } else {
            Err(causes)
        }
    }

    /// The rules that an object breaks. What an update leaves as it was may go on breaking them.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let errors = match self.evaluate(object, old) {
            Some(Ok(errors)) => errors,
            Some(Err(TooExpensive)) => return vec![Cause::invalid("<nil>", &json!("object"), OUT_OF_BUDGET)],
            None => return vec![Cause::forbidden("<nil>", "the rules of this kind could not be evaluated")],
        };
        errors.into_iter().filter(|error| !ratcheted(error, object, old)).map(|e| cause(e, object)).collect()
    }

    /// The rules that a value certainly breaks: not those that this engine has no answer for.
    pub fn broken(&self, value: &Value) -> Vec<Cause> {
        let errors = self.evaluate(value, None).and_then(Result::ok).unwrap_or_default().into_iter();
        errors.filter(|error| error.kind == ErrorKind::ValidationFailure).map(|e| cause(e, value)).collect()
    }

    /// None if the engine had no answer at all.
    fn evaluate(&self, object: &Value, old: Option<&Value>) -> Option<Result<Vec<ValidationError>, TooExpensive>> {
        let evaluate =
            || VALIDATOR.with(|v| v.validate_compiled_with_context(&self.schema, object, old, Some(&self.root)));
        let in_room = || if self.deep { roomily(evaluate) } else { safely(evaluate) };
        let cost = match self.deep {
            true => roomily(|| cost::of(&self.schema, object, old))?,
            false => cost::of(&self.schema, object, old),
        };
        let result = match cost {
            cost if cost <= CHEAP => in_room(),
            cost if cost <= BUDGET => aside(in_room).flatten(),
            _ => return Some(Err(TooExpensive)),
        }?;
        Some(Ok(result.err().map(|errors| errors.into_vec()).unwrap_or_default()))
    }
}

/// The schema without the parts that lead to no rule. A node with rules is kept whole: its rules may look at all of it.
fn reduce(schema: &Value) -> Option<Value> {
    let map = schema.as_object()?;
    if map.get(KEY).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty()) {
        return Some(schema.clone());
    }
    let mut kept = Map::new();
    let properties: Map<String, Value> = map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, child)| Some((name.clone(), reduce(child)?)))
        .collect();
    if !properties.is_empty() {
        kept.insert("properties".into(), properties.into());
    }
    for key in CHILDREN {
        if let Some(child) = map.get(*key).and_then(reduce) {
            kept.insert((*key).to_owned(), child);
        }
    }
    for key in BRANCHES {
        let branches: Vec<Value> =
            map.get(*key).and_then(Value::as_array).into_iter().flatten().filter_map(reduce).collect();
        if !branches.is_empty() {
            kept.insert((*key).to_owned(), branches.into());
        }
    }
    if kept.is_empty() {
        return None;
    }
    for key in ["type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if let Some(value) = map.get(key) {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    Some(kept.into())
}

/// The complexity of the most complex expression. Expressions that could exhaust any stack are causes.
fn most_complex(schema: &Value, path: &str, causes: &mut Vec<Cause>) -> usize {
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let mut most = 0;
    match schema {
        Value::Object(map) => {
            for (index, rule) in map.get(KEY).and_then(Value::as_array).into_iter().flatten().enumerate() {
                for key in ["rule", "messageExpression"] {
                    let complexity = rule[key].as_str().map_or(0, complexity);
                    if complexity > MAX_COMPLEXITY {
                        let field = join(&format!("{KEY}[{index}].{key}"));
                        causes.push(Cause::forbidden(field, "the expression is too complex for this server"));
                    }
                    most = most.max(complexity);
                }
            }
            for (_, child) in map.iter().filter(|(key, _)| *key != KEY) {
                most = most.max(most_complex(child, path, causes));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| most = most.max(most_complex(item, path, causes))),
        _ => {}
    }
    most
}

/// Rules that do not compile.
fn faults(compiled: &CompiledSchema, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for (index, rule) in compiled.validations.iter().enumerate() {
        if let Err(error) = rule {
            let field = join(&format!("{KEY}[{index}].rule"));
            let text = schema[KEY][index]["rule"].clone();
            causes.push(Cause::invalid(field, &text, format!("compilation failed: {error}")));
        }
    }
    for (name, child) in &compiled.properties {
        faults(child, &schema["properties"][name], &join(&format!("properties[{name}]")), causes);
    }
    for (key, child) in [("items", &compiled.items), ("additionalProperties", &compiled.additional_properties)] {
        if let Some(child) = child {
            faults(child, &schema[key], &join(key), causes);
        }
    }
}

/// Ratcheting: a rule that does not compare with the old value only counts where the value has changed.
fn ratcheted(error: &ValidationError, object: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old.filter(|_| !error.rule.contains("oldSelf")) else {
        return false;
    };
    let (now, before) = (lookup(object, &error.field_path), lookup(old, &error.field_path));
    // The whole object always differs, in its resourceVersion.
    !error.field_path.is_empty() && now.is_some() && now == before
}

/// The value at a path such as `spec.parts[2].name`. A name with dots in it is not found.
fn lookup<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).try_fold(object, |value, part| {
        match part.strip_suffix(']') {
            Some(index) => match index.parse::<usize>() {
                Ok(index) => value.get(index),
                Err(_) => value.get(index.trim_matches('"')),
            },
            None => value.get(part),
        }
    })
}

fn cause(error: ValidationError, object: &Value) -> Cause {
    let kind = match lookup(object, &error.field_path) {
        Some(Value::Array(_)) => "array",
        Some(Value::String(_)) => "string",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(n)) if n.is_f64() => "number",
        Some(Value::Number(_)) => "integer",
        _ => "object",
    };
    let field = if error.field_path.is_empty() { "<nil>".to_owned() } else { error.field_path };
    match error.reason.as_deref() {
        Some("FieldValueForbidden") => Cause::forbidden(field, &error.message),
        Some("FieldValueRequired") => Cause::required(field, &error.message),
        Some("FieldValueDuplicate") => Cause::duplicate(field, &json!(kind)),
        _ => Cause::invalid(field, &json!(kind), error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(schema: Value) -> Rules {
        Rules::compile(&schema, RootContext::default()).unwrap().unwrap()
    }

    #[test]
    fn rules_count_where_something_changed() {
        let rules = rules(json!({"type": "object", "properties": {
            "noise": {"type": "object", "properties": {"a": {"type": "string"}}},
            "spec": {"type": "object",
                "x-kubernetes-validations": [{"rule": "self.min <= self.max", "message": "min above max"}],
                "properties": {
                    "min": {"type": "integer"}, "max": {"type": "integer"},
                    "name": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]},
                    "parts": {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('p')"}]}},
                }},
        }}));
        let object = |min: i64, name: &str, part: &str| json!({"spec": {"min": min, "max": 5, "name": name, "parts": ["p1", part]}});
        // (new, old, fields that are refused)
        let cases: [(Value, Option<Value>, &[&str]); 6] = [
            (object(1, "a", "p"), None, &[]),
            (object(9, "a", "x"), None, &["spec", "spec.parts[1]"]),
            (object(1, "b", "p"), Some(object(1, "a", "p")), &["spec.name"]),
            (object(9, "a", "x"), Some(object(9, "a", "x")), &[]),
            (object(8, "a", "x"), Some(object(9, "a", "x")), &["spec"]),
            (json!({"noise": {"a": "b"}}), None, &[]),
        ];
        for (new, old, expected) in cases {
            let mut fields: Vec<String> = rules.check(&new, old.as_ref()).into_iter().map(|c| c.field).collect();
            fields.sort();
            assert_eq!(fields, expected, "{new} after {old:?}");
        }
    }

    #[test]
    fn bad_rules_are_found_and_schemas_without_rules_cost_nothing() {
        let broken = json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self =="}]}}});
        let causes = Rules::compile(&broken, RootContext::default()).unwrap_err();
        assert_eq!(causes[0].field, "properties[a].x-kubernetes-validations[0].rule");
        let plain = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert!(Rules::compile(&plain, RootContext::default()).unwrap().is_none());
    }

    /// Objects come from whoever may write them, and their lists are as long as they like.
    #[test]
    fn an_object_that_would_keep_the_server_busy_is_refused() {
        let rules = rules(json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, self.all(z, x + y + z >= 0)))"}]}}}));
        let object = |n: i64| json!({"a": (0..n).collect::<Vec<_>>()});
        assert!(rules.check(&object(10), None).is_empty());
        let causes = rules.check(&object(100_000), None);
        assert!(causes[0].message.contains("running out of cost budget"), "{:?}", causes[0]);
    }

    /// Rules come from whoever may write definitions; they still must not end the process.
    #[test]
    fn hostile_rules_are_errors() {
        fn nested(open: &str, close: &str, n: usize) -> String {
            format!("{}self{} == ''", open.repeat(n), close.repeat(n))
        }
        let hostile: [fn(usize) -> String; 10] = [
            |n: usize| nested("(", ")", n),
            |n: usize| nested("[", "]", n),
            |n: usize| nested("!", "", n),
            |n: usize| nested("size(", ")", n),
            |n: usize| nested("[self].all(x, ", ")", n),
            |n: usize| vec!["self"; n].join("+"),
            |n: usize| vec!["self"; n].join("."),
            |n: usize| vec!["self == ''"; n].join(" || "),
            |n: usize| vec!["self == ''"; n].join(" && "),
            |n: usize| format!("{} self == ''{}", "true ? ".repeat(n), " : false".repeat(n)),
        ];
        for make in hostile {
            for n in [3, 5, 10, 38, 95, 130, 190, 390, 990, 20_000] {
                let schema = json!({"type": "string", "x-kubernetes-validations": [{"rule": make(n)}]});
                match Rules::compile(&schema, RootContext::default()) {
                    Ok(Some(rules)) => {
                        assert!(n < 20_000);
                        rules.check(&json!("x"), None);
                    }
                    Ok(None) | Err(_) => assert!(n > 2),
                }
            }
        }
    }
}
