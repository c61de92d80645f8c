//! The downward API: fields of a pod as text, for volumes and environment variables. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, ObjectFieldSelector, Pod, ResourceFieldSelector};

use crate::resources;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("the field path {0:?} is not supported")]
    Field(String),
    #[error("the resource {0:?} is not supported")]
    Resource(String),
}

pub fn field(pod: &Pod, selector: &ObjectFieldSelector) -> Result<String, DownwardError> {
    let path = selector.field_path.as_str();
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        return match map {
            "metadata.labels" => text(metadata.labels.as_ref().and_then(|labels| labels.get(key))),
            "metadata.annotations" => text(metadata.annotations.as_ref().and_then(|notes| notes.get(key))),
            _ => Err(DownwardError::Field(path.to_owned())),
        };
    }
    match path {
        "metadata.name" => text(metadata.name.as_ref()),
        "metadata.namespace" => text(metadata.namespace.as_ref()),
        "metadata.uid" => text(metadata.uid.as_ref()),
        "metadata.labels" => Ok(map(metadata.labels.as_ref())),
        "metadata.annotations" => Ok(map(metadata.annotations.as_ref())),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => text(status.and_then(|status| status.host_ip.as_ref())),
        "status.podIP" => text(status.and_then(|status| status.pod_ip.as_ref())),
        "status.hostIPs" => Ok(join(status.and_then(|status| status.host_ips.as_ref()), |ip| ip.ip.clone())),
        "status.podIPs" => Ok(join(status.and_then(|status| status.pod_ips.as_ref()), |ip| ip.ip.clone())),
        _ => Err(DownwardError::Field(path.to_owned())),
    }
}

pub fn resource(pod: &Pod, selector: &ResourceFieldSelector, default: &str) -> Result<String, DownwardError> {
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let container = selector.container_name.as_deref().unwrap_or(default);
    let found = pod.spec.iter().flat_map(|spec| &spec.containers).find(|candidate| candidate.name == container);
    let requirements = found.and_then(|container| container.resources.clone()).unwrap_or_default();
    let (side, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let list = match side {
        "limits" => requirements.limits,
        "requests" => requirements.requests,
        _ => return Err(unsupported()),
    };
    let list = list.map(|list| list.into_iter().collect());
    let amount = resources::amounts(list.as_ref()).get(name).copied().unwrap_or(0);
    let divisor = selector.divisor.clone().filter(|divisor| !matches!(divisor.0.as_str(), "" | "0"));
    let divisor = divisor.map_or(if name == "cpu" { 1000 } else { 1 }, |divisor| {
        resources::amounts(Some(&BTreeMap::from([(name.to_owned(), divisor)]))).get(name).copied().unwrap_or(1)
    });
    let divisor = divisor.max(1);
    Ok(((amount + divisor - 1) / divisor).to_string())
}

/// Path, content, mode.
pub type DownwardFile = (String, Vec<u8>, Option<i32>);

/// Files of a downwardAPI volume.
pub fn files(pod: &Pod, items: &[DownwardAPIVolumeFile], container: &str) -> Result<Vec<DownwardFile>, DownwardError> {
    items
        .iter()
        .map(|item| {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(selector), _) => field(pod, selector)?,
                (None, Some(selector)) => resource(pod, selector, container)?,
                (None, None) => String::new(),
            };
            Ok((item.path.clone(), text.into_bytes(), item.mode))
        })
        .collect()
}

/// One `key="value"` line each, sorted, as the kubelet writes them.
fn map(entries: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = entries.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

fn join<T>(items: Option<&Vec<T>>, text: impl Fn(&T) -> String) -> String {
    items.into_iter().flatten().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "1", "b": "x\"y"},
                         "annotations": {"k.io/x": "note"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {
                "limits": {"cpu": "1500m", "memory": "64Mi"}}}]},
            "status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]},
        }))
        .unwrap()
    }

    #[test]
    fn fields() {
        for (path, expected) in [
            ("metadata.name", Ok("p")),
            ("metadata.labels", Ok("a=\"1\"\nb=\"x\\\"y\"")),
            ("metadata.labels['a']", Ok("1")),
            ("metadata.annotations['k.io/x']", Ok("note")),
            ("metadata.annotations['none']", Ok("")),
            ("spec.nodeName", Ok("n")),
            ("status.podIPs", Ok("10.0.0.2,fd00::2")),
            ("spec.containers", Err(())),
            ("metadata.finalizers['x']", Err(())),
        ] {
            let selector = ObjectFieldSelector { field_path: path.into(), ..Default::default() };
            assert_eq!(field(&pod(), &selector).map_err(|_| ()), expected.map(str::to_owned), "{path}");
        }
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        for (resource_name, divisor, expected) in [
            ("limits.cpu", "", "2"),
            ("limits.cpu", "1m", "1500"),
            ("limits.memory", "1Mi", "64"),
            ("limits.memory", "", "67108864"),
            ("requests.memory", "", "0"),
        ] {
            let selector: ResourceFieldSelector =
                serde_json::from_value(json!({"resource": resource_name, "divisor": divisor})).unwrap();
            assert_eq!(resource(&pod(), &selector, "c").unwrap(), expected, "{resource_name} {divisor}");
        }
    }
}
