//! Attributes of netlink answers: all of them lie within the message, and reading them ends.
#![no_main]

use ferrovirt_net::netlink::attributes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = attributes(bytes);
    assert!(found.len() <= bytes.len() / 4);
    for (_, value) in found {
        attributes(value);
    }
});
