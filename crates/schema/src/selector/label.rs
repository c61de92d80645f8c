//! Label selectors, in the query-string form and in the JSON form of `LabelSelector` fields.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::SelectorError;
use super::lexer::{Token, tokens};
use crate::names;

/// A conjunction of requirements. The empty one selects everything; see [`LabelSelector::nothing`] for the other end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub op: LabelOp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelOp {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Reads the form of `labelSelector=` query parameters.
    ///
    /// ```
    /// # use ferrovirt_schema::selector::LabelSelector;
    /// let selector = LabelSelector::parse("app=web, tier in (a,b), !legacy").unwrap();
    /// let labels = [("app", "web"), ("tier", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    /// assert!(selector.matches(&labels));
    /// ```
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut requirements = parser.selector()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// Reads a `LabelSelector` field. Absent (null) selects nothing and `{}` selects everything, as upstream decided.
    pub fn from_json(value: &Value) -> Result<Self, SelectorError> {
        let fields = match value {
            Value::Null => return Ok(Self::nothing()),
            Value::Object(fields) => fields,
            other => {
                return Err(SelectorError::Json(format!("{other} is not a valid label selector")));
            }
        };
        let mut requirements = Vec::new();
        match fields.get("matchLabels") {
            None | Some(Value::Null) => {}
            Some(Value::Object(labels)) => {
                for (key, wanted) in labels {
                    let wanted = wanted
                        .as_str()
                        .ok_or_else(|| SelectorError::Json(format!("matchLabels: {key}: must be a string")))?;
                    requirements.push(requirement(key, LabelOp::In([wanted.to_owned()].into()))?);
                }
            }
            Some(_) => {
                return Err(SelectorError::Json("matchLabels: must be an object".to_owned()));
            }
        }
        match fields.get("matchExpressions") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => {
                for expression in list {
                    requirements.push(expression_of(expression)?);
                }
            }
            Some(_) => {
                return Err(SelectorError::Json("matchExpressions: must be an array".to_owned()));
            }
        }
        Ok(Self { requirements, nothing: false })
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
    }
}

impl Requirement {
    fn matches(&self, label: Option<&str>) -> bool {
        match (&self.op, label) {
            (LabelOp::In(values), Some(label)) => values.contains(label),
            (LabelOp::NotIn(values), Some(label)) => !values.contains(label),
            (LabelOp::NotIn(_), None) => true,
            (LabelOp::Exists, label) => label.is_some(),
            (LabelOp::DoesNotExist, label) => label.is_none(),
            (LabelOp::GreaterThan(bound), Some(label)) => label.parse::<i64>().is_ok_and(|n| n > *bound),
            (LabelOp::LessThan(bound), Some(label)) => label.parse::<i64>().is_ok_and(|n| n < *bound),
            (LabelOp::In(_) | LabelOp::GreaterThan(_) | LabelOp::LessThan(_), None) => false,
        }
    }
}

fn expression_of(expression: &Value) -> Result<Requirement, SelectorError> {
    let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
    let operator = expression.get("operator").and_then(Value::as_str).unwrap_or_default();
    let mut values = BTreeSet::new();
    if let Some(Value::Array(list)) = expression.get("values") {
        for value in list {
            let value = value
                .as_str()
                .ok_or_else(|| SelectorError::Json("matchExpressions: values must be strings".to_owned()))?;
            values.insert(value.to_owned());
        }
    }
    let none_wanted = |op: LabelOp| {
        if values.is_empty() {
            Ok(op)
        } else {
            Err(SelectorError::Json(
                "values: Invalid value: values set must be empty for exists and does not exist".to_owned(),
            ))
        }
    };
    let op = match operator {
        "Exists" => none_wanted(LabelOp::Exists)?,
        "DoesNotExist" => none_wanted(LabelOp::DoesNotExist)?,
        "In" => LabelOp::In(values),
        "NotIn" => LabelOp::NotIn(values),
        other => {
            return Err(SelectorError::Json(format!("\"{other}\" is not a valid label selector operator")));
        }
    };
    requirement(key, op)
}

