//! `exec`, `attach` and `portforward` of pods: from the API server, which knows who asks, to the node.

use std::sync::Arc;

use ferrovirt_apiserver::{ApiServer, Body, CredentialExpiry, User};
use ferrovirt_node_lite::streams::{Caller, Streams, Until};
use http::Request;
use http_body_util::{BodyExt, Full};

/// Registers the subresources.
pub fn register(api: &ApiServer, streams: Streams) {
    for subresource in ["exec", "attach", "portforward"] {
        let streams = streams.clone();
        api.register_subresource(
            "",
            "pods",
            subresource,
            Arc::new(move |mut request| {
                let streams = streams.clone();
                introduce(&mut request);
                Box::pin(async move {
                    streams
                        .handle(request)
                        .await
                        .map(|bytes| -> Body { Full::new(bytes).map_err(|never| match never {}).boxed_unsync() })
                })
            }),
        );
    }
}

/// Says who asks, in the node's words.
fn introduce<B>(request: &mut Request<B>) {
    let user = request.extensions().get::<User>().cloned();
    let expiry = request.extensions().get::<CredentialExpiry>().copied();
    let extensions = request.extensions_mut();
    if let Some(User { name, uid, groups, extra, .. }) = user {
        extensions.insert(Caller { name, uid, groups, extra });
    }
    if let Some(CredentialExpiry(at)) = expiry {
        extensions.insert(Until(at));
    }
}
