//! Field selectors: `metadata.name=x,status.phase!=Running`.

use super::SelectorError;

/// A conjunction of comparisons. Which paths a resource supports is the caller's to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    pub path: String,
    pub op: FieldOp,
    pub value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldOp {
    Equals,
    NotEquals,
}

impl FieldSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The value a path is required to equal, if the selector says so. Lets a watch on one object skip the scan.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.op == FieldOp::Equals && t.path == path).map(|t| t.value.as_str())
    }

    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let (path, op, value) = split_term(term)
                .ok_or_else(|| SelectorError::FieldTerm { selector: text.to_owned(), term: term.to_owned() })?;
            terms.push(FieldTerm { path: path.to_owned(), op, value: unescape(value)? });
        }
        Ok(Self { terms })
    }

    /// A path that the object does not have compares as the empty string.
    pub fn matches(&self, field: impl Fn(&str) -> Option<String>) -> bool {
        self.terms.iter().all(|term| {
            let equal = field(&term.path).unwrap_or_default() == term.value;
            match term.op {
                FieldOp::Equals => equal,
                FieldOp::NotEquals => !equal,
            }
        })
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                out.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

fn split_term(term: &str) -> Option<(&str, FieldOp, &str)> {
    for (index, byte) in term.bytes().enumerate() {
        let rest = match byte {
            b'!' | b'=' => &term[index..],
            _ => continue,
        };
        for (sign, op) in [("!=", FieldOp::NotEquals), ("==", FieldOp::Equals), ("=", FieldOp::Equals)] {
            if let Some(value) = rest.strip_prefix(sign) {
                return Some((&term[..index], op, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(other) => return Err(SelectorError::Escape(format!("\\{other}"))),
                None => return Err(SelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(SelectorError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}
