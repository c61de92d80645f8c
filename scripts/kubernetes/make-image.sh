#!/usr/bin/env bash
# Makes an image of one static program, as an archive that containerd imports. Needs neither a builder nor a registry.
#
#   scripts/kubernetes/make-image.sh NAME:TAG PROGRAM ARCHIVE
set -euo pipefail
[ $# -eq 3 ] || { sed -n 's/^# *\(scripts.*\)/usage: \1/p' "$0" >&2; exit 2; }
reference=$1 program=$2 archive=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
entry=/$(basename "$program")
install -D -m 0755 "$program" "$work/root$entry"
# Without times and owners of this machine: the same program makes the same image.
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/root" -cf "$work/layer.tar" .
digest=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
case $(uname -m) in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) architecture=$(uname -m) ;;
esac
cat >"$work/config.json" <<JSON
{
  "architecture": "$architecture",
  "os": "linux",
  "config": { "Entrypoint": ["$entry"] },
  "rootfs": { "type": "layers", "diff_ids": ["sha256:$digest"] }
}
JSON
cat >"$work/manifest.json" <<JSON
[{ "Config": "config.json", "RepoTags": ["$reference"], "Layers": ["layer.tar"] }]
JSON
tar -C "$work" -cf "$archive" manifest.json config.json layer.tar
