# shellcheck shell=bash disable=SC2154 # sourced by up.sh and down.sh
# The interfaces and rules of the test cluster, apart from those that kube-proxy and the CNI plugins make.

# Where the nodes meet.
make_node_bridge() {
    if [ ! -e "$state/network" ] && nft list table ip kube-proxy >/dev/null 2>&1; then
        fail "there is a kube-proxy of another cluster on this machine; two would use the same nftables table"
    fi
    if [ ! -e "$state/network" ]; then
        nat_tables >"$state/network"
    fi
    make_bridge "$node_bridge" "$api_ip/24"
}

# The current node's half of the way between its pods and the others.
make_pod_network() {
    make_bridge "$bridge" "$node_pod_gateway/24"
    # A pod that reaches a neighbour through a Service must get the answer from the Service's address, so answers that only
    # cross the bridge have to pass the address translation too. Set for this bridge, not for those of others.
    "${enter[@]}" ip link set "$bridge" type bridge nf_call_iptables 1
    # Stays on afterwards: others on the machine may have come to rely on it.
    "${enter[@]}" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    render pod-network.nft | "${enter[@]}" nft -f -
}

# Connects a node that has a network namespace of its own.
join_node_bridge() {
    local cable=k8tn$number
    ip link delete "$cable" 2>/dev/null || true
    ip link add "$cable" type veth peer name eth0 netns "$(<"$node_dir/testpod.pid")"
    ip link set "$cable" master "$node_bridge" up
    "${enter[@]}" ip link set lo up
    "${enter[@]}" ip address add "$node_ip/24" dev eth0
    "${enter[@]}" ip link set eth0 up
    "${enter[@]}" ip route add default via "$api_ip"
    # Every other node's pods come first through the machine's own node.
    ip route replace "$node_pod_cidr" via "$node_ip"
}

make_bridge() {
    "${enter[@]}" ip link show "$1" >/dev/null 2>&1 || "${enter[@]}" ip link add "$1" type bridge
    "${enter[@]}" ip address replace "$2" dev "$1"
    "${enter[@]}" ip link set "$1" up
}

remove_network() {
    local table link
    if [ -e "$state/network" ]; then
        for table in "ip kube-proxy" "ip6 kube-proxy" "ip ferrovirt-test-cluster"; do
            # shellcheck disable=SC2086 # family and name
            nft delete table $table 2>/dev/null || true
        done
    fi
    # Interfaces in namespaces of pods went with these; what is left on the bridge is a half-made pod's.
    for link in $(ip -o link show master "$bridge" 2>/dev/null | sed -E 's/^[0-9]+: ([^:@]+).*/\1/'); do
        ip link delete "$link" 2>/dev/null || true
    done
    for link in "$bridge" "$node_bridge"; do
        ip link delete "$link" 2>/dev/null || true
    done
    if [ -e "$state/network" ]; then
        remove_host_port_rules
        remove_nat_tables
    fi
}

nat_tables() {
    nft list tables | grep -E '^table ip6? nat$' || true
}

# iptables makes them when somebody asks for their rules. They go if they are new and nobody has a rule in them.
remove_nat_tables() {
    local table
    while read -r table; do
        if ! nft "list $table" | grep -vqE '^table |^\s*(chain |type |}|$)'; then
            nft "delete $table"
        fi
    done < <(nat_tables | grep -vxFf "$state/network")
}

# The portmap plugin leaves its chains behind. Pods that were killed leave their rules in these, too.
remove_host_port_rules() {
    local iptables
    for iptables in iptables ip6tables; do
        if command -v $iptables >/dev/null && $iptables -t nat -S CNI-HOSTPORT-DNAT >/dev/null 2>&1; then
            nat_chains $iptables
        fi
    done
}

nat_chains() {
    local nat=("$1" -t nat) rule chain
    while read -r rule; do
        [[ $rule =~ ^-A\ (.*name:\ .*$pod_network.*-j\ (CNI-DN-[^ ]*))$ ]] || continue
        chain=${BASH_REMATCH[2]}
        # The rule's comment is quoted as a shell would.
        eval "${nat[*]} -D ${BASH_REMATCH[1]}"
        "${nat[@]}" -F "$chain"
        "${nat[@]}" -X "$chain"
    done < <("${nat[@]}" -S CNI-HOSTPORT-DNAT)
    # With a rule left in it, the chain serves somebody else.
    if "${nat[@]}" -S CNI-HOSTPORT-DNAT | grep -q '^-A'; then
        return
    fi
    while read -r rule; do
        eval "${nat[*]} -D ${rule#-A }"
    done < <("${nat[@]}" -S | grep -E '^-A (PREROUTING|OUTPUT|POSTROUTING) .*-j CNI-HOSTPORT-(DNAT|MASQ)$')
    for chain in CNI-HOSTPORT-DNAT CNI-HOSTPORT-MASQ CNI-HOSTPORT-SETMARK; do
        "${nat[@]}" -F "$chain"
        "${nat[@]}" -X "$chain"
    done 2>/dev/null || true
}
