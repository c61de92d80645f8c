//! What the rules of a kind cost for one object, told before they run: the engine cannot be interrupted.
//!
//! The estimate follows the object's own lists and strings through an expression, so it is what the engine would do at most
//! (all branches, no early end), in steps that are about upstream's cost units. Definitions whose rules could cost too much are
//! refused when they are written (`validation::cost`).

use std::cell::OnceCell;

use kube_cel::CompiledSchema;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

/// What all rules may cost for one object (upstream's `RuntimeCELCostBudget`).
pub const BUDGET: u64 = 10_000_000;

/// Functions whose work grows with what they look at.
const READERS: &[&str] = &[
    "@in",
    "_+_",
    "_==_",
    "_!=_",
    "contains",
    "endsWith",
    "find",
    "findAll",
    "flatten",
    "format",
    "indexOf",
    "isSorted",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "max",
    "min",
    "replace",
    "reverse",
    "slice",
    "sort",
    "split",
    "startsWith",
    "substring",
    "sum",
    "trim",
    "upperAscii",
];
/// Functions that compare each with each.
const PAIRS: &[&str] = &["distinct", "sets.contains", "sets.equivalent", "sets.intersects"];
/// Functions whose result may be as long as everything there is.
const MAKERS: &[&str] = &[
    "findAll",
    "flatten",
    "format",
    "join",
    "lowerAscii",
    "map",
    "replace",
    "reverse",
    "slice",
    "sort",
    "split",
    "substring",
    "trim",
    "upperAscii",
];

/// What the rules of a schema cost for a value.
pub fn of(schema: &CompiledSchema, value: &Value, old: Option<&Value>) -> u64 {
    let mut cost = 0u64;
    if !schema.validations.is_empty() {
        let scene = Scene { own: value, old, size: OnceCell::new() };
        for rule in schema.validations.iter().flatten() {
            let mut names = vec![("self".to_owned(), Meaning::Values(vec![value]))];
            names.push(("oldSelf".to_owned(), Meaning::Values(old.into_iter().collect())));
            cost = cost.saturating_add(scene.cost(rule.program.expression(), &mut names));
            if let Some(message) = &rule.message_program {
                cost = cost.saturating_add(scene.cost(message.expression(), &mut names));
            }
        }
    }
    let mut add = |more: u64| cost = cost.saturating_add(more);
    if let Some(map) = value.as_object() {
        for (name, child) in map {
            let schema = schema.properties.get(name).or(schema.additional_properties.as_deref());
            if let Some(schema) = schema {
                add(of(schema, child, old.and_then(|old| old.get(name))));
            }
        }
    }
    if let (Some(items), Some(list)) = (&schema.items, value.as_array()) {
        for (index, item) in list.iter().enumerate() {
            add(of(items, item, old.and_then(|old| old.get(index))));
        }
    }
    for branch in schema.all_of.iter().chain(&schema.one_of).chain(&schema.any_of) {
        add(of(branch, value, old));
    }
    cost
}

/// What a name stands for.
enum Meaning<'a> {
    /// One of these.
    Values(Vec<&'a Value>),
    /// Something that is not longer than this.
    UpTo(u64),
}

type Names<'a> = Vec<(String, Meaning<'a>)>;

struct Scene<'a> {
    own: &'a Value,
    old: Option<&'a Value>,
    size: OnceCell<u64>,
}

impl<'a> Scene<'a> {
    /// How long anything can be that is made of the value.
    fn size(&self) -> u64 {
        *self.size.get_or_init(|| size(self.own) + self.old.map_or(0, size))
    }

