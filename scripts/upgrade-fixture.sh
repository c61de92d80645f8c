#!/usr/bin/env bash
# Writes crates/cli/testdata/store-COMMIT.tar.gz: what a host of an older version stored, for the tests of upgrades. With root.
#
#   upgrade-fixture.sh COMMIT
#
# Kept is the store, without keys and disks. Fixtures are not made anew: what a version of then stored is what counts.
set -euo pipefail
cd "$(dirname "$0")/.."

commit="$(git rev-parse --verify --quiet "${1:-}^{commit}")" || {
    echo "upgrade-fixture: say which commit's programs to use" >&2
    exit 2
}
cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}"
programs="$cache/versus/$commit"
guest="${FERROVIRT_GUEST_DIR:-$cache/guest}/demo-guest.tar"
short="$(git rev-parse --short=7 "$commit")"
out="crates/cli/testdata/store-$short.tar.gz"
# The path is stored, too.
data=/tmp/fv-fixture

if [[ ! -x "$programs/ferrovirt" ]]; then
    work="$(mktemp -d)"
    trap 'git worktree remove --force "$work/tree" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
    git worktree add --quiet --detach "$work/tree" "$commit"
    CARGO_TARGET_DIR="$cache/versus/target" FERROVIRT_BIN_DIR="$programs.part" "$work/tree/scripts/build.sh"
    mv "$programs.part" "$programs"
fi

if [[ -e "$data" ]]; then
    echo "upgrade-fixture: $data is there already" >&2
    exit 1
fi
ferrovirt() { "$programs/ferrovirt" "$@"; }
kubectl() { command kubectl --kubeconfig "$data/kubeconfig" "$@"; }
end() {
    ferrovirt down --data-dir "$data" >/dev/null 2>&1 || true
    rm -rf "$data" "$data.backup"
}
trap end EXIT

ferrovirt up --detach --data-dir "$data" --listen 127.0.0.1:0 --node-name fixture
ferrovirt image import --data-dir "$data" "$guest"
# Of this kind is made more once it is served.
kubectl apply -f scripts/upgrade-fixture.yaml
kubectl wait --for condition=Established crd/fences.shop.test
kubectl create -f - <<YAML
apiVersion: shop.test/v1
kind: Fence
metadata: { name: tall, namespace: shop }
spec: { height: 3 }
YAML
# An administrator's own rule in a role of ours.
kubectl patch clusterrole kubevirt.io:view --type=json \
    -p '[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["shop.test"], "resources": ["fences"], "verbs": ["get"]}}]'
kubectl wait -n shop --for jsonpath='{.status.phase}'=Bound pvc/data --timeout 120s
kubectl wait -n shop --for jsonpath='{.status.phase}'=Succeeded dv/blank --timeout 120s
kubectl wait -n shop --for condition=Ready vm/web --timeout 300s

ferrovirt backup --data-dir "$data" "$data.backup"
mkdir -p "$(dirname "$out")"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$data.backup" -c store | gzip -9n >"$out"
ls -l "$out"
