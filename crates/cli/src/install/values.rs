//! What can differ between installations: the chart's `values.yaml`, under what a file and the command line say.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

const DEFAULTS: &str = include_str!("../../../../charts/ferrovirt/values.yaml");

/// The values that somebody chose; what they leave open has its default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chosen(Value);

impl Chosen {
    /// From a file like the chart's `values.yaml`.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    pub fn parse(text: &str) -> Result<Self> {
        let values: Value = serde_saphyr::from_str(text).map_err(|error| anyhow!("not valid YAML: {error}"))?;
        if !values.is_object() && !values.is_null() {
            bail!("values are a map, as in charts/ferrovirt/values.yaml");
        }
        Ok(Self(values))
    }

    pub fn set(&mut self, path: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        let change = path.rsplit('.').fold(value.into(), |inner, key| json!({ key: inner }));
        merge(&mut self.0, change);
    }

    /// What `other` says goes first.
    pub fn overlay(&mut self, other: Self) {
        merge(&mut self.0, other.0);
    }

    pub fn print(&self) -> String {
        self.0.to_string()
    }

    /// With the defaults below. A name that the chart does not know is refused: it would have no effect.
    pub fn complete(&self) -> Result<Values> {
        let mut values: Value =
            serde_saphyr::from_str(DEFAULTS).map_err(|error| anyhow!("values.yaml is not valid YAML: {error}"))?;
        known(&values, &self.0, "")?;
        merge(&mut values, self.0.clone());
        Ok(Values(values))
    }
}

/// Every value of the chart.
#[derive(Debug, Clone)]
pub struct Values(Value);

impl Values {
    /// By a path like `images.launcher`.
    pub fn get(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.0, |value, key| value.get(key))
    }
}

/// As Helm does it: maps are merged, everything else is replaced.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (into, from) => *into = from,
    }
}

/// Below these everything is allowed: they are objects of Kubernetes or of KubeVirt.
const OPEN: &[&str] =
    &["configuration", "certificateRotateStrategy", "resources.", "nodeSelector", "monitoring.labels"];

fn known(defaults: &Value, chosen: &Value, path: &str) -> Result<()> {
    let (Value::Object(defaults), Value::Object(chosen)) = (defaults, chosen) else { return Ok(()) };
    for (key, value) in chosen {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some(default) = defaults.get(key) else {
            let names: Vec<&str> = defaults.keys().map(String::as_str).collect();
            bail!("there is no value {path}; here are: {}", names.join(", "));
        };
        if !OPEN.iter().any(|open| path.starts_with(open) || path.ends_with(open)) {
            known(default, value, &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_laid_over_the_defaults() {
        let mut chosen =
            Chosen::parse("images: { launcher: mine:1 }\nconfiguration: { vmRolloutStrategy: Stage }").unwrap();
        chosen.set("replicas", Some(3));
        chosen.set("configuration.developerConfiguration.useEmulation", Some(true));
        chosen.set("kubeletRoot", None::<String>);
        let values = chosen.complete().unwrap();
        for (path, value) in [
            ("images.launcher", json!("mine:1")),
            ("images.pullPolicy", json!("IfNotPresent")),
            ("replicas", json!(3)),
            ("kubeletRoot", json!("/var/lib/kubelet")),
            ("configuration.vmRolloutStrategy", json!("Stage")),
            ("configuration.developerConfiguration", json!({ "featureGates": [], "useEmulation": true })),
        ] {
            assert_eq!(values.get(path), Some(&value), "{path}");
        }
        assert_eq!(Chosen::parse(&chosen.print()).unwrap(), chosen);
    }

    #[test]
    fn unknown_values_are_refused() {
        for (text, named) in
            [("image: x", "no value image"), ("images: { lancher: x }", "images.lancher"), ("[1]", "map")]
        {
            let error = Chosen::parse(text).and_then(|chosen| chosen.complete()).unwrap_err();
            assert!(format!("{error:#}").contains(named), "{text}: {error:#}");
        }
        for text in ["", "resources: { api: { limits: { memory: 1Gi } } }", "nodes: { nodeSelector: { a: b } }"] {
            Chosen::parse(text).unwrap().complete().unwrap();
        }
    }
}
