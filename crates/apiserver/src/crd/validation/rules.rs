//! What the rules of a schema (`x-kubernetes-validations`) have to be.

use std::sync::Arc;

use ferrovirt_schema::{Cause, CauseKind};
use kube_cel::cel::Program;
use serde_json::{Value, json};

use super::cost::{self, Declaration, Total};
use super::schema::branches;
use super::typing::{self, Fault, Type};
use super::{path, structural};
use crate::crd::engine::{MAX_COMPLEXITY, complexity, roomily};
use crate::object::text;

const KEY: &str = "x-kubernetes-validations";
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// What can be said of rules without compiling them.
pub fn wording(schema: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, rule) in branches(schema, KEY).iter().enumerate() {
        let at = |key: &str| format!("{path}.{KEY}[{index}].{key}");
        let (message, expression) = (text(rule, &["message"]), text(rule, &["messageExpression"]));
        let broken = |text: &str| text.contains(['\n', '\r']);
        let code = text(rule, &["rule"]).trim();
        if code.is_empty() {
            causes.push(Cause::required(at("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            causes.push(Cause::invalid(at("message"), &json!(message), "must be non-empty if specified"));
        } else if broken(message.trim()) {
            causes.push(Cause::invalid(at("message"), &json!(message), "must not contain line breaks"));
        } else if broken(code) && message.trim().is_empty() {
            causes.push(Cause::required(at("message"), "message must be specified if rule contains line breaks"));
        }
        if !expression.is_empty() && expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            causes.push(Cause::required(at("messageExpression"), why));
        }
        if let Some(reason) = rule["reason"].as_str().filter(|reason| !REASONS.contains(reason)) {
            causes.push(Cause::not_supported(at("reason"), &json!(reason), &REASONS.map(Value::from)));
        }
        let target = text(rule, &["fieldPath"]);
        let mut wrong = |why| causes.push(Cause::invalid(at("fieldPath"), &json!(target), why));
        if !target.is_empty() && target.trim().is_empty() {
            wrong("must be non-empty if specified");
        }
        if broken(target) {
            wrong("must not contain line breaks");
        }
        let readable = || structural::unreadable(schema).is_none();
        if !target.is_empty() && path::find(schema, target, true).is_err() && readable() {
            wrong("must be a valid path");
        }
    }
    causes
}

pub fn any(schema: &Value) -> bool {
    !branches(schema, KEY).is_empty()
}

/// Where the rules of a node stand.
pub struct Scene<'a> {
    /// At the root of an object, or of an embedded one.
    pub resource: bool,
    /// The list that keeps `oldSelf` from them.
    pub uncorrelated: Option<&'a str>,
    pub declared: Option<&'a Arc<Declaration>>,
    /// How often such a value can be in an object, if the schema bounds it.
    pub cardinality: Option<u64>,
}

/// What compiling the rules of one node brings to light.
pub fn check(schema: &Value, scene: &Scene<'_>, path: &str, total: &mut Total) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, rule) in branches(schema, KEY).iter().enumerate() {
        let (code, message) = (text(rule, &["rule"]), text(rule, &["messageExpression"]));
        // Those beyond are refused for that, when the definition is compiled as a whole.
        if complexity(code).max(complexity(message)) > MAX_COMPLEXITY {
            continue;
        }
        // Nor can a rule be judged if the engine falls over it, which it then does again below, and says so.
        let optional = rule["optionalOldSelf"] == true;
        let Some(seen) = roomily(|| inspect(schema, scene, code, message, optional)) else { continue };
        let at = |key: &str| format!("{path}.{KEY}[{index}].{key}");
        let invalid = |key: &str, why: &str| Cause {
            kind: CauseKind::FieldValueInvalid,
            field: at(key),
            message: format!("Invalid value: {}: {why}", shown(rule)),
        };
        let costs = seen.as_ref().map_or((0, None), |seen| (seen.cost, seen.message_cost));
        let times = scene.declared.map_or(1, |declared| cost::cardinality(scene.cardinality, declared));
        let cost = costs.0.saturating_mul(times);
        causes.extend(cost::fault("estimated rule cost", cost).map(|why| Cause::forbidden(at("rule"), &why)));
        total.add(at("rule"), cost);
        // A rule that does not compile looks at nothing.
        let compares = seen.as_ref().is_ok_and(|seen| seen.compares);
        match seen {
            Err(why) => causes.push(invalid("rule", &why)),
            Ok(seen) => causes.extend(seen.message_fault.map(|why| invalid("messageExpression", &why))),
        }
        if let Some(cost) = costs.1 {
            let fault = cost::fault("estimated messageExpression cost", cost);
            causes.extend(fault.map(|why| Cause::forbidden(at("messageExpression"), &why)));
            total.add(at("messageExpression"), cost);
        }
        if let (true, Some(list)) = (compares, scene.uncorrelated) {
            let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
            causes.push(Cause::invalid(at("rule"), &json!(code), why));
        }
        if let (false, Some(optional)) = (compares, rule["optionalOldSelf"].as_bool()) {
            let why = "may not be set if oldSelf is not used in rule";
            causes.push(Cause::invalid(at("optionalOldSelf"), &json!(optional), why));
        }
    }
    causes
}

