//! What calls cost, beside their arguments, and how long their results are.

use std::sync::Arc;

use kube_cel::cel::common::ast::operators as op;

use super::Type;
use super::estimate::{Entries, Estimator, Node, Path, Size};

/// Looking once at a character, and at a character of a regular expression.
const CHARACTER: f64 = 0.1;
const PATTERN: f64 = 0.25;
/// An authorizer is asked; two of these fit into an expression.
const AUTHORIZATION: u64 = 350_000;
/// The regular expressions behind named formats.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_NAME: u64 = 64;
/// Addresses have this many bytes at most.
const ADDRESS: u64 = 16;

pub struct Outcome {
    pub cost: u64,
    pub kind: Type,
    pub size: Option<Size>,
    pub path: Path,
    pub entries: Option<Entries>,
}

impl Outcome {
    fn new(cost: u64, kind: Type) -> Self {
        Self { cost, kind, size: None, path: Path::None, entries: None }
    }

    fn sized(mut self, size: Size) -> Self {
        self.size = Some(size);
        self
    }
}

/// Rounded up, as every product with a factor is.
fn by(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

fn read(size: Size) -> u64 {
    by(size.max, CHARACTER)
}

fn strings() -> Type {
    Type::List(Arc::new(Type::String))
}

fn element(of: &Type) -> Type {
    match of {
        Type::List(one) => (**one).clone(),
        _ => Type::Dyn,
    }
}

pub fn outcome(scene: &Estimator<'_>, name: &str, target: Option<&Node>, args: &[Node]) -> Outcome {
    let length = |index: usize| args.get(index).map_or(Size::UNKNOWN, Node::length);
    let own = target.map_or(Size::UNKNOWN, Node::length);
    match (name, target, args) {
        (op::LOGICAL_AND | op::LOGICAL_OR, ..) => Outcome::new(0, Type::Bool),
        (op::ADD, None, [a, b]) => added(a, b),
        (op::SUBSTRACT, None, [a, b]) => match (&a.kind, &b.kind) {
            (Type::Time, Type::Time) => Outcome::new(1, Type::Duration),
            (Type::Dyn, _) => Outcome::new(1, b.kind.clone()),
            _ => Outcome::new(1, a.kind.clone()),
        },
        (op::MULTIPLY | op::DIVIDE | op::MODULO, None, [a, b]) => {
            Outcome::new(1, if matches!(a.kind, Type::Dyn) { b.kind.clone() } else { a.kind.clone() })
        }
        (op::NEGATE, None, [a]) => Outcome::new(1, a.kind.clone()),
        (op::EQUALS, None, [a, b]) => Outcome::new(same(a, b), Type::Bool),
        (op::NOT_EQUALS, None, [a, b]) => Outcome::new(compared(a, b), Type::Bool),
        (op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS, None, [a, b]) => {
            let text = |node: &Node| matches!(node.kind, Type::String | Type::Bytes);
            let unknown = |node: &Node| matches!(node.kind, Type::Dyn);
            let cost = match (text(a) || text(b), unknown(a) && unknown(b)) {
                (true, _) => compared(a, b),
                (false, true) => compared(a, b).max(1),
                (false, false) => 1,
            };
            Outcome::new(cost, Type::Bool)
        }
        (op::IN, None, [_, holder]) => {
            let cost = match holder.kind {
                Type::List(_) => holder.length().max,
                Type::Map(_) => 1,
                _ => holder.length().max.max(1),
            };
            Outcome::new(cost, Type::Bool)
        }
        (op::INDEX, None, [holder, _]) => indexed(scene, holder),
        (op::OPT_INDEX, None, [holder, _]) => {
            let of = indexed(scene, holder).kind;
            Outcome::new(1, Type::Optional(Arc::new(of)))
        }
        ("check", ..) => Outcome::new(AUTHORIZATION, Type::Own("decision")),
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(of), _) => {
            let kind = match name {
                "isSorted" => Type::Bool,
                "indexOf" | "lastIndexOf" => Type::Int,
                _ => element(&of.kind),
            };
            Outcome::new(looked_through(scene, of), kind)
        }
        ("url", None, [_]) => Outcome::new(read(length(0)), Type::Own("url")).sized(length(0)),
        ("jsonpatch.escapeKey", None, [_]) => Outcome::new(read(length(0)), Type::String).sized(length(0)),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(_), _) => {
            Outcome::new(read(own), Type::String).sized(own)
        }
        ("replace", Some(_), [_, _, ..]) => {
            Outcome::new(by(own.max, 2.0 * CHARACTER), Type::String).sized(replaced(own, length(0), length(1)))
        }
        ("split", Some(_), _) => {
            let most = args.get(1).and_then(|limit| limit.number).map_or(own.max, |limit| limit as u64);
            Outcome::new(by(own.max, 2.0 * CHARACTER), strings()).sized(Size { min: 0, max: most })
        }
        ("join", Some(of), _) => {
            let size = joined(scene, of, args.first().map(Node::length));
            Outcome::new(read(size), Type::String).sized(size)
        }
        ("find" | "findAll", Some(_), [_, ..]) => {
            let cost = by(own.max.saturating_add(1), CHARACTER).saturating_mul(by(length(0).max, PATTERN));
            let kind = if name == "find" { Type::String } else { strings() };
            Outcome::new(cost, kind).sized(Size { min: 0, max: own.max })
        }
        ("matches", Some(_), [_]) => {
            let cost = by(own.max.saturating_add(1), CHARACTER).saturating_mul(by(length(0).max, PATTERN));
            Outcome::new(cost, Type::Bool)
        }
        ("contains", Some(_), [_]) => Outcome::new(read(own).saturating_mul(read(length(0))), Type::Bool),
        ("startsWith" | "endsWith", Some(_), [_]) => Outcome::new(read(length(0)), Type::Bool),
        ("isIP" | "isCIDR" | "isQuantity" | "isSemver", None, [_, ..]) => Outcome::new(read(length(0)), Type::Bool),
        ("cidr", None, [_]) => Outcome::new(read(length(0)), Type::Own("cidr")),
        ("ip", None, [_]) => Outcome::new(read(length(0)), Type::Own("ip")),
        ("quantity", None, [_]) => Outcome::new(read(length(0)), Type::Own("quantity")),
        ("semver", None, [_, ..]) => Outcome::new(read(length(0)), Type::Own("semver")),
        ("ip.isCanonical", None, [_]) => Outcome::new(by(length(0).max, 2.0 * CHARACTER), Type::Bool),
        ("containsIP", Some(_), [other]) => {
            Outcome::new(by(2 * ADDRESS, CHARACTER).saturating_add(parsed(other)), Type::Bool)
        }
        ("containsCIDR", Some(_), [other]) => {
            let cost = by(2 * ADDRESS, CHARACTER) + by(ADDRESS, CHARACTER) + 1;
            Outcome::new(cost.saturating_add(parsed(other)), Type::Bool)
        }
        ("validate", Some(_), [_]) => {
            let cost = by(read(length(0)), FORMAT_PATTERN * PATTERN);
            Outcome::new(cost, Type::Optional(Arc::new(strings())))
        }
        ("sets.contains" | "sets.intersects", None, [_, _]) => {
            Outcome::new(length(0).times(length(1)).max.saturating_add(1), Type::Bool)
        }
        ("sets.equivalent", None, [_, _]) => {
            Outcome::new(by(length(0).times(length(1)).max, 2.0).saturating_add(1), Type::Bool)
        }
        ("slice", Some(of), [from, to]) => {
            let whole = |node: &Node, or: u64| node.number.map_or(or, |number| u64::try_from(number).unwrap_or(0));
            let size = Size::exactly(whole(to, own.max).wrapping_sub(whole(from, 0)));
            made(1.0, size, of.kind.clone())
        }
        ("lists.range", None, [count]) => {
            let count = count.number.map_or(u64::MAX, |number| u64::try_from(number).unwrap_or(0));
            made(1.0, Size::exactly(count), Type::List(Arc::new(Type::Int)))
        }
        ("reverse", Some(of), []) if !matches!(of.kind, Type::String) => made(1.0, own, of.kind.clone()),
        ("flatten", Some(of), depth) => {
            let depth =
                depth.first().map_or(1, |depth| depth.number.map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0)));
            made(depth as f64, own, of.kind.clone())
        }
        ("distinct", Some(of), []) => made(2.0, own.times(own), of.kind.clone()),
        ("sort", Some(of), []) => made(sorting(&element(&of.kind)), own.times(own), of.kind.clone()),
        ("@sortByAssociatedKeys", Some(of), [keys]) => {
            let size = keys.length();
            made(sorting(&element(&keys.kind)), size.times(size), of.kind.clone())
        }
        // Nobody bounds what a format makes of its arguments.
        ("format", Some(_), _) => Outcome::new(read(own), Type::String),
        ("strings.quote", None, [_]) => {
            let size = length(0);
            let quoted = Size { min: size.min.saturating_add(2), max: size.max.saturating_mul(2).saturating_add(2) };
            Outcome::new(read(size), Type::String).sized(quoted)
        }
        ("bytes", None, [text]) if matches!(text.kind, Type::String | Type::Dyn) => {
            let size = text.length();
            let cost = if matches!(text.kind, Type::Dyn) { read(size).max(1) } else { read(size) };
            Outcome::new(cost, Type::Bytes).sized(Size { min: size.min, max: size.max.saturating_mul(4) })
        }
        ("string", None, [bytes]) if matches!(bytes.kind, Type::Bytes | Type::Dyn) => {
            let size = bytes.length();
            let cost = if matches!(bytes.kind, Type::Dyn) { read(size).max(1) } else { read(size) };
            Outcome::new(cost, Type::String).sized(Size { min: size.min / 4, max: size.max })
        }
        ("dyn", None, [of]) => {
            let mut out = Outcome::new(1, Type::Dyn);
            (out.size, out.entries) = (of.size, of.entries);
            out
        }
        _ => Outcome::new(1, result(name, target, args)),
    }
}

