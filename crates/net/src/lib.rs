//! The host side of guest networks: network namespaces, taps, addresses, nftables, DHCP and router
//! advertisements, by netlink alone.
//!
//! Nothing here runs `ip` or `nft`: the binary must work where neither is installed. Calls block; they are short, and the
//! caller runs them inside the namespace of its choice with [`netns::enter`].

pub mod bridge;
pub mod dhcp;
pub mod dhcp6;
pub mod link;
pub mod masquerade;
pub mod netlink;
pub mod netns;
pub mod nft;
mod receive;
pub mod router;
pub mod tap;
