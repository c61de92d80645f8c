//! What each version of a definition has: schema, subresources, columns, selectable fields.

use std::collections::HashSet;

use ferrovirt_schema::{Cause, names};
use serde_json::{Value, json};

use super::{path, schema};
use crate::object::{at, text};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_SELECTABLE: usize = 8;
const MAX_WARNING: usize = 256;

/// The versions, and which of their members are the same in all of them. Upstream moves those to the top before it looks at
/// them, so that is where its faults are told to be.
pub struct Versions<'a> {
    list: &'a [Value],
    old: &'a [Value],
}

impl<'a> Versions<'a> {
    pub fn of(crd: &'a Value, old: Option<&'a Value>) -> Self {
        let list = |crd: &'a Value| at(crd, &["spec", "versions"]).and_then(Value::as_array).map_or(&[][..], |v| v);
        Self { list: list(crd), old: old.map_or(&[], list) }
    }

    /// Faults of the members that differ between versions, and of the versions' names.
    pub fn each(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        for (index, version) in self.list.iter().enumerate() {
            let field = format!("spec.versions[{index}]");
            let name = text(version, &["name"]);
            let faults = names::dns_label_1035(name);
            if !faults.is_empty() {
                causes.push(Cause::invalid(format!("{field}.name"), &json!(name), faults.join(",")));
            }
            causes.extend(deprecation(version, &field));
            if !self.shared("schema") && !self.kept(version) {
                let field = format!("{field}.schema.openAPIV3Schema");
                causes
                    .extend(schema_of(version).map(|s| schema::check(s, status(version), &field)).unwrap_or_default());
            }
            if !self.shared("subresources") {
                causes.extend(scale(version, &format!("{field}.subresources")));
            }
            if !self.shared("additionalPrinterColumns") {
                causes.extend(columns(version, &format!("{field}.additionalPrinterColumns")));
            }
            if !self.shared("selectableFields") {
                let schema = if self.shared("schema") { None } else { schema_of(version) };
                let field = format!("{field}.selectableFields");
                let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
                causes.extend(self.selectable(version, schema, &field, why));
            }
        }
        causes
    }

    /// Faults of the members that are the same in all versions.
    pub fn common(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        let Some(first) = self.list.first() else {
            return causes;
        };
        if let (Some(schema), true) = (schema_of(first), self.shared("schema"))
            && !self.list.iter().all(|version| self.kept(version))
        {
            let status = self.list.iter().any(status);
            causes.extend(schema::check(schema, status, "spec.validation.openAPIV3Schema"));
        }
        if self.shared("subresources") {
            causes.extend(scale(first, "spec.subresources"));
        }
        if self.shared("additionalPrinterColumns") {
            causes.extend(columns(first, "spec.additionalPrinterColumns"));
        }
        if self.shared("selectableFields") {
            let schema = if self.shared("schema") { schema_of(first) } else { None };
            let why = "may only be set when validations.schema is included";
            causes.extend(self.selectable(first, schema, "spec.selectableFields", why));
        }
        causes
    }

