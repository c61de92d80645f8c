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

# `hosts` is about `ferrovirt up` itself, `debian` about its guest, and `examples` about images of a registry.
suites=(attacks first_vm power kubectl refusals services networks virtctl disks cluster hypervisors features crashes nodes)
images=${FERROVIRT_IMAGES:-$(dirname "$cache")/images}
repo=$(cd "$here/../.." && pwd)
chart=$repo/charts/ferrovirt
# Two processes of each component, so that one can take over from the other.
values=(--set configuration.developerConfiguration.useEmulation=true --set "kubeletRoot=$kubelet_root"
    --set 'configuration.hypervisors[0].name=qemu-kvm' --set 'configuration.hypervisors[1].name=lxc')
results=()
failed=0
programs=

main() {
    [ $# -eq 0 ] || suites=("$@")
    export KUBECONFIG=$kubeconfig PATH=$bin:$PATH
    # Also if this is stopped in the middle.
    [ -n "${FERROVIRT_KEEP_CLUSTER:-}" ] || trap '"$here/down.sh" >/dev/null' EXIT
    step compile compile
    # What a run that was killed half-way has left.
    [ -n "${FERROVIRT_KEEP_CLUSTER:-}" ] || step clean "$here/down.sh"
    step up "$here/up.sh"
    step images load_images
    objects >"$state/objects-before"
    step preflight "$FERROVIRT_BIN_DIR/ferrovirt" preflight
    step upgrade upgrade_chart
    if [ "$failed" -eq 0 ]; then
        local suite
        for suite in "${suites[@]}"; do
            [ "$suite" != nodes ] || step second-node second_node
            step "$suite" run_suite "$suite"
            # What a suite that failed has left would fail all others.
            kubectl delete virtualmachines,virtualmachineinstances --all --timeout=120s >/dev/null || failed=1
        done
    fi
    step uninstall uninstall_chart
    step leftovers nothing_left
    step command-line command_line
    if [ -z "${FERROVIRT_KEEP_CLUSTER:-}" ]; then
        step down "$here/down.sh"
        step machine machine_is_clean
    fi
    printf '%s\n' "${results[@]}"
    return "$failed"
}

# step NAME COMMAND...: says how it went and how long it took, and goes on. What a step that failed said last is said once more
# at the end, which may be all that somebody sees of a run.
step() {
    local name=$1 start=$SECONDS result=ok said
    shift
    echo "--- $name"
    said=$(mktemp)
    # Not in a pipe, which would run the command in a shell of its own and lose what it sets.
    "$@" > >(tee "$said") 2>&1 || { result=FAILED; failed=1; }
    results+=("$(printf '  %-12s %s, %s s' "$name" "$result" "$((SECONDS - start))")")
    # Until tee has written all of it; not for its end, as a process that the step left may hold it open.
    [ "$result" = ok ] || sleep 1
    [ "$result" = ok ] || results+=("$(grep -v '^ *[0-9]*: \|^ *at ' "$said" | tail -n 12 | sed 's/^/      /')")
    rm -f "$said"
}

# For the whole workspace, as `make test` does: cargo would compile much of it anew for one package. Notes where the programs are.
compile() {
    local tests=()
    mapfile -t tests < <(printf -- '--test\n%s\n' "${suites[@]}")
    programs=$(cd "$repo" && cargo test --workspace --no-run --message-format=json "${tests[@]}" |
        sed -n 's/.*#ferrovirt-e2e@.*"kind":\["test"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1=\2/p')
    [ "$(wc -l <<<"$programs")" -ge "${#suites[@]}" ] || { printf 'not all suites were compiled:\n%s\n' "$programs"; return 1; }
}

run_suite() {
    (cd "$repo/e2e" && FERROVIRT_TARGET=kubernetes "$(sed -n "s/^$1=//p" <<<"$programs")")
}

helm() {
    "$bin/helm" --namespace kubevirt "$@" 2>"$state/helm.log" >/dev/null || { cat "$state/helm.log"; return 1; }
}

# An upgrade starts from the chart and the images of the commit that was built before this one. A cache that has none of these
# has only this one's; then too every component is replaced.
load_images() {
    local commit from=$images
    old_chart=$chart
    commit=$(cat "$images/previous/commit" 2>/dev/null || true)
    if [ -n "$commit" ] && git -C "$repo" cat-file -e "$commit^{commit}" 2>/dev/null; then
        from=$images/previous old_chart=$state/previous/charts/ferrovirt
        mkdir -p "$state/previous"
        # The chart's definitions are a link into the other directory.
        git -C "$repo" archive "$commit" charts crates/api/crds | tar -C "$state/previous" -xf - || return 1
    fi
    echo "upgrading from ${commit:-this commit}"
    use_node 1
    local name old_version
    old_version=$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' "$old_chart/Chart.yaml")
    for name in ferrovirt ferrovirt-launcher; do
        import_image "$from/$name.tar" || return 1
        ctr images tag --force "docker.io/library/$name:$old_version" "docker.io/library/$name:previous" >/dev/null 2>&1 || return 1
    done
    "$here/load-image.sh" "$images"/ferrovirt.tar "$images"/ferrovirt-launcher{,-lxc}.tar "$FERROVIRT_GUEST_DIR"/demo-{guest,container}.tar
}

# Installs what was before, starts a VM, and upgrades: everything is replaced but the VM.
upgrade_chart() {
    helm install ferrovirt "$old_chart" --create-namespace "${values[@]}" --set images.ferrovirt=ferrovirt:previous \
        --set images.launcher=ferrovirt-launcher:previous && rolled_out || return 1
    local before after
    kubectl create -f "$here/config/upgrade-vm.yaml" && kubectl wait --for=condition=Ready vm/stays --timeout=180s || return 1
    before=$(instance) || return 1
    helm upgrade ferrovirt "$chart" "${values[@]}" --timeout 180s && rolled_out || return 1
    wait_for 60 all_replaced || { echo "a component was not replaced"; kubectl --namespace kubevirt get pods -o wide; return 1; }
    kubectl wait --for=condition=Ready vm/stays --timeout=60s || return 1
    after=$(instance)
    if [ "$before" != "$after" ]; then
        printf 'the VM was restarted: before\n%s\nafter\n%s\n' "$before" "$after"
        return 1
    fi
    kubectl delete vm/stays --timeout=120s
}

# Those that are replaced take a moment to end.
all_replaced() {
    local images
    images=$(kubectl --namespace kubevirt get pods -l '!job-name' -o jsonpath='{.items[*].spec.containers[*].image}') &&
        [[ $images != *previous* ]]
}

# What is another one after a restart: the VMI and its phases, the pod and its container, the process.
instance() {
    kubectl get vmi/stays -o jsonpath='{.metadata.uid} {.status.phaseTransitionTimestamps}{"\n"}' &&
        kubectl get pods -l vm.kubevirt.io/name=stays -o jsonpath='{.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}{"\n"}' &&
        processes_of "$(kubectl get pods -l vm.kubevirt.io/name=stays -o jsonpath='{.items[*].metadata.uid}')"
}

# processes_of POD_UID: its QEMU. Others on this machine may run one of the same name.
processes_of() {
    local pid found=1
    for pid in $(pgrep -f 'qemu-system.*guest=default_stays'); do
        ! grep -q "$1" "/proc/$pid/cgroup" 2>/dev/null || { echo "$pid" && found=0; }
    done
    return "$found"
}

rolled_out() {
    local part
    for part in deployment/virt-api deployment/virt-controller daemonset/virt-handler; do
        kubectl --namespace kubevirt rollout status "$part" --timeout=180s || return 1
    done
    kubectl wait --for=condition=Available apiservice/v1.subresources.kubevirt.io --timeout=60s
}

# A node that tests may lose.
second_node() {
    "$here/up.sh" 2 && load_images && rolled_out
}

uninstall_chart() {
    # Helm keeps definitions, and with them all VMs; a test leaves neither.
    kubectl delete virtualmachines,virtualmachineinstances --all --all-namespaces --timeout=180s &&
        helm uninstall ferrovirt --wait --timeout 180s &&
        "$FERROVIRT_BIN_DIR/ferrovirt" uninstall --all
}

# The same without Helm.
command_line() {
    local ferrovirt=$FERROVIRT_BIN_DIR/ferrovirt
    "$ferrovirt" install --use-emulation --kubelet-root "$kubelet_root" --replicas 1 &&
        "$ferrovirt" upgrade --replicas 2 &&
        [ "$(kubectl --namespace kubevirt get deployment/virt-api -o jsonpath='{.spec.replicas}')" = 2 ] &&
        "$ferrovirt" uninstall --all &&
        nothing_left
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

# What down.sh must not leave, by the names that are the cluster's alone. What was told to end may still be at it.
machine_is_clean() {
    wait_for 30 machine_has_nothing || { printf 'left on the machine:\n'; left_on_machine; return 1; }
}

machine_has_nothing() {
    [ -z "$(left_on_machine)" ]
}

left_on_machine() {
    pgrep -af "$state/" || true
    grep -F "$state" /proc/self/mountinfo || true
    ip -o link | grep -E ' k8t(n?[0-9]+)[@:]' || true
    ip route | grep -E '10\.7[789]\.' || true
    nft list tables | grep -E 'kube-proxy|ferrovirt-test-cluster' || true
    iptables-save 2>/dev/null | grep -F "$pod_network" || true
    losetup --list --noheadings --output NAME,BACK-FILE | grep -F "$state/" || true
    find /sys/fs/cgroup -maxdepth 2 -name "$cgroup" 2>/dev/null || true
    ls -d "$state" 2>/dev/null || true
}

same_objects() {
    objects >"$state/objects-after"
    [ -z "$(left_objects)" ]
}

left_objects() {
    comm -13 <(sort "$state/objects-before") <(sort "$state/objects-after")
}

main "$@"
