//! The objects of an installation, rendered from the Helm chart's own templates: `ferrovirt install` and `helm install` differ
//! in nothing but who keeps the books.

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::{
    template,
    values::{Chosen, Values},
};
use crate::up::objects::NAMESPACE;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where `ferrovirt upgrade` finds what was chosen at the installation.
pub const CHOICES: &str = "ferrovirt-values";

macro_rules! template {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../charts/ferrovirt/templates/", $name)))
    };
}

const COMPONENTS: &[(&str, &str)] = &[
    template!("rbac.yaml"),
    template!("policies.yaml"),
    template!("state.yaml"),
    template!("workloads.yaml"),
    template!("monitoring.yaml"),
];
const REGISTRATION: &[(&str, &str)] = &[template!("registration.yaml")];

/// Objects in the order in which they are applied. Deleting goes the other way.
pub struct Manifests {
    pub definitions: Vec<Value>,
    /// Namespace, roles, secrets, services and what runs.
    pub components: Vec<Value>,
    /// What makes the API server call us; only useful once the components run.
    pub registration: Vec<Value>,
}

impl Manifests {
    pub fn render(chosen: &Chosen) -> Result<Self> {
        let values = chosen.complete()?;
        let mut components = vec![namespace()];
        components.extend(documents(COMPONENTS, &values)?);
        components.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": CHOICES, "namespace": NAMESPACE },
            "data": { "values.yaml": chosen.print() },
        }));
        let mut registration = documents(REGISTRATION, &values)?;
        for object in components.iter_mut().chain(&mut registration) {
            object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "ferrovirt".into();
        }
        Ok(Self { definitions: ferrovirt_api::crds(), components, registration })
    }
}

/// A stream of YAML documents; each is JSON, which is YAML.
pub fn print(objects: &[&Value]) -> Result<String> {
    // kubectl takes a stream that begins with a brace for one of JSON, which has no separators.
    let mut out = format!("# Ferrovirt {VERSION}\n");
    for object in objects {
        out.push_str("---\n");
        out.push_str(&serde_json::to_string_pretty(object)?);
        out.push('\n');
    }
    Ok(out)
}

/// Helm makes it by itself (`--create-namespace`).
fn namespace() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": {
                "kubevirt.io": "",
                // The node agent is privileged; workloads.yaml says why.
                "pod-security.kubernetes.io/enforce": "privileged",
            },
        },
    })
}

fn documents(templates: &[(&str, &str)], values: &Values) -> Result<Vec<Value>> {
    let mut all = vec![];
    for (name, text) in templates {
        let text = template::body(text, values)
            .and_then(|text| template::fill(text, values, VERSION))
            .with_context(|| format!("cannot fill in {name}"))?;
        if text.is_empty() {
            continue;
        }
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("{name} is not valid YAML: {error}"))?;
        all.extend(documents.into_iter().filter(|document| !document.is_null()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::up::objects;

    const REGISTRATION_HEAD: &str = "\
# Generated from crates/cli/src/up/objects.rs: FERROVIRT_WRITE=1 cargo test -p ferrovirt-cli both_modes
#
# The installation's configuration, what users may do, and what makes the API server call virt-api. virt-controller adds the CA
# bundles.
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: { name: kubevirt, namespace: kubevirt }
spec:
  configuration: {{ toJson .Values.configuration }}
  certificateRotateStrategy: {{ toJson .Values.certificateRotateStrategy }}
";

    fn manifests() -> Manifests {
        let mut chosen = Chosen::default();
        chosen.set("kubeletRoot", Some("/kubelet"));
        Manifests::render(&chosen).unwrap()
    }

    fn key(object: &Value) -> String {
        format!("{} {}", object["kind"], object["metadata"]["name"])
    }

    #[test]
    fn every_object_is_named_and_what_is_not_text_keeps_its_type() {
        let manifests = manifests();
        for object in manifests.components.iter().chain(&manifests.registration) {
            for field in [&object["apiVersion"], &object["kind"], &object["metadata"]["name"]] {
                assert!(field.is_string(), "{object}");
            }
            assert!(object.as_object().unwrap().values().all(|value| !value.is_null()), "{object}");
        }
        let find = |kind: &str, name: &str| {
            manifests.components.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
        };
        assert_eq!(find("Deployment", "virt-api")["spec"]["replicas"], 2);
        let handler = &find("DaemonSet", "virt-handler")["spec"]["template"]["spec"];
        assert_eq!(handler["volumes"][0]["hostPath"]["path"], "/kubelet/pods");
    }

    /// Embedded mode makes these from code, a cluster gets them from the chart.
    #[test]
    fn both_modes_register_the_same() {
        let mut wanted = String::from(REGISTRATION_HEAD);
        for object in objects::bootstrap(false) {
            if object["kind"] != "Namespace" && object["kind"] != "KubeVirt" {
                wanted.push_str("---\n");
                wanted.push_str(&serde_json::to_string_pretty(&object).unwrap());
                wanted.push('\n');
            }
        }
        let file = "../../charts/ferrovirt/templates/registration.yaml";
        if std::env::var_os("FERROVIRT_WRITE").is_some() {
            std::fs::write(file, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap();
        assert!(found == wanted, "write it anew: FERROVIRT_WRITE=1 cargo test -p ferrovirt-cli both_modes");
    }

    #[test]
    fn virt_controller_may_register_what_there_is_to_register() {
        let manifests = manifests();
        let role = manifests.components.iter().find(|o| key(o) == r#""ClusterRole" "kubevirt-controller""#).unwrap();
        let rules = role["rules"].as_array().unwrap();
        for object in &manifests.registration {
            let resource = match object["kind"].as_str().unwrap() {
                "APIService" => "apiservices",
                "MutatingWebhookConfiguration" => "mutatingwebhookconfigurations",
                "ValidatingWebhookConfiguration" => "validatingwebhookconfigurations",
                _ => continue,
            };
            let has =
                |rule: &Value, field: &str, word: &Value| rule[field].as_array().is_some_and(|all| all.contains(word));
            let allowed = rules.iter().any(|rule| {
                has(rule, "resources", &resource.into()) && has(rule, "resourceNames", &object["metadata"]["name"])
            });
            assert!(allowed, "virt-controller may not add the CA bundle to {}; see rbac.yaml", key(object));
        }
    }

    #[test]
    fn the_chart_has_this_version() {
        let chart = include_str!("../../../../charts/ferrovirt/Chart.yaml");
        assert!(
            chart.contains(&format!("\nversion: {VERSION}\n")) && chart.contains(&format!("\nappVersion: {VERSION}\n"))
        );
        let values = Chosen::default().complete().unwrap();
        for image in ["images.ferrovirt", "images.launcher"] {
            assert!(values.get(image).unwrap().as_str().unwrap().ends_with(&format!(":{VERSION}")), "{image}");
        }
    }
}
