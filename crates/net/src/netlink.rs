//! A netlink socket and the encoding of its messages: just enough for links, addresses and nftables.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};

pub const REQUEST: u16 = 1;
pub const ACK: u16 = 4;
pub const EXCL: u16 = 0x200;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
pub const DUMP: u16 = 0x300;
const NESTED: u16 = 0x8000;

const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const HEADER: usize = 16;
/// What a socket takes without being asked for more.
const SMALL: usize = 64 << 10;

/// One netlink message under construction.
#[derive(Clone)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        Self { bytes }
    }

    /// Attributes without a message around them, to be built before it is known where they go.
    pub(crate) fn fragment() -> Self {
        Self { bytes: vec![] }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[4], self.bytes[5]])
    }

    /// Asks for an answer to this message, of several that are sent together.
    pub(crate) fn acknowledged(mut self) -> Self {
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | ACK;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// Appends the fixed header of the message's family.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        // Attributes of this crate are addresses, names and small nests; they stay far below 64 KiB.
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    #[must_use]
    pub fn string(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    #[must_use]
    pub fn nest(mut self, kind: u16, build: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self = build(self.attribute(kind | NESTED, &[]));
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

pub struct Socket {
    handle: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// For links, addresses and routes.
    pub fn route() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkRoute)
    }

    /// For nftables.
    pub fn netfilter() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkNetFilter)
    }

    fn open(protocol: SockProtocol) -> io::Result<Self> {
        let handle = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(handle.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { handle, sequence: 0 })
    }

    /// Sends one message and waits for its acknowledgement.
    pub fn request(&mut self, message: Message) -> io::Result<()> {
        self.batch(vec![message])
    }

    /// Sends messages together and waits for the one answer: the first error, or the acknowledgement of the one message
    /// that asks for it. One answer for each of ten thousand messages would not fit into the socket.
    pub fn batch(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let mut bytes = vec![];
        for message in messages {
            self.sequence += 1;
            bytes.extend(message.finish(self.sequence));
        }
        self.send(&bytes)?;
        loop {
            for (kind, body) in self.receive()? {
                if kind == TYPE_ERROR {
                    return check(&body);
                }
            }
        }
    }

    /// The body of the one answer to a question.
    pub fn get(&mut self, message: Message) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        self.send(&message.finish(self.sequence))?;
        loop {
            if let Some((kind, body)) = self.receive()?.into_iter().next() {
                if kind == TYPE_ERROR {
                    check(&body)?;
                }
                return Ok(body);
            }
        }
    }

    /// A batch is one message to the kernel and has to fit into the socket's buffer whole.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > SMALL {
            setsockopt(&self.handle, sockopt::SndBufForce, &(bytes.len() + SMALL))?;
        }
        let sent = send(self.handle.as_raw_fd(), bytes, MsgFlags::empty())?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Sends a dump request and returns the bodies of the answers.
    pub fn dump(&mut self, message: Message) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        self.send(&message.finish(self.sequence))?;
        let mut bodies = vec![];
        loop {
            for (kind, body) in self.receive()? {
                match kind {
                    TYPE_DONE => return Ok(bodies),
                    TYPE_ERROR => check(&body)?,
                    _ => bodies.push(body),
                }
            }
        }
    }

    fn receive(&mut self) -> io::Result<Vec<(u16, Vec<u8>)>> {
        let mut buffer = vec![0u8; 64 << 10];
        let length = recv(self.handle.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        let mut messages = vec![];
        while let Some(header) = rest.get(..HEADER) {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let Some(body) = rest.get(HEADER..length) else { break };
            messages.push((kind, body.to_vec()));
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(messages)
    }
}

/// An error message with code zero is an acknowledgement.
fn check(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).map_or(0, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}

/// The attributes of a message body, after its family header.
pub fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut out = vec![];
    while let Some(header) = bytes.get(..4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !NESTED;
        let Some(value) = bytes.get(4..length) else { break };
        out.push((kind, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    out
}
