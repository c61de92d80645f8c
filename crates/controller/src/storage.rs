//! Reads the claims and DataVolumes that a spec refers to.

use ferrovirt_plan::storage::{Claim, DataVolume, Storage};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};

use crate::Error;

/// The DataVolumes of a namespace. Read as they are: on a cluster they are CDI's.
pub(crate) fn data_volumes(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk_with_plural(&kind, "datavolumes"))
}

/// `claims` says for each name whether a DataVolume stands for it.
pub(crate) async fn read<'a>(
    client: &Client,
    namespace: &str,
    claims: impl Iterator<Item = (&'a str, bool)>,
) -> Result<Storage, Error> {
    let mut storage = Storage::default();
    for (name, by_data_volume) in claims {
        if by_data_volume && let Some(object) = data_volumes(client, namespace).get_opt(name).await? {
            storage.data_volumes.insert(name.to_owned(), DataVolume::read(&object.data));
        }
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        if let Some(claim) = claims.get_opt(name).await? {
            storage.claims.insert(name.to_owned(), Claim::from(&claim));
        }
    }
    Ok(storage)
}
