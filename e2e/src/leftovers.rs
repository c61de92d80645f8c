//! What a host must not leave on the machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{command, process};

/// Everything of a host that is still there, in words; empty if it left nothing. What it keeps in its data directory
/// is not counted: that is where it goes on from.
pub fn of_host(data_dir: &Path, instance: &str) -> Result<Vec<String>> {
    let run_dir = PathBuf::from("/run/ferrovirt").join(instance);
    let mut found = vec![];
    for process in process::of_host(data_dir, instance) {
        found.push(format!("process {}: {}", process.pid, process.arguments.join(" ")));
    }
    if run_dir.exists() {
        found.push(format!("run directory {}: {:?}", run_dir.display(), names(&run_dir)));
    }
    // The directory itself may be a mount of whoever gave it.
    let given = format!("mount {}", data_dir.display());
    found.extend(mounts(&[data_dir, &run_dir])?.into_iter().filter(|mount| *mount != given));
    let links = names(Path::new("/sys/class/net"));
    found.extend(links.iter().filter(|name| name.contains(instance)).map(|name| format!("network device {name}")));
    let tables = command::output("nft", &["list", "tables"])?;
    found.extend(tables.lines().filter(|line| line.contains(instance)).map(|line| format!("nftables {line}")));
    found.extend(cgroups(instance).iter().map(|path| format!("cgroup {}", path.display())));
    Ok(found)
}

/// What of a pod is still on the machine.
pub fn of_pod(data_dir: &Path, instance: &str, uid: &str) -> Result<Vec<String>> {
    let directory = data_dir.join("pods").join(uid);
    let netns = PathBuf::from("/run/ferrovirt").join(instance).join("netns").join(uid);
    let mut found = mounts(&[&directory, &netns])?;
    for path in [&directory, &netns] {
        if path.exists() {
            found.push(path.display().to_string());
        }
    }
    for group in cgroups(instance) {
        found.extend(names(&group).into_iter().filter(|name| name.contains(uid)).map(|name| format!("cgroup {name}")));
    }
    for process in process::all() {
        let marked = process.arguments.iter().any(|word| word.contains(uid)) || process.cgroups().contains(uid);
        if marked {
            found.push(format!("process {}: {}", process.pid, process.arguments.join(" ")));
        }
    }
    Ok(found)
}

fn mounts(below: &[&Path]) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let ours = points.filter(|point| below.iter().any(|directory| point.starts_with(directory)));
    Ok(ours.map(|point| format!("mount {}", point.display())).collect())
}

/// The host's cgroup in every hierarchy: one with version 2, one per controller with version 1.
fn cgroups(instance: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let name = format!("ferrovirt-{instance}");
    let mut candidates = vec![root.join(&name)];
    candidates.extend(names(root).iter().map(|hierarchy| root.join(hierarchy).join(&name)));
    candidates.retain(|path| path.is_dir());
    candidates
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
