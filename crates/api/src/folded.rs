//! Objects at rest, as their JSON.
//!
//! A typed object has room for every field that there is: an instance takes 12 KiB of memory, its JSON a fifth of that.
//! Caches of thousands of objects, of which few are looked at at a time, keep them folded.

use std::{fmt, marker::PhantomData, sync::Arc};

use k8s_openapi::{Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

/// An object without its managed fields, which only an API server needs. Clones share its bytes.
pub struct Folded<K> {
    /// What caches sort by: name, namespace, uid and version. The rest is in the JSON.
    metadata: ObjectMeta,
    json: Arc<[u8]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Metadata<Ty = ObjectMeta> + Serialize> Folded<K> {
    pub fn new(mut object: K) -> Result<Self, serde_json::Error> {
        object.metadata_mut().managed_fields = None;
        let json = serde_json::to_vec(&object)?.into();
        let all = std::mem::take(object.metadata_mut());
        let metadata = ObjectMeta {
            name: all.name,
            namespace: all.namespace,
            uid: all.uid,
            resource_version: all.resource_version,
            ..Default::default()
        };
        Ok(Self { metadata, json, kind: PhantomData })
    }
}

impl<K: DeserializeOwned> Folded<K> {
    /// The whole object. It was written by us, so this fails only if its type does not read what it writes.
    pub fn unfold(&self) -> Result<K, serde_json::Error> {
        serde_json::from_slice(&self.json)
    }
}

// By hand: none of these asks anything of `K`.
impl<K> Clone for Folded<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), json: self.json.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Folded<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.json))
    }
}

impl<'de, K: Metadata<Ty = ObjectMeta> + Serialize + Deserialize<'de>> Deserialize<'de> for Folded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(K::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl<K: Resource> Resource for Folded<K> {
    const API_VERSION: &'static str = K::API_VERSION;
    const GROUP: &'static str = K::GROUP;
    const KIND: &'static str = K::KIND;
    const VERSION: &'static str = K::VERSION;
    const URL_PATH_SEGMENT: &'static str = K::URL_PATH_SEGMENT;
    type Scope = K::Scope;
}

impl<K: Resource> Metadata for Folded<K> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::v1::VirtualMachineInstance;

    #[test]
    fn unfolds_to_what_was_folded_but_for_managed_fields() {
        let mut text = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": { "app": "x" },
                "managedFields": [{ "manager": "kubectl", "operation": "Update" }] },
            "spec": { "domain": { "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] } } },
            "status": { "phase": "Running" },
        });
        let folded: Folded<VirtualMachineInstance> = serde_json::from_value(text.clone()).expect("an instance");
        assert_eq!(folded.metadata().name.as_deref(), Some("a"));
        assert_eq!(folded.metadata().resource_version.as_deref(), Some("7"));
        text["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
        let expected: VirtualMachineInstance = serde_json::from_value(text).expect("an instance");
        assert_eq!(folded.unfold().expect("its own JSON"), expected);
        let wrong = json!({ "apiVersion": "v1", "kind": "Pod" });
        assert!(serde_json::from_value::<Folded<VirtualMachineInstance>>(wrong).is_err());
    }
}