/// The results of functions that cost the same whatever they are given.
fn result(name: &str, target: Option<&Node>, args: &[Node]) -> Type {
    let first = || args.first().map_or(Type::Dyn, |one| one.kind.clone());
    let held = |of: &Type| match of {
        Type::Optional(of) => (**of).clone(),
        _ => Type::Dyn,
    };
    let held = || target.map_or(Type::Dyn, |target| held(&target.kind));
    match name {
        "size" | "int" | "compareTo" | "sign" | "asInteger" | "prefixLength" | "family" | "major" | "minor"
        | "patch" => Type::Int,
        name if name.starts_with("get") => match target.map(|target| &target.kind) {
            Some(Type::Time | Type::Duration | Type::Dyn) => Type::Int,
            _ if name == "getQuery" => Type::Map(Arc::new(strings())),
            _ => Type::String,
        },
        "double" | "asApproximateFloat" => Type::Double,
        "uint" => Type::Uint,
        "string" | "charAt" | "reverse" | "reason" | "error" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Time,
        "duration" => Type::Duration,
        op::LOGICAL_NOT
        | op::NOT_STRICTLY_FALSE
        | "bool"
        | "matches"
        | "hasValue"
        | "isURL"
        | "isInteger"
        | "isGreaterThan"
        | "isLessThan"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "allowed"
        | "errored" => Type::Bool,
        "masked" => Type::Own("cidr"),
        "ip" => Type::Own("ip"),
        "add" | "sub" => target.map_or(Type::Dyn, |target| target.kind.clone()),
        "value" => held(),
        "orValue" => match held() {
            Type::Dyn => first(),
            held => held,
        },
        "or" => target.map_or(Type::Dyn, |target| target.kind.clone()),
        "optional.of" | "optional.ofNonZeroValue" => Type::Optional(Arc::new(first())),
        "optional.none" => Type::Optional(Arc::new(Type::Dyn)),
        "first" | "last" => Type::Optional(Arc::new(target.map_or(Type::Dyn, |target| element(&target.kind)))),
        name if name.starts_with("format.") => Type::Own("format"),
        "cel.@mapInsert" => first(),
        _ => Type::Dyn,
    }
}

