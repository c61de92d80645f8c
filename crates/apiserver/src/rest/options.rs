//! The options of requests, as upstream validates them before it looks at anything else.

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use super::Call;
use super::patch::Kind;
use crate::status::{ApiError, Subject};

const MAX_MANAGER: usize = 128;

/// Refuses options of a create, update or patch that mean nothing.
pub fn check(call: &Call) -> Result<(), ApiError> {
    let kind = match call.verb {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(()),
    };
    let mut causes = Vec::new();
    if kind == "PatchOptions" {
        // Without a known kind of patch there is a better error to come.
        if let Ok(patch) = Kind::of(call) {
            if patch == Kind::Apply && call.query.get("fieldManager").is_empty() {
                causes.push(Cause::required("fieldManager", "is required for apply patch"));
            } else if patch != Kind::Apply && !call.query.get("force").is_empty() {
                causes.push(Cause::forbidden("force", "may not be specified for non-apply patch"));
            }
        }
    }
    causes.extend(manager(call.query.get("fieldManager")));
    causes.extend(dry_run(call.query.all("dryRun")));
    let validation = call.query.get("fieldValidation");
    if !matches!(validation, "" | "Ignore" | "Strict" | "Warn") {
        let known = ["", "Ignore", "Strict", "Warn"].map(|v| json!(v));
        causes.push(Cause::not_supported("fieldValidation", &json!(validation), &known));
    }
    refuse(kind, &causes)
}

fn manager(name: &str) -> Option<Cause> {
    if name.len() > MAX_MANAGER {
        return Some(Cause::too_long("fieldManager", MAX_MANAGER as u64));
    }
    let odd = name.chars().find(|c| c.is_control())?;
    let message = format!("should only contain printable characters; found {odd:?}");
    Some(Cause::invalid("fieldManager", &json!(name), message))
}

/// The only dry run there is, is one of everything.
pub fn dry_run(values: &[String]) -> Option<Cause> {
    let bad = !values.iter().all(|value| value == "All" || value.is_empty());
    bad.then(|| Cause::not_supported("dryRun", &json!(values), &[json!("All")]))
}

/// Refuses options of a list or watch that contradict each other.
pub fn check_list(call: &Call) -> Result<(), ApiError> {
    let given = |key: &str| call.query.get(key);
    let (version, matching) = (given("resourceVersion"), given("resourceVersionMatch"));
    let mut causes = Vec::new();
    let not_known = |known: &[&str]| {
        let known: Vec<Value> = known.iter().map(|k| json!(k)).collect();
        Cause::not_supported("resourceVersionMatch", &json!(matching), &known)
    };
    if call.verb == "watch" {
        let initial = !given("sendInitialEvents").is_empty();
        if initial && matching.is_empty() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if !matching.is_empty() {
            if !initial {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                causes.push(Cause::forbidden("resourceVersionMatch", why));
            }
            if matching != "NotOlderThan" {
                causes.push(not_known(&["NotOlderThan"]));
            } else if !given("continue").is_empty() {
                causes.push(Cause::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
        }
        return refuse("ListOptions", &causes);
    }
    if !matching.is_empty() {
        if version.is_empty() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !given("continue").is_empty() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            causes.push(not_known(&["Exact", "NotOlderThan", ""]));
        } else if matching == "Exact" && version == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            causes.push(Cause::forbidden("resourceVersionMatch", why));
        }
    }
    if !given("sendInitialEvents").is_empty() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    refuse("ListOptions", &causes)
}

/// An error about options themselves.
pub fn refuse(kind: &str, causes: &[Cause]) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(Subject { group: "meta.k8s.io", kind, name: "" }, causes))
}
