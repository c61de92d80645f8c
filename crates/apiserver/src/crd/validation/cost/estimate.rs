//! Follows an expression and adds up what each of its parts costs at most.

use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators as op,
};

use super::functions::{self, Outcome};
use super::macros;
use super::{Declaration, Type};

const LIST: u64 = 10;
const MAP: u64 = 30;
const STRUCT: u64 = 40;
/// The variable in which loops gather what they find.
pub const GATHERED: &str = "@result";
/// Names before a dot that are part of a function's name.
const LIBRARIES: [&str; 10] =
    ["base64", "cel", "format", "ip", "jsonpatch", "lists", "math", "optional", "sets", "strings"];

/// What an expression about values of such a schema costs at most. `optional`: the value before may be missing, and says so.
pub fn most(expression: &IdedExpr, own: &Arc<Declaration>, optional: bool) -> u64 {
    Estimator { own, optional, variables: Vec::new() }.of(expression).cost
}

/// How many elements, characters or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub min: u64,
    pub max: u64,
}

impl Size {
    pub const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub fn either(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }
}

/// What is known of the elements of a list or map that an expression makes.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    list: bool,
    key: Size,
    pub value: Size,
}

impl Entries {
    pub fn either(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { list: one.list, key: one.key.either(other.key), value: one.value.either(other.value) })
    }
}

/// The way through the schema that an expression takes.
#[derive(Debug, Clone)]
pub enum Path {
    /// It takes none.
    None,
    /// It leads nowhere.
    Lost,
    To(Arc<Declaration>),
}

/// An expression that was looked at.
#[derive(Debug, Clone)]
pub struct Node {
    pub cost: u64,
    pub kind: Type,
    pub path: Path,
    pub size: Option<Size>,
    pub entries: Option<Entries>,
    /// The number it is, if it is one.
    pub number: Option<i64>,
}

