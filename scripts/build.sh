#!/usr/bin/env bash
# Builds the programs as they ship into $FERROVIRT_BIN_DIR.
#
# ferrovirt and its shim need no C library at run time: crt-static makes them static-pie. The flag reaches only these
# two crates, and all programs are built in one go, so that every crate below is compiled once for them and for the
# launcher, which links libvirt (docs/decisions/0005-static-by-last-crate.md).
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
bin="${FERROVIRT_BIN_DIR:-$CARGO_TARGET_DIR/dist}"
programs=(ferrovirt ferrovirt-shim ferrovirt-launcher)

RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/rustc-static.sh" \
    cargo build --release "${programs[@]/#/--bin=}" \
    --package ferrovirt-cli --package ferrovirt-node-lite --package ferrovirt-launcher

# A plain `cargo build --release` puts dynamic programs at the same place, so what ships is kept apart.
mkdir -p "$bin"
for program in "${programs[@]}"; do
    install -C -m 0755 "$CARGO_TARGET_DIR/release/$program" "$bin/$program"
done

install -C -m 0755 "$(scripts/virtiofsd.sh)" "$bin/ferrovirt-virtiofsd"

for program in ferrovirt ferrovirt-shim; do
    if ldd "$bin/$program" 2>&1 | grep -q '=>'; then
        echo "build: $bin/$program needs shared libraries:" >&2
        ldd "$bin/$program" >&2
        exit 1
    fi
done
