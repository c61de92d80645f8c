//! `k8s\0` and `runtime.Unknown`: how a protobuf body says which object it holds.

use super::ProtoError;
use super::wire::{Reader, Wire, put_bytes};

/// What every Kubernetes protobuf body starts with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// The type of an object and its encoded bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope {
    pub api_version: String,
    pub kind: String,
    pub raw: Vec<u8>,
    pub content_encoding: String,
    pub content_type: String,
}

pub fn decode_envelope(bytes: &[u8]) -> Result<Envelope, ProtoError> {
    let body = bytes.strip_prefix(MAGIC).ok_or(ProtoError::Magic)?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(body);
    while let Some((number, wire)) = reader.field()? {
        let Wire::Bytes(bytes) = wire else { continue };
        match number {
            1 => {
                let mut inner = Reader::new(bytes);
                while let Some((number, wire)) = inner.field()? {
                    match (number, wire) {
                        (1, Wire::Bytes(bytes)) => envelope.api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => envelope.kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = bytes.to_vec(),
            3 => envelope.content_encoding = text(bytes)?,
            4 => envelope.content_type = text(bytes)?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Writes all four fields, also the empty ones, as Go does.
pub fn encode_envelope(envelope: &Envelope) -> Vec<u8> {
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, envelope.api_version.as_bytes());
    put_bytes(&mut type_meta, 2, envelope.kind.as_bytes());
    let mut out = Vec::with_capacity(envelope.raw.len() + type_meta.len() + 24);
    out.extend_from_slice(MAGIC);
    put_bytes(&mut out, 1, &type_meta);
    put_bytes(&mut out, 2, &envelope.raw);
    put_bytes(&mut out, 3, envelope.content_encoding.as_bytes());
    put_bytes(&mut out, 4, envelope.content_type.as_bytes());
    out
}

fn text(bytes: &[u8]) -> Result<String, ProtoError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtoError::Utf8)
}
