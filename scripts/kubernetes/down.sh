#!/usr/bin/env bash
# Removes the test cluster of up.sh: processes, mounts, interfaces, firewall rules, cgroups, files. The programs stay in the
# cache. Nothing of a cluster that ended in any other way, such as a power failure, is in its way.
#
#   scripts/kubernetes/down.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=network.sh
. "$here/network.sh"

main() {
    need_root
    exec 9>/run/lock/ferrovirt-test-cluster
    flock 9
    # The kubelets first, or they would start again what is ended below.
    stop_on_nodes kubelet
    stop_on_nodes kube-proxy
    stop kube-scheduler
    stop kube-controller-manager
    end_containers
    stop_on_nodes containerd
    # With it go the namespaces of a node, and all mounts and interfaces in them.
    stop_on_nodes testpod
    # Before the API server, which waits for those that watch.
    stop storage/testpod
    stop kube-apiserver
    stop etcd
    stop registry/testpod
    remove_mounts
    remove_devices
    remove_network
    remove_cgroups
    remove_files
    echo "The cluster is gone."
}

stop_on_nodes() {
    local number
    for number in $(node_numbers); do
        stop "node$number/$1"
    done
}

# Containers are in our cgroup; a shim carries the address of our containerd.
end_containers() {
    wait_for 30 no_container_left || fail "containers do not end: $(container_processes | tr '\n' ' ')"
}

no_container_left() {
    local pids
    mapfile -t pids < <(container_processes)
    [ ${#pids[@]} -gt 0 ] || return 0
    kill -KILL "${pids[@]}" 2>/dev/null || true
    return 1
}

container_processes() {
    local procs
    # Shims first: they would report the end of their container to a containerd that acts on it.
    pgrep -f -- "^$cache/.*/containerd-shim-runc-v2 .*-address $state/" || true
    for procs in /sys/fs/cgroup/*/"$cgroup" /sys/fs/cgroup/"$cgroup"; do
        [ -d "$procs" ] && find "$procs" -name cgroup.procs -exec cat {} +
    done | sort -u
}

remove_mounts() {
    local path
    # Deepest first. More than one pass, as mounts may lie on top of each other.
    while read -r path; do
        umount "$path" 2>/dev/null || umount --lazy "$path"
    done < <(awk -v top="$state" '$5 == top || index($5, top "/") == 1 { print $5 }' /proc/self/mountinfo | tac)
}

# Block volumes, and what kubelets put on top of them.
remove_devices() {
    local device
    for device in $(losetup --list --noheadings --output NAME,BACK-FILE | awk -v top="$state/" 'index($2, top) == 1 { print $1 }'); do
        losetup --detach "$device"
    done
}

remove_cgroups() {
    local top
    for top in /sys/fs/cgroup/*/"$cgroup" /sys/fs/cgroup/"$cgroup"; do
        if [ -d "$top" ]; then
            wait_for 10 remove_cgroup "$top" || echo "the cgroup $top cannot be removed" >&2
        fi
    done
}

remove_cgroup() {
    find "$1" -depth -type d -exec rmdir {} \;
    [ ! -d "$1" ]
}

remove_files() {
    local path
    if [ -e "$state/created-paths" ]; then
        while read -r path; do
            rm -rf "$path"
        done <"$state/created-paths"
    fi
    if [ -d "$cni_results" ]; then
        grep -rlF "$state/" "$cni_results" | xargs -r rm -f
    fi
    # Places for the mounts of further nodes; with something in them they are somebody's.
    rmdir --ignore-fail-on-non-empty "${private_paths[@]}" 2>/dev/null || true
    rmdir "$(dirname "$cni_results")" 2>/dev/null || true
    if awk -v top="$state" 'index($5, top) == 1 { found = 1 } END { exit !found }' /proc/self/mountinfo; then
        fail "something is still mounted below $state"
    fi
    rm -rf "$state"
}

main "$@"
