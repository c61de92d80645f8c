//! Which stream a request asks for, whether its instance can give it, and how long the caller may keep it.

use std::time::{Duration, SystemTime};

use ferrovirt_machine::node_call::Protocol;
use http::{HeaderMap, Request, Response};
use kube::Client;

use crate::{
    Body, Deadline, StreamKind, VirtApi, answer,
    authorize::{self, Target},
    endpoints::MACHINES,
    guest,
    stream::{self, Framing},
    subresources,
};

/// How soon a caller whose right was withdrawn loses a stream that is open.
const RECHECK: Duration = Duration::from_secs(5);

pub(crate) async fn handle(
    api: &VirtApi,
    request: Request<Body>,
    target: &Target<'_>,
    parameters: &[&str],
) -> Response<Body> {
    let kind = match kind(&target.subresource, parameters, request.uri().query().unwrap_or_default()) {
        Ok(kind) => kind,
        Err(message) => return answer::bad_request(&message),
    };
    let found = match target.resource {
        MACHINES => subresources::instance_of_machine(api, target).await,
        _ => subresources::instance(api, target).await,
    };
    let vmi = match found {
        Ok(vmi) => vmi,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = guest::check(&target.subresource, &vmi) {
        return refusal.answer(target.name);
    }
    let framing = match kind {
        StreamKind::PortForward { protocol: Protocol::Udp, .. } => Framing::Datagrams,
        _ => Framing::Bytes,
    };
    let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
    let allowed = allowed(api.client.clone(), request.headers().clone(), Owned::from(target), deadline);
    stream::serve(request, framing, allowed, api.nodes.open(vmi, kind)).await
}

fn kind(subresource: &str, parameters: &[&str], query: &str) -> Result<StreamKind, String> {
    Ok(match (subresource, parameters) {
        // Upstream's clients never ask: what they are given they take for news.
        ("console", _) => StreamKind::Serial { replay: query.split('&').any(|pair| pair == "scrollback=true") },
        ("vnc", _) => StreamKind::Vnc { preserve: query.split('&').any(|pair| pair == "preserveSession=true") },
        (_, [port, rest @ ..]) => {
            let number = port.parse().ok().filter(|port| *port > 0);
            let port = number.ok_or_else(|| format!("{port:?} is not a port; ports are numbers from 1 to 65535"))?;
            let name = rest.first().copied().unwrap_or("tcp");
            let protocol = Protocol::parse(name);
            let protocol = protocol.ok_or_else(|| format!("{name:?} is not a protocol; there are tcp and udp"))?;
            StreamKind::PortForward { port, protocol }
        }
        _ => return Err("port must not be empty".into()),
    })
}

/// A target that outlives its request.
struct Owned {
    verb: &'static str,
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
    version: String,
}

impl From<&Target<'_>> for Owned {
    fn from(target: &Target<'_>) -> Self {
        Self {
            // Every stream is opened with a GET.
            verb: "get",
            namespace: target.namespace.into(),
            resource: target.resource.into(),
            name: target.name.into(),
            subresource: target.subresource.to_string(),
            version: target.version.into(),
        }
    }
}

/// Resolves, with the reason, when the caller may no longer have the stream: the right was withdrawn, or what the caller
/// proved its identity with has expired.
async fn allowed(client: Client, headers: HeaderMap, target: Owned, deadline: Option<SystemTime>) -> String {
    let target = Target {
        verb: target.verb,
        namespace: &target.namespace,
        resource: &target.resource,
        name: &target.name,
        subresource: target.subresource.as_str().into(),
        version: &target.version,
    };
    loop {
        let left = deadline.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        if left.is_some_and(|left| left.is_zero()) {
            return "your certificate has expired".into();
        }
        tokio::time::sleep(left.map_or(RECHECK, |left| left.min(RECHECK))).await;
        // An API server that does not answer has withdrawn nothing.
        if let Ok(false) = authorize::allowed(&client, &headers, &target).await {
            return format!(
                "the permission to {} {}/{} was withdrawn",
                target.verb, target.resource, target.subresource
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_and_a_protocol() {
        let forward = |port, protocol| Ok(StreamKind::PortForward { port, protocol });
        assert_eq!(kind("portforward", &["22"], ""), forward(22, Protocol::Tcp));
        assert_eq!(kind("portforward", &["53", "udp"], ""), forward(53, Protocol::Udp));
        for bad in [&["0"][..], &["65536"], &["ssh"], &["22", "sctp"], &[]] {
            assert!(kind("portforward", bad, "").is_err(), "{bad:?}");
        }
        for (query, replay) in [("", false), ("scrollback=true", true), ("a=b&scrollback=true", true)] {
            assert_eq!(kind("console", &[], query), Ok(StreamKind::Serial { replay }), "{query}");
        }
        for (query, preserve) in [("", false), ("preserveSession=false", false), ("preserveSession=true", true)] {
            assert_eq!(kind("vnc", &[], query), Ok(StreamKind::Vnc { preserve }), "{query}");
        }
    }
}
