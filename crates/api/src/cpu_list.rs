//! CPUs in the kernel's form, such as `0-2,7`.

use std::collections::BTreeSet;

/// What cannot be read is left out.
pub fn parse(list: &str) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            out.extend(first..=last);
        }
    }
    out
}

pub fn format(cpus: &BTreeSet<u32>) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let parts = parts.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    parts.collect::<Vec<_>>().join(",")
}

/// The CPUs on which a process may run, from its `/proc/<pid>/status`.
pub fn allowed(status: &str) -> BTreeSet<u32> {
    parse(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        for list in ["", "0", "0-3", "0-2,7", "1,3,5-6"] {
            assert_eq!(format(&parse(list)), list);
        }
        assert_eq!(parse(" 0-1\n"), BTreeSet::from([0, 1]));
        assert_eq!(format(&allowed("Name:\tx\nCpus_allowed_list:\t1,4-5\n")), "1,4-5");
    }
}
