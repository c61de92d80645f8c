//! Which pod a process belongs to, by its cgroup: the one thing about a process that it cannot choose.
//!
//! ```text
//!   /kubepods/burstable/pod<uid>/<container>                                        a kubelet with cgroupfs
//!   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/…    with systemd; `-` of the uid is `_`
//!   /ferrovirt-<instance>/pod<uid>                                                  embedded
//! ```
//!
//! Only the first pod on the way counts: what is below it may be of the pod's own making, with any name.

/// Whether a process with this `/proc/<pid>/cgroup` is in the pod. `own` is what this process has there: it may be inside
/// of a pod itself, together with all that it runs.
pub(crate) fn is_of_pod(found: &str, own: &str, pod: &str) -> bool {
    let mut ours = false;
    for (hierarchy, path) in lines(found) {
        let outer = lines(own).find(|(other, _)| *other == hierarchy).map_or("", |(_, path)| path);
        match first_pod(path, outer, pod) {
            Some(true) => ours = true,
            // A process is in one pod, whatever the hierarchy.
            Some(false) => return false,
            None => {}
        }
    }
    ours
}

/// For people: the longest path says most.
pub(crate) fn show(found: &str) -> String {
    lines(found).map(|(_, path)| path).max_by_key(|path| path.len()).unwrap_or("/").chars().take(256).collect()
}

/// Hierarchies with their paths: `4:memory:/kubepods/…`, `0::/…`.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    // The path is all that follows the first `:/`: it may hold colons of its own.
    text.lines().filter_map(|line| {
        let at = line.find(":/")?;
        Some((line.get(..at)?, line.get(at + 1..)?))
    })
}

/// Whether the first pod on a path is this one; `None` if there is no pod on it.
fn first_pod(path: &str, outer: &str, pod: &str) -> Option<bool> {
    let mut outer = outer.split('/').filter(|name| !name.is_empty());
    let mut shared = true;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        shared = shared && outer.next() == Some(name);
        if shared {
            continue;
        }
        let uid = match name.strip_suffix(".slice").and_then(|slice| slice.rsplit_once("-pod")) {
            Some((_, uid)) => uid.replace('_', "-"),
            None => match name.strip_prefix("pod") {
                Some(uid) => uid.to_owned(),
                None => continue,
            },
        };
        if uid == pod {
            return Some(true);
        }
        if is_uid(&uid) {
            return Some(false);
        }
    }
    None
}

/// Uids of pods are UUIDs, and 32 digits for those that a node makes for itself.
fn is_uid(text: &str) -> bool {
    text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "4b5c1e0a-7a31-4a0e-8a0f-0c6f3b1f0001";
    const OTHER: &str = "4b5c1e0a-7a31-4a0e-8a0f-0c6f3b1f0002";

    fn check(found: &str, own: &str, expected: bool) {
        let fill = |text: &str| {
            let underscored =
                text.replace("OURS_", &OURS.replace('-', "_")).replace("OTHER_", &OTHER.replace('-', "_"));
            underscored.replace("OURS", OURS).replace("OTHER", OTHER)
        };
        assert_eq!(is_of_pod(&fill(found), &fill(own), OURS), expected, "{found} seen from {own}");
    }

    #[test]
    fn every_way_to_run_pods_is_known() {
        check("0::/kubepods/burstable/podOURS/1234", "0::/", true);
        check(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podOURS_.slice/cri-x.scope",
            "0::/",
            true,
        );
        check("0::/kubepods-podOURS_.slice/cri-x.scope\n", "0::/", true);
        check("0::/kubelet/kubepods/besteffort/podOURS/cri-containerd:abc", "0::/", true);
        check("0::/ferrovirt-1a2b/podOURS", "0::/", true);
        check(
            "5:memory:/ferrovirt-1a2b/podOURS\n3:cpu,cpuacct:/ferrovirt-1a2b/podOURS\n0::/",
            "5:memory:/\n0::/",
            true,
        );
        // Seen from a container that has a cgroup namespace of its own.
        check("0::/../../kubepods-burstable-podOURS_.slice/cri-x.scope", "0::/", true);
        // Everything runs in a pod.
        check("0::/kubepods/podOTHER/x/ferrovirt-1/podOURS", "0::/kubepods/podOTHER/x", true);
        check("2:cpu:/kubepods/podOTHER/x\n1:pids:/ferrovirt-1/podOURS", "2:cpu:/kubepods/podOTHER/x\n1:pids:/", true);
    }

    #[test]
    fn a_process_of_another_pod_is_not_believed() {
        for found in [
            "",
            "0::/",
            "nonsense",
            "0::/system.slice/sshd.service",
            "0::/kubepods/burstable/podOTHER/1234",
            "0::/kubepods.slice/kubepods-podOTHER_.slice/cri-x.scope",
            // A cgroup that a pod made inside its own, to look like another one.
            "0::/kubepods/podOTHER/podOURS",
            "0::/kubepods/podOTHER/kubepods-podOURS_.slice",
            "0::/kubepods/podOTHER/a:/podOURS",
            "2:cpu:/kubepods/podOURS\n1:memory:/kubepods/podOTHER/x",
            // Part of a name.
            "0::/kubepods/podOURSx",
            "0::/kubepods/xpodOURS",
            "0::/user.slice/podOURS.slice",
        ] {
            check(found, "0::/", false);
        }
    }
}
