//! The agent's instances: one task each, fed with the newest version of its object.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use ferrovirt_api::{Folded, v1::VirtualMachineInstance};
use ferrovirt_machine::{node_call::NodeCall, protocol::ProtocolError};
use kube::ResourceExt;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::{Context, calls, instance, streams};

/// A node's agent. Cheap to clone; all clones are the same agent.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    instances: Mutex<HashMap<String, Instance>>,
    tasks: TaskTracker,
    draining: watch::Sender<bool>,
}

struct Instance {
    object: watch::Sender<Folded<VirtualMachineInstance>>,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let draining = watch::Sender::new(false);
        Self(Arc::new(Inner { context, instances: Mutex::default(), tasks: TaskTracker::new(), draining }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    pub fn host(&self) -> &crate::Host {
        &self.0.context.host
    }

    /// Takes note of an instance's newest version, starting to care for it if it is new.
    pub(crate) fn observe(&self, vmi: Folded<VirtualMachineInstance>) {
        let Some(uid) = vmi.uid() else { return };
        let Ok(mut instances) = self.0.instances.lock() else { return };
        if let Some(instance) = instances.get(&uid)
            && !instance.task.is_finished()
        {
            instance.object.send_replace(vmi);
            return;
        }
        let settled = match vmi.unfold() {
            Ok(vmi) => instance::is_settled(&vmi),
            Err(error) => {
                tracing::error!(%error, vmi = vmi.name_any(), "cannot read the instance");
                return;
            }
        };
        if settled {
            instances.remove(&uid);
            return;
        }
        let (object, receiver) = watch::channel(vmi);
        let context = self.0.context.clone();
        let draining = self.0.draining.subscribe();
        let task = self.0.tasks.spawn(instance::care(context, receiver, draining));
        instances.insert(uid, Instance { object, task });
    }

    pub(crate) fn forget(&self, vmi: &Folded<VirtualMachineInstance>) {
        if let (Some(uid), Ok(mut instances)) = (vmi.uid(), self.0.instances.lock()) {
            instances.remove(&uid);
        }
    }

    /// What the guests of this node use.
    pub async fn metrics(&self) -> Vec<ferrovirt_metrics::Family> {
        let newest = |instance: &Instance| instance.object.borrow().clone();
        let instances: Vec<_> = match self.0.instances.lock() {
            Ok(instances) => instances.values().map(newest).collect(),
            Err(_) => vec![],
        };
        crate::metrics::collect(&self.0.context, instances).await
    }

    /// Shuts down all guests of this node and waits until their processes have ended.
    ///
    /// Their instances end as failed, with a reason that says so: what should run starts again with the node.
    pub async fn drain(&self) {
        self.0.draining.send_replace(true);
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Asks a guest of this node, or something about it; [`NodeCall`] says what the answer is.
    pub async fn call(&self, vmi: &VirtualMachineInstance, call: &NodeCall) -> Result<Bytes, ProtocolError> {
        calls::call(&self.0.context, vmi, call).await
    }

    /// Opens a stream into a guest of this node.
    pub async fn open(
        &self,
        vmi: &VirtualMachineInstance,
        kind: streams::StreamKind,
    ) -> Result<streams::Stream, streams::StreamError> {
        streams::open(&self.0.context, vmi, kind).await
    }
}