impl Node {
    pub fn length(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

struct Variable {
    name: String,
    kind: Type,
    path: Path,
    size: Option<Size>,
    entries: Option<Entries>,
}

pub struct Estimator<'a> {
    own: &'a Arc<Declaration>,
    optional: bool,
    variables: Vec<Variable>,
}

impl Estimator<'_> {
    pub fn of(&mut self, tree: &IdedExpr) -> Node {
        match &tree.expr {
            Expr::Unspecified => self.node(0, Type::Dyn, None),
            Expr::Literal(literal) => self.literal(literal),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let items: Vec<Node> = list.elements.iter().map(|item| self.of(item)).collect();
                let kind = items.first().map_or(Type::Dyn, |item| item.kind.clone());
                let entries = Entries { list: true, key: Size::exactly(1), value: widest(items.iter()) };
                let mut node = self.node(LIST, Type::List(Arc::new(kind)), Some(Size::exactly(items.len() as u64)));
                node.entries = Some(entries);
                items.iter().for_each(|item| node.cost = node.cost.saturating_add(item.cost));
                node
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        keys.push(self.of(&entry.key));
                        values.push(self.of(&entry.value));
                    }
                }
                let kind = values.first().map_or(Type::Dyn, |value| value.kind.clone());
                let mut node = self.node(MAP, Type::Map(Arc::new(kind)), Some(Size::exactly(values.len() as u64)));
                node.entries = Some(Entries { list: false, key: widest(keys.iter()), value: widest(values.iter()) });
                let parts = keys.iter().chain(&values);
                parts.for_each(|part| node.cost = node.cost.saturating_add(part.cost));
                node
            }
            Expr::Struct(made) => {
                let mut node = self.node(STRUCT, Type::Dyn, None);
                for entry in &made.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        node.cost = node.cost.saturating_add(self.of(&field.value).cost);
                    }
                }
                node
            }
            Expr::Comprehension(made) if macros::is_bind(made) => self.bind(made),
            Expr::Comprehension(made) => self.comprehension(made),
        }
    }

    /// Something that is not part of the value.
    fn node(&self, cost: u64, kind: Type, size: Option<Size>) -> Node {
        let size = size.or(kind.scalar().then(|| Size::exactly(1)));
        Node { cost, kind, path: Path::None, size, entries: None, number: None }
    }

    /// The length of what a path leads to, of a value of a type, of a variable: the first that is known.
    fn size(&self, path: &Path, kind: &Type, of_variable: Option<Size>) -> Option<Size> {
        match path {
            Path::To(declared) => Some(Size { min: 0, max: declared.most }),
            _ if kind.scalar() => Some(Size::exactly(1)),
            _ => of_variable,
        }
    }

    /// A path that goes on. What was made by the expression has no path, and kube-apiserver starts anew from the value then.
    pub fn step(&self, path: &Path, step: &str) -> Path {
        match path {
            Path::None => Path::To(self.own.clone()),
            Path::Lost => Path::Lost,
            Path::To(declared) => declared.child(step).map_or(Path::Lost, |child| Path::To(child.clone())),
        }
    }

    fn literal(&self, literal: &LiteralValue) -> Node {
        let (kind, size) = match literal {
            LiteralValue::String(text) => (Type::String, text.inner().chars().count() as u64),
            LiteralValue::Bytes(bytes) => (Type::Bytes, bytes.inner().len() as u64),
            LiteralValue::Boolean(_) => (Type::Bool, 1),
            LiteralValue::Double(_) => (Type::Double, 1),
            LiteralValue::Int(_) => (Type::Int, 1),
            LiteralValue::UInt(_) => (Type::Uint, 1),
            LiteralValue::Null => (Type::Null, 1),
        };
        let mut node = self.node(0, kind, Some(Size::exactly(size)));
        if let LiteralValue::Int(number) = literal {
            node.number = Some(*number.inner());
        }
        node
    }

    fn variable(&self, name: &str) -> Node {
        if let Some(found) = self.variables.iter().rev().find(|variable| variable.name == name) {
            let size = self.size(&found.path, &found.kind, found.size);
            let (kind, path) = (found.kind.clone(), found.path.clone());
            return Node { cost: 1, kind, path, size, entries: found.entries, number: None };
        }
        let kind = match name {
            "self" => self.own.kind(),
            "oldSelf" if self.optional => Type::Optional(Arc::new(self.own.kind())),
            "oldSelf" => self.own.kind(),
            _ => Type::Dyn,
        };
        let path = Path::To(self.own.clone());
        let size = self.size(&path, &kind, None);
        Node { cost: 1, kind, path, size, entries: None, number: None }
    }

    fn select(&mut self, select: &SelectExpr) -> Node {
        let of = self.of(&select.operand);
        if select.test {
            return self.node(of.cost, Type::Bool, None);
        }
        let step = u64::from(matches!(of.kind, Type::Map(_) | Type::Object(_)));
        let kind = field(&of.kind, &select.field);
        let path = self.step(&of.path, &select.field);
        let size = self.size(&path, &kind, None);
        Node { cost: of.cost.saturating_add(step), kind, path, size, entries: None, number: None }
    }

    fn call(&mut self, call: &CallExpr) -> Node {
        if let Some(expanded) = macros::expand(call) {
            return self.of(&expanded);
        }
        let library = call.target.as_deref().and_then(|target| match &target.expr {
            Expr::Ident(name) if self.variables.iter().all(|v| v.name != *name) => Some(name.as_str()),
            _ => None,
        });
        let library = library.filter(|name| LIBRARIES.contains(name));
        let target = if library.is_some() { None } else { call.target.as_deref() };
        if let (Some(target), "optMap" | "optFlatMap", [variable, body]) =
            (target, call.func_name.as_str(), call.args.as_slice())
        {
            return self.mapped(target, variable, body, call.func_name == "optMap");
        }
        if let (op::OPT_SELECT, [of, name]) = (call.func_name.as_str(), call.args.as_slice())
            && let Expr::Literal(LiteralValue::String(name)) = &name.expr
        {
            let of = self.of(of);
            let kind = match field(&of.kind, name.inner()) {
                optional @ Type::Optional(_) => optional,
                kind => Type::Optional(Arc::new(kind)),
            };
            return self.node(of.cost.saturating_add(1), kind, None);
        }
        let args: Vec<Node> = call.args.iter().map(|argument| self.of(argument)).collect();
        let target = target.map(|target| self.of(target));
        // The parser of kube-apiserver takes these for numbers.
        let literal = call.args.first().map(|argument| &argument.expr);
        if let (op::NEGATE, [one], Some(Expr::Literal(LiteralValue::Int(_) | LiteralValue::Double(_)))) =
            (call.func_name.as_str(), args.as_slice(), literal)
        {
            let mut node = self.node(0, one.kind.clone(), None);
            node.number = one.number.map(i64::wrapping_neg);
            return node;
        }
        let of_arguments = args.iter().fold(0u64, |sum, argument| sum.saturating_add(argument.cost));
        let of_target = target.as_ref().map_or(0, |target| target.cost);
        if let (op::CONDITIONAL, [condition, a, b]) = (call.func_name.as_str(), args.as_slice()) {
            let kind = if matches!(a.kind, Type::Dyn | Type::Null) { b.kind.clone() } else { a.kind.clone() };
            let cost = condition.cost.saturating_add(a.cost.max(b.cost));
            let mut node = self.node(cost, kind, Some(a.length().either(b.length())));
            node.entries = Entries::either(a.entries, b.entries);
            return node;
        }
        let name = match library {
            Some(library) => format!("{library}.{}", call.func_name),
            None => call.func_name.clone(),
        };
        let Outcome { cost, kind, size, path, entries } = functions::outcome(self, &name, target.as_ref(), &args);
        let cost = cost.saturating_add(of_arguments).saturating_add(of_target);
        let size = size.or_else(|| self.size(&path, &kind, None));
        Node { cost, kind, path, size, entries, number: None }
    }

    /// `optMap` and `optFlatMap`: the value, if there is one, by a name.
    fn mapped(&mut self, target: &IdedExpr, variable: &IdedExpr, body: &IdedExpr, wrapped: bool) -> Node {
        let Expr::Ident(name) = &variable.expr else { return self.node(0, Type::Dyn, None) };
        let of = self.of(target);
        let kind = match &of.kind {
            Type::Optional(one) => (**one).clone(),
            _ => Type::Dyn,
        };
        let size = self.size(&Path::None, &kind, None);
        self.variables.push(Variable { name: name.clone(), kind, path: Path::None, size, entries: None });
        let result = self.of(body);
        self.variables.pop();
        // Is there one, and which: twice the target and a call each. Then the name, which is made like a list.
        let asked = of.cost.saturating_add(1);
        let cost = asked.saturating_mul(2).saturating_add(LIST).saturating_add(result.cost);
        match wrapped {
            true => self.node(cost.saturating_add(1), Type::Optional(Arc::new(result.kind)), None),
            false => self.node(cost, result.kind, None),
        }
    }

    fn bind(&mut self, made: &ComprehensionExpr) -> Node {
        let value = self.of(&made.accu_init);
        let variable = Variable {
            name: made.accu_var.clone(),
            kind: value.kind.clone(),
            path: value.path.clone(),
            size: value.size,
            entries: value.entries,
        };
        self.variables.push(variable);
        let mut result = self.of(&made.result);
        self.variables.pop();
        result.cost = result.cost.saturating_add(value.cost).saturating_add(LIST);
        result.path = Path::None;
        result
    }

    fn comprehension(&mut self, made: &ComprehensionExpr) -> Node {
        let range = self.of(&made.iter_range);
        let start = self.of(&made.accu_init);
        let mut cost = range.cost.saturating_add(start.cost);
        let before = self.variables.len();
        self.variables.push(Variable {
            name: made.accu_var.clone(),
            kind: start.kind.clone(),
            path: start.path.clone(),
            size: start.size,
            entries: start.entries,
        });
        let list = range.entries.map_or(matches!(range.kind, Type::List(_)), |entries| entries.list);
        let (key, value) = match &range.kind {
            Type::List(one) => (Type::Int, (**one).clone()),
            Type::Map(one) => (Type::String, (**one).clone()),
            _ => (Type::Dyn, Type::Dyn),
        };
        let (key_size, value_size) = (range.entries.map(|e| e.key), range.entries.map(|e| e.value));
        let keys = (self.step(&range.path, if list { "@indices" } else { "@keys" }), key, key_size);
        let values = (self.step(&range.path, if list { "@items" } else { "@values" }), value, value_size);
        let mut name = |name: &str, (path, kind, size): (Path, Type, Option<Size>)| {
            self.variables.push(Variable { name: name.to_owned(), kind, path, size, entries: None });
        };
        match &made.iter_var2 {
            Some(second) => {
                name(&made.iter_var, keys);
                name(second, values);
            }
            // One variable is the item of a list, and the key of a map.
            None => name(&made.iter_var, if list { values } else { keys }),
        }
        let condition = self.of(&made.loop_cond);
        let step = self.of(&made.loop_step);
        self.variables.truncate(before + 1);
        let gathers = matches!(made.accu_init.expr, Expr::List(_) | Expr::Map(_));
        if let (true, Some(gathered)) = (gathers, self.variables.last_mut()) {
            gathered.kind = step.kind.clone();
        }
        let result = self.of(&made.result);
        self.variables.truncate(before);
        let rounds = range.length();
        cost = cost
            .saturating_add(result.cost)
            .saturating_add(rounds.max.saturating_mul(step.cost.saturating_add(condition.cost)));
        let size = match made.accu_init.expr {
            Expr::Literal(_) => start.size,
            _ if gathers => Some(rounds),
            _ => None,
        };
        let mut node = self.node(cost, result.kind, size);
        if gathers {
            node.entries = step.entries;
        }
        node
    }
}

fn field(of: &Type, name: &str) -> Type {
    match of {
        Type::Object(declared) => declared.child(name).map_or(Type::Dyn, Declaration::kind),
        Type::Map(one) => (**one).clone(),
        Type::Optional(of) => Type::Optional(Arc::new(field(of, name))),
        _ => Type::Dyn,
    }
}

fn widest<'n>(nodes: impl Iterator<Item = &'n Node>) -> Size {
    nodes.map(Node::length).reduce(Size::either).unwrap_or(Size::exactly(0))
}
