//! Reads the claims and DataVolumes that a spec refers to.

use ferrovirt_plan::storage::{Claim, DataVolume, Storage, User};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, ResourceExt,
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
    user: Option<User<'_>>,
    claims: impl Iterator<Item = (&'a str, bool)>,
) -> Result<Storage, Error> {
    let mut storage = Storage::default();
    for (name, by_data_volume) in claims {
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        let claim = claims.get_opt(name).await?;
        let owned = claim.as_ref().is_some_and(|claim| claim.owner_references().iter().any(|o| o.kind == "DataVolume"));
        let mut uid = None;
        // Read after the claim: a DataVolume that is gone by then is the end of its claim, too.
        if (by_data_volume || owned)
            && let Some(object) = data_volumes(client, namespace).get_opt(name).await?
        {
            uid = object.uid();
            if by_data_volume {
                storage.data_volumes.insert(name.to_owned(), DataVolume::read(&object.metadata, &object.data, user));
            }
        }
        if let Some(claim) = claim {
            storage.claims.insert(name.to_owned(), Claim::read(&claim, uid.as_deref(), user));
        }
    }
    Ok(storage)
}
