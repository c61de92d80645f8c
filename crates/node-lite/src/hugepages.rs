//! Huge pages: how many the machine has reserved, and the file systems through which pods use them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use k8s_openapi::api::core::v1::PodSpec;
use nix::mount::{MsFlags, mount};

use crate::resources;

/// Where the kernel tells of its pools, one directory for each size.
const POOLS: &str = "/sys/kernel/mm/hugepages";
const RESOURCE: &str = "hugepages-";
const MEDIUM: &str = "HugePages";

/// Bytes that are reserved, by the name of the resource. A size of which there are no pages is told too, as a kubelet does.
pub fn reserved() -> BTreeMap<String, u64> {
    reserved_in(Path::new(POOLS))
}

fn reserved_in(pools: &Path) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(pools).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let size = name.to_str().and_then(|name| name.strip_prefix(RESOURCE)?.strip_suffix("kB")?.parse::<u64>().ok());
        let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok();
        let pages = pages.and_then(|text| text.trim().parse::<u64>().ok());
        if let (Some(kilobytes), Some(pages)) = (size, pages) {
            out.insert(resource(kilobytes), pages * kilobytes * 1024);
        }
    }
    out
}

/// `hugepages-2Mi` for 2048.
fn resource(kilobytes: u64) -> String {
    let units = [(1 << 20, "Gi"), (1 << 10, "Mi"), (1, "Ki")];
    let (unit, name) = units.into_iter().find(|(unit, _)| kilobytes.is_multiple_of(*unit)).unwrap_or((1, "Ki"));
    format!("{RESOURCE}{}{name}", kilobytes / unit)
}

/// True for the media of an emptyDir that are huge pages.
pub fn is_medium(medium: &str) -> bool {
    medium == MEDIUM || medium.starts_with("HugePages-")
}

/// The size of an emptyDir's pages in bytes: its medium names it, or the pod asks for one size only.
pub fn page_size(medium: &str, spec: &PodSpec) -> Option<u64> {
    let named = medium.strip_prefix("HugePages-").map(str::to_owned);
    let size = named.or_else(|| {
        let asked = resources::requests(spec);
        let mut sizes = asked.keys().filter_map(|name| name.strip_prefix(RESOURCE).map(str::to_owned));
        let only = sizes.next();
        only.filter(|_| sizes.next().is_none())
    })?;
    let bytes = size.parse::<ferrovirt_api::Quantity>().ok()?.as_bytes();
    Some(bytes).filter(|bytes| *bytes > 0)
}

/// Pages of one size at `path`, which exists.
pub fn mount_at(path: &Path, page_size: u64) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = format!("pagesize={page_size}");
    mount(Some("nodev"), path, Some("hugetlbfs"), flags, Some(options.as_str())).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pools_become_resources() {
        let dir = tempfile::tempdir().unwrap();
        for (name, pages) in [("hugepages-2048kB", "24\n"), ("hugepages-1048576kB", "0\n"), ("other", "7\n")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), pages).unwrap();
        }
        let expected = [("hugepages-1Gi".to_owned(), 0), ("hugepages-2Mi".to_owned(), 48 << 20)];
        assert_eq!(reserved_in(dir.path()), BTreeMap::from(expected));
        assert_eq!(reserved_in(&dir.path().join("none")), BTreeMap::new());
        assert_eq!(resource(64), "hugepages-64Ki");
    }

    #[test]
    fn the_size_is_the_mediums_or_the_only_one_of_the_pod() {
        let spec = |requests: serde_json::Value| -> PodSpec {
            serde_json::from_value(json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] }))
                .unwrap()
        };
        let one = spec(json!({ "hugepages-2Mi": "64Mi", "memory": "1Gi" }));
        let two = spec(json!({ "hugepages-2Mi": "64Mi", "hugepages-1Gi": "1Gi" }));
        for (medium, spec, expected) in [
            ("HugePages", &one, Some(2 << 20)),
            ("HugePages", &two, None),
            ("HugePages", &spec(json!({})), None),
            ("HugePages-1Gi", &two, Some(1 << 30)),
            ("HugePages-big", &two, None),
        ] {
            assert_eq!(page_size(medium, spec), expected, "{medium}");
        }
        assert!(is_medium("HugePages") && is_medium("HugePages-2Mi") && !is_medium("Memory"));
    }
}
