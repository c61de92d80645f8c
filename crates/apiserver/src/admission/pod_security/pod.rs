//! A pod, or the template of one, as the checks look at it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::object::{at, strings, text};

#[derive(Clone, Copy)]
pub struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

/// What a check found: in short, and in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub reason: &'static str,
    pub detail: String,
}

impl Violation {
    pub fn new(reason: &'static str, detail: String) -> Self {
        Self { reason, detail }
    }
}

impl<'a> Pod<'a> {
    /// All containers, in the order in which violations name them.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .filter_map(move |list| spec.get(list)?.as_array())
            .flatten()
    }

    /// Names of the containers of which something is true.
    pub fn containers_that(&self, is: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| is(container)).map(|container| text(container, &["name"])).collect()
    }

    pub fn volumes(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.spec.get("volumes").and_then(Value::as_array).into_iter().flatten()
    }

    pub fn annotations(&self) -> impl Iterator<Item = (&'a String, &'a str)> + use<'a> {
        let map = self.metadata.get("annotations").and_then(Value::as_object);
        map.into_iter().flatten().map(|(key, value)| (key, value.as_str().unwrap_or_default()))
    }

    pub fn is_windows(&self) -> bool {
        text(self.spec, &["os", "name"]) == "windows"
    }

    /// Who adds capabilities beyond the allowed ones, and which.
    pub fn added_capabilities(&self, allowed: &[&str]) -> (Vec<&'a str>, Vec<String>) {
        let added = |container: &Value| -> Vec<String> {
            let all = strings(at(container, &["securityContext", "capabilities", "add"]));
            all.into_iter().filter(|capability| !allowed.contains(&capability.as_str())).collect()
        };
        let which: BTreeSet<String> = self.containers().flat_map(added).collect();
        (self.containers_that(|container| !added(container).is_empty()), which.into_iter().collect())
    }

    /// Who sets a profile that confines nothing, and to what.
    pub fn profiles(&self, key: &str) -> (Vec<String>, BTreeSet<String>) {
        let bad = |holder: &Value| {
            let profile = at(holder, &["securityContext", key]).filter(|profile| profile.is_object())?;
            let kind = text(profile, &["type"]);
            (!matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
        };
        let who = setters(bad(self.spec).is_some(), &self.containers_that(|container| bad(container).is_some()));
        (who, std::iter::once(self.spec).chain(self.containers()).filter_map(bad).collect())
    }
}

/// The pod itself and some of its containers, as those who set something.
pub fn setters(pod: bool, containers: &[&str]) -> Vec<String> {
    let mut who = Vec::new();
    if pod {
        who.push("pod".to_owned());
    }
    if !containers.is_empty() {
        who.push(listed("container", containers));
    }
    who
}

/// `container "a"`, `containers "a", "b"`.
pub fn listed(noun: &str, names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{noun}{plural} {}", join(names))
}

pub fn join(names: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}
