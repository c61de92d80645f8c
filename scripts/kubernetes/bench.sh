#!/usr/bin/env bash
# Measures many VMs embedded, then the same on the test cluster, and prints both beside what KubeVirt publishes. Runs under make,
# which sets the directories.
#
#   scripts/kubernetes/bench.sh [NUMBER_OF_VMS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

vms=${1:-20}
images=${FERROVIRT_IMAGES:-$(dirname "$cache")/images}
density=(cargo run --quiet --release --package ferrovirt-e2e --bin density -- --vms "$vms")
embedded=$(mktemp)
values=$(mktemp)
trap 'rm -f "$embedded" "$values"; "$here/down.sh"' EXIT
# Twenty VMs and the components have to fit on a node with two processors.
echo 'configuration: { developerConfiguration: { cpuAllocationRatio: 20 } }' >"$values"

"${density[@]}" --json "$embedded"
"$here/up.sh"
"$here/load-image.sh" "$images"/ferrovirt.tar "$images"/ferrovirt-launcher.tar "$FERROVIRT_GUEST_DIR"/demo-guest.tar
export KUBECONFIG=$kubeconfig
"$FERROVIRT_BIN_DIR/ferrovirt" install --use-emulation --kubelet-root "$kubelet_root" --values "$values"
FERROVIRT_TARGET=kubernetes "${density[@]}" --beside "$embedded"
