#!/usr/bin/env bash
# The end-to-end cases on a real Kubernetes: brings the test cluster up, installs Ferrovirt, runs the suites with real guests in
# real pods, uninstalls, looks for what was left, and removes the cluster. Runs under make, which sets the directories.
#
#   scripts/kubernetes/e2e.sh [SUITE...]      default: those that make sense on a cluster
#
# FERROVIRT_KEEP_CLUSTER=1 leaves the cluster up, for the next run and for a look at what failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

# `hosts` is about `ferrovirt up` itself.
suites=(first_vm power kubectl refusals cluster crashes)
images=${FERROVIRT_IMAGES:-$(dirname "$cache")/images}
results=()
failed=0

main() {
    [ $# -eq 0 ] || suites=("$@")
    export KUBECONFIG=$kubeconfig PATH=$bin:$PATH
    [ -n "${FERROVIRT_KEEP_CLUSTER:-}" ] || trap '"$here/down.sh"' EXIT
    step up "$here/up.sh"
    step images "$here/load-image.sh" "$images"/ferrovirt.tar "$images"/ferrovirt-launcher.tar "$FERROVIRT_GUEST_DIR"/demo-guest.tar
    objects >"$state/objects-before"
    step preflight "$FERROVIRT_BIN_DIR/ferrovirt" preflight
    step install install_chart
    if [ "$failed" -eq 0 ]; then
        local suite
        for suite in "${suites[@]}"; do
            step "$suite" env FERROVIRT_TARGET=kubernetes cargo test --package ferrovirt-e2e --test "$suite"
        done
    fi
    step uninstall uninstall_chart
    step leftovers nothing_left
    printf '%s\n' "${results[@]}"
    return "$failed"
}

# step NAME COMMAND...: says how it went and how long it took, and goes on.
step() {
    local name=$1 start=$SECONDS result=ok
    shift
    echo "--- $name"
    "$@" || { result=FAILED; failed=1; }
    results+=("$(printf '  %-10s %s, %s s' "$name" "$result" "$((SECONDS - start))")")
}

helm() {
    "$bin/helm" --namespace kubevirt "$@"
}

chart=$here/../../charts/ferrovirt
# Two processes of each component, so that one can take over from the other.
values=(--set configuration.developerConfiguration.useEmulation=true --set "kubeletRoot=$kubelet_root")

install_chart() {
    helm install ferrovirt "$chart" --create-namespace "${values[@]}" >/dev/null 2>"$state/helm.log" || { cat "$state/helm.log"; return 1; }
    rolled_out
}

rolled_out() {
    local part
    for part in deployment/virt-api deployment/virt-controller daemonset/virt-handler; do
        kubectl --namespace kubevirt rollout status "$part" --timeout=180s || return 1
    done
    kubectl wait --for=condition=Available apiservice/v1.subresources.kubevirt.io --timeout=60s
}

uninstall_chart() {
    # Helm keeps definitions, and with them all VMs; a test leaves neither.
    kubectl delete virtualmachines,virtualmachineinstances --all --all-namespaces --timeout=180s &&
        helm uninstall ferrovirt --wait --timeout 180s 2>/dev/null &&
        "$FERROVIRT_BIN_DIR/ferrovirt" uninstall --all
}

# Every object that an installation or a suite could have made, and what nodes say about machines.
objects() {
    kubectl get --no-headers -o name \
        namespaces,crds,apiservices,clusterroles,clusterrolebindings,priorityclasses
    kubectl get --no-headers -o name \
        validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings
    kubectl get --all-namespaces --no-headers -o custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name \
        roles,rolebindings,serviceaccounts,configmaps,secrets,services,pods,leases
    # Not their devices: a kubelet remembers a device plugin for five minutes.
    kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.labels}{"\n"}{.metadata.annotations}{"\n"}{end}' |
        tr ',{}' '\n' | grep kubevirt || true
}

nothing_left() {
    wait_for 60 same_objects || { echo "left on the cluster:"; left_objects; return 1; }
}

same_objects() {
    objects >"$state/objects-after"
    [ -z "$(left_objects)" ]
}

left_objects() {
    comm -13 <(sort "$state/objects-before") <(sort "$state/objects-after")
}

main "$@"
