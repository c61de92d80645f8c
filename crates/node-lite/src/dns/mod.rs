//! Names of the embedded cluster: services, their endpoints and the host names of VMs under `cluster.local`; everything
//! else is asked of the machine's own name servers. On Kubernetes, the cluster's DNS does this.

pub(crate) mod message;
mod publish;
mod server;
pub(crate) mod zone;

pub(crate) use publish::publish;
pub(crate) use server::Server;

/// The domain of the cluster.
pub(crate) const DOMAIN: &str = "cluster.local";