fn added(a: &Node, b: &Node) -> Outcome {
    let size = a.length().plus(b.length());
    let either = |is: fn(&Type) -> bool| is(&a.kind) || is(&b.kind);
    let mut out = if either(|kind| matches!(kind, Type::List(_))) {
        let kind = match (&a.kind, &b.kind) {
            (Type::List(one), _) if !matches!(**one, Type::Dyn) => a.kind.clone(),
            (_, Type::List(_)) => b.kind.clone(),
            _ => a.kind.clone(),
        };
        Outcome::new(1, kind).sized(size)
    } else if either(|kind| matches!(kind, Type::String | Type::Bytes)) {
        let kind = if matches!(a.kind, Type::Dyn) { b.kind.clone() } else { a.kind.clone() };
        Outcome::new(read(size), kind).sized(size)
    } else if matches!((&a.kind, &b.kind), (Type::Dyn, Type::Dyn)) {
        Outcome::new(read(size).max(1), Type::Dyn).sized(size)
    } else {
        let time = either(|kind| matches!(kind, Type::Time));
        let kind = if matches!(a.kind, Type::Dyn) { b.kind.clone() } else { a.kind.clone() };
        return Outcome::new(1, if time { Type::Time } else { kind });
    };
    out.entries = Entries::either(a.entries, b.entries);
    out
}

