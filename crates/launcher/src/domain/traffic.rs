//! What a guest sent and received, for drivers that do not count it: by the pod's own interface, behind which the guest is.

use serde_json::{Map, Value};

const INTERFACES: &str = "/proc/net/dev";
/// The interface that every pod has.
const OF_THE_POD: &str = "eth0";

/// Adds the counters under libvirt's names, unless the driver has some.
pub(super) fn add(counters: &mut Map<String, Value>) {
    if !counters.contains_key("net.count") {
        let text = std::fs::read_to_string(INTERFACES).unwrap_or_default();
        counters.extend(read(&text));
    }
}

fn read(text: &str) -> Vec<(String, Value)> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(OF_THE_POD)?.strip_prefix(':'));
    // The kernel's columns: eight numbers for what came in, then as many for what went out; bytes and packets are first.
    let numbers: Vec<u64> = line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let names = [(0, "rx.bytes"), (1, "rx.pkts"), (8, "tx.bytes"), (9, "tx.pkts")];
    let found =
        names.iter().filter_map(|(index, name)| Some((format!("net.0.{name}"), (*numbers.get(*index)?).into())));
    let mut counters: Vec<(String, Value)> = found.collect();
    if !counters.is_empty() {
        counters.push(("net.count".to_owned(), 1.into()));
        counters.push(("net.0.name".to_owned(), OF_THE_POD.into()));
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_interface_is_read() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n    \
                    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 4096 7 0 0 0 0 0 0 512 3 0 0 0 0 0 0\n";
        let counters: Map<String, Value> = read(text).into_iter().collect();
        let expected = serde_json::json!({
            "net.count": 1, "net.0.name": "eth0",
            "net.0.rx.bytes": 4096, "net.0.rx.pkts": 7, "net.0.tx.bytes": 512, "net.0.tx.pkts": 3,
        });
        assert_eq!(Value::Object(counters), expected);
        assert!(read("").is_empty() && read("eth0: x").is_empty() && read("eth01: 1 2 3").is_empty());
    }
}
