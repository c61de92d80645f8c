//! The slice of Kubernetes' OpenAPI definitions that describes the kinds we serve, without its prose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::go_module::{KUBERNETES, Located, locate};
use super::kube_kinds::PACKAGES;
use super::{Files, Outcome, compact};

const SWAGGER: &str = "api/openapi-spec/swagger.json";
const OUTPUT: &str = "crates/apiserver/data/openapi.json";

pub fn generate(offline: bool) -> Result<Outcome> {
    let dir = match locate(KUBERNETES, offline)? {
        Located::At(dir) => dir,
        Located::Missing(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let file = dir.join(SWAGGER);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let document: Value = serde_json::from_str(&text).context("parsing the swagger")?;
    let slice = slice(&document["definitions"], roots())?;
    Ok(Outcome::Files(Files::from([(OUTPUT.to_owned(), compact(&slice))])))
}

fn roots() -> Vec<String> {
    let name = |path: &str, kind: &str| {
        // k8s.io/api/core/v1 is written io.k8s.api.core.v1 in OpenAPI.
        let package = path.trim_start_matches("k8s.io/").replace('/', ".");
        format!("io.k8s.{package}.{kind}")
    };
    PACKAGES.iter().flat_map(|package| package.kinds().map(move |kind| name(package.path, &kind))).collect()
}

fn slice(definitions: &Value, roots: Vec<String>) -> Result<Value> {
    let mut kept = BTreeMap::new();
    let mut open: BTreeSet<String> = roots.into_iter().collect();
    while let Some(name) = open.pop_first() {
        if kept.contains_key(&name) {
            continue;
        }
        let definition = definitions.get(&name).with_context(|| format!("no definition {name}"))?;
        let bare = bare(definition, &mut |reference| {
            open.insert(reference.to_owned());
        });
        kept.insert(name, bare);
    }
    Ok(json!({"definitions": kept}))
}

/// The schema without descriptions; every definition it refers to is reported to `refer`.
fn bare(schema: &Value, refer: &mut impl FnMut(&str)) -> Value {
    let Value::Object(map) = schema else {
        return schema.clone();
    };
    let mut out = serde_json::Map::new();
    for (key, value) in map {
        let value = match (key.as_str(), value) {
            ("description", _) => continue,
            ("$ref", Value::String(target)) => {
                refer(target.trim_start_matches("#/definitions/"));
                value.clone()
            }
            ("properties", Value::Object(fields)) => {
                Value::Object(fields.iter().map(|(name, field)| (name.clone(), bare(field, refer))).collect())
            }
            ("items" | "additionalProperties", inner) => bare(inner, refer),
            (_, other) => other.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_holds_what_is_reachable_and_no_prose() {
        let definitions = json!({
            "Pod": {"type": "object", "description": "prose", "properties": {
                "description": {"type": "string", "description": "prose"},
                "spec": {"$ref": "#/definitions/Spec", "description": "prose"},
                "byName": {"type": "object", "additionalProperties": {"$ref": "#/definitions/Leaf"}},
            }},
            "Spec": {"type": "object", "properties": {"all": {
                "type": "array", "items": {"$ref": "#/definitions/Pod"}, "x-kubernetes-patch-merge-key": "name",
            }}},
            "Leaf": {"type": "string"},
            "Other": {"type": "string"},
        });
        let expected = json!({"definitions": {
            "Pod": {"type": "object", "properties": {
                "description": {"type": "string"},
                "spec": {"$ref": "#/definitions/Spec"},
                "byName": {"type": "object", "additionalProperties": {"$ref": "#/definitions/Leaf"}},
            }},
            "Spec": {"type": "object", "properties": {"all": {
                "type": "array", "items": {"$ref": "#/definitions/Pod"}, "x-kubernetes-patch-merge-key": "name",
            }}},
            "Leaf": {"type": "string"},
        }});
        assert_eq!(slice(&definitions, vec!["Pod".to_owned()]).expect("slices"), expected);
        assert!(slice(&definitions, vec!["Gone".to_owned()]).is_err());
    }
}
