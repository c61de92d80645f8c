//! Connects the API server with virt-api, under the service name that the objects name.

use std::sync::Arc;

use bytes::Bytes;
use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_apiserver::{ApiServer, CredentialExpiry, User};
use ferrovirt_machine::{node_call::NodeCall, protocol::ProtocolError};
use ferrovirt_node::Agent;
use ferrovirt_virt_api::{BoxError, BoxStream, Deadline, Nodes, StreamKind, VirtApi};
use futures::future::BoxFuture;
use kube::Client;

use super::certificates::Certificates;

pub const NAMESPACE: &str = "kubevirt";
pub const SERVICE: &str = "virt-api";

/// One node, in this process.
struct ThisNode(Agent);

impl Nodes for ThisNode {
    fn open(&self, vmi: VirtualMachineInstance, kind: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>> {
        let agent = self.0.clone();
        Box::pin(async move {
            let kind = match kind {
                StreamKind::Serial { replay } => ferrovirt_node::StreamKind::Serial { replay },
                StreamKind::Vnc { preserve } => ferrovirt_node::StreamKind::Vnc { preserve },
                StreamKind::PortForward { port, protocol } => {
                    ferrovirt_node::StreamKind::PortForward { port, protocol }
                }
            };
            let stream = agent.open(&vmi, kind).await?;
            Ok(Box::pin(stream) as BoxStream)
        })
    }

    fn call(&self, vmi: VirtualMachineInstance, call: NodeCall) -> BoxFuture<'static, Result<Bytes, ProtocolError>> {
        let agent = self.0.clone();
        Box::pin(async move { agent.call(&vmi, &call).await })
    }
}

pub fn register(api: &ApiServer, client: Client, agent: Agent) {
    let virt_api = VirtApi::new(client, Arc::new(ThisNode(agent)));
    api.register_in_process(
        NAMESPACE,
        SERVICE,
        Arc::new(move |mut request| {
            let virt_api = virt_api.clone();
            name_caller(&mut request);
            Box::pin(async move { virt_api.handle(request).await })
        }),
    );
}

/// Lets the API server's `/metrics` tell what the controllers and the node agent know.
pub fn register_metrics(
    api: &ApiServer,
    controllers: ferrovirt_controller::Metrics,
    agent: Agent,
    certificates: Arc<Certificates>,
    client: Client,
) {
    api.register_metrics(Arc::new(move || {
        let (controllers, agent, certificates) = (controllers.clone(), agent.clone(), certificates.clone());
        let client = client.clone();
        Box::pin(async move {
            let mut families = controllers.collect();
            families.extend(agent.metrics().await);
            families.push(ferrovirt_virt_api::ready_status());
            families.push(certificates.metric());
            families.extend(super::volume_metrics::families(&client).await);
            ferrovirt_metrics::to_text(&families)
        })
    }));
}

/// Puts the caller's identity where a front proxy would, after removing whatever stood there.
fn name_caller<B>(request: &mut http::Request<B>) {
    let user = request.extensions().get::<User>().cloned();
    if let Some(CredentialExpiry(at)) = request.extensions().get().copied() {
        request.extensions_mut().insert(Deadline(at));
    }
    match user {
        Some(user) => ferrovirt_apiserver::identify(request.headers_mut(), &user),
        None => ferrovirt_apiserver::identify_nobody(request.headers_mut()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_known_of_a_caller_reaches_virt_api_and_nothing_that_it_claims() {
        let mut user = User::new("jane", &["dev"]);
        user.uid = Some("7".into());
        user.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["n1".into()]);
        let forged = || http::Request::get("/").header("x-remote-user", "root").header("x-remote-extra-a", "b");
        let mut request = forged().extension(user).body(()).unwrap();
        name_caller(&mut request);
        let headers = request.headers();
        let all: Vec<_> = ["x-remote-user", "x-remote-uid", "x-remote-group"].map(|name| headers[name].clone()).into();
        assert_eq!(all, ["jane", "7", "dev"]);
        assert_eq!(headers["x-remote-extra-authentication.kubernetes.io%2fnode-name"], "n1");
        assert!(!headers.contains_key("x-remote-extra-a"));
        let mut nobody = forged().body(()).unwrap();
        name_caller(&mut nobody);
        assert!(nobody.headers().is_empty(), "{nobody:?}");
    }
}
