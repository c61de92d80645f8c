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
suites=(first_vm power kubectl refusals crashes)
images=${FERROVIRT_IMAGES:-$(dirname "$cache")/images}
results=()
failed=0

main() {
    [ $# -eq 0 ] || suites=("$@")
    export KUBECONFIG=$kubeconfig
    [ -n "${FERROVIRT_KEEP_CLUSTER:-}" ] || trap '"$here/down.sh"' EXIT
    step up "$here/up.sh"
    step images "$here/load-image.sh" "$images"/ferrovirt.tar "$images"/ferrovirt-launcher.tar "$FERROVIRT_GUEST_DIR"/demo-guest.tar
    objects >"$state/objects-before"
    step install "$FERROVIRT_BIN_DIR/ferrovirt" install --use-emulation --kubelet-root "$kubelet_root"
    if [ "$failed" -eq 0 ]; then
        local suite
        for suite in "${suites[@]}"; do
            step "$suite" env FERROVIRT_TARGET=kubernetes cargo test --package ferrovirt-e2e --test "$suite"
        done
    fi
    step uninstall "$FERROVIRT_BIN_DIR/ferrovirt" uninstall --all
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

# Every object that an installation or a suite could have made, and what nodes say about machines.
objects() {
    kubectl get --no-headers -o name \
        namespaces,crds,apiservices,clusterroles,clusterrolebindings,priorityclasses
    kubectl get --no-headers -o name \
        validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings
    kubectl get --all-namespaces --no-headers -o custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name \
        roles,rolebindings,serviceaccounts,configmaps,secrets,services,pods,leases
    kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.labels}{"\n"}{.status.capacity}{"\n"}{end}' | tr ',{}' '\n' |
        grep -E 'kubevirt' || true
}

nothing_left() {
    wait_for 60 same_objects || { diff "$state/objects-before" "$state/objects-after" | grep '^>'; return 1; }
}

same_objects() {
    objects >"$state/objects-after"
    ! diff "$state/objects-before" "$state/objects-after" | grep -q '^>'
}

main "$@"
