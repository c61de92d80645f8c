#!/usr/bin/env bash
# `make up`: from a clone to a running machine. Every step is skipped when its result is already there.
# Runs under make, which sets the directories.
set -euo pipefail
cd "$(dirname "$0")/.."

ferrovirt="$PREFIX/bin/ferrovirt"
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo --preserve-env=FERROVIRT_DATA_DIR)

step() { printf '==> [%s/6] %s\n' "$1" "$2"; }

step 1 "System packages"
make --no-print-directory deps

step 2 "Building (the first time takes some minutes)"
make --no-print-directory build

step 3 "Demo guest image"
make --no-print-directory image

step 4 "Installing ferrovirt and its helpers into $PREFIX/bin"
"${sudo[@]}" install -d "$PREFIX/bin"
for program in ferrovirt ferrovirt-shim ferrovirt-launcher ferrovirt-virtiofsd; do
    "${sudo[@]}" install -C -m 0755 "$FERROVIRT_BIN_DIR/$program" "$PREFIX/bin/$program"
done
# The names of upstream's client; a virtctl that somebody else put there stays.
for name in virtctl kubectl-virt; do
    [ -e "$PREFIX/bin/$name" ] || "${sudo[@]}" ln -s ferrovirt "$PREFIX/bin/$name"
done

step 5 "Starting ferrovirt"
if status=$("${sudo[@]}" "$ferrovirt" status 2>/dev/null); then
    echo "already running"
    pid=$(sed -n 's/.*(pid \([0-9]*\)).*/\1/p' <<<"$status")
    if [ -n "$pid" ] && [[ "$("${sudo[@]}" readlink "/proc/$pid/exe")" == *' (deleted)' ]]; then
        echo "It is an earlier build. To switch to this one, with all machines left running:"
        echo "  kill $pid && ferrovirt up --detach"
    fi
else
    "${sudo[@]}" "$ferrovirt" up --detach
fi

step 6 "Booting the machine 'demo'"
"${sudo[@]}" "$ferrovirt" image import "$FERROVIRT_GUEST_DIR/demo-guest.tar"
"${sudo[@]}" "$ferrovirt" image import "$FERROVIRT_GUEST_DIR/demo-container.tar"
"${sudo[@]}" "$ferrovirt" apply -f examples/demo.yaml --wait

as_root="${sudo[*]:+sudo }"
[ "$(command -v ferrovirt)" = "$ferrovirt" ] || echo "(put $PREFIX/bin first in your PATH)"
cat <<TEXT

A virtual machine is running. Try:

  ${as_root}ferrovirt get vms
  ${as_root}ferrovirt console demo      # log in as demo, password ferrovirt; leave with ^]
  ${as_root}ferrovirt stop demo
  ${as_root}kubectl --kubeconfig ${FERROVIRT_DATA_DIR:-/var/lib/ferrovirt}/kubeconfig get vms

'make down' stops everything.
TEXT
