//! Gives each guest that asks for one a vsock address that no other guest of the cluster has.

use std::collections::{BTreeMap, BTreeSet};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_plan::vsock;
use kube::{Api, ResourceExt, api::ListParams};
use tokio::sync::Mutex;

use crate::{Context, Error};

/// Addresses that were chosen, by the instance's uid; they may not be in its status yet.
#[derive(Default)]
pub(crate) struct Chosen(Mutex<BTreeMap<String, u32>>);

/// The instance's address: the one that it has, or a new one.
pub(super) async fn provide(context: &Context, vmi: &VirtualMachineInstance) -> Result<Option<u32>, Error> {
    if !vsock::is_asked(&vmi.spec) || vmi.status.vsockcid.is_some() {
        return Ok(vmi.status.vsockcid);
    }
    let uid = vmi.uid().ok_or(Error::Missing("uid"))?;
    // One at a time: what one chose, the next one must see.
    let mut chosen = context.vsock.0.lock().await;
    let all = Api::<VirtualMachineInstance>::all(context.client.clone()).list(&ListParams::default()).await?.items;
    let living: BTreeSet<String> = all.iter().filter_map(ResourceExt::uid).collect();
    chosen.retain(|uid, _| living.contains(uid));
    if let Some(cid) = chosen.get(&uid) {
        return Ok(Some(*cid));
    }
    let taken = all.iter().filter_map(|vmi| vmi.status.vsockcid).chain(chosen.values().copied()).collect();
    let cid = vsock::choose(&uid, &taken);
    chosen.extend(cid.map(|cid| (uid, cid)));
    Ok(cid)
}
