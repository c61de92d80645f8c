//! Frames between a node agent and a launcher, in both directions: what can be read can be written.
#![no_main]

use ferrovirt_machine::protocol::{ClientFrame, ServerFrame, decode, encode, frame_length};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(prefix) = bytes.first_chunk::<4>() {
        let _ = frame_length(*prefix);
    }
    if let Ok(frame) = decode::<ClientFrame>(bytes) {
        let again = encode(&frame).unwrap_or_default();
        assert!(decode::<ClientFrame>(again.get(4..).unwrap_or_default()).is_ok());
    }
    if let Ok(frame) = decode::<ServerFrame>(bytes) {
        let again = encode(&frame).unwrap_or_default();
        assert!(decode::<ServerFrame>(again.get(4..).unwrap_or_default()).is_ok());
    }
});
