#!/usr/bin/env bash
# Gives the tests a real Kubernetes cluster on this machine, and prints the KUBECONFIG to use. Run again, it starts what has
# ended since, adds the nodes that are missing, and changes nothing else. scripts/kubernetes/down.sh removes the cluster.
#
#   scripts/kubernetes/up.sh [NUMBER_OF_NODES]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=pki.sh
. "$here/pki.sh"
# shellcheck source-path=SCRIPTDIR source=network.sh
. "$here/network.sh"

count=${1:-1}

main() {
    need_root
    check_tools
    "$here/build.sh" >/dev/null
    exec 9>/run/lock/ferrovirt-test-cluster
    flock 9
    if all_running && kubectl get --raw /readyz >/dev/null 2>&1; then
        echo "The cluster is already up."
        hint
        return
    fi

    use_node 1
    make_state
    make_pki
    make_node_bridge
    start_etcd
    start_registry
    local number
    for number in $(seq "$count"); do
        use_node "$number"
        make_node
        start_containerd
    done
    use_node 1
    start_control_plane
    for number in $(seq "$count"); do
        use_node "$number"
        start_node
    done
    kubectl apply --server-side -f <(render coredns.yaml) -f <(render multus.yaml) -f <(render storage.yaml) >/dev/null ||
        fail "the API server refuses the cluster's own objects"
    wait_until_ready
    echo "The cluster is up after $SECONDS s: $(kubectl version -o json | sed -n 's/.*"gitVersion": "\(.*\)".*/\1/p' | tail -1), nodes: $count."
    hint
}

hint() {
    echo "export KUBECONFIG=$kubeconfig PATH=$bin:\$PATH"
}