    /// Versions that say nothing about their objects.
    pub fn without_schema(&self) -> Vec<Cause> {
        let stored_without = self.old.iter().any(|version| schema_of(version).is_none());
        let mut causes = Vec::new();
        for (index, version) in self.list.iter().enumerate() {
            if schema_of(version).is_none() && !stored_without {
                causes.push(Cause::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
            }
        }
        causes
    }

    /// Faults of the list itself.
    pub fn list(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        let shown = json!(self.list);
        let mut invalid = |why| causes.push(Cause::invalid("spec.versions", &shown, why));
        let distinct: HashSet<&str> = self.list.iter().map(|version| text(version, &["name"])).collect();
        if distinct.len() < self.list.len() {
            invalid("must contain unique version names");
        }
        if self.list.iter().filter(|version| version["storage"] == true).count() != 1 {
            invalid("must have exactly one version marked as storage version");
        }
        // The first version is also the version of the definition, as it was when there was only one.
        let first = self.list.first().map_or("", |version| text(version, &["name"]));
        let faults = names::dns_label_1035(first);
        if !first.is_empty() && !faults.is_empty() {
            causes.push(Cause::invalid("spec.version", &json!(first), faults.join(",")));
        }
        causes
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.list.iter().map(|version| text(version, &["name"]))
    }

    fn shared(&self, key: &str) -> bool {
        let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        let same = |a: &Value, b: &Value| a == b || (empty(a) && empty(b));
        self.list.windows(2).all(|pair| same(&pair[0][key], &pair[1][key]))
    }

    /// A schema that is stored already may stay, even if it would not be let in today.
    fn kept(&self, version: &Value) -> bool {
        let stored = self.old.iter().find(|old| old["name"] == version["name"]);
        stored.is_some_and(|old| old["schema"] == version["schema"] && status(old) == status(version))
    }

    fn selectable(&self, version: &Value, schema: Option<&Value>, field: &str, why: &str) -> Vec<Cause> {
        let mut causes = Vec::new();
        let fields = version["selectableFields"].as_array().map_or(&[][..], Vec::as_slice);
        if fields.is_empty() {
            return causes;
        }
        let Some(schema) = schema else {
            return vec![Cause::invalid(field, &json!(""), why)];
        };
        let mut seen = HashSet::new();
        for (index, one) in fields.iter().enumerate() {
            let (place, wanted) = (format!("{field}[{index}].jsonPath"), text(one, &["jsonPath"]));
            if wanted.is_empty() {
                causes.push(Cause::required(place, ""));
                continue;
            }
            let (names, found) = match path::find(schema, wanted, false) {
                Ok(found) => found,
                Err(fault) => {
                    causes.push(Cause::invalid(place, &json!(wanted), format!("is an invalid path: {fault}")));
                    continue;
                }
            };
            if names.first().is_some_and(|name| name == "metadata") {
                causes.push(Cause::invalid(&*place, &json!(wanted), "must not point to fields in metadata"));
            }
            if !path::selectable(found) {
                let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
                causes.push(Cause::invalid(&*place, &json!(wanted), why));
            }
            if !seen.insert(names) {
                causes.push(Cause::duplicate(place, &json!(wanted)));
            }
        }
        let stored = self.old.iter().any(|old| old["selectableFields"] == version["selectableFields"]);
        if seen.len() > MAX_SELECTABLE && !stored {
            causes.push(Cause::too_many(field, seen.len(), MAX_SELECTABLE as u64));
        }
        causes
    }
}

fn schema_of(version: &Value) -> Option<&Value> {
    at(version, &["schema", "openAPIV3Schema"]).filter(|schema| !schema.is_null())
}

fn status(version: &Value) -> bool {
    at(version, &["subresources", "status"]).is_some_and(|status| !status.is_null())
}

fn deprecation(version: &Value, field: &str) -> Vec<Cause> {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    if version["deprecated"] != true {
        faults.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > MAX_WARNING {
            faults.push(format!("must be <= {MAX_WARNING} characters long"));
        }
        if warning.is_empty() {
            faults.push("must not be an empty string".to_owned());
        }
        if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            faults.push(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            ));
        }
    }
    let cause = |fault| Cause::invalid(format!("{field}.deprecationWarning"), &json!(warning), fault);
    faults.into_iter().map(cause).collect()
}

fn scale(version: &Value, field: &str) -> Vec<Cause> {
    let Some(scale) = at(version, &["subresources", "scale"]).filter(|scale| !scale.is_null()) else {
        return Vec::new();
    };
    let mut causes = Vec::new();
    let paths: [(&str, bool, &[&str], &str); 3] = [
        ("specReplicasPath", true, &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", true, &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", false, &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (key, required, roots, why) in paths {
        let (field, value) = (format!("{field}.scale.{key}"), text(scale, &[key]));
        if value.is_empty() {
            causes.extend(required.then(|| Cause::required(field, "")));
            continue;
        }
        let fault = path::simple_fault(value).or((!roots.iter().any(|root| value.starts_with(root))).then_some(why));
        causes.extend(fault.map(|fault| Cause::invalid(field, &json!(value), fault)));
    }
    causes
}

fn columns(version: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{field}[{index}]");
        let member = |key| text(column, &[key]);
        if member("name").is_empty() {
            causes.push(Cause::required(format!("{field}.name"), ""));
        }
        let why = format!("must be one of {}", COLUMN_TYPES.join(","));
        match member("type") {
            "" => causes.push(Cause::required(format!("{field}.type"), &why)),
            kind if COLUMN_TYPES.contains(&kind) => {}
            kind => causes.push(Cause::invalid(format!("{field}.type"), &json!(kind), why)),
        }
        let format = member("format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            causes.push(Cause::invalid(format!("{field}.format"), &json!(format), why));
        }
        let path = member("jsonPath");
        // The name is the one of the internal type, which is how upstream tells it.
        let place = format!("{field}.JSONPath");
        if path.is_empty() {
            causes.push(Cause::required(place, ""));
        } else if let Some(fault) = path::simple_fault(path) {
            causes.push(Cause::invalid(place, &json!(path), fault));
        }
    }
    causes
}
