# shellcheck shell=bash disable=SC2034,SC2154 # sourced by the other scripts here
# Names, addresses and the few functions that the test cluster's scripts share.
# shellcheck source-path=SCRIPTDIR source=versions.sh
. "$here/versions.sh"

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/kubernetes
bin=$cache/$KUBERNETES_VERSION/bin

# Everything the cluster writes, except for the paths that its programs have built in (see `foreign_paths`).
state=/var/lib/ferrovirt-test-cluster
pki=$state/pki
logs=$state/logs
kubeconfig=$state/admin.kubeconfig
# The same path on every node, as on all clusters. Nodes with mounts of their own have their own directory there.
kubelet_root=$state/kubelet

# Own names and numbers throughout: Ferrovirt's embedded mode and other clusters may be on the same machine.
bridge=k8t0
# The nodes' addresses live on a bridge of their own, so that they do not depend on the machine's network.
node_bridge=k8tn0
node_cidr=10.79.0.0/24
api_ip=10.79.0.1
pod_cidr=10.77.0.0/16
service_cidr=10.78.0.0/16
api_service_ip=10.78.0.1
dns_ip=10.78.0.10
api_port=16443
etcd_port=12379
# Images that were loaded can also be pulled: from here, whatever registry their name says.
registry_port=15000
registry=$state/registry
# The volumes of the storage classes local and local-wait.
volumes=$state/storage
cgroup=ferrovirt-test-cluster
pod_network=ferrovirt-test-cluster
test_image=ferrovirt.test/testpod:1
dns_image=ferrovirt.test/coredns:$COREDNS_VERSION

# Paths that kubelet and containerd use whatever they are told. Removed by down.sh if up.sh found them absent.
foreign_paths=(/var/lib/kubelet /var/log/containers /run/containerd)
# Where CNI libraries note what they have made, for everyone who uses one.
cni_results=/var/lib/cni/results
# What every node after the first has for itself: the above, and directories of the machine that pods of Ferrovirt use.
private_paths=("${foreign_paths[@]}" "$cni_results" /var/lib/ferrovirt /run/ferrovirt)

# use_node NUMBER: from here on, `node_…`, `launch` and `ctr` are about that node. The first one is the machine itself; others
# are a process that holds a network and a mount namespace.
use_node() {
    number=$1
    node=node$number
    node_dir=$state/$node
    node_ip=10.79.0.$number
    node_pod_cidr=10.77.$number.0/24
    node_pod_gateway=10.77.$number.1
    containerd_socket=$node_dir/containerd.sock
    enter=()
    if [ "$number" -gt 1 ] && running "$node/testpod"; then
        enter=(nsenter --target "$(<"$node_dir/testpod.pid")" --net --mount)
    fi
}

node_numbers() {
    local dir
    for dir in "$state"/node[0-9]*/; do
        [ -d "$dir" ] && basename "$dir" | sed s/node//
    done
    return 0
}

need_root() {
    [ "$(id -u)" -eq 0 ] || fail "must run as root: it makes network interfaces, mounts and cgroups"
}

kubectl() {
    "$bin/kubectl" --kubeconfig "$kubeconfig" --cache-dir "$state/kubectl-cache" "$@"
}

ctr() {
    "$bin/ctr" --address "$containerd_socket" --namespace k8s.io "$@"
}

# import_image ARCHIVE: prints nothing unless it fails; ctr complains about the machine's cgroups at every call.
import_image() {
    local output
    output=$(ctr images import "$1" 2>&1) || fail "containerd of $node does not take $1: $output"
}

# launch NAME ARG...: starts a daemon unless it runs. The last part of the name is the program.
launch() {
    local name=$1
    shift
    running "$name" && return
    mkdir -p "$(dirname "$logs/$name")"
    # Without the lock's descriptor, or the lock would be held as long as the daemon lives.
    PATH=$bin:$PATH setsid "${enter[@]}" "$bin/${name##*/}" "$@" >>"$logs/$name.log" 2>&1 </dev/null 9>&- &
    echo $! >"$state/$name.pid"
}

# A number may have gone to another process since, hence the look at what it runs: our program, maybe of another version, or
# one that a new build has replaced, of which Linux says " (deleted)".
running() {
    local pid program
    pid=$(cat "$state/$1.pid" 2>/dev/null) && program=$(readlink "/proc/$pid/exe") &&
        [[ $program == "$cache"/*/bin/"${1##*/}"* ]]
}

# stop NAME: asks a daemon to end, and waits until it has.
stop() {
    local name=$1 pid
    if running "$name"; then
        pid=$(<"$state/$name.pid")
        kill "$pid" 2>/dev/null || true
        # An API server takes several seconds to drain.
        if ! wait_for 30 gone "$pid"; then
            echo "$name did not end within 30 s: killing it" >&2
            kill -KILL "$pid" 2>/dev/null || true
            wait_for 10 gone "$pid" || fail "$name (process $pid) cannot be ended"
        fi
    fi
    rm -f "$state/$name.pid"
}

gone() {
    [ ! -e "/proc/$1/exe" ] || [ "$(awk '/^State:/ { print $2 }' "/proc/$1/status" 2>/dev/null)" = Z ]
}

# wait_for SECONDS COMMAND...: tries the command until it succeeds.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}

# render FILE: prints a file of config/ with each @name@ replaced by the variable of that name.
render() {
    local text name
    text=$(<"$here/config/$1")
    while [[ $text =~ @([a-z_]+)@ ]]; do
        name=${BASH_REMATCH[1]}
        text=${text//"@$name@"/"${!name}"}
    done
    printf '%s\n' "$text"
}

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}
