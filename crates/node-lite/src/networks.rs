//! Secondary networks of pods, as Multus attaches them: an annotation names NetworkAttachmentDefinitions, and each of them
//! holds a CNI configuration.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cni::{IFNAME, Secondary};

pub(crate) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
const MAX_NAME: usize = 15;
/// The namespace whose definitions are for everybody, as with Multus' namespace isolation.
const SHARED: &str = "default";

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("metadata.annotations[{ANNOTATION}]: {0}")]
    Annotation(String),
    #[error(
        "metadata.annotations[{ANNOTATION}]: the NetworkAttachmentDefinition {namespace}/{name} is not for pods of {own}; name \
         one of {own} or of the namespace {SHARED}"
    )]
    Foreign { namespace: String, name: String, own: String },
    #[error("the NetworkAttachmentDefinition {namespace}/{name} does not exist")]
    Missing { namespace: String, name: String },
    #[error("the NetworkAttachmentDefinition {namespace}/{name} cannot be read")]
    Read { namespace: String, name: String, source: kube::Error },
    #[error("spec.config of the NetworkAttachmentDefinition {namespace}/{name}: {problem}")]
    Config { namespace: String, name: String, problem: String },
}

/// One network that a pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Selection {
    name: String,
    namespace: String,
    interface: String,
    mac: String,
    ips: Vec<String>,
}

/// The secondary networks of a pod, ready to be attached.
pub(crate) async fn wanted(client: &kube::Client, pod: &Pod) -> Result<Vec<Secondary>, NetworkError> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
    let Some(annotation) = annotation.filter(|text| !text.trim().is_empty()) else { return Ok(vec![]) };
    let selections = selections(annotation, pod.metadata.namespace.as_deref().unwrap_or_default())?;
    let kind = ApiResource {
        group: "k8s.cni.cncf.io".into(),
        version: "v1".into(),
        api_version: "k8s.cni.cncf.io/v1".into(),
        kind: "NetworkAttachmentDefinition".into(),
        plural: "network-attachment-definitions".into(),
    };
    let mut out = vec![];
    for selection in selections {
        let Selection { name, namespace, .. } = selection.clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
        let found = api.get_opt(&name).await.map_err(|source| NetworkError::Read {
            namespace: namespace.clone(),
            name: name.clone(),
            source,
        })?;
        let found = found.ok_or_else(|| NetworkError::Missing { namespace: namespace.clone(), name: name.clone() })?;
        let config = found.data["spec"]["config"].as_str().unwrap_or_default();
        let conflist =
            conflist(config, &selection).map_err(|problem| NetworkError::Config { namespace, name, problem })?;
        out.push(Secondary { interface: selection.interface, conflist, result: Value::Null });
    }
    Ok(out)
}

/// Reads the annotation: a JSON list, or names such as `lan, shared/storage@net1`.
fn selections(annotation: &str, own: &str) -> Result<Vec<Selection>, NetworkError> {
    let annotation = annotation.trim();
    let mut out: Vec<Selection> = if annotation.starts_with(['[', '{']) {
        serde_json::from_str(annotation).map_err(|error| NetworkError::Annotation(error.to_string()))?
    } else {
        let items = annotation.split(',').map(str::trim);
        let items = items.map(|item| {
            let (name, interface) = item.split_once('@').unwrap_or((item, ""));
            let (namespace, name) = name.split_once('/').unwrap_or(("", name));
            Selection {
                name: name.into(),
                namespace: namespace.into(),
                interface: interface.into(),
                ..Default::default()
            }
        });
        items.collect()
    };
    for (index, selection) in out.iter_mut().enumerate() {
        if selection.name.is_empty() {
            return Err(NetworkError::Annotation(format!("network {} has no name", index + 1)));
        }
        if selection.namespace.is_empty() {
            selection.namespace = own.into();
        }
        if selection.namespace != own && selection.namespace != SHARED {
            let Selection { namespace, name, .. } = selection.clone();
            return Err(NetworkError::Foreign { namespace, name, own: own.into() });
        }
        if selection.interface.is_empty() {
            selection.interface = format!("net{}", index + 1);
        }
        let name = &selection.interface;
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if name.len() > MAX_NAME || !plain || name.starts_with('.') || [IFNAME, "lo"].contains(&name.as_str()) {
            let problem = format!("{:?} is no name for an interface", selection.interface);
            return Err(NetworkError::Annotation(problem));
        }
    }
    Ok(out)
}