    fn cost(&self, tree: &IdedExpr, names: &mut Names<'a>) -> u64 {
        let sum = |scene: &Self, parts: &mut dyn Iterator<Item = &IdedExpr>, names: &mut Names<'a>| {
            parts.fold(1u64, |sum, part| sum.saturating_add(scene.cost(part, names)))
        };
        match &tree.expr {
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 1,
            Expr::Select(select) => 1 + self.cost(&select.operand, names),
            Expr::List(list) => sum(self, &mut list.elements.iter(), names),
            Expr::Map(map) => sum(self, &mut map.entries.iter().flat_map(|entry| parts(&entry.expr)), names),
            Expr::Struct(of) => sum(self, &mut of.entries.iter().flat_map(|entry| parts(&entry.expr)), names),
            Expr::Call(call) => {
                let base = sum(self, &mut arguments(call), names);
                let lengths: Vec<u64> = arguments(call).map(|part| self.length(part, names)).collect();
                let work = if PAIRS.contains(&name(call).as_str()) {
                    let longest = lengths.iter().copied().max().unwrap_or(0);
                    lengths.iter().fold(longest, |all, length| all.saturating_mul((*length).max(1)))
                } else if READERS.contains(&call.func_name.as_str()) {
                    lengths.iter().sum::<u64>() / 10
                } else {
                    0
                };
                base.saturating_add(work)
            }
            Expr::Comprehension(loops) => self.cost_of_loop(loops, names),
        }
    }

    fn cost_of_loop(&self, loops: &ComprehensionExpr, names: &mut Names<'a>) -> u64 {
        let rounds = self.length(&loops.iter_range, names);
        let outside = self.cost(&loops.iter_range, names).saturating_add(self.cost(&loops.accu_init, names));
        let item = match self.known(&loops.iter_range, names) {
            Some(ranges) if ranges.iter().all(|range| range.is_array()) => {
                Meaning::Values(ranges.into_iter().flat_map(children).collect())
            }
            // What a loop over a map sees are its keys.
            Some(ranges) => Meaning::UpTo(ranges.iter().map(|range| longest_key(range)).max().unwrap_or(0)),
            None => Meaning::UpTo(self.size()),
        };
        let grows = matches!(loops.accu_init.expr, Expr::List(_) | Expr::Map(_));
        let depth = names.len();
        names.push((loops.iter_var.clone(), item));
        names.extend(loops.iter_var2.clone().map(|name| (name, Meaning::UpTo(self.size()))));
        names.push((loops.accu_var.clone(), Meaning::UpTo(if grows { rounds } else { 1 })));
        let round = self.cost(&loops.loop_cond, names).saturating_add(self.cost(&loops.loop_step, names));
        let result = self.cost(&loops.result, names);
        names.truncate(depth);
        // The engine copies a list that grows with every round.
        let growing = if grows { rounds.saturating_mul(rounds) / 16 } else { 0 };
        outside.saturating_add(rounds.saturating_mul(round)).saturating_add(growing).saturating_add(result)
    }

    /// The values that an expression may stand for, where it is a way through the object.
    fn known(&self, tree: &IdedExpr, names: &Names<'a>) -> Option<Vec<&'a Value>> {
        match &tree.expr {
            Expr::Ident(name) => match meaning(name, names)? {
                Meaning::Values(values) => Some(values.clone()),
                Meaning::UpTo(_) => None,
            },
            Expr::Select(select) => {
                let of = self.known(&select.operand, names)?;
                let found: Vec<&Value> = of.iter().filter_map(|value| value.get(&select.field)).collect();
                // A name may be written in another way than it is stored.
                if found.is_empty() && select.field.contains("__") { None } else { Some(found) }
            }
            Expr::Call(call) if call.func_name == "_[_]" || call.func_name == "_[?_]" => {
                let of = self.known(call.args.first()?, names)?;
                Some(of.iter().flat_map(|value| children(value)).collect())
            }
            Expr::Call(call) if call.func_name == "_?_:_" => {
                let mut both = self.known(call.args.get(1)?, names)?;
                both.extend(self.known(call.args.get(2)?, names)?);
                Some(both)
            }
            _ => None,
        }
    }

    /// How many elements or bytes the value of an expression has at most.
    fn length(&self, tree: &IdedExpr, names: &Names<'a>) -> u64 {
        if let Some(values) = self.known(tree, names) {
            return values.iter().map(|value| length(value)).max().unwrap_or(0);
        }
        match &tree.expr {
            Expr::Literal(LiteralValue::String(text)) => text.inner().len() as u64,
            Expr::Literal(_) | Expr::Unspecified => 1,
            Expr::List(list) => list.elements.len() as u64,
            Expr::Map(map) => map.entries.len() as u64,
            Expr::Comprehension(loops) => match loops.accu_init.expr {
                Expr::List(_) | Expr::Map(_) => self.length(&loops.iter_range, names),
                _ => 1,
            },
            Expr::Call(call) => match name(call).as_str() {
                "_+_" => arguments(call).map(|part| self.length(part, names)).fold(0, u64::saturating_add),
                "_?_:_" => call.args.iter().skip(1).map(|part| self.length(part, names)).max().unwrap_or(0),
                "lists.range" => match call.args.first().map(|count| &count.expr) {
                    Some(Expr::Literal(LiteralValue::Int(count))) => u64::try_from(*count.inner()).unwrap_or(0),
                    _ => BUDGET,
                },
                _ if MAKERS.contains(&call.func_name.as_str()) => self.size(),
                // Comparisons, sizes and the like.
                _ => 1,
            },
            // Parts of what is not known.
            Expr::Ident(name) => match meaning(name, names) {
                Some(Meaning::UpTo(most)) => *most,
                _ => self.size(),
            },
            Expr::Select(_) => self.size(),
            Expr::Struct(of) => of.entries.len() as u64,
        }
    }
}

