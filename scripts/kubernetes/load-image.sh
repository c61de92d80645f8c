#!/usr/bin/env bash
# Loads image archives into the test cluster. Those in OCI layout can also be pulled, so that any imagePullPolicy works; those in
# Docker layout are for imagePullPolicy Never and IfNotPresent.
#
#   scripts/kubernetes/load-image.sh ARCHIVE...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

need_root
[ $# -gt 0 ] || { sed -n 's/^# *\(scripts.*\)/usage: \1/p' "$0" >&2; exit 2; }
running node1/containerd || fail "the cluster is not up; run scripts/kubernetes/up.sh"
for number in $(node_numbers); do
    # One that was lost in a test takes nothing any more.
    running "node$number/containerd" || continue
    use_node "$number"
    for archive in "$@"; do
        import_image "$archive"
    done
done
for archive in "$@"; do
    # In one step: the registry looks at its directory with every request.
    cp "$archive" "$registry/.partial" && mv "$registry/.partial" "$registry/$(basename "$archive")"
done
