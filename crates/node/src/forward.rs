//! Connections to a guest's ports, by the address that its instance shows: whatever stands between the pod's address and
//! the guest treats them as it treats everybody else's.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::node_call::Protocol;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::{TcpStream, UdpSocket},
};

use crate::streams::{Stream, StreamError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest datagram there is.
const DATAGRAM: usize = 65_535;

pub(crate) async fn dial(vmi: &VirtualMachineInstance, port: u16, protocol: Protocol) -> Result<Stream, StreamError> {
    let address = address(vmi).ok_or(StreamError::NoAddress)?;
    let failed = |source| StreamError::Dial { address: address.to_string(), port, protocol, source };
    let target = SocketAddr::new(address, port);
    match protocol {
        Protocol::Tcp => {
            let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(target));
            let stream = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream))
        }
        Protocol::Udp => {
            let any: IpAddr =
                if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await.map_err(failed)?;
            socket.connect(target).await.map_err(failed)?;
            let (ours, theirs) = tokio::io::duplex(2 * DATAGRAM);
            tokio::spawn(datagrams(ours, socket));
            Ok(Box::new(theirs))
        }
    }
}

/// The first address that the instance shows.
fn address(vmi: &VirtualMachineInstance) -> Option<IpAddr> {
    let interfaces = &vmi.status.interfaces;
    interfaces.iter().flat_map(|i| std::iter::once(&i.ip_address).chain(&i.ip_addresses)).find_map(|ip| ip.parse().ok())
}

/// Copies datagrams both ways, on the stream's side with their length in front, until the stream ends.
async fn datagrams(stream: DuplexStream, socket: UdpSocket) {
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let inward = async {
        let mut buffer = vec![0u8; DATAGRAM];
        while let Ok(length) = from_client.read_u16().await {
            let Some(datagram) = buffer.get_mut(..usize::from(length)) else { return };
            if from_client.read_exact(datagram).await.is_err() {
                return;
            }
            // Datagrams may get lost. A closed port shows as an error here, and may be open for the next one.
            let _ = socket.send(datagram).await;
        }
    };
    let outward = async {
        let mut buffer = vec![0u8; DATAGRAM];
        loop {
            let Ok(length) = socket.recv(&mut buffer).await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let (Ok(prefix), Some(datagram)) = (u16::try_from(length), buffer.get(..length)) else { continue };
            if to_client.write_u16(prefix).await.is_err() || to_client.write_all(datagram).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrovirt_api::v1::VirtualMachineInstanceNetworkInterface as Interface;

    fn local() -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        let none = Interface { name: "none".into(), ..Default::default() };
        let some = Interface { ip_address: "127.0.0.1".into(), ..Default::default() };
        vmi.status.interfaces = vec![none, some];
        vmi
    }

    #[tokio::test]
    async fn tcp_is_the_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut stream = dial(&local(), port, Protocol::Tcp).await.unwrap();
        let (mut guest, _) = listener.accept().await.unwrap();
        guest.write_all(b"hello").await.unwrap();
        drop(guest);
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "hello");
        let error = dial(&VirtualMachineInstance::default(), port, Protocol::Tcp).await.err().unwrap();
        assert!(matches!(error, StreamError::NoAddress));
    }

    #[tokio::test]
    async fn datagrams_keep_their_bounds() {
        let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = guest.local_addr().unwrap().port();
        let mut stream = dial(&local(), port, Protocol::Udp).await.unwrap();
        stream.write_all(b"\0\x02ab\0\x01c").await.unwrap();
        let mut buffer = [0u8; 16];
        let (length, peer) = guest.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"ab");
        assert_eq!(guest.recv(&mut buffer).await.unwrap(), 1);
        guest.send_to(b"xyz", peer).await.unwrap();
        let mut framed = [0u8; 5];
        stream.read_exact(&mut framed).await.unwrap();
        assert_eq!(&framed, b"\0\x03xyz");
    }
}
