#!/usr/bin/env bash
# Builds the programs of an older commit beside this tree's and lets the benchmarks run with both by turns.
#
#   bench-versus.sh COMMIT [arguments of bench_versus]
set -euo pipefail
cd "$(dirname "$0")/.."

commit="$(git rev-parse --verify --quiet "${1:-}^{commit}")" || {
    echo "bench-versus: say which commit to compare with: make bench-versus BASE=commit" >&2
    exit 2
}
shift
cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
export FERROVIRT_BIN_DIR="${FERROVIRT_BIN_DIR:-$CARGO_TARGET_DIR/dist}"
base="$cache/versus/$commit"

if [[ ! -x "$base/ferrovirt" ]]; then
    work="$(mktemp -d)"
    trap 'git worktree remove --force "$work/tree" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
    git worktree add --quiet --detach "$work/tree" "$commit"
    # A directory of its own: cargo takes what another tree compiled for fresh if its files are older.
    CARGO_TARGET_DIR="$cache/versus/target" FERROVIRT_BIN_DIR="$base.part" "$work/tree/scripts/build.sh"
    mv "$base.part" "$base"
fi

cargo build --release --package ferrovirt-e2e --bins
"$CARGO_TARGET_DIR/release/bench_versus" --base "$base" "$@"
