#!/usr/bin/env bash
# KubeVirt's own functional tests that apply to an embedded host, against hosts of their own, compared with the list of what is expected
# (scripts/functests/expected.txt).
#
#   scripts/functests.sh [PATTERN]      only specs whose name matches the pattern (a regular expression)
#
#   SHARDS=N        so many hosts at a time (default 2)
#   LABEL=LABEL     only specs with this label, such as conformance
#   UNTRIED=1       also specs that the list calls untried, to see what to write there
#
# Needs root, Go (the suite is built once, which takes some minutes) and the programs in $FERROVIRT_BIN_DIR. Results go to
# $FERROVIRT_CACHE/functests/results. The exit code says whether everything was as the list says.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/functests
bin=${FERROVIRT_BIN_DIR:?set it to the directory of the programs, or use make functests}
results=$cache/results
shards=${SHARDS:-2}

suite=$(scripts/functests/suite.sh)
clients=$(scripts/clients.sh)
kubectl=$(command -v kubectl) || { echo "functests: install kubectl" >&2 && exit 1; }
scripts/functests/guests.sh "$cache/guests"
# Before any host runs: nothing is compiled beside guests.
cargo build -q -p xtask

data=$(mktemp -d /tmp/ferrovirt-functests.XXXXXX)
stop() {
    local host
    for host in "$data"/host-*; do
        "$bin/ferrovirt" down --force --data-dir "$host" >/dev/null 2>&1 || true
    done
    [ -z "${registry:-}" ] || kill "$registry" 2>/dev/null || true
    ip netns delete "$outside" 2>/dev/null || true
    rm -rf "$data"
}
outside=functests-$$
trap stop EXIT

# Specs that ping the world outside ping a network namespace of this machine: a machine for tests may have no other. One of its
# addresses is the suite's default for IPv6, and a Service without selector is its name.
ip netns add "$outside"
ip link add "ft$$" type veth peer name eth0 netns "$outside"
ip address add 198.51.100.254/24 dev "ft$$"
ip -6 address add 2001:db8:1::fe/64 dev "ft$$" nodad
ip link set "ft$$" up
ip -n "$outside" address add 198.51.100.1/24 dev eth0
ip -n "$outside" -6 address add 2001:db8:1::1/64 dev eth0 nodad
ip -n "$outside" link set eth0 up
ip -n "$outside" route add default via 198.51.100.254
ip -n "$outside" -6 route add default via 2001:db8:1::fe

# The registry that the suite's images come from. Its address is the host's own, so hosts have to be told that they may ask it.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
address=127.0.0.1:$port
cat >"$data/registry.yaml" <<CONF
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $data/registry}}
http: {addr: '$address'}
CONF
docker-registry serve "$data/registry.yaml" >"$data/registry.log" 2>&1 &
registry=$!
printf 'registries:\n  - host: %s\n    insecure: true\n' "$address" >"$data/registries.yaml"
scripts/functests/push.py "http://$address" kubevirt devel "$cache/guests/images"/*.tar

# What the suite's own configuration says, with the storage class of an embedded host.
printf '{"storageClassRhel": "rhel", "storageClassWindows": "windows", "storageRWOFileSystem": "local", "storageRWOBlock": "local"}\n' >"$data/config.json"

rm -rf "$results" && mkdir -p "$results"
arguments=(--suite "$suite" --results "$results")
for ((index = 0; index < shards; index++)); do
    host=$data/host-$index
    "$bin/ferrovirt" up --data-dir "$host" --listen 127.0.0.1:0 --registries "$data/registries.yaml" --detach
    "$kubectl" --kubeconfig "$host/kubeconfig" apply -f scripts/functests/outside.yaml >/dev/null
    arguments+=(--kubeconfig "$host/kubeconfig")
done
[ $# -eq 0 ] || arguments+=(--only "$1")
[ -z "${LABEL:-}" ] || arguments+=(--label "$LABEL")
[ -z "${UNTRIED:-}" ] || arguments+=(--untried)

status=0
cargo xtask functests "${arguments[@]}" -- --config="$data/config.json" --container-prefix="$address/kubevirt" --container-tag=devel \
    --installed-namespace=kubevirt --cdi-namespace=kubevirt --kubectl-path="$kubectl" --virtctl-path="$clients/virtctl" \
    --conn-check-ipv4-address=198.51.100.1 --conn-check-dns=outside.default.svc.cluster.local || status=$?
echo "Logs, reports and the result as JSON: $results"
exit "$status"
