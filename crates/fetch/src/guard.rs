//! Which addresses a privileged process may be sent to.
//!
//! Whoever names an image, and whoever answers with a redirect, chooses where a pull goes. It must not be the host itself,
//! which believes its loopback, nor what only the host's network offers to it, such as a cloud's metadata service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// What a client may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// For processes that have no more reach than who asks them, such as those in pods, and for what an administrator named.
    #[default]
    Anything,
    /// Nothing of this host, and nothing that is for its own link only.
    NotThisHost,
}

impl Reach {
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Anything => true,
            Self::NotThisHost => !is_special(plain(address)) && !is_own(plain(address)),
        }
    }
}

/// IPv4 may be written as IPv6 in several ways, and means the same.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let segments = six.segments();
    let embedded = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match segments {
        // Mapped, and translated (RFC 6052, 8215).
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        // 6to4.
        | [0x2002, high, low, ..] => embedded(high, low),
        // Compatible, but neither :: nor ::1.
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) != (0, 0) && (high, low) != (0, 1) => embedded(high, low),
        _ => address,
    }
}

fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            // "This network" leads to the host itself.
            four.octets()[0] == 0
                || four.is_loopback()
                || four.is_link_local()
                || four.is_multicast()
                || four.is_broadcast()
        }
        IpAddr::V6(six) => {
            six.is_unspecified() || six.is_loopback() || six.is_multicast() || six.is_unicast_link_local()
        }
    }
}

/// Whether an address is this host's. The kernel talks to its own addresses from these very addresses. Nothing is sent.
pub fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_not_sent_to_the_host_however_its_address_is_written() {
        for address in [
            "127.0.0.1",
            "127.8.9.10",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!Reach::NotThisHost.allows(address.parse().unwrap()), "{address}");
            assert!(Reach::Anything.allows(address.parse().unwrap()), "{address}");
        }
        // Documentation's addresses, which are nobody's.
        for address in ["192.0.2.1", "198.51.100.7", "2001:db8::1"] {
            assert!(Reach::NotThisHost.allows(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_pull_is_not_sent_to_another_address_of_the_host() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        if socket.connect(("192.0.2.1", 9)).is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(!Reach::NotThisHost.allows(own), "{own}");
        }
    }
}