/// The one gate every requirement passes, whichever form it came in.
fn requirement(key: &str, op: LabelOp) -> Result<Requirement, SelectorError> {
    let refuse = |text: String| Err(SelectorError::Requirement(text));
    check_key(key)?;
    if let LabelOp::In(values) | LabelOp::NotIn(values) = &op {
        if values.is_empty() {
            return refuse(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".to_owned(),
            );
        }
        for (index, value) in values.iter().enumerate() {
            let problems = names::label_value(value);
            if !problems.is_empty() {
                return refuse(format!("values[{index}][{key}]: Invalid value: {value:?}: {}", problems.join("; ")));
            }
        }
    }
    Ok(Requirement { key: key.to_owned(), op })
}

fn check_key(key: &str) -> Result<(), SelectorError> {
    let problems = names::label_key(key);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(SelectorError::Requirement(format!("<nil>: Invalid value: {key:?}: {}", problems.join("; ")))),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens.get(self.at).cloned().unwrap_or(Token::End)
    }

    /// The next token where `in` and `notin` are ordinary words.
    fn peek_word(&self) -> Token {
        match self.peek() {
            word @ (Token::In | Token::NotIn) => Token::Identifier(word.literal().to_owned()),
            other => other,
        }
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn next_word(&mut self) -> Token {
        let token = self.peek_word();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut out = Vec::new();
        loop {
            match self.peek_word() {
                Token::End => return Ok(out),
                Token::Identifier(_) | Token::Not => {
                    out.push(self.requirement()?);
                    match self.next_word() {
                        Token::End => return Ok(out),
                        Token::Comma => match self.peek_word() {
                            Token::Identifier(_) | Token::Not => {}
                            other => return Err(found_plain(&other, "identifier after ','")),
                        },
                        other => return Err(found_plain(&other, "',' or 'end of string'")),
                    }
                }
                other => return Err(found_plain(&other, "!, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek() == Token::Not;
        if negated {
            self.next();
        }
        let key = match self.next_word() {
            Token::Identifier(key) => key,
            other => return Err(found(&other, "identifier")),
        };
        check_key(&key)?;
        if negated {
            return requirement(&key, LabelOp::DoesNotExist);
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return requirement(&key, LabelOp::Exists);
        }
        let op = match self.next() {
            Token::In => LabelOp::In(self.values()?),
            Token::NotIn => LabelOp::NotIn(self.values()?),
            Token::Equals | Token::DoubleEquals => LabelOp::In([self.exact()?].into()),
            Token::NotEquals => LabelOp::NotIn([self.exact()?].into()),
            Token::Greater => LabelOp::GreaterThan(self.number()?),
            Token::Less => LabelOp::LessThan(self.number()?),
            other => return Err(found(&other, "in, notin, =, ==, !=, gt, lt")),
        };
        requirement(&key, op)
    }

    fn exact(&mut self) -> Result<String, SelectorError> {
        match self.peek_word() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Identifier(value) => {
                self.next();
                Ok(value)
            }
            other => Err(found(&other, "identifier")),
        }
    }

    fn number(&mut self) -> Result<i64, SelectorError> {
        let value = self.exact()?;
        value.parse().map_err(|_| {
            SelectorError::Requirement(format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            ))
        })
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        match self.next_word() {
            Token::Open => {}
            other => return Err(found(&other, "'('")),
        }
        let mut out = BTreeSet::new();
        // An empty place between commas, or before the closing one, stands for the empty string.
        let mut pending = true;
        loop {
            match self.next_word() {
                Token::Identifier(value) => {
                    if !pending {
                        return Err(found(&Token::Identifier(value), "',' or ')'"));
                    }
                    out.insert(value);
                    pending = false;
                }
                Token::Comma => {
                    if pending {
                        out.insert(String::new());
                    }
                    pending = true;
                }
                Token::Close => {
                    if pending {
                        out.insert(String::new());
                    }
                    return Ok(out);
                }
                other => {
                    return Err(found(&other, if pending { "',', ')' or identifier" } else { "',' or ')'" }));
                }
            }
        }
    }
}

fn found(token: &Token, expected: &str) -> SelectorError {
    SelectorError::Requirement(found_text(token, expected))
}

fn found_plain(token: &Token, expected: &str) -> SelectorError {
    SelectorError::Syntax(found_text(token, expected))
}

fn found_text(token: &Token, expected: &str) -> String {
    format!("found '{}', expected: {expected}", token.literal())
}
