//! The part of Kubernetes' JSONPath that printer columns use.
//!
//! `.a.b`, `.a\.b`, `['a.b']`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `.*`, `[?(@.type=='Ready')]`. Braces around the whole
//! and a leading `$` are allowed. Recursive descent and unions are not: columns show one value.

use std::cmp::Ordering;

use serde_json::Value;

/// A path that was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not a supported JSONPath: {why}")]
pub struct PathError {
    pub path: String,
    pub why: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    Filter(Filter),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Vec<Step>,
    /// Absent: the left side only has to exist.
    compare: Option<(Operator, Operand)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Literal(Value),
    Path(Vec<Step>),
}

impl JsonPath {
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let fail = |why| PathError { path: text.to_owned(), why };
        let inner = text.trim();
        let inner = match inner.strip_prefix('{') {
            Some(rest) => rest.strip_suffix('}').ok_or_else(|| fail("unclosed brace"))?,
            None => inner,
        };
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        let mut reader = Reader { rest: inner };
        let steps = reader.steps(0).map_err(fail)?;
        if !reader.rest.is_empty() {
            return Err(fail("unexpected character"));
        }
        Ok(Self { steps })
    }

    /// Everything the path leads to, in document order.
    pub fn find<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        follow(&self.steps, document)
    }

    /// What a column shows.
    pub fn first<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.find(document).into_iter().next()
    }
}

fn follow<'a>(steps: &[Step], document: &'a Value) -> Vec<&'a Value> {
    let mut at = vec![document];
    for step in steps {
        at = at.into_iter().flat_map(|value| take(step, value)).collect();
    }
    at
}

fn take<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match (step, value) {
        (Step::Field(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(list)) => {
            place(*index, list.len()).and_then(|at| list.get(at)).into_iter().collect()
        }
        (Step::Slice(from, to), Value::Array(list)) => {
            let bound = |at: i64| place(at, list.len()).unwrap_or(if at < 0 { 0 } else { list.len() });
            let (from, to) = (from.map_or(0, bound), to.map_or(list.len(), bound));
            list.get(from..to).into_iter().flatten().collect()
        }
        (Step::All, Value::Array(list)) => list.iter().collect(),
        (Step::All, Value::Object(fields)) => fields.values().collect(),
        (Step::Filter(filter), Value::Array(list)) => list.iter().filter(|item| filter.holds(item)).collect(),
        _ => Vec::new(),
    }
}

fn place(index: i64, len: usize) -> Option<usize> {
    let len = i64::try_from(len).ok()?;
    let at = if index < 0 { index.checked_add(len)? } else { index };
    usize::try_from(at).ok().filter(|_| at < len)
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(left) = follow(&self.left, item).into_iter().next() else {
            return false;
        };
        let Some((operator, operand)) = &self.compare else {
            return true;
        };
        let right = match operand {
            Operand::Literal(value) => Some(value),
            Operand::Path(steps) => follow(steps, item).into_iter().next(),
        };
        let Some(right) = right else { return false };
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) if a == b => Some(Ordering::Equal),
            _ => None,
        };
        match operator {
            Operator::Equal => order == Some(Ordering::Equal),
            Operator::NotEqual => order != Some(Ordering::Equal),
            Operator::Less => order == Some(Ordering::Less),
            Operator::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Operator::Greater => order == Some(Ordering::Greater),
            Operator::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Steps up to the end or to a character that starts none. Filters may hold paths, but not filters in filters.
    fn steps(&mut self, depth: usize) -> Result<Vec<Step>, &'static str> {
        let mut out = Vec::new();
        loop {
            if self.rest.starts_with("..") {
                return Err("recursive descent is not supported");
            } else if self.eat(".*") {
                out.push(Step::All);
            } else if self.eat(".") {
                // `.[0]` and a lone `.` are accepted, as upstream does.
                let name = self.name();
                if !name.is_empty() {
                    out.push(Step::Field(name));
                }
            } else if self.eat("[") {
                out.push(self.bracket(depth)?);
            } else if out.is_empty() && depth == 0 && !self.rest.is_empty() {
                let name = self.name();
                if name.is_empty() {
                    return Err("a field name is missing");
                }
                out.push(Step::Field(name));
            } else {
                return Ok(out);
            }
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        let mut escaped = false;
        let mut end = self.rest.len();
        for (at, c) in self.rest.char_indices() {
            match c {
                c if escaped => {
                    name.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                '.' | '[' | ']' | ' ' | '=' | '!' | '<' | '>' | ')' | '(' | '|' | '{' | '}' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        name
    }

    fn bracket(&mut self, depth: usize) -> Result<Step, &'static str> {
        let step = if self.eat("?(") {
            if depth > 0 {
                return Err("a filter in a filter is not supported");
            }
            let filter = self.filter()?;
            if !self.eat(")") {
                return Err("unclosed filter");
            }
            Step::Filter(filter)
        } else if self.eat("*") {
            Step::All
        } else if self.rest.starts_with(['\'', '"']) {
            Step::Field(self.quoted()?)
        } else {
            let from = self.integer()?;
            if self.eat(":") {
                Step::Slice(from, self.integer()?)
            } else {
                Step::Index(from.ok_or("an index is missing")?)
            }
        };
        if self.eat("]") { Ok(step) } else { Err("unclosed bracket") }
    }

    fn filter(&mut self) -> Result<Filter, &'static str> {
        self.spaces();
        if !self.eat("@") {
            return Err("a filter must start with @");
        }
        let left = self.steps(1)?;
        self.spaces();
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let Some((_, operator)) = operators.into_iter().find(|(sign, _)| self.eat(sign)) else {
            return Ok(Filter { left, compare: None });
        };
        self.spaces();
        let operand = if self.eat("@") {
            Operand::Path(self.steps(1)?)
        } else if self.rest.starts_with(['\'', '"']) {
            Operand::Literal(Value::String(self.quoted()?))
        } else {
            let end = self.rest.find([')', ' ']).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            Operand::Literal(
                serde_json::from_str(word)
                    .map_err(|_| "a filter compares with a quoted string, a number or true/false")?,
            )
        };
        self.spaces();
        Ok(Filter { left, compare: Some((operator, operand)) })
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn integer(&mut self) -> Result<Option<i64>, &'static str> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| "an index must be an integer")
    }

    fn quoted(&mut self) -> Result<String, &'static str> {
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map(|(_, c)| c).ok_or("a quote is missing")?;
        let mut out = String::new();
        let mut escaped = false;
        for (at, c) in chars {
            match c {
                c if escaped => {
                    out.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                c if c == quote => {
                    self.rest = &self.rest[at + c.len_utf8()..];
                    return Ok(out);
                }
                c => out.push(c),
            }
        }
        Err("unclosed quote")
    }
}
