//! Questions to the name server of a host.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| ferrovirt_node_lite::fuzzing::dns_question(bytes));
