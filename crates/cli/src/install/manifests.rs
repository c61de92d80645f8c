//! The objects of an installation, rendered from the files in `manifests/`.

use anyhow::{Context, Result, anyhow, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::pki::Certificates;
use crate::up::{objects, pki::Identity};

/// What differs between installations.
#[derive(Debug, Clone)]
pub struct Values {
    pub image: String,
    pub launcher_image: String,
    pub pull_policy: String,
    pub replicas: u32,
    pub kubelet_root: String,
    pub use_emulation: bool,
}

/// Objects in the order in which they are applied. Deleting goes the other way.
pub struct Manifests {
    pub definitions: Vec<Value>,
    /// Namespace, roles, secrets, services and what runs.
    pub components: Vec<Value>,
    /// What makes the API server call us; only useful once the components run.
    pub registration: Vec<Value>,
}

impl Manifests {
    pub fn render(values: &Values, certificates: &Certificates) -> Result<Self> {
        let mut components = vec![];
        for (name, text) in [
            ("namespace.yaml", include_str!("manifests/namespace.yaml")),
            ("rbac.yaml", include_str!("manifests/rbac.yaml")),
            ("secrets.yaml", include_str!("manifests/secrets.yaml")),
            ("workloads.yaml", include_str!("manifests/workloads.yaml")),
        ] {
            let text = fill(text, &|key| lookup(values, certificates, key)).with_context(|| name.to_owned())?;
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("{name} is not valid YAML: {error}"))?;
            components.extend(documents.into_iter().filter(|document| !document.is_null()));
        }
        for component in ["virt-api", "virt-controller"] {
            // With one replica a budget would only keep nodes from being drained.
            if values.replicas > 1 {
                components.push(budget(component));
            }
        }
        let mut registration: Vec<Value> =
            objects::bootstrap(values.use_emulation).into_iter().filter(|o| o["kind"] != "Namespace").collect();
        for object in &mut registration {
            trust(object, &BASE64.encode(&certificates.ca.certificate));
        }
        let mut manifests = Self { definitions: ferrovirt_api::crds(), components, registration };
        for object in manifests.components.iter_mut().chain(&mut manifests.registration) {
            object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "ferrovirt".into();
            object["metadata"]["labels"]["app.kubernetes.io/version"] = env!("CARGO_PKG_VERSION").into();
        }
        Ok(manifests)
    }
}

/// A stream of YAML documents; each is JSON, which is YAML.
pub fn print(objects: &[&Value]) -> Result<String> {
    // kubectl takes a stream that begins with a brace for one of JSON, which has no separators.
    let mut out = format!("# Ferrovirt {}\n", env!("CARGO_PKG_VERSION"));
    for object in objects {
        out.push_str("---\n");
        out.push_str(&serde_json::to_string_pretty(object)?);
        out.push('\n');
    }
    Ok(out)
}

fn lookup(values: &Values, certificates: &Certificates, key: &str) -> Option<String> {
    let (whose, what) = key.split_once('_').unwrap_or((key, ""));
    let identity: Option<&Identity> = match whose {
        "ca" => Some(&certificates.ca),
        "api" => Some(&certificates.api),
        "handler" => Some(&certificates.handler),
        "client" => Some(&certificates.client),
        _ => None,
    };
    match (identity, what) {
        (Some(identity), "certificate") => return Some(BASE64.encode(&identity.certificate)),
        (Some(identity), "key") => return Some(BASE64.encode(&identity.key)),
        _ => {}
    }
    Some(match key {
        "image" => values.image.clone(),
        "launcher_image" => values.launcher_image.clone(),
        "pull_policy" => values.pull_policy.clone(),
        "replicas" => values.replicas.to_string(),
        "kubelet_root" => values.kubelet_root.trim_end_matches('/').to_owned(),
        _ => return None,
    })
}

/// Replaces each `@name@`.
fn fill(text: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split('@').enumerate() {
        if index.is_multiple_of(2) {
            out.push_str(part);
            continue;
        }
        let Some(value) = value(part) else { bail!("there is no value for {part:?}") };
        if value.contains(['"', '\\', '\n', '@']) {
            bail!("{part} may not hold quotes, backslashes or line breaks: {value:?}");
        }
        out.push_str(&value);
    }
    Ok(out)
}

/// Tells the API server by which CA it knows our service.
fn trust(object: &mut Value, ca_bundle: &str) {
    if object["kind"] == "APIService" {
        object["spec"]["caBundle"] = ca_bundle.into();
    }
    for webhook in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        webhook["clientConfig"]["caBundle"] = ca_bundle.into();
    }
}

fn budget(component: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": component, "namespace": objects::NAMESPACE },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "kubevirt.io": component } } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values {
            image: "ferrovirt:1".into(),
            launcher_image: "ferrovirt-launcher:1".into(),
            pull_policy: "IfNotPresent".into(),
            replicas: 2,
            kubelet_root: "/var/lib/kubelet/".into(),
            use_emulation: true,
        }
    }

    #[test]
    fn every_object_is_named_and_what_is_not_text_keeps_its_type() {
        let certificates = Certificates::make("kubevirt", None).unwrap();
        let manifests = Manifests::render(&values(), &certificates).unwrap();
        for object in manifests.components.iter().chain(&manifests.registration) {
            for field in [&object["apiVersion"], &object["kind"], &object["metadata"]["name"]] {
                assert!(field.is_string(), "{object}");
            }
            assert!(object.as_object().unwrap().values().all(|value| !value.is_null()), "{object}");
        }
        let find = |kind: &str, name: &str| {
            let mut all = manifests.components.iter().chain(&manifests.registration);
            all.find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
        };
        assert_eq!(find("Deployment", "virt-api")["spec"]["replicas"], 2);
        let handler = &find("DaemonSet", "virt-handler")["spec"]["template"]["spec"];
        assert_eq!(handler["volumes"][1]["hostPath"]["path"], "/var/lib/kubelet/pods");
        assert_eq!(find("PodDisruptionBudget", "virt-api")["spec"]["minAvailable"], 1);
        let bundle = BASE64.encode(&certificates.ca.certificate);
        assert_eq!(find("APIService", "v1.subresources.kubevirt.io")["spec"]["caBundle"], bundle);
        let hooks = find("ValidatingWebhookConfiguration", "virt-api-validator");
        assert_eq!(hooks["webhooks"][0]["clientConfig"]["caBundle"], bundle);
    }

    #[test]
    fn a_value_cannot_change_the_structure_of_a_manifest() {
        let certificates = Certificates::make("kubevirt", None).unwrap();
        let bad = Values { image: "x\"\n  evil: true".into(), ..values() };
        assert!(Manifests::render(&bad, &certificates).is_err());
        assert!(fill("a @b@ c", &|_| None).is_err());
        assert_eq!(fill("a @b@ c", &|key| Some(format!("<{key}>"))).unwrap(), "a <b> c");
    }
}
