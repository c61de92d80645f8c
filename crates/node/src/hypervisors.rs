//! Which hypervisors this node can run, and what it lends to their guests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
};

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use ferrovirt_machine::{
    hypervisor::{self, Guest, KNOWN},
    spec::IdRange,
};
use serde_json::{Value, json};

/// What trying each hypervisor showed: `None` if it runs here, else why not. One that was not tried is not in it.
pub type Hypervisors = BTreeMap<String, Option<String>>;

/// The user ids of one guest, as many as systems count on.
const ID_COUNT: u32 = 1 << 16;
/// Below are the node's own users, the ranges of its users' containers and those of systemd's.
const FIRST_SLOT: u32 = 0x2000;
const SLOTS: u32 = 0x5000;

/// The default is taken for granted until somebody has tried, so that the first guest need not wait for that.
pub(crate) fn assumed() -> Hypervisors {
    [(hypervisor::DEFAULT.to_owned(), None)].into()
}

pub(crate) fn guest(vmi: &VirtualMachineInstance) -> Guest {
    let name = vmi.spec.hypervisor.as_deref().unwrap_or(hypervisor::DEFAULT);
    hypervisor::hypervisor(name).map_or(Guest::Machine, |driver| driver.guest())
}

/// Keys with their values.
type Pairs = Vec<(String, Value)>;

/// Labels for what runs here, annotations for what does not; both taken back where they are no longer true.
pub(crate) fn labels_and_annotations(found: &Hypervisors) -> (Pairs, Pairs) {
    let key = |name: &str| format!("{}{name}", names::HYPERVISOR_LABEL);
    let mut labels = vec![];
    let mut annotations = vec![];
    for known in &KNOWN {
        let result = found.get(known.name);
        let runs = matches!(result, Some(None));
        labels.push((key(known.name), if runs { json!("true") } else { Value::Null }));
        annotations.push((key(known.name), result.cloned().flatten().map_or(Value::Null, Value::from)));
    }
    (labels, annotations)
}

/// A range of ids that no process of this node uses. The search begins at a place of the instance's own, so that two
/// agents that look at the same time find different ones.
pub(crate) fn free_ids(vmi: &VirtualMachineInstance) -> IdRange {
    let taken = taken_slots();
    let mut hasher = DefaultHasher::new();
    vmi.metadata.uid.hash(&mut hasher);
    let start = u32::try_from(hasher.finish() % u64::from(SLOTS)).unwrap_or(0);
    let free = (0..SLOTS).map(|step| FIRST_SLOT + (start + step) % SLOTS).find(|slot| !taken.contains(slot));
    free.map_or(IdRange::default(), |slot| IdRange { first: slot << 16, count: ID_COUNT })
}

/// Every process says which ids of the node its user namespace has.
fn taken_slots() -> BTreeSet<u32> {
    let mut taken = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let map = fs::read_to_string(entry.path().join("uid_map")).unwrap_or_default();
        taken.extend(slots_of(&map));
    }
    taken
}

fn slots_of(uid_map: &str) -> Vec<u32> {
    let ranges = uid_map.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1).map(str::parse::<u32>);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    // The node itself has all ids; that takes nothing from anybody.
    let own = ranges.filter(|(first, count)| *first >= FIRST_SLOT << 16 && *count > 0);
    own.flat_map(|(first, count)| (first >> 16)..=(first.saturating_add(count - 1) >> 16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_use_are_seen() {
        assert!(slots_of("         0          0 4294967295\n").is_empty());
        assert!(slots_of("0 100000 65536\n").is_empty(), "a user's own containers are elsewhere");
        assert_eq!(slots_of("0 536870912 65536\n"), [0x2000]);
        assert_eq!(slots_of("0 536870912 1000\n1000 536936448 65536\n"), [0x2000, 0x2001]);
        assert_eq!(slots_of("0 536870913 65536\n"), [0x2000, 0x2001], "half a slot takes both");
    }

    #[test]
    fn every_instance_has_a_range_above_the_nodes_own() {
        for uid in ["a", "b", "c"] {
            let mut vmi = VirtualMachineInstance::default();
            vmi.metadata.uid = Some(uid.into());
            let ids = free_ids(&vmi);
            assert!(ids.first >= FIRST_SLOT << 16 && ids.first.checked_add(ids.count).is_some(), "{ids:?}");
        }
    }

    #[test]
    fn what_vanished_is_taken_back() {
        let found = [("lxc".to_owned(), Some("no driver".to_owned())), ("qemu-kvm".to_owned(), None)].into();
        let (labels, annotations) = labels_and_annotations(&found);
        let value = |list: &[(String, Value)], name: &str| {
            list.iter().find(|(key, _)| key.ends_with(name)).map(|(_, value)| value.clone()).unwrap()
        };
        assert_eq!((value(&labels, "/qemu-kvm"), value(&labels, "/lxc")), (json!("true"), Value::Null));
        assert_eq!((value(&annotations, "/qemu-kvm"), value(&annotations, "/lxc")), (Value::Null, json!("no driver")));
    }
}
