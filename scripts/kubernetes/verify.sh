#!/usr/bin/env bash
# Shows that the test cluster does what Ferrovirt relies on: Services by address and by name, image volumes, extra networks
# of Multus, an aggregated API and an admission webhook that are served from the host. Leaves nothing
# behind.
#
#   scripts/kubernetes/verify.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=pki.sh
. "$here/pki.sh"

namespace=cluster-verify
host_port=18099
api_port_on_host=18443
server_pid=""

main() {
    need_root
    running kube-apiserver || fail "the cluster is not up; run scripts/kubernetes/up.sh"
    use_node 1
    # shellcheck disable=SC2034 # used by render
    authority_data=$(base64 -w0 "$pki/ca.crt")
    trap clean_up EXIT
    clean_up
    kubectl create namespace $namespace >/dev/null
    wait_for 30 kubectl -n $namespace get serviceaccount default || fail "the namespace gets no service account"
    check_services
    check_image_volume
    check_multus
    check_aggregation
    check_webhook
}

check_services() {
    render verify-service.yaml | in_namespace apply -f - >/dev/null
    in_namespace wait --for=condition=Ready pod/server --timeout=60s >/dev/null
    local ip
    ip=$(in_namespace get service server -o jsonpath='{.spec.clusterIP}')
    expect "a Service by address" server run_pod by-address get "http://$ip/"
    expect "a Service by name" server run_pod by-name get http://server/
    expect "a Service by full name" server run_pod by-full-name get "http://server.$namespace.svc.cluster.local/"
    expect "a pod to itself through its Service" server in_namespace exec server -- /testpod get http://server/
    expect "a Service from the node" server "$bin/testpod" get "http://$ip/"
    expect "a port of the node" server "$bin/testpod" get "http://$node_ip:$host_port/"
    check_other_nodes
}

# The server is on the first node.
check_other_nodes() {
    local other
    for other in $(node_numbers); do
        if [ "$other" -gt 1 ]; then
            expect "a Service from node$other" server run_pod "from-node$other" get http://server/ \
                --overrides="{\"spec\": {\"nodeName\": \"node$other\"}}"
        fi
    done
}

check_image_volume() {
    render verify-image-volume.yaml | in_namespace apply -f - >/dev/null
    expect "an image as a volume" "$(stat -c %s "$bin/testpod")" finished image-volume
}

check_multus() {
    render verify-multus.yaml | in_namespace apply -f - >/dev/null
    in_namespace wait --for=condition=Ready pod/two-networks --timeout=60s >/dev/null
    expect "a second network of Multus" net1 in_namespace get pod two-networks \
        -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}'
}

check_aggregation() {
    certificate ca verify "/CN=verify" "DNS:host-api.$namespace.svc,IP:$node_ip"
    render verify-api.yaml | kubectl apply -f - >/dev/null
    expect "an API without a server is unavailable" FailedDiscoveryCheck \
        eventually FailedDiscoveryCheck kubectl get apiservice v1.check.ferrovirt.test -o 'jsonpath={.status.conditions[0].reason}'
    "$bin/testpod" serve-api "$node_ip:$api_port_on_host" "$pki/verify.crt" "$pki/verify.key" "$pki/front-proxy-ca.crt" &
    server_pid=$!
    kubectl wait --for=condition=Available apiservice/v1.check.ferrovirt.test --timeout=60s >/dev/null
    expect "an API served from the host" '"proxy":"front-proxy-client","user":"admin"' \
        kubectl get --raw /apis/check.ferrovirt.test/v1/whoami
}

check_webhook() {
    render verify-webhook.yaml | kubectl apply -f - >/dev/null
    expect "a webhook served from the host" "denied by the webhook on the host" \
        eventually "denied by" in_namespace create configmap refused
}

in_namespace() {
    kubectl -n $namespace "$@"
}

# expect WHAT TEXT COMMAND...: the command's output contains the text.
expect() {
    local what=$1 text=$2 output
    shift 2
    output=$("$@" 2>&1) || true
    if [[ $output != *"$text"* ]]; then
        in_namespace get pods -o wide >&2 || true
        fail "$what: expected '$text', got '$output'"
    fi
    echo "ok: $what"
}

# eventually TEXT COMMAND...: runs the command until its output contains the text, and prints the last output.
eventually() {
    local text=$1 output deadline=$((SECONDS + 60))
    shift
    while output=$("$@" 2>&1) || true; [[ $output != *"$text"* && $SECONDS -lt $deadline ]]; do
        sleep 0.5
    done
    printf '%s\n' "$output"
}

# run_pod NAME COMMAND ARG [OPTION...]: prints the output of a pod that runs the test image once.
run_pod() {
    local name=$1 command=$2 argument=$3
    shift 3
    in_namespace run "$name" --image="$test_image" --image-pull-policy=Never --restart=Never "$@" -- "$command" "$argument" >/dev/null
    finished "$name"
}

finished() {
    in_namespace wait --for=jsonpath='{.status.phase}'=Succeeded "pod/$1" --timeout=60s >/dev/null || true
    in_namespace logs "$1"
}

clean_up() {
    if [ -n "$server_pid" ]; then
        kill "$server_pid" 2>/dev/null || true
    fi
    kubectl delete apiservice v1.check.ferrovirt.test --ignore-not-found >/dev/null
    kubectl delete validatingwebhookconfiguration cluster-verify --ignore-not-found >/dev/null
    kubectl delete namespace $namespace --ignore-not-found >/dev/null
    rm -f "$pki"/verify.{crt,key}
}

main "$@"