fn meaning<'n, 'a>(name: &str, names: &'n Names<'a>) -> Option<&'n Meaning<'a>> {
    names.iter().rev().find(|(known, _)| known == name).map(|(_, meaning)| meaning)
}

fn longest_key(value: &Value) -> u64 {
    value.as_object().into_iter().flat_map(|map| map.keys()).map(String::len).max().unwrap_or(0) as u64
}

fn arguments(call: &CallExpr) -> impl Iterator<Item = &IdedExpr> {
    call.target.iter().map(|target| &**target).chain(&call.args)
}

/// The name of a function, with that of its library.
fn name(call: &CallExpr) -> String {
    match call.target.as_ref().map(|target| &target.expr) {
        Some(Expr::Ident(library)) if matches!(library.as_str(), "lists" | "sets" | "math") => {
            format!("{library}.{}", call.func_name)
        }
        _ => call.func_name.clone(),
    }
}

fn parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn length(value: &Value) -> u64 {
    (match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        Value::String(text) => text.len(),
        _ => 1,
    }) as u64
}

fn size(value: &Value) -> u64 {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| key.len() as u64 + size(value)).sum::<u64>() + 1,
        Value::Array(items) => items.iter().map(size).sum::<u64>() + 1,
        value => length(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cost(rule: &str, value: &Value) -> u64 {
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]});
        let compiled = kube_cel::compile_schema(&schema);
        assert!(compiled.validations[0].is_ok(), "{rule}");
        of(&compiled, value, None)
    }

    #[test]
    fn what_people_write_is_cheap() {
        let ports: Vec<Value> =
            (0..64).map(|i| json!({"name": format!("p{i}"), "port": i, "tags": ["a", "b"]})).collect();
        let value = json!({"spec": {"ports": ports, "name": "x", "labels": {"a": "b"}}, "noise": "x".repeat(100_000)});
        for rule in [
            "self.spec.name.matches('^[a-z]+$')",
            "self.spec.ports.all(p, p.port >= 0 && p.name.size() > 0)",
            "self.spec.ports.all(a, self.spec.ports.exists_one(b, a.name == b.name))",
            "self.spec.ports.all(a, a.tags.all(t, a.tags.exists_one(u, t == u)))",
            "self.spec.ports.map(p, p.name).size() == 64",
            "has(self.spec.labels) && self.spec.labels.all(k, k.startsWith('a'))",
            "self.spec.name.split(',').size() < 4",
        ] {
            let cost = cost(rule, &value);
            assert!(cost < BUDGET / 10, "{rule}: {cost}");
        }
    }

    #[test]
    fn what_would_run_for_hours_is_told_before() {
        let many: Vec<Value> = (0..3000).map(|i| json!(i)).collect();
        let value = json!({"a": many, "text": "x,".repeat(500_000), "n": 1_000_000_000});
        for rule in [
            "self.a.all(x, self.a.all(y, x + y >= 0))",
            "self.a.all(x, self.a.all(y, self.a.all(z, true)))",
            "self.text.split(',').all(x, self.a.all(y, x != 'y'))",
            "lists.range(self.n).all(x, true)",
            "lists.range(100000).all(x, lists.range(100000).all(y, true))",
            "(self.a + self.a).map(x, self.a.map(y, x)).size() == 0",
            "self.text.split(',').map(x, x).size() == 0",
        ] {
            let cost = cost(rule, &value);
            assert!(cost > BUDGET, "{rule}: {cost}");
        }
    }
}
