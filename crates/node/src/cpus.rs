//! CPUs that are a machine's alone: whether the node gives any away, which ones a launcher has, and how they lie on the node.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use ferrovirt_api::cpu_list;
use ferrovirt_machine::convert::{Context as ConvertContext, HostCell, HostCpu, HostDistance, HostTopology};
use serde::Deserialize;

use crate::process::Process;

/// Where a CPU manager says what it does, below the kubelet's root directory.
const STATE_FILE: &str = "cpu_manager_state";
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// True if the node's kubelet gives CPUs away. An agent in a container sees the kubelet's directory through the node's first process.
pub(crate) fn are_given(kubelet_root: &Path) -> bool {
    let seen_from_node = Path::new("/proc/1/root").join(kubelet_root.strip_prefix("/").unwrap_or(kubelet_root));
    let roots: [PathBuf; 2] = [kubelet_root.to_owned(), seen_from_node];
    let found = roots.iter().find_map(|root| fs::read(root.join(STATE_FILE)).ok());
    found.is_some_and(|state| is_static(&state))
}

/// Returns once the node's answer is another one.
pub(crate) async fn changed(kubelet_root: &Path, known: bool) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if are_given(kubelet_root) != known {
            return;
        }
    }
}

/// Tells the conversion which CPUs the launcher's pod got, and the node's cells.
pub(crate) fn describe(launcher: &Process, convert: &mut ConvertContext) {
    let status = launcher.read("status").unwrap_or_default();
    convert.cpu_set = cpu_list::allowed(&status).into_iter().collect();
    convert.topology = Some(topology(Path::new("/sys/devices/system")));
}

fn is_static(state: &[u8]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct State {
        policy_name: String,
    }
    serde_json::from_slice::<State>(state).is_ok_and(|state| state.policy_name == "static")
}

fn topology(system: &Path) -> HostTopology {
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut cells = BTreeMap::new();
    for entry in fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(id) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok()) {
            cells.insert(id, (list(&text(entry.path().join("cpulist"))), text(entry.path().join("distance"))));
        }
    }
    if cells.is_empty() {
        // A kernel without NUMA.
        cells.insert(0, (list(&text(system.join("cpu/online"))), "10".into()));
    }
    let ids: Vec<u32> = cells.keys().copied().collect();
    let cpu = |id: u32| {
        let siblings = text(system.join(format!("cpu/cpu{id}/topology/thread_siblings_list")));
        HostCpu { id, siblings: list(&siblings) }
    };
    let cell = |(id, (cpus, distances)): (u32, (Vec<u32>, String))| {
        let values = distances.split_whitespace().filter_map(|value| value.parse().ok());
        HostCell {
            id,
            cpus: cpus.into_iter().map(cpu).collect(),
            distances: ids.iter().zip(values).map(|(id, value)| HostDistance { id: *id, value }).collect(),
        }
    };
    HostTopology { numa_cells: cells.into_iter().map(cell).collect() }
}

fn list(text: &str) -> Vec<u32> {
    cpu_list::parse(text).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_static_policy_gives_cpus_away() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!are_given(dir.path()));
        for (state, expected) in [
            (r#"{"policyName":"static","defaultCpuSet":"0","entries":{},"checksum":1}"#, true),
            (r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#, false),
            ("nonsense", false),
        ] {
            fs::write(dir.path().join(STATE_FILE), state).unwrap();
            assert_eq!(are_given(dir.path()), expected, "{state}");
        }
    }

    #[test]
    fn cells_and_siblings_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("cpu/online", "0-1\n");
        put("cpu/cpu1/topology/thread_siblings_list", "1,3\n");
        let one = topology(dir.path());
        assert_eq!(one.numa_cells.len(), 1);
        let siblings: Vec<_> = one.numa_cells[0].cpus.iter().map(|cpu| (cpu.id, cpu.siblings.clone())).collect();
        assert_eq!(siblings, [(0, vec![]), (1, vec![1, 3])]);
        put("node/node0/cpulist", "0,2\n");
        put("node/node0/distance", "10 21\n");
        put("node/node1/cpulist", "1,3\n");
        put("node/node1/distance", "21 10\n");
        put("node/possible", "0-1\n");
        let two = topology(dir.path());
        let cells: Vec<_> =
            two.numa_cells.iter().map(|cell| (cell.id, cell.cpus.len(), cell.distances[0].value)).collect();
        assert_eq!(cells, [(0, 2, 10), (1, 2, 21)]);
    }
}