/// As much as the shorter one has is compared.
fn compared(a: &Node, b: &Node) -> u64 {
    by(a.length().max.min(b.length().max), CHARACTER)
}

fn same(a: &Node, b: &Node) -> u64 {
    match (&a.kind, &b.kind) {
        (Type::Own(one), Type::Own(other)) if one == other => match *one {
            "url" => by(b.size.map_or(1, |size| size.max), CHARACTER),
            "format" => by(FORMAT_NAME, CHARACTER),
            _ => 1,
        },
        _ => compared(a, b),
    }
}

fn indexed(scene: &Estimator<'_>, holder: &Node) -> Outcome {
    let (kind, step) = match &holder.kind {
        Type::List(one) => ((**one).clone(), "@items"),
        Type::Map(one) => ((**one).clone(), "@values"),
        Type::Optional(of) => {
            let kind = match &**of {
                Type::List(one) | Type::Map(one) => (**one).clone(),
                _ => Type::Dyn,
            };
            return Outcome::new(1, Type::Optional(Arc::new(kind)));
        }
        _ => (Type::Dyn, "@values"),
    };
    let mut out = Outcome::new(1, kind);
    out.size = holder.entries.map(|entries| entries.value);
    out.path = scene.step(&holder.path, step);
    out
}

/// The length of a list's elements, where they are part of the value.
fn elements(scene: &Estimator<'_>, list: &Node) -> Size {
    match &list.path {
        Path::None => Size::UNKNOWN,
        path => match scene.step(path, "@items") {
            Path::To(declared) => Size { min: 0, max: declared.most },
            _ => Size::UNKNOWN,
        },
    }
}

fn looked_through(scene: &Estimator<'_>, of: &Node) -> u64 {
    let Type::List(one) = &of.kind else { return read(of.length()) };
    let mut each = 1u64;
    if matches!(**one, Type::String | Type::Bytes) {
        each = each.saturating_add(read(elements(scene, of)));
    }
    of.length().max.saturating_mul(each)
}

fn joined(scene: &Estimator<'_>, of: &Node, separator: Option<Size>) -> Size {
    let list = of.length();
    let mut size = Size::exactly(0);
    if matches!(of.kind, Type::List(_)) {
        size = list.times(elements(scene, of));
    }
    if let Some(separator) = separator {
        let gaps = Size { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
        size = size.plus(separator.times(gaps));
    }
    size
}

/// The longest and the shortest that a text can become.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let parts = |text: u64, each: u64| (text as f64 / each as f64).ceil() as u64;
    let (count_max, kept_max) = if from.min == 0 {
        // Nothing is found between all characters.
        (text.max.saturating_add(1), text.max)
    } else if to.max <= from.min {
        (0, text.max)
    } else {
        (parts(text.max, from.min), 0)
    };
    let (count_min, kept_min) = if from.max == 0 {
        (text.min.saturating_add(1), text.min)
    } else if from.max <= to.min {
        (0, text.min)
    } else {
        (parts(text.min, from.max), 0)
    };
    Size { min: count_min, max: count_max }.times(to).plus(Size { min: kept_min, max: kept_max })
}

/// A list is made, with some work for each of its elements.
fn made(factor: f64, size: Size, kind: Type) -> Outcome {
    Outcome::new(by(size.max, factor).saturating_add(11), kind).sized(size)
}

fn sorting(element: &Type) -> f64 {
    if matches!(element, Type::String | Type::Bytes) { 2.0 + CHARACTER } else { 2.0 }
}

/// An address that is given as a text is read first.
fn parsed(other: &Node) -> u64 {
    if matches!(other.kind, Type::String | Type::Dyn) { read(other.length()) } else { 0 }
}