check_tools() {
    local tool missing=()
    for tool in runc nft ip openssl setsid mount; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
    [ ${#missing[@]} -eq 0 ] || fail "missing: ${missing[*]} (Debian: runc nftables iproute2 openssl util-linux mount containernetworking-plugins)"
}

all_running() {
    local name number
    for name in etcd registry/testpod storage/testpod kube-apiserver kube-controller-manager kube-scheduler; do
        running "$name" || return 1
    done
    for number in $(seq "$count"); do
        for name in containerd kubelet kube-proxy; do
            running "node$number/$name" || return 1
        done
    done
}

make_state() {
    local path
    mkdir -p "$state" "$logs"
    if [ ! -e "$state/created-paths" ]; then
        for path in "${foreign_paths[@]}"; do
            [ -e "$path" ] || echo "$path"
        done >"$state/created-paths"
    fi
    # Mounts that a pod makes below the kubelet's directory must reach the node, and those of the node the pods.
    if ! mountpoint -q "$state"; then
        mount --bind "$state" "$state"
        mount --make-rshared "$state"
    fi
}

make_node() {
    mkdir -p "$node_dir"/{cni,cni-bin,kubelet,volume-plugins} "$kubelet_root"
    make_node_pki
    make_cgroup "$cgroup"
    make_cgroup "$cgroup/$node"
    if [ "$number" -gt 1 ]; then
        make_node_namespaces
        use_node "$number"
    fi
    make_pod_network
}

make_cgroup() {
    local path=$1 top=/sys/fs/cgroup controller setting
    if [ -e "$top/cgroup.controllers" ]; then
        mkdir -p "$top/$path"
        for controller in $(<"$top/cgroup.controllers"); do
            echo "+$controller" >"$(dirname "$top/$path")/cgroup.subtree_control" || true
        done
        return
    fi
    for controller in "$top"/*/; do
        if [ -e "$controller/cgroup.procs" ]; then
            mkdir -p "$controller$path"
        fi
    done
    # In version 1 a new cpuset may use no processor at all.
    for setting in cpuset.cpus cpuset.mems; do
        if [ -e "$top/cpuset/$setting" ]; then
            cat "$top/cpuset/$setting" >"$top/cpuset/$path/$setting"
        fi
    done
}

# A node that is not the machine: its own interfaces, and its own mounts over the paths that all nodes would share.
make_node_namespaces() {
    running "$node/testpod" && return
    mkdir -p "$logs/$node" "${private_paths[@]}"
    setsid unshare --net --mount --propagation slave "$bin/testpod" pause >>"$logs/$node/testpod.log" 2>&1 </dev/null 9>&- &
    echo $! >"$node_dir/testpod.pid"
    wait_for 10 running "$node/testpod" || fail "cannot make namespaces for $node"
    use_node "$number"
    local path
    for path in "${private_paths[@]}"; do
        mkdir -p "$node_dir/private$path"
        "${enter[@]}" mount --bind "$node_dir/private$path" "$path"
    done
    "${enter[@]}" mount --make-rshared "$state"
    "${enter[@]}" mount --bind "$node_dir/kubelet" "$kubelet_root"
    "${enter[@]}" mount --make-rshared "$kubelet_root"
    join_node_bridge
}

start_etcd() {
    # What a test cluster stores need not survive a power failure.
    launch etcd --data-dir="$state/etcd" --name=etcd --unsafe-no-fsync --log-level=warn \
        --listen-client-urls="https://127.0.0.1:$etcd_port" --advertise-client-urls="https://127.0.0.1:$etcd_port" \
        --listen-peer-urls="http://127.0.0.1:$((etcd_port + 1))" \
        --cert-file="$pki/etcd.crt" --key-file="$pki/etcd.key" --client-cert-auth --trusted-ca-file="$pki/ca.crt"
}

start_registry() {
    mkdir -p "$registry"
    launch registry/testpod registry "$api_ip:$registry_port" "$registry"
}

start_control_plane() {
    launch kube-apiserver \
        --bind-address=0.0.0.0 --secure-port="$api_port" --advertise-address="$api_ip" --allow-privileged=true \
        --etcd-servers="https://127.0.0.1:$etcd_port" --etcd-cafile="$pki/ca.crt" \
        --etcd-certfile="$pki/etcd.crt" --etcd-keyfile="$pki/etcd.key" \
        --tls-cert-file="$pki/kube-apiserver.crt" --tls-private-key-file="$pki/kube-apiserver.key" \
        --client-ca-file="$pki/ca.crt" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --service-cluster-ip-range="$service_cidr" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$pki/service-accounts.pub" \
        --service-account-signing-key-file="$pki/service-accounts.key" \
        --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
        --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
        --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra- \
        --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key"
    wait_for 120 kubectl get --raw /readyz || fail "the API server is not ready after 120 s; see $logs/kube-apiserver.log"

    mkdir -p "$volumes"
    launch storage/testpod provision "https://$api_ip:$api_port" "$pki" "$volumes" node1

    # One of each, so there is nobody to elect a leader among.
    launch kube-controller-manager --leader-elect=false --flex-volume-plugin-dir="$state/volume-plugins" \
        --bind-address=127.0.0.1 --secure-port=16257 --use-service-account-credentials \
        --kubeconfig="$state/kube-controller-manager.kubeconfig" \
        --authentication-kubeconfig="$state/kube-controller-manager.kubeconfig" \
        --authorization-kubeconfig="$state/kube-controller-manager.kubeconfig" \
        --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/service-accounts.key" \
        --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key"
    launch kube-scheduler --leader-elect=false --bind-address=127.0.0.1 --secure-port=16259 \
        --kubeconfig="$state/kube-scheduler.kubeconfig" \
        --authentication-kubeconfig="$state/kube-scheduler.kubeconfig" \
        --authorization-kubeconfig="$state/kube-scheduler.kubeconfig"
}

start_containerd() {
    mkdir -p "$node_dir/registries/_default"
    render registry.toml >"$node_dir/registries/_default/hosts.toml"
    render containerd.toml >"$node_dir/containerd.toml"
    launch "$node/containerd" --config "$node_dir/containerd.toml"
    wait_for 60 ctr version || fail "containerd does not answer after 60 s; see $logs/$node/containerd.log"
    local known
    known=$(ctr images list -q 2>/dev/null)
    [[ $known == *"$test_image"* ]] || import_program "$test_image" testpod
    [[ $known == *"$dns_image"* ]] || import_program "$dns_image" coredns
}

import_program() {
    local archive=$state/$2.tar
    "$here/make-image.sh" "$1" "$bin/$2" "$archive"
    import_image "$archive"
    rm "$archive"
}

start_node() {
    local program
    for program in /usr/lib/cni/* "$bin/multus"; do
        ln -sfn "$program" "$node_dir/cni-bin/"
    done
    # Inside Multus's file, because from a file of its own Multus 4.2 forgets most of it before it removes a pod.
    local pod_network_config
    # shellcheck disable=SC2034 # used by render
    pod_network_config=$(render bridge.conflist)
    render multus.conf >"$node_dir/cni/multus.conf"
    render kubelet.yaml >"$node_dir/kubelet.yaml"
    render kube-proxy.yaml >"$node_dir/kube-proxy.yaml"
    launch "$node/kubelet" --config="$node_dir/kubelet.yaml" --kubeconfig="$node_dir/kubelet.kubeconfig" \
        --root-dir="$kubelet_root" --hostname-override="$node" --node-ip="$node_ip"
    launch "$node/kube-proxy" --config="$node_dir/kube-proxy.yaml"
}

# A pod that finds the API server by name has been through the scheduler, the kubelet, containerd, Multus, the bridge,
# kube-proxy and the cluster's DNS.
wait_until_ready() {
    local number
    for number in $(seq "$count"); do
        use_node "$number"
        wait_for 120 kubectl get node "$node" || fail "the kubelet does not register; see $logs/$node/kubelet.log"
        kubectl wait --for=condition=Ready "node/$node" --timeout=120s >/dev/null ||
            fail "the node is not ready; see $logs/$node/kubelet.log"
    done
    kubectl -n kube-system rollout status deployment/coredns --timeout=120s >/dev/null || fail "the cluster's DNS does not start"
    wait_for 60 kubectl -n default get serviceaccount default || fail "there is no default service account; see $logs/kube-controller-manager.log"
    for number in $(seq "$count"); do
        use_node "$number"
        check_node
    done
}

check_node() {
    kubectl -n default delete pod "check-$node" --ignore-not-found >/dev/null
    render check.yaml | kubectl -n default apply -f - >/dev/null
    if ! kubectl -n default wait --for=jsonpath='{.status.phase}'=Succeeded "pod/check-$node" --timeout=120s >/dev/null; then
        kubectl -n default describe pod "check-$node" >&2
        kubectl -n default logs "check-$node" >&2 || true
        fail "a pod on $node cannot find the API server by name"
    fi
    kubectl -n default delete pod "check-$node" >/dev/null
}

main "$@"
