//! The beginning of a disk image: what is taken names no other file.
#![no_main]

use ferrovirt_disks::image::{Format, header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = header::parse(bytes, bytes.len() as u64)
        && image.format == Format::Qcow2
    {
        assert_eq!(bytes[8..20], [0; 12], "a backing file");
        assert_eq!(bytes[32..36], [0; 4], "a key");
    }
});
