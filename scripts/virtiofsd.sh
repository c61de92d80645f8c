#!/usr/bin/env bash
# Builds the daemon that serves directories to guests, and prints where it is. Debian 12 has only the one of old that wants to be root.
#
# It is a program of the virtio-fs project, taken as it is from the crates registry with the versions that its own lock file names. Built
# once per version and kept in the cache.
set -euo pipefail

VERSION=1.14.0

cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}"
program="$cache/virtiofsd/$VERSION/virtiofsd"

if [ ! -x "$program" ]; then
    mkdir -p "$cache/virtiofsd"
    # Two builds at once would do the same work twice.
    exec 9>"$cache/virtiofsd/lock"
    flock 9
fi
if [ ! -x "$program" ]; then
    work=$(mktemp -d "$cache/virtiofsd/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # Optimizing across all crates would double the time and saves nothing that a guest notices.
    CARGO_TARGET_DIR="$work/target" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_INCREMENTAL=0 \
        cargo install --quiet --locked --no-track --root "$work" --version "$VERSION" virtiofsd >&2
    mkdir -p "${program%/*}"
    # In one step: what is there is whole.
    mv "$work/bin/virtiofsd" "$program.new"
    mv "$program.new" "$program"
fi
echo "$program"
