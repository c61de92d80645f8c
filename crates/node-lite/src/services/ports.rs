//! Node ports are the machine's, not ours alone: another host on it, or any program, may have one already. Each port is bound
//! (and never listened on), so that the second one to come hears of it. Connections are the rules' business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use super::View;
use crate::events::{Events, Severity};

const COMPONENT: &str = "service-proxy";

/// Protocol and number.
type Port = (&'static str, u16);

#[derive(Default)]
pub(crate) struct Ports {
    held: BTreeMap<Port, OwnedFd>,
    /// Those that were somebody else's when we last tried.
    taken: BTreeSet<Port>,
}

impl Ports {
    /// Takes what services want and lets go of the rest. With `again`, what was taken is tried once more.
    pub fn sync(&mut self, view: &View, again: bool, events: &Events) {
        let wanted: BTreeMap<Port, &Service> =
            view.services.values().flat_map(|service| ports_of(service).map(move |port| (port, &**service))).collect();
        self.held.retain(|port, _| wanted.contains_key(port));
        self.taken.retain(|port| wanted.contains_key(port));
        for (port, service) in wanted {
            if self.held.contains_key(&port) || (self.taken.contains(&port) && !again) {
                continue;
            }
            match reserve(port) {
                Ok(socket) => {
                    self.taken.remove(&port);
                    self.held.insert(port, socket);
                }
                // Without the right to ask there is nothing to say.
                Err(error) if error != nix::errno::Errno::EADDRINUSE => {}
                Err(_) => {
                    self.taken.insert(port);
                    let message = format!(
                        "node port {}/{} is in use on this machine, by another program or another host: connections may \
                         go there. Choose another nodePort",
                        port.1, port.0
                    );
                    events.publish_about(COMPONENT, about(service), Severity::Warning, "NodePortTaken", &message);
                }
            }
        }
    }
}

fn ports_of(service: &Service) -> impl Iterator<Item = Port> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.filter_map(|port| {
        let number = u16::try_from(port.node_port?).ok().filter(|number| *number > 0)?;
        match port.protocol.as_deref() {
            None | Some("TCP") => Some(("TCP", number)),
            Some("UDP") => Some(("UDP", number)),
            _ => None,
        }
    })
}

fn reserve((protocol, number): Port) -> nix::Result<OwnedFd> {
    let kind = if protocol == "TCP" { SockType::Stream } else { SockType::Datagram };
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, number)))?;
    Ok(socket)
}

pub(super) fn about(service: &Service) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: service.metadata.namespace.clone(),
        name: service.metadata.name.clone(),
        uid: service.metadata.uid.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_port_is_had_once_and_connections_to_it_are_not() {
        let (number, held) = (31_000..32_000).find_map(|n| Some((n, reserve(("TCP", n)).ok()?))).unwrap();
        assert_eq!(reserve(("TCP", number)).unwrap_err(), nix::errno::Errno::EADDRINUSE);
        assert!(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, number)).is_err(), "somebody listens");
        drop(held);
    }

    #[test]
    fn ports_are_those_of_the_node() {
        let service: Service = serde_json::from_value(json!({ "spec": { "ports": [
            { "port": 80, "nodePort": 30080 }, { "port": 53, "nodePort": 30053, "protocol": "UDP" }, { "port": 81 },
            { "port": 82, "nodePort": 0 },
        ] } }))
        .unwrap();
        assert_eq!(ports_of(&service).collect::<Vec<_>>(), [("TCP", 30080), ("UDP", 30053)]);
    }
}
