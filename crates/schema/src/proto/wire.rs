//! The wire format itself: tags, varints, lengths.

use super::ProtoError;

pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const LENGTH: u8 = 2;
pub(super) const FIXED32: u8 = 5;

/// One field as it stands on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    /// No Kubernetes type has one; its value is of no interest.
    Fixed32,
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    pub(super) fn number(&self) -> u8 {
        match self {
            Wire::Varint(_) => VARINT,
            Wire::Fixed64(_) => FIXED64,
            Wire::Fixed32 => FIXED32,
            Wire::Bytes(_) => LENGTH,
        }
    }
}

/// Reads fields one by one.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtoError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtoError::Truncated)?;
        let wire = match (tag & 7) as u8 {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            FIXED32 => self.array::<4>().map(|_| Wire::Fixed32)?,
            LENGTH => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtoError::Truncated)?;
                Wire::Bytes(self.take(length)?)
            }
            other => {
                return Err(ProtoError::WireType { message: "a message".to_owned(), number, wire: other });
            }
        };
        Ok(Some((number, wire)))
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProtoError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (first, rest) = self.rest.split_first().ok_or(ProtoError::Truncated)?;
            self.rest = rest;
            if shift < 64 {
                value |= u64::from(first & 0x7f) << shift;
            }
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtoError::Truncated)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        self.take(N)?.try_into().map_err(|_| ProtoError::Truncated)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ProtoError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    put_varint(out, (u64::from(number) << 3) | u64::from(wire));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, LENGTH);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_int(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, VARINT);
    put_varint(out, value as u64);
}
