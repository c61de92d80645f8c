#!/usr/bin/env bash
# `make up`: from a clone to a running machine. Every step is skipped when its result is already there.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${FERROVIRT_CACHE:=$HOME/.cache/ferrovirt}"
: "${CARGO_TARGET_DIR:=$FERROVIRT_CACHE/target}"
: "${FERROVIRT_BIN_DIR:=$CARGO_TARGET_DIR/dist}"
: "${FERROVIRT_GUEST_IMAGE:=$FERROVIRT_CACHE/guest/demo.qcow2}"
: "${PREFIX:=/usr/local}"
export FERROVIRT_CACHE CARGO_TARGET_DIR FERROVIRT_BIN_DIR FERROVIRT_GUEST_IMAGE

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
ferrovirt="$PREFIX/bin/ferrovirt"

step() { printf '==> [%s/6] %s\n' "$1" "$2"; }

step 1 "System packages"
scripts/install-deps.sh

step 2 "Building (the first time takes some minutes)"
scripts/build.sh

step 3 "Demo guest image: $FERROVIRT_GUEST_IMAGE"
scripts/guest-image.sh "$FERROVIRT_GUEST_IMAGE"

step 4 "Installing ferrovirt, ferrovirt-shim and ferrovirt-launcher into $PREFIX/bin"
"${sudo[@]}" install -d "$PREFIX/bin"
for program in ferrovirt ferrovirt-shim ferrovirt-launcher; do
    "${sudo[@]}" install -C -m 0755 "$FERROVIRT_BIN_DIR/$program" "$PREFIX/bin/$program"
done

step 5 "Starting ferrovirt"
if "${sudo[@]}" "$ferrovirt" status >/dev/null 2>&1; then
    echo "already running"
else
    "${sudo[@]}" "$ferrovirt" up --detach
fi

step 6 "Booting the machine 'demo'"
"${sudo[@]}" "$ferrovirt" image import "$FERROVIRT_GUEST_IMAGE"
"${sudo[@]}" "$ferrovirt" apply -f examples/demo.yaml --wait

as_root="${sudo[*]:+sudo }"
command -v ferrovirt >/dev/null || echo "(add $PREFIX/bin to your PATH first)"
cat <<TEXT

A virtual machine is running. Try:

  ${as_root}ferrovirt get vms
  ${as_root}ferrovirt console demo          # log in, leave with ^]
  ${as_root}ferrovirt stop demo
  ${as_root}kubectl --kubeconfig /var/lib/ferrovirt/kubeconfig get vms,vmis,pods

'make down' stops everything.
TEXT
