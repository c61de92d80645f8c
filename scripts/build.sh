#!/usr/bin/env bash
# Builds the programs as they ship into $FERROVIRT_BIN_DIR.
#
# ferrovirt and its shim need no C library at run time: crt-static makes them static-pie. The flag is given to the last
# crate only (cargo rustc), so the crates below are compiled once for them and for the launcher, which links libvirt.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
bin="${FERROVIRT_BIN_DIR:-$CARGO_TARGET_DIR/dist}"
mkdir -p "$bin"

static() {
    cargo rustc --release --package "$1" --bin "$2" -- -C target-feature=+crt-static
    # A later plain build may put a dynamic program at the same place, so the static one is kept apart.
    install -C -m 0755 "$CARGO_TARGET_DIR/release/$2" "$bin/$2"
}

static ferrovirt-cli ferrovirt
static ferrovirt-node-lite ferrovirt-shim
cargo build --release --package ferrovirt-launcher
install -C -m 0755 "$CARGO_TARGET_DIR/release/ferrovirt-launcher" "$bin/ferrovirt-launcher"

# A dynamic loader in the program's headers means that the promise above was broken.
for program in ferrovirt ferrovirt-shim; do
    if ldd "$bin/$program" 2>&1 | grep -q '=>'; then
        echo "build: $bin/$program needs shared libraries:" >&2
        ldd "$bin/$program" >&2
        exit 1
    fi
done
