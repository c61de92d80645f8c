//! The bytes on disk.
//!
//! ```text
//! file   header frame*                  zeros after the last frame are reserved space
//! header magic[8] version:u32 kind:u32 sequence:u64 crc:u32
//! frame  marker:u32 length:u32 crc:u32 body[length]          crc over length and body
//! body   type:u8 synced:u64 …
//!   1 commit  count:u32 op*             atomic
//!   2 high    revision:u64              no revision above this one was handed out before the next such frame
//!   3 end     count:u64                 last frame of a snapshot: the number of its objects
//! op     type:u8 revision:u64 created:u64 resource namespace name value      the last four with length:u32 before
//! ```
//! Integers are little-endian. `synced` is the length of the file that was known to be on disk when the frame was
//! written. Damage below the `synced` of a later frame is therefore not the torn end of a write but real damage.

use std::ops::Range;

pub(crate) const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"FERROVST";
pub(crate) const HEADER: usize = 28;
const MARKER: [u8; 4] = [0xF5, 0x7E, 0x0D, 0xC1];
const PREFIX: usize = 12;
/// No frame is longer, so that a damaged length is not believed.
pub(crate) const MAX_BODY: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment = 1,
    Snapshot = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Put = 1,
    Delete = 2,
}

/// One change as it is in the log. `value` is empty for deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    pub kind: OpKind,
    pub revision: u64,
    pub created: u64,
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub value: &'a [u8],
}

impl Op<'_> {
    /// What the op takes in a log, without the frame around it.
    pub(crate) fn size(&self) -> u64 {
        (1 + 8 + 8 + 4 * 4 + self.resource.len() + self.namespace.len() + self.name.len() + self.value.len()) as u64
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Commit(Vec<Op<'a>>),
    High(u64),
    End(u64),
}

#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub synced: u64,
    pub body: Body<'a>,
    pub range: Range<usize>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("is not a file of a ferrovirt store")]
    Foreign,
    #[error("has format {0}, newer than {FORMAT}")]
    Newer(u32),
}

pub(crate) fn header(kind: FileKind, sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&(kind as u32).to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// The version is looked at before anything else: a newer format may lay out the rest differently.
pub(crate) fn check_header(bytes: &[u8], kind: FileKind, sequence: u64) -> Result<(), HeaderError> {
    let mut input = Input(bytes);
    if input.take(8) != Some(MAGIC.as_slice()) {
        return Err(HeaderError::Foreign);
    }
    match input.u32() {
        Some(version) if version > FORMAT => Err(HeaderError::Newer(version)),
        Some(FORMAT) if bytes.get(..HEADER) == Some(&header(kind, sequence)) => Ok(()),
        _ => Err(HeaderError::Foreign),
    }
}

/// Encodes frames one behind the other.
#[derive(Default)]
pub(crate) struct Encoder {
    pub out: Vec<u8>,
}

impl Encoder {
    pub(crate) fn high(&mut self, synced: u64, revision: u64) {
        self.frame(2, synced, |out| out.extend_from_slice(&revision.to_le_bytes()));
    }

    pub(crate) fn end(&mut self, synced: u64, count: u64) {
        self.frame(3, synced, |out| out.extend_from_slice(&count.to_le_bytes()));
    }

    pub(crate) fn commit<'a>(&mut self, synced: u64, ops: impl ExactSizeIterator<Item = Op<'a>>) {
        self.frame(1, synced, |out| {
            out.extend_from_slice(&(ops.len() as u32).to_le_bytes());
            for op in ops {
                out.push(op.kind as u8);
                out.extend_from_slice(&op.revision.to_le_bytes());
                out.extend_from_slice(&op.created.to_le_bytes());
                for field in [op.resource.as_bytes(), op.namespace.as_bytes(), op.name.as_bytes(), op.value] {
                    out.extend_from_slice(&(field.len() as u32).to_le_bytes());
                    out.extend_from_slice(field);
                }
            }
        });
    }

    fn frame(&mut self, kind: u8, synced: u64, body: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.out;
        let start = out.len();
        out.extend_from_slice(&MARKER);
        out.extend_from_slice(&[0; 8]);
        out.push(kind);
        out.extend_from_slice(&synced.to_le_bytes());
        body(out);
        let length = ((out.len() - start - PREFIX) as u32).to_le_bytes();
        out[start + 4..start + 8].copy_from_slice(&length);
        let crc = checksum(&length, &out[start + PREFIX..]);
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The whole, undamaged frame at `at`.
pub(crate) fn decode(file: &[u8], at: usize) -> Option<Frame<'_>> {
    let mut input = Input(file.get(at..)?);
    if input.take(4)? != MARKER {
        return None;
    }
    let length = input.take(4)?;
    let size = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let crc = input.u32()?;
    if size > MAX_BODY {
        return None;
    }
    let body = input.take(size)?;
    if checksum(length, body) != crc {
        return None;
    }
    let mut input = Input(body);
    let kind = input.u8()?;
    let synced = input.u64()?;
    let body = match kind {
        1 => {
            let count = input.u32()?;
            let mut ops = Vec::new();
            for _ in 0..count {
                ops.push(decode_op(&mut input)?);
            }
            Body::Commit(ops)
        }
        2 => Body::High(input.u64()?),
        3 => Body::End(input.u64()?),
        _ => return None,
    };
    input.0.is_empty().then_some(Frame { synced, body, range: at..at + PREFIX + size })
}

/// The first place at or after `at` where a whole frame begins.
pub(crate) fn find(file: &[u8], mut at: usize) -> Option<Frame<'_>> {
    loop {
        at += file.get(at..)?.windows(MARKER.len()).position(|window| window == MARKER)?;
        if let Some(frame) = decode(file, at) {
            return Some(frame);
        }
        at += 1;
    }
}

