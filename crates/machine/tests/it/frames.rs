//! Frames of the launcher protocol that nobody meant: there is a frame or an error, and what was read can be written.

use ferrovirt_machine::protocol::{ClientFrame, ServerFrame, decode, encode, frame_length};
use proptest::prelude::*;

fn examine(bytes: &[u8]) {
    if let Ok(frame) = decode::<ClientFrame>(bytes) {
        assert_eq!(decode::<ClientFrame>(&encode(&frame).unwrap()[4..]).unwrap(), frame);
    }
    if let Ok(frame) = decode::<ServerFrame>(bytes) {
        assert!(decode::<ServerFrame>(&encode(&frame).unwrap()[4..]).is_ok());
    }
}

proptest! {
    #[test]
    fn no_frame_breaks_its_reader(noise in proptest::collection::vec(any::<u8>(), 0..40), at in 0_usize..80) {
        for whole in [
            r#"{"id":1,"request":{"type":"shutdown","graceSeconds":30}}"#,
            r#"{"id":1,"type":"shutdown","graceSeconds":30}"#,
            r#"{"type":"state","phase":"running","guest":{"hostname":"x","interfaces":[{"name":"eth0"}]}}"#,
        ] {
            examine(whole.as_bytes());
            let mut bytes = whole.as_bytes().to_vec();
            let at = at.min(bytes.len());
            bytes.splice(at..(at + noise.len()).min(bytes.len()), noise.iter().copied());
            examine(&bytes);
        }
        examine(&noise);
    }

    #[test]
    fn no_length_is_more_than_a_frame_may_have(prefix in any::<[u8; 4]>()) {
        if let Ok(length) = frame_length(prefix) {
            prop_assert!(length <= 16 << 20);
        }
    }
}

/// Brackets without end would be a stack without end.
#[test]
fn a_deep_frame_is_refused() {
    for bytes in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 20)] {
        assert!(decode::<ClientFrame>(bytes.as_bytes()).is_err());
        assert!(decode::<ServerFrame>(bytes.as_bytes()).is_err());
    }
}