/// A rule that compiles.
struct Seen {
    /// It looks at the value before.
    compares: bool,
    message_fault: Option<String>,
    /// What it costs at most, each time, and what its message does.
    cost: u64,
    message_cost: Option<u64>,
}

fn inspect(schema: &Value, scene: &Scene<'_>, code: &str, message: &str, optional: bool) -> Result<Seen, String> {
    let own = typing::declared(schema, scene.resource).unwrap_or(Type::Dyn);
    let cost = |program: &Program| scene.declared.map_or(0, |own| cost::most(program.expression(), own, optional));
    let compiled = compile(code, &own, "bool").map_err(|why| {
        why.map_or("cel expression must evaluate to a bool".to_owned(), |why| format!("compilation failed: {why}"))
    })?;
    let compiled_message = (!message.is_empty()).then(|| compile(message, &own, "string"));
    let message_cost = compiled_message.as_ref().and_then(|compiled| compiled.as_ref().ok()).map(cost);
    let message_fault = compiled_message.and_then(Result::err).map(|why| {
        why.map_or("messageExpression must evaluate to a string".to_owned(), |why| {
            format!("messageExpression compilation failed: {why}")
        })
    });
    let compares = compiled.references().has_variable("oldSelf");
    Ok(Seen { compares, message_fault, cost: cost(&compiled), message_cost })
}

/// An error without words is a wrong type of the whole.
fn compile(code: &str, own: &Type<'_>, wanted: &str) -> Result<Program, Option<String>> {
    let program = Program::compile(code).map_err(|errors| Some(errors.to_string()))?;
    let mut faults = Vec::new();
    let found = typing::infer(program.expression(), own, &mut faults);
    if !faults.is_empty() {
        let lines: Vec<String> = faults.iter().map(|fault| located(code, fault)).collect();
        return Err(Some(lines.join("\n")));
    }
    if found.is_not(wanted) { Err(None) } else { Ok(program) }
}

/// A fault with the line it is in. The parser keeps no positions, so it is the first place with such text.
fn located(code: &str, fault: &Fault) -> String {
    let offset = code
        .match_indices(&fault.token)
        .map(|(at, _)| at)
        .find(|at| !code[at + fault.token.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(0);
    let line = code[..offset].matches('\n').count();
    let start = code[..offset].rfind('\n').map_or(0, |at| at + 1);
    let column = code[start..offset].chars().count();
    let (text, dots) = (code.lines().nth(line).unwrap_or_default(), ".".repeat(column));
    format!("ERROR: <input>:{}:{}: {}\n | {text}\n | {dots}^", line + 1, column + 1, fault.what)
}

/// A rule as upstream prints it: with the names its code has for the members.
fn shown(rule: &Value) -> String {
    let member = |key: &str| json!(text(rule, &[key]));
    let or_null = |key: &str| rule.get(key).cloned().unwrap_or_default();
    let members = [
        ("Rule", member("rule")),
        ("Message", member("message")),
        ("MessageExpression", member("messageExpression")),
        ("Reason", or_null("reason")),
        ("FieldPath", member("fieldPath")),
        ("OptionalOldSelf", or_null("optionalOldSelf")),
    ];
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    // Go's JSON is fit for HTML.
    let text = format!("{{{}}}", members.join(","));
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
