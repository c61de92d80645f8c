//! Sees to it that there is a claim for what a machine keeps beside its disks.

use ferrovirt_api::{storage::default_class, v1::VirtualMachineInstance};
use ferrovirt_plan::kept_state;
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    Api,
    api::{ListParams, PostParams},
};

use crate::{Context, Error};

/// The name of the instance's claim, which exists then.
pub(super) async fn provide(context: &Context, namespace: &str, vmi: &VirtualMachineInstance) -> Result<String, Error> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), namespace);
    let all = claims.list(&ListParams::default()).await?.items;
    if let Some(name) = kept_state::find(vmi, &all).and_then(|claim| claim.metadata.name.clone()) {
        return Ok(name);
    }
    let class = match context.cluster.configuration().vm_state_storage_class {
        named if !named.is_empty() => Some(named),
        _ => {
            let classes = Api::<StorageClass>::all(context.client.clone()).list(&ListParams::default()).await?;
            default_class(&classes.items).and_then(|class| class.metadata.name.clone())
        }
    };
    let claim = kept_state::claim(vmi, class.as_deref());
    // One of this name that is being deleted is somebody else's: a conflict, and another try later.
    let made = claims.create(&PostParams::default(), &claim).await?;
    made.metadata.name.ok_or(Error::Missing("name of the claim"))
}
