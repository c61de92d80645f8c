#!/usr/bin/env bash
# The conformance tests of Kubernetes' own e2e suite that apply to an embedded host, against a host of their own.
#
#   scripts/conformance.sh [PATTERN]      only tests whose name matches the pattern (a regular expression)
#
# Needs Go (the suite is built once, which takes some minutes) and the programs in $FERROVIRT_BIN_DIR. Results go to
# $FERROVIRT_CACHE/conformance. The exit code says whether all tests that ran passed.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}
bin=${FERROVIRT_BIN_DIR:?set it to the directory of the programs, or use make conformance}
results=$cache/conformance
suite=$(scripts/kubernetes/build.sh e2e)/e2e.test

data=$(mktemp -d /tmp/ferrovirt-conformance.XXXXXX)
stop() {
    "$bin/ferrovirt" down --data-dir "$data" >/dev/null 2>&1 || true
    rm -rf "$data"
}
trap stop EXIT
"$bin/ferrovirt" up --data-dir "$data" --listen 127.0.0.1:0 --detach
rm -rf "$results" && mkdir -p "$results"

arguments=(--suite "$suite" --kubeconfig "$data/kubeconfig" --results "$results" --shards "${SHARDS:-4}")
[ $# -eq 0 ] || arguments+=(--only "$1")
status=0
cargo xtask conformance "${arguments[@]}" || status=$?
echo "Logs, and the result as JSON: $results"
exit "$status"
