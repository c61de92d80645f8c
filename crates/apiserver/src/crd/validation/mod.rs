//! What makes a CustomResourceDefinition acceptable, in the words and the order of kube-apiserver.
//!
//! Only requests are checked. What is stored is taken as it is, and an update that leaves a schema alone is not held to rules
//! that came after it.

mod cost;
mod defaults;
mod lists;
mod path;
mod pattern;
mod rules;
mod schema;
mod structural;
mod typing;
mod version;

#[cfg(test)]
mod tests;

use ferrovirt_schema::structural::Pool;
use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use crate::object::{at, condition, strings, text};
use crate::registry::custom_resource;
use version::Versions;

const APPROVED: &str = "api-approved.kubernetes.io";

pub fn validate(crd: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if old.is_none() {
        causes.extend(name_cause(crd));
    }
    causes.extend(spec_causes(crd, old));
    if let Some(old) = old {
        causes.extend(change_causes(crd, old));
    }
    causes.extend(stored_version_causes(crd));
    causes.extend(approval_cause(crd, old));
    let whole = |crd: &Value| crd["spec"]["preserveUnknownFields"] == true;
    if whole(crd) && !old.is_some_and(whole) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    // What is left are the limits of this server.
    if causes.is_empty()
        && let Err(more) = custom_resource(crd, &mut Pool::default())
    {
        causes.extend(more);
    }
    causes
}

fn name_cause(crd: &Value) -> Option<Cause> {
    let (group, plural) = (text(crd, &["spec", "group"]), text(crd, &["spec", "names", "plural"]));
    let name = crate::object::name(crd);
    (name != format!("{plural}.{group}"))
        .then(|| Cause::invalid("metadata.name", &json!(name), "must be spec.names.plural+\".\"+spec.group"))
}

fn spec_causes(crd: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let group = text(crd, &["spec", "group"]);
    let faults = names::dns_subdomain(group);
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !faults.is_empty() {
        causes.push(Cause::invalid("spec.group", &json!(group), faults.join(",")));
    } else if !group.contains('.') {
        causes.push(Cause::invalid("spec.group", &json!(group), "should be a domain with at least one dot"));
    }
    match text(crd, &["spec", "scope"]) {
        "Namespaced" | "Cluster" => {}
        "" => causes.push(Cause::required("spec.scope", "")),
        scope => {
            let supported = ["Cluster", "Namespaced"].map(Value::from);
            causes.push(Cause::not_supported("spec.scope", &json!(scope), &supported));
        }
    }
    let versions = Versions::of(crd, old);
    causes.extend(versions.without_schema());
    causes.extend(versions.each());
    causes.extend(versions.list());
    causes.extend(naming_causes(&crd["spec"]["names"]));
    causes.extend(versions.common());
    let strategy = text(crd, &["spec", "conversion", "strategy"]);
    if !matches!(strategy, "" | "None") && crd["spec"]["preserveUnknownFields"] == true {
        let why = "must be None if spec.preserveUnknownFields is true";
        causes.push(Cause::invalid("spec.conversion.strategy", &json!(strategy), why));
    }
    causes.extend(super::conversion::check(crd));
    causes
}

fn naming_causes(given: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(given, &[key]).is_empty() {
            causes.push(Cause::required(format!("spec.names.{key}"), ""));
        }
    }
    let mut label = |key: String, name: &str, mixed: bool| {
        let faults = names::dns_label_1035(&if mixed { name.to_lowercase() } else { name.to_owned() });
        if !faults.is_empty() {
            let head = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            let why = format!("{head}{}", faults.join(","));
            causes.push(Cause::invalid(format!("spec.names.{key}"), &json!(name), why));
        }
    };
    for (key, mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let name = text(given, &[key]);
        if !name.is_empty() {
            label(key.to_owned(), name, mixed);
        }
    }
    for (index, name) in strings(given.get("shortNames")).iter().enumerate() {
        label(format!("shortNames[{index}]"), name, false);
    }
    for (index, name) in strings(given.get("categories")).iter().enumerate() {
        label(format!("categories[{index}]"), name, false);
    }
    let kind = text(given, &["kind"]);
    if !kind.is_empty() && kind == text(given, &["listKind"]) {
        causes.push(Cause::invalid("spec.names.listKind", &json!(kind), "kind and listKind may not be the same"));
    }
    causes
}

/// What may not change: what the definition's own name is made of, and, once it is in use, what stored objects depend on.
fn change_causes(crd: &Value, old: &Value) -> Vec<Cause> {
    let established = condition(old, "Established").is_some_and(|c| c["status"] == "True");
    let paths: [(bool, &[&str]); 4] = [
        (established, &["spec", "scope"]),
        (established, &["spec", "names", "kind"]),
        (true, &["spec", "group"]),
        (true, &["spec", "names", "plural"]),
    ];
    let fixed = paths.into_iter().filter(|(fixed, path)| *fixed && at(crd, path) != at(old, path));
    fixed
        .map(|(_, path)| {
            let value = at(crd, path).cloned().unwrap_or_default();
            Cause::invalid(path.join("."), &value, "field is immutable")
        })
        .collect()
}

fn stored_version_causes(crd: &Value) -> Vec<Cause> {
    const FIELD: &str = "status.storedVersions";
    let stored = strings(at(crd, &["status", "storedVersions"]));
    if stored.is_empty() {
        return vec![Cause::invalid(FIELD, &Value::Null, "must have at least one stored version")];
    }
    let known: Vec<&str> = Versions::of(crd, None).names().collect();
    let gone = stored.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str()));
    gone.map(|(index, name)| {
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        Cause::invalid(format!("{FIELD}[{index}]"), &json!(name), why)
    })
    .collect()
}

/// The community's groups are for APIs that it has looked at, or for those who say that it has not.
fn approval_cause(crd: &Value, old: Option<&Value>) -> Option<Cause> {
    let group = text(crd, &["spec", "group"]);
    let community =
        |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if !community("k8s.io") && !community("kubernetes.io") {
        return None;
    }
    #[derive(PartialEq)]
    enum State {
        Missing,
        Bypassed,
        Approved,
        Invalid,
    }
    let state = |crd: &Value| {
        let given = text(crd, &["metadata", "annotations", APPROVED]);
        let url = || given.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
        match given {
            "" => State::Missing,
            _ if given.starts_with("unapproved") => State::Bypassed,
            _ if url() => State::Approved,
            _ => State::Invalid,
        }
    };
    let now = state(crd);
    if old.is_some_and(|old| state(old) == now) {
        return None;
    }
    let field = format!("metadata.annotations[{APPROVED}]");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let head = format!("protected groups must have approval annotation \"{APPROVED}\"");
    match now {
        State::Missing => Some(Cause::required(field, &format!("{head}, {see}"))),
        State::Invalid => {
            let why = format!("{head} with either a URL or a reason starting with \"unapproved\", {see}");
            Some(Cause::invalid(field, &crd["metadata"]["annotations"][APPROVED], why))
        }
        State::Bypassed | State::Approved => None,
    }
}
