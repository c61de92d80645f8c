//! The text exposition format, version 0.0.4.

use std::fmt::Write;

use crate::{Family, Kind};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes families that have samples. Families of one name are joined, for a name may only stand once.
pub fn to_text(families: &[Family]) -> String {
    let mut text = String::new();
    let mut done: Vec<&str> = vec![];
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        if done.contains(&family.name) {
            continue;
        }
        done.push(family.name);
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing into a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}", family.name, escape(family.help, false));
        let _ = writeln!(text, "# TYPE {} {kind}", family.name);
        let same = families.iter().filter(|other| other.name == family.name);
        for sample in same.flat_map(|family| &family.samples) {
            let labels: Vec<String> = sample
                .labels
                .iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| format!("{name}=\"{}\"", escape(value, true)))
                .collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{}{}{labels} {}", family.name, sample.suffix, sample.value);
        }
    }
    text
}

fn escape(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_joined_labels_escaped_and_empty_ones_left_out() {
        let labels = |value: &str| [("name", value.to_owned()), ("os", String::new())];
        let families = [
            Family::gauge("a", "first \\ line").with(labels("x\"y\n"), 1.0),
            Family::counter("b", "none"),
            Family::gauge("a", "first \\ line").with([], 2.5),
        ];
        assert_eq!(to_text(&families), "# HELP a first \\\\ line\n# TYPE a gauge\na{name=\"x\\\"y\\n\"} 1\na 2.5\n");
    }
}