/// A configuration list from what the definition holds, with what the pod asks for where a plugin can take it.
fn conflist(config: &str, selection: &Selection) -> Result<Value, String> {
    let mut config: Value = serde_json::from_str(config).map_err(|error| error.to_string())?;
    if !config.is_object() {
        return Err("it is not an object".into());
    }
    let mut list = match config.get("plugins") {
        Some(_) => config,
        None => {
            let version = config.get("cniVersion").cloned().unwrap_or_else(|| json!("0.3.1"));
            let name = config.get("name").cloned().unwrap_or_else(|| json!(selection.name));
            // Addresses of one network are counted by its name.
            config["name"] = name.clone();
            json!({ "cniVersion": version, "name": name, "plugins": [config] })
        }
    };
    if list.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() {
        list["name"] = json!(selection.name);
    }
    for plugin in list["plugins"].as_array_mut().into_iter().flatten() {
        let able = |what: &str| plugin["capabilities"][what] == true;
        let (mac, ips) = (able("mac"), able("ips"));
        if mac && !selection.mac.is_empty() {
            plugin["runtimeConfig"]["mac"] = json!(selection.mac);
        }
        if ips && !selection.ips.is_empty() {
            plugin["runtimeConfig"]["ips"] = json!(selection.ips);
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_annotation_are_read() {
        let shown = |text: &str| {
            let found = selections(text, "own").unwrap();
            found.iter().map(|s| format!("{}/{}@{}", s.namespace, s.name, s.interface)).collect::<Vec<_>>()
        };
        assert_eq!(shown("lan, default/storage@red"), ["own/lan@net1", "default/storage@red"]);
        assert_eq!(
            shown(r#"[{"name":"lan","interface":"pod1"},{"name":"b","namespace":"default"}]"#),
            ["own/lan@pod1", "default/b@net2"]
        );
        for bad in ["[", r#"[{"interface":"a"}]"#, "lan@a-name-that-is-too-long", ",", "lan@eth0", "lan@../x", "lan@lo"]
        {
            assert!(selections(bad, "own").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_definition_of_another_namespace_is_not_attached() {
        for text in ["theirs/lan", "lan, theirs/lan@net7", r#"[{"name":"lan","namespace":"theirs"}]"#] {
            let error = selections(text, "own").unwrap_err();
            assert!(
                matches!(&error, NetworkError::Foreign { namespace, .. } if namespace == "theirs"),
                "{text}: {error}"
            );
        }
        assert!(selections("own/lan", "own").is_ok() && selections("default/lan", "own").is_ok());
    }

    #[test]
    fn a_single_plugin_becomes_a_list() {
        let selection = Selection { name: "lan".into(), mac: "02:00:00:00:00:01".into(), ..Default::default() };
        let list = conflist(r#"{"type":"bridge","bridge":"br1","capabilities":{"mac":true}}"#, &selection).unwrap();
        assert_eq!(list["name"], "lan");
        assert_eq!(list["plugins"][0]["bridge"], "br1");
        assert_eq!(list["plugins"][0]["runtimeConfig"]["mac"], "02:00:00:00:00:01");
        let list = conflist(r#"{"name":"n","plugins":[{"type":"macvlan"}]}"#, &selection).unwrap();
        assert_eq!((list["name"].as_str(), list["plugins"][0].get("runtimeConfig")), (Some("n"), None));
        assert!(conflist("", &selection).is_err() && conflist("[]", &selection).is_err());
    }
}
