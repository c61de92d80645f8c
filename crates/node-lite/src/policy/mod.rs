//! NetworkPolicies of the embedded cluster: who may talk to whom, judged where packets between pods pass this machine. On
//! Kubernetes, the cluster's network does this.
//!
//! A pod gets its first process only after the rules know its address: see [`Policies::admit`].

mod controller;
mod plan;
mod select;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrovirt_net::nft::{self, Family};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::sync::{mpsc, oneshot};

pub(crate) use controller::{facts, run};

/// Labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// A pod as policies see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodFacts {
    pub namespace: String,
    pub labels: Labels,
    pub addresses: Vec<IpAddr>,
    /// Name, protocol and number of each port that has a name.
    pub ports: Vec<(String, u8, u16)>,
}

/// Everything that policies depend on.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub namespaces: BTreeMap<String, Labels>,
    pub pods: Vec<PodFacts>,
    pub policies: Vec<Arc<NetworkPolicy>>,
    /// Where the name server of pods is. It is no pod, but policies name it as if it were.
    pub names: Option<SocketAddr>,
}

/// What the node tells the controller of policies.
pub(crate) enum Request {
    /// A pod has these addresses from now on.
    Admit {
        uid: String,
        pod: Box<PodFacts>,
        done: oneshot::Sender<()>,
    },
    Forget {
        uid: String,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("the rules of network policies cannot be written")]
pub(crate) struct Unguarded;

/// The way to the controller.
#[derive(Debug, Clone)]
pub(crate) struct Policies(mpsc::UnboundedSender<Request>);

impl Policies {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Waits until the rules are in place that concern a new pod.
    pub async fn admit(&self, uid: &str, pod: PodFacts) -> Result<(), Unguarded> {
        let (done, answer) = oneshot::channel();
        let request = Request::Admit { uid: uid.into(), pod: Box::new(pod), done };
        self.0.send(request).map_err(|_| Unguarded)?;
        answer.await.map_err(|_| Unguarded)
    }

    /// A pod has no addresses any more.
    pub fn forget(&self, uid: &str) {
        // Without a controller there is nothing to forget.
        let _ = self.0.send(Request::Forget { uid: uid.into() });
    }
}

/// Removes the rules. Missing is fine.
pub(crate) fn remove(instance: &str) -> std::io::Result<()> {
    nft::remove(Family::Both, &table_name(instance))
}

fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}-policies")
}