fn checksum(length: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(body);
    hasher.finalize()
}

fn decode_op<'a>(input: &mut Input<'a>) -> Option<Op<'a>> {
    let kind = match input.u8()? {
        1 => OpKind::Put,
        2 => OpKind::Delete,
        _ => return None,
    };
    Some(Op {
        kind,
        revision: input.u64()?,
        created: input.u64()?,
        resource: input.text()?,
        namespace: input.text()?,
        name: input.text()?,
        value: input.field()?,
    })
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.field()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(revision: u64, value: &[u8]) -> Op<'_> {
        Op { kind: OpKind::Put, revision, created: 1, resource: "r", namespace: "", name: "n", value }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut encoder = Encoder::default();
        encoder.high(0, 7);
        encoder.commit(28, [op(1, b"one"), op(2, b"")].into_iter());
        encoder.end(28, 2);
        let mut at = 0;
        let mut seen = Vec::new();
        while let Some(frame) = decode(&encoder.out, at) {
            at = frame.range.end;
            seen.push((frame.synced, frame.body));
        }
        assert_eq!(at, encoder.out.len());
        assert_eq!(seen, [(0, Body::High(7)), (28, Body::Commit(vec![op(1, b"one"), op(2, b"")])), (28, Body::End(2))]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let mut encoder = Encoder::default();
        encoder.commit(28, [op(1, b"value")].into_iter());
        for at in 0..encoder.out.len() {
            assert!(decode(&encoder.out[..at], 0).is_none(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = encoder.out.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged, 0).is_none(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn headers() {
        let good = header(FileKind::Segment, 3);
        assert_eq!(good.len(), HEADER);
        let mut newer = good.clone();
        newer[8] = 9;
        let mut damaged = good.clone();
        damaged[20] ^= 1;
        for (bytes, expected) in [
            (&good[..], Ok(())),
            (&newer[..], Err(HeaderError::Newer(9))),
            (&damaged[..], Err(HeaderError::Foreign)),
            (&good[..20], Err(HeaderError::Foreign)),
            (&[][..], Err(HeaderError::Foreign)),
        ] {
            assert_eq!(check_header(bytes, FileKind::Segment, 3), expected);
        }
        assert_eq!(check_header(&good, FileKind::Snapshot, 3), Err(HeaderError::Foreign));
    }
}
